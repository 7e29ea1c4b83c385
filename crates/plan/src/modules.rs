//! The site's modules: which are asked for, and what of them is made in a root.

use std::path::PathBuf;

use skiff_cdi::HostMount;
use skiff_modules::{
    AskedModules, ChosenModules, HostLibrary, HostLinker, ModuleCatalog, ModuleError, ModuleNeeds,
    ModuleParts, Provided, WantedModule,
};
use skiff_output as output;
use skiff_spec::config::Config;
use skiff_spec::device::{
    Compatibility, DeviceSupport, ModuleLibrary, ModuleSupport, ModuleVariable, NeededGlibc,
};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::named_option::NamedOption;
use skiff_spec::plan::inside;

use crate::device_words::{HostRequest, MODULE, request};
use crate::host_paths::HostPaths;

/// What modules bring, and the words that asked for them.
#[derive(Default)]
pub(crate) struct FoundModules {
    pub asked: Vec<String>,
    pub needs: ModuleNeeds,
    /// Whether one for MPI must fit.
    needs_mpi: bool,
    /// How the version of the host's MPI must match, if that is not left to the site.
    mpi_compatibility: Option<Compatibility>,
    /// Files that are not used, which every container might have got, and why.
    pub broken: Vec<String>,
    /// Why modules are not used that this root would have got, and whose files are sound.
    pub left_out: Vec<String>,
}

/// The directories with modules.
#[must_use]
pub fn dirs(config: &Config) -> Vec<PathBuf> {
    config.module_dirs.iter().map(PathBuf::from).collect()
}

/// Tells why modules are not used: a container that might have had them starts without.
pub fn tell_unused(problems: &[String]) {
    problems.iter().for_each(|problem| output::note(&unused(problem)));
}

/// What is told of a module that is not used.
#[must_use]
pub fn unused(problem: &str) -> String {
    format!("{problem}; containers go without this module (administrator: skiff module check)")
}

/// Tells of the broken files of this host.
pub fn tell_broken_here(config: &Config) {
    tell_unused(&ModuleCatalog::read(&dirs(config)).broken());
}

fn ours(e: ModuleError) -> Fault {
    Fault::new(e.message).hint(e.hint)
}

impl FoundModules {
    /// Modules that these words ask for, in a root over the host's or an image; over an image that is not kept from the host, also those that every
    /// container gets.
    ///
    /// # Errors
    /// One that is asked for cannot be had.
    pub fn of(words: &[String], config: &Config, (contain, is_host): (bool, bool)) -> Result<Self> {
        let (mut asked, mut names, mut mpi, mut mpi_compatibility) = (vec![], vec![], None, None);
        for word in words {
            match request(word)? {
                Some(HostRequest::Module(name)) => names.push(name),
                Some(HostRequest::Mpi { must_fit, compatibility }) => {
                    mpi = Some((Provided::Mpi, must_fit));
                    mpi_compatibility = compatibility;
                }
                Some(HostRequest::Device(_)) | None => continue,
            }
            asked.push(word.clone());
        }
        let takes_always = !is_host && !contain;
        if asked.is_empty() && !takes_always {
            return Ok(Self::default());
        }
        let catalog = ModuleCatalog::read(&dirs(config));
        // Over the host's root its MPI is there.
        let mpi = mpi.filter(|_| !is_host);
        let needs_mpi = mpi.is_some_and(|(_, must_fit)| must_fit);
        let paths = HostPaths::default();
        let has_path = &|path: &str| paths.has(path);
        let query = AskedModules { names: &names, provided: mpi, takes_always, has_path };
        let ChosenModules { wanted, mut left_out } = catalog.wanted(&query).map_err(ours)?;
        let mut needs = ModuleNeeds::of(&wanted, &HostLinker::of_host).map_err(ours)?;
        left_out.append(&mut needs.left_out);
        if needs_mpi && !needs.modules.iter().any(|parts| parts.provides.is_some()) {
            return Err(no_mpi(&wanted, left_out));
        }
        let broken = if takes_always { catalog.broken() } else { vec![] };
        let left_out = left_out.into_iter().map(|(_, why)| why.message).collect();
        Ok(Self { asked, needs, needs_mpi, mpi_compatibility, broken, left_out })
    }

    pub fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.needs.modules.is_empty() && self.left_out.is_empty()
    }

    /// Variables, as `NAME=VALUE`. Those of a module whose libraries may turn out not to fit the root say so.
    pub fn settings(&self, is_host: bool) -> Vec<String> {
        let of_module = |parts: &ModuleParts| -> Vec<String> {
            let is_plain = is_host || !has_libraries(parts);
            let setting = |(name, value): &(String, String)| match is_plain {
                true => format!("{name}={value}"),
                false => format!("{}={value}", ModuleVariable { module: &parts.name, name }.word()),
            };
            parts.variables.iter().map(setting).collect()
        };
        self.needs.modules.iter().flat_map(of_module).collect()
    }

    /// The mounts of their libraries, and what the root is told of them.
    pub fn add_libraries(&self, support: &mut DeviceSupport) -> Vec<HostMount> {
        support.needs_mpi = self.needs_mpi;
        support.modules = self.needs.modules.iter().map(|parts| self.support(parts)).collect();
        let of_module = |module: &ModuleSupport| -> Vec<HostMount> {
            let mount = |library: &ModuleLibrary| HostMount {
                host: library.host.clone(),
                inside: inside::module_library(&module.name, &library.name),
                read_only: true,
            };
            module.libraries.iter().map(mount).collect()
        };
        support.modules.iter().flat_map(of_module).collect()
    }

    fn support(&self, parts: &ModuleParts) -> ModuleSupport {
        let glibc = parts.found.of_plugins.as_ref().map(|(version, plugin)| NeededGlibc {
            version: [version.0, version.1],
            library: plugin.display().to_string(),
            optional: false,
        });
        let of_user = self.mpi_compatibility.filter(|_| parts.provides.is_some());
        ModuleSupport {
            name: parts.name.clone(),
            must_fit: self.asked.iter().any(|word| word.strip_prefix(MODULE) == Some(&parts.name)),
            is_mpi: parts.provides.is_some(),
            compatibility: of_user.unwrap_or(parts.compatibility),
            libraries: parts.found.libraries.iter().map(library).collect(),
            glibc,
            mounts: parts.mounts.iter().map(|mount| mount.inside.clone()).collect(),
        }
    }
}

/// Why the MPI that there must be cannot be used.
fn no_mpi(wanted: &[WantedModule<'_>], left_out: Vec<(String, ModuleError)>) -> Fault {
    let is_mpi = |name: &String| {
        wanted.iter().any(|wanted| wanted.module.name == *name && wanted.file.provides.is_some())
    };
    let why = left_out.into_iter().find_map(|(name, why)| is_mpi(&name).then_some(why));
    why.map_or_else(
        || Fault::new(format!("{}: no module for it can be used", NamedOption::Mpi.with("host"))),
        ours,
    )
}

fn has_libraries(parts: &ModuleParts) -> bool {
    !parts.found.libraries.is_empty() || parts.found.of_plugins.is_some()
}

fn library(library: &HostLibrary) -> ModuleLibrary {
    ModuleLibrary {
        name: library.name.clone(),
        host: library.path.display().to_string(),
        role: library.role,
        glibc: library.facts.needs.map(|version| [version.0, version.1]),
        versions: library.facts.versions.names(),
    }
}
