//! All files of the directories that a site has for them.

use std::io;
use std::path::{Path, PathBuf};

use skiff_cdi::{files_in, read_text};
use skiff_spec::named_option::NamedOption;

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

/// What is asked for of a site's modules.
#[derive(Clone, Copy)]
pub struct AskedModules<'a> {
    /// Modules by their names.
    pub names: &'a [String],
    /// What an option of its own asks for, and whether it must be there.
    pub provided: Option<(Provided, bool)>,
    /// Whether it is for a container that gets what every container gets.
    pub takes_always: bool,
    /// Whether the host has a path; nothing where that could not be found out in time.
    pub has_path: &'a dyn Fn(&str) -> Option<bool>,
}

/// The modules that are used.
#[derive(Debug, Default)]
pub struct ChosenModules<'a> {
    /// Each of them, in their order.
    pub wanted: Vec<WantedModule<'a>>,
    /// Modules that were left out since nobody has asked for them by name, and why.
    pub left_out: Vec<(String, ModuleError)>,
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
            let problem = match files_in(dir, is_module) {
                Ok(found) => {
                    for module in found.paths.iter().map(|path| SiteModule::read(path)) {
                        modules.retain(|known| known.name != module.name);
                        modules.push(module);
                    }
                    found.problem
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => Some(e.to_string()),
            };
            modules.extend(problem.map(|problem| SiteModule {
                name: dir.display().to_string(),
                path: dir.clone(),
                file: Err(vec![problem]),
            }));
        }
        modules.sort_by(|one, other| one.name.cmp(&other.name));
        Self { modules }
    }

    /// The modules that are used: those that are asked for by name or by what they provide, and those that every container gets. Of the last
    /// ones a broken one, and one that this host lacks something of, is left out.
    ///
    /// # Errors
    /// One that is asked for is not there, broken, or in conflict with another, or the host lacks what it requires.
    pub fn wanted(&self, asked: &AskedModules<'_>) -> Result<ChosenModules<'_>, ModuleError> {
        asked.names.iter().try_for_each(|name| self.find(name).map(drop))?;
        let mut chosen = ChosenModules::default();
        for module in &self.modules {
            let is_asked = asked.names.contains(&module.name);
            let file = match &module.file {
                Ok(file) => file,
                Err(problems) if is_asked => return Err(broken(module, problems)),
                Err(_) => continue,
            };
            let of_provided = asked.provided.filter(|(what, _)| file.provides == Some(*what));
            let is_always = asked.takes_always && file.when == When::Always;
            if !is_asked && of_provided.is_none() && !is_always {
                continue;
            }
            match (missing(module, file, asked.has_path), is_asked) {
                (None, _) => chosen.wanted.push(WantedModule { module, file, is_asked }),
                (Some(Missing::NotHere(why) | Missing::Unknown(why)), true) => return Err(why),
                // That host is not meant.
                (Some(Missing::NotHere(_)), false) => {}
                (Some(Missing::Unknown(why)), false) => chosen.left_out.push((module.name.clone(), why)),
            }
        }
        if let Some((Provided::Mpi, true)) = asked.provided {
            self.check_mpi(&chosen)?;
        }
        conflict(&chosen.wanted).map_or(Ok(()), Err)?;
        Ok(chosen)
    }

    /// Refuses a choice without an MPI, where there must be one.
    fn check_mpi(&self, chosen: &ChosenModules<'_>) -> Result<(), ModuleError> {
        if chosen.wanted.iter().any(|wanted| wanted.file.provides == Some(Provided::Mpi)) {
            return Ok(());
        }
        let none = format!(
            "{}: no module of this site provides an MPI for this host",
            NamedOption::Mpi.with("host")
        );
        let unknown = chosen.left_out.iter().find(|(name, _)| {
            self.find(name).is_ok_and(|module| {
                module.file.as_ref().is_ok_and(|file| file.provides == Some(Provided::Mpi))
            })
        });
        Err(match (unknown, self.broken().first()) {
            (Some((_, why)), _) => why.clone(),
            // Nobody knows what a broken one provides.
            (None, Some(broken)) => {
                ModuleError::new(format!("{none}; not used: {broken}"), "administrator: skiff module check")
            }
            (None, None) => ModuleError::new(
                none,
                "administrator: describe it by a file in module_dirs (docs/modules.md)",
            ),
        })
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

/// Why a module cannot be used on this host.
enum Missing {
    /// The host does not have what it requires.
    NotHere(ModuleError),
    /// Whether the host has it could not be found out.
    Unknown(ModuleError),
}

fn missing(
    module: &SiteModule,
    file: &ModuleFile,
    has_path: &dyn Fn(&str) -> Option<bool>,
) -> Option<Missing> {
    file.requires.iter().find_map(|path| match has_path(path) {
        Some(true) => None,
        Some(false) => Some(Missing::NotHere(ModuleError::new(
            format!("module {}: this host has no {path}", module.name),
            "use a host that has it, or go without this module",
        ))),
        None => Some(Missing::Unknown(ModuleError::new(
            format!("module {}: {path}: its file server has not answered in time", module.name),
            format!("administrator: ls {path}; {} requires it", module.path.display()),
        ))),
    })
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
