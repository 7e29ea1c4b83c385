//! The site's modules: which are asked for, and what of them is made in a root.

use std::path::PathBuf;

use skiff_cdi::HostMount;
use skiff_modules::{HostLinker, ModuleCatalog, ModuleError, ModuleNeeds, Provided, WantedModule};
use skiff_spec::config::Config;
use skiff_spec::device::{DeviceLibrary, DeviceSupport, ModuleSupport, NeededGlibc, ReplacedLibrary};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::plan::inside;

use crate::device_words::{HostRequest, MODULE, request};

/// What modules bring, and the words that asked for them.
#[derive(Default)]
pub(crate) struct FoundModules {
    pub asked: Vec<String>,
    pub needs: ModuleNeeds,
    /// Whether one for MPI must fit.
    needs_mpi: bool,
    /// Names of the modules for MPI.
    of_mpi: Vec<String>,
}

/// The directories with modules.
#[must_use]
pub fn dirs(config: &Config) -> Vec<PathBuf> {
    config.module_dirs.iter().map(PathBuf::from).collect()
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
        let (mut asked, mut names, mut mpi) = (vec![], vec![], None);
        for word in words {
            match request(word)? {
                Some(HostRequest::Module(name)) => names.push(name),
                Some(HostRequest::Mpi { must_fit }) => mpi = Some((Provided::Mpi, must_fit)),
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
        let mut wanted = catalog.wanted(&names, mpi).map_err(ours)?;
        let is_mpi = |wanted: &WantedModule<'_>| mpi.is_some() && wanted.file.provides.is_some();
        wanted.retain(|wanted| takes_always || wanted.is_asked || is_mpi(wanted));
        // Whether one fits shows too late for its variables.
        wanted.retain(|wanted| wanted.is_asked || needs_mpi || !is_mpi(wanted) || wanted.file.env.is_empty());
        let of_mpi = wanted.iter().filter(|wanted| wanted.file.provides.is_some());
        let of_mpi: Vec<String> = of_mpi.map(|wanted| wanted.module.name.clone()).collect();
        let needs = ModuleNeeds::of(&wanted, &HostLinker::of_host).map_err(ours)?;
        if needs_mpi && !needs.modules.iter().any(|name| of_mpi.contains(name)) {
            let mut left_out = needs.left_out.into_iter();
            let why = left_out.find_map(|(name, why)| of_mpi.contains(&name).then_some(why));
            return Err(why.map_or_else(|| Fault::new("--mpi host: no module for it can be used"), ours));
        }
        Ok(Self { asked, needs, needs_mpi, of_mpi })
    }

    pub fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.needs.modules.is_empty()
    }

    /// Variables, as `NAME=VALUE`.
    pub fn settings(&self) -> Vec<String> {
        self.needs.variables.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// The mounts of their libraries, and what the root is told of them.
    pub fn add_libraries(&self, support: &mut DeviceSupport) -> Vec<HostMount> {
        let mut mounts = vec![];
        for (module, library) in &self.needs.libraries {
            let path = format!("{}/{module}/{}", inside::MODULES, library.name);
            mounts.push(HostMount {
                host: library.path.display().to_string(),
                inside: path.clone(),
                read_only: true,
            });
            support.libraries.push(DeviceLibrary {
                name: library.name.clone(),
                path,
                behind: library.behind,
                module: Some(module.clone()),
            });
        }
        support.needs_mpi = self.needs_mpi;
        support.modules = self.needs.modules.iter().map(|name| self.support(name)).collect();
        mounts
    }

    fn support(&self, name: &str) -> ModuleSupport {
        let own = self.needs.libraries.iter().filter(|(module, _)| module == name);
        let newest = own
            .filter_map(|(_, library)| library.facts.needs.map(|version| (version, library)))
            .max_by_key(|(version, _)| *version);
        let glibc = newest.map(|(version, library)| NeededGlibc {
            version: [version.0, version.1],
            library: library.path.display().to_string(),
            optional: false,
        });
        let replaces = self.needs.replaced.iter().filter(|replaced| replaced.module == name);
        let replaces =
            replaces.map(|one| ReplacedLibrary { name: one.name.clone(), host: one.host.clone() }).collect();
        ModuleSupport {
            name: name.into(),
            must_fit: self.asked.iter().any(|word| word.strip_prefix(MODULE) == Some(name)),
            is_mpi: self.of_mpi.iter().any(|known| known == name),
            replaces,
            glibc,
            mounts: self.needs.mounts_of(name),
        }
    }
}
