//! All files of the directories that a site has for them.

use std::io;
use std::path::{Path, PathBuf};

use skiff_cdi::{files_in, read_text};

use crate::ModuleError;
use crate::file::{ModuleFile, Provided, When};

/// No module's file is longer, in MiB.
const LONGEST: u64 = 1;
/// What the name of each file ends with.
const SUFFIX: &str = ".toml";

/// A file that has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteModule {
    /// What users call it: the file's name without its end.
    pub name: String,
    /// The path.
    pub path: PathBuf,
    /// What it says; or everything that is wrong with it.
    pub file: Result<ModuleFile, Vec<String>>,
}

/// All modules, by name. Of two with one name that of the later directory counts.
#[derive(Clone, Debug, Default)]
pub struct ModuleCatalog {
    /// In the order in which they are used.
    pub modules: Vec<SiteModule>,
}

/// A module that is used.
#[derive(Clone, Copy, Debug)]
pub struct WantedModule<'a> {
    /// The module.
    pub module: &'a SiteModule,
    /// What its file says.
    pub file: &'a ModuleFile,
    /// Whether somebody has asked for it by its name.
    pub is_asked: bool,
}

impl SiteModule {
    /// Reads a file; what is wrong with it is in it.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_suffix(SUFFIX).unwrap_or(&name).to_owned();
        let file = read_text(path, LONGEST)
            .map_err(|e| vec![e.to_string()])
            .and_then(|text| ModuleFile::parse(&text));
        Self { name, path: path.into(), file }
    }
}

impl ModuleCatalog {
    /// Reads the directories. One that is missing has no files.
    #[must_use]
    pub fn read(dirs: &[PathBuf]) -> Self {
        let mut modules: Vec<SiteModule> = vec![];
        for dir in dirs {
            match files_in(dir, is_module) {
                Ok(paths) => {
                    for module in paths.iter().map(|path| SiteModule::read(path)) {
                        modules.retain(|known| known.name != module.name);
                        modules.push(module);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => modules.push(SiteModule {
                    name: dir.display().to_string(),
                    path: dir.clone(),
                    file: Err(vec![e.to_string()]),
                }),
            }
        }
        modules.sort_by(|one, other| one.name.cmp(&other.name));
        Self { modules }
    }

    /// The modules that are used: those that are asked for by name or by what they provide, and those that every container gets. Of the last
    /// ones a broken one, and one that this host lacks something of, is left out.
    ///
    /// # Errors
    /// One that is asked for is not there, broken, or in conflict with another, or the host lacks what it requires.
    pub fn wanted(
        &self,
        names: &[String],
        provided: Option<(Provided, bool)>,
    ) -> Result<Vec<WantedModule<'_>>, ModuleError> {
        names.iter().try_for_each(|name| self.find(name).map(drop))?;
        let mut wanted = vec![];
        for module in &self.modules {
            let is_asked = names.contains(&module.name);
            let file = match &module.file {
                Ok(file) => file,
                Err(problems) if is_asked => return Err(broken(module, problems)),
                Err(_) => continue,
            };
            let of_provided = provided.filter(|(what, _)| file.provides == Some(*what));
            if !is_asked && of_provided.is_none() && file.when != When::Always {
                continue;
            }
            if let Some(missing) = file.requires.iter().find(|path| std::fs::metadata(path).is_err()) {
                if is_asked {
                    return Err(ModuleError::new(
                        format!("module {}: this host has no {missing}", module.name),
                        "it can be used on the hosts that have it: skiff module list",
                    ));
                }
                continue;
            }
            wanted.push(WantedModule { module, file, is_asked });
        }
        if let Some((Provided::Mpi, true)) = provided
            && !wanted.iter().any(|wanted| wanted.file.provides == Some(Provided::Mpi))
        {
            return Err(ModuleError::new(
                "--mpi host: no module of this site provides an MPI for this host",
                "administrator: describe it by a file in module_dirs (docs/modules.md)",
            ));
        }
        conflict(&wanted).map_or(Ok(()), Err)?;
        Ok(wanted)
    }

    /// Files that are not used, and the first that is wrong with each.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        let broken = |module: &SiteModule| {
            let problems = module.file.as_ref().err()?;
            Some(format!("{}: {}", module.path.display(), problems.first().map_or("broken", String::as_str)))
        };
        self.modules.iter().filter_map(broken).collect()
    }

    fn find(&self, name: &str) -> Result<&SiteModule, ModuleError> {
        self.modules.iter().find(|module| module.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.modules.iter().map(|module| module.name.as_str()).collect();
            let hint = match known.is_empty() {
                true => "administrator: modules are files NAME.toml in module_dirs".into(),
                false => format!("there are: {}", known.join(", ")),
            };
            ModuleError::new(format!("module {name}: not on this host"), hint)
        })
    }
}

fn broken(module: &SiteModule, problems: &[String]) -> ModuleError {
    let what = problems.first().map_or("broken", String::as_str);
    ModuleError::new(format!("{}: {what}", module.path.display()), "administrator: skiff module check")
}

/// The first two that exclude each other.
fn conflict(wanted: &[WantedModule<'_>]) -> Option<ModuleError> {
    let excludes =
        |one: &WantedModule<'_>, other: &WantedModule<'_>| one.file.conflicts.contains(&other.module.name);
    let pairs = wanted
        .iter()
        .enumerate()
        .flat_map(|(at, one)| wanted[at + 1..].iter().map(move |other| (one, other)));
    // What an option of its own asks for are alternatives.
    let are_alternatives = |one: &WantedModule<'_>, other: &WantedModule<'_>| {
        one.file.provides.is_some()
            && one.file.provides == other.file.provides
            && !(one.is_asked && other.is_asked)
    };
    let (one, other) = pairs
        .filter(|(one, other)| !are_alternatives(one, other))
        .find(|(one, other)| excludes(one, other) || excludes(other, one))?;
    Some(ModuleError::new(
        format!("module {}: cannot be used with module {}", one.module.name, other.module.name),
        "ask for one of them",
    ))
}

/// Whether a file is a module by its name.
fn is_module(name: &str) -> bool {
    name.strip_suffix(SUFFIX).is_some_and(|name| {
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
    })
}
