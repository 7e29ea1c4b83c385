//! What the chosen modules bring.

use std::path::Path;

use skiff_cdi::HostMount;
use skiff_spec::device::Compatibility;

use crate::ModuleError;
use crate::catalog::{SiteModule, WantedModule};
use crate::file::{ModuleFile, Provided, parse_mount};
use crate::library::{FoundLibraries, HostLinker};

/// What a module brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleParts {
    /// Name of the module.
    pub name: String,
    /// What an option of its own asks for.
    pub provides: Option<Provided>,
    /// How the versions of libraries that take the place of others must match.
    pub compatibility: Compatibility,
    /// Variables.
    pub variables: Vec<(String, String)>,
    /// Device nodes.
    pub nodes: Vec<String>,
    /// Mounts.
    pub mounts: Vec<HostMount>,
    /// Libraries.
    pub found: FoundLibraries,
}

/// What modules bring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleNeeds {
    /// Each of them, in their order.
    pub modules: Vec<ModuleParts>,
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
            let parts = ModuleParts::of(module, file).and_then(|parts| {
                let found = match file.has_libraries() {
                    true => known.get_or_insert_with(linker).of_module(file, &module.name)?,
                    false => FoundLibraries::default(),
                };
                Ok(ModuleParts { found, ..parts })
            });
            match parts {
                Ok(parts) => needs.modules.push(parts),
                // Whoever has not asked for it can start without.
                Err(e) if !is_asked => needs.left_out.push((module.name.clone(), e)),
                Err(e) => return Err(e),
            }
        }
        Ok(needs)
    }

    /// All mounts. Of two at one place that of the later module counts.
    #[must_use]
    pub fn mounts(&self) -> Vec<HostMount> {
        let mut mounts: Vec<HostMount> = vec![];
        for mount in self.modules.iter().flat_map(|parts| &parts.mounts) {
            mounts.retain(|known| known.inside != mount.inside);
            mounts.push(mount.clone());
        }
        mounts
    }

    /// All device nodes, each once.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        let mut nodes: Vec<String> = vec![];
        for node in self.modules.iter().flat_map(|parts| &parts.nodes) {
            if !nodes.contains(node) {
                nodes.push(node.clone());
            }
        }
        nodes
    }
}

impl ModuleParts {
    /// What it brings, without its libraries.
    fn of(module: &SiteModule, file: &ModuleFile) -> Result<Self, ModuleError> {
        let mut parts = Self {
            name: module.name.clone(),
            provides: file.provides,
            compatibility: file.compatibility,
            variables: file.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            ..Self::default()
        };
        for (source, target, read_only) in file.mounts.iter().filter_map(|mount| parse_mount(mount)) {
            std::fs::metadata(source).map_err(|e| not_there(module, source, &e))?;
            parts.mounts.push(HostMount { host: source.into(), inside: target.into(), read_only });
        }
        for dir in &file.plugins {
            std::fs::read_dir(dir).map_err(|e| not_there(module, dir, &e))?;
            let is_shown =
                |mount: &HostMount| mount.host == mount.inside && Path::new(dir).starts_with(&mount.host);
            if !parts.mounts.iter().any(is_shown) {
                parts.mounts.push(HostMount { host: dir.clone(), inside: dir.clone(), read_only: true });
            }
        }
        for pattern in &file.devices {
            let nodes = matching(pattern);
            if nodes.is_empty() {
                return Err(not_there(module, pattern, &std::io::ErrorKind::NotFound.into()));
            }
            parts.nodes.extend(nodes);
        }
        Ok(parts)
    }
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
