//! What the chosen modules bring, as one.

use std::path::Path;

use skiff_cdi::HostMount;

use crate::ModuleError;
use crate::catalog::{SiteModule, WantedModule};
use crate::file::{ModuleFile, parse_mount};
use crate::library::{HostLibrary, HostLinker};

/// A library of the host's that takes the place of the image's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Whose it is.
    pub module: String,
    /// The name that both have.
    pub name: String,
    /// The host's file, whose name says which interfaces it has.
    pub host: String,
}

/// What modules bring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleNeeds {
    /// Names of the modules.
    pub modules: Vec<String>,
    /// Variables.
    pub variables: Vec<(String, String)>,
    /// Device nodes.
    pub nodes: Vec<String>,
    /// Mounts, and whose each is.
    pub mounts: Vec<(String, HostMount)>,
    /// Libraries, and whose each is.
    pub libraries: Vec<(String, HostLibrary)>,
    /// What replaces something of the image's.
    pub replaced: Vec<Replaced>,
    /// Modules that were left out since nobody has asked for them by name, and why.
    pub left_out: Vec<(String, ModuleError)>,
}

impl ModuleNeeds {
    /// What these bring, in their order.
    ///
    /// # Errors
    /// A file that one names is not there.
    pub fn of(wanted: &[WantedModule<'_>], linker: &dyn Fn() -> HostLinker) -> Result<Self, ModuleError> {
        let mut needs = Self::default();
        let mut known = None;
        for WantedModule { module, file, is_asked } in wanted {
            let name = &module.name;
            let named: Vec<String> = file.replaces.iter().chain(&file.libraries).cloned().collect();
            let mut one = Self { modules: vec![name.clone()], ..Self::default() };
            let added = one.add_files(module, file).and_then(|()| {
                if named.is_empty() {
                    return Ok(());
                }
                let linker = known.get_or_insert_with(linker);
                one.add_libraries(linker.with_needed(&named, name)?, name, file);
                Ok(())
            });
            match added {
                Ok(()) => needs.append(one),
                // Whoever has not asked for it can start without.
                Err(e) if !is_asked => needs.left_out.push((name.clone(), e)),
                Err(e) => return Err(e),
            }
        }
        Ok(needs)
    }

    fn add_files(&mut self, module: &SiteModule, file: &ModuleFile) -> Result<(), ModuleError> {
        for (source, target, read_only) in file.mounts.iter().filter_map(|mount| parse_mount(mount)) {
            std::fs::metadata(source).map_err(|e| not_there(module, source, &e))?;
            let mount = HostMount { host: source.into(), inside: target.into(), read_only };
            self.mounts.push((module.name.clone(), mount));
        }
        for pattern in &file.devices {
            let nodes = matching(pattern);
            if nodes.is_empty() {
                return Err(not_there(module, pattern, &std::io::ErrorKind::NotFound.into()));
            }
            self.nodes.extend(nodes);
        }
        self.variables = file.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        Ok(())
    }

    fn add_libraries(&mut self, found: Vec<HostLibrary>, module: &str, file: &ModuleFile) {
        let is_replacing = |library: &HostLibrary| {
            file.replaces.iter().any(|named| *named == library.name || leads_to(named, &library.path))
        };
        self.replaced = found
            .iter()
            .filter(|library| is_replacing(library))
            .map(|library| Replaced {
                module: module.into(),
                name: library.name.clone(),
                host: library.path.display().to_string(),
            })
            .collect();
        self.libraries = found.into_iter().map(|library| (module.to_owned(), library)).collect();
    }

    fn append(&mut self, one: Self) {
        self.modules.extend(one.modules);
        for (name, value) in one.variables {
            self.variables.retain(|(known, _)| *known != name);
            self.variables.push((name, value));
        }
        self.nodes
            .extend(one.nodes.into_iter().filter(|node| !self.nodes.contains(node)).collect::<Vec<_>>());
        for mount in one.mounts {
            self.mounts.retain(|(_, known)| known.inside != mount.1.inside);
            self.mounts.push(mount);
        }
        self.libraries.extend(one.libraries);
        self.replaced.extend(one.replaced);
    }

    /// Where the files of a module are mounted.
    #[must_use]
    pub fn mounts_of(&self, module: &str) -> Vec<String> {
        let own = self.mounts.iter().filter(|(name, _)| name == module);
        own.map(|(_, mount)| mount.inside.clone()).collect()
    }
}

/// Whether this is a path of the file.
fn leads_to(path: &str, file: &Path) -> bool {
    path.starts_with('/') && std::fs::canonicalize(path).is_ok_and(|real| real == file)
}

/// The nodes that a path means, whose last part may have one `*`.
fn matching(pattern: &str) -> Vec<String> {
    let path = Path::new(pattern);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return vec![];
    };
    let Some((start, end)) = name.split_once('*') else {
        return if path.exists() { vec![pattern.into()] } else { vec![] };
    };
    let Ok(entries) = std::fs::read_dir(dir) else { return vec![] };
    let fits = |name: &String| {
        name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut nodes: Vec<String> =
        names.filter(fits).map(|name| dir.join(name).display().to_string()).collect();
    nodes.sort();
    nodes
}

fn not_there(module: &SiteModule, path: &str, e: &std::io::Error) -> ModuleError {
    ModuleError::new(
        format!("module {}: {path}: {e}", module.name),
        format!(
            "administrator: {} names it; `requires` leaves a module out where something is missing",
            module.path.display()
        ),
    )
}
