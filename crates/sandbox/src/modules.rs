//! Which of a site's modules fit a root: the host's libraries may take the place of the root's own if these have the same names, and no interface
//! that the host's lack.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use skiff_cdi::{ElfFacts, Library, SymbolVersions};
use skiff_spec::device::{
    Compatibility, DeviceSupport, LibraryRole, ModuleLibrary, ModuleSupport, NeededGlibc,
};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::named_option::NamedOption;
use skiff_spec::plan::inside;

use crate::glibc;
use crate::mounts::{by_number, open_in_root};

/// What an MPI's library is called: by Open MPI and MPICH, by Debian's MPICH, and by all for the ABI of MPI 5.
const OF_MPI: [&str; 3] = ["libmpi", "libmpich", "libmpi_abi"];
/// More files of one name no root has.
const MOST: usize = 16;

/// The modules that are used.
#[derive(Default)]
pub(crate) struct FittingModules<'a> {
    /// Names of these modules.
    pub names: Vec<&'a str>,
    /// Libraries of these modules, as the linker is told of them.
    pub libraries: Vec<Library>,
    /// The host's library and the root's file that it is mounted on.
    pub replaced: Vec<(PathBuf, PathBuf)>,
    /// Where the files and libraries of the others would be mounted, and libraries in whose place the root's own are used.
    pub without: Vec<PathBuf>,
}

/// The modules that fit this root, whose linker has this cache.
///
/// # Errors
/// One that must fit does not.
pub(crate) fn select<'a>(
    root: BorrowedFd<'_>,
    devices: &'a DeviceSupport,
    cache: &[u8],
) -> Result<FittingModules<'a>> {
    let (mut fitting, mut why_not) = (FittingModules::default(), None);
    // An earlier start may have left its own in a root that is kept.
    let is_own = |library: &Library| !Path::new(&library.path).starts_with(inside::MODULES);
    let known: Vec<Library> = skiff_cdi::listed(cache).into_iter().filter(is_own).collect();
    let mut has_mpi = false;
    for module in &devices.modules {
        match FittingLibraries::of(root, module, &known) {
            Ok(found) => {
                fitting.names.push(&module.name);
                fitting.libraries.extend(found.libraries);
                // By its `RUNPATH` a library of the module's would find the host's all the same.
                fitting.without.extend(found.unused);
                fitting.replaced.extend(found.replaced);
                has_mpi |= module.is_mpi;
            }
            Err(e) if module.must_fit => return Err(e.about(&format!("module {}", module.name))),
            Err(e) => {
                let libraries = module
                    .libraries
                    .iter()
                    .map(|library| inside::module_library(&module.name, &library.name));
                fitting.without.extend(module.mounts.iter().cloned().chain(libraries).map(PathBuf::from));
                // One that the image has the libraries for says more than one for another MPI.
                let is_near = has_replaced(module, &known);
                if module.is_mpi && why_not.as_ref().is_none_or(|(_, was_near)| is_near && !was_near) {
                    why_not = Some((e.about(&format!("module {}", module.name)), is_near));
                }
            }
        }
    }
    match why_not {
        Some((why, _)) if devices.needs_mpi && !has_mpi => Err(why),
        _ => Ok(fitting),
    }
}

/// The libraries of a module, compared to those of a root.
#[derive(Default)]
struct FittingLibraries {
    libraries: Vec<Library>,
    /// Where those would be mounted in whose place the root's own are used.
    unused: Vec<PathBuf>,
    replaced: Vec<(PathBuf, PathBuf)>,
}

impl FittingLibraries {
    fn of(root: BorrowedFd<'_>, module: &ModuleSupport, known: &[Library]) -> Result<Self> {
        let mut found = Self::default();
        let mut glibc = module.glibc.clone();
        for library in &module.libraries {
            let path = inside::module_library(&module.name, &library.name);
            // The linker takes the first; those of other directories may be used by their paths.
            let own = known.iter().filter(|known| known.name == library.name);
            let own = own.take(if library.role == LibraryRole::Replaces { MOST } else { 1 });
            let own: BTreeSet<PathBuf> =
                own.filter_map(|one| real_path(root, Path::new(&one.path))).collect();
            if own.is_empty() && library.role == LibraryRole::Replaces {
                return Err(missing(library, known));
            }
            let mut is_unused = false;
            for file in own {
                is_unused |= is_unused_for(library, &RootLibrary::read(root, &file)?, module.compatibility)?;
                if library.role == LibraryRole::Replaces {
                    found.replaced.push((path.clone().into(), file));
                }
            }
            if is_unused {
                found.unused.push(path.into());
                continue;
            }
            if let Some(version) = library.glibc
                && glibc.as_ref().is_none_or(|known| known.version < version)
            {
                glibc = Some(NeededGlibc { version, library: library.host.clone(), optional: false });
            }
            found.libraries.push(Library { name: library.name.clone(), path });
        }
        glibc.map_or(Ok(()), |needed| glibc::check(root, &needed))?;
        Ok(found)
    }
}

/// A library that the root has.
struct RootLibrary<'a> {
    file: &'a Path,
    versions: SymbolVersions,
}

impl<'a> RootLibrary<'a> {
    fn read(root: BorrowedFd<'_>, file: &'a Path) -> Result<Self> {
        let facts = glibc::open(root, file)?.and_then(|opened| ElfFacts::of(&opened));
        Ok(Self { file, versions: facts.unwrap_or_default().versions })
    }

    /// Refuses the host's if both names do not tell the same minor number.
    fn check_same_version(&self, library: &ModuleLibrary) -> Result<()> {
        let (own, host) = (age(self.file), age(Path::new(&library.host)));
        if own.is_some() && own == host {
            return Ok(());
        }
        let why = match (own, host) {
            (Some(_), Some(_)) => "not of the minor version of the image's",
            _ => "not known to be of the minor version of the image's",
        };
        let message = format!("{}: {why} {}", library.host, self.file.display());
        let (newer, none) = (NamedOption::Mpi.with("host:full"), NamedOption::Mpi.with("image"));
        Err(Fault::new(message).hint(format!("{newer} takes a newer one too; {none} goes without")))
    }

    /// What it has that the host's lacks.
    fn newer_than(&self, library: &ModuleLibrary) -> Option<String> {
        let host = SymbolVersions::of(library.versions.iter().map(String::as_str));
        if let Some(version) = host.lacks(&self.versions) {
            return Some(format!("{}, with {version}", self.file.display()));
        }
        match (age(self.file), age(Path::new(&library.host))) {
            (Some(own), Some(host)) if own > host => Some(self.file.display().to_string()),
            _ => None,
        }
    }
}

/// Whether the host's library is not used: the root's own is the one to take.
///
/// # Errors
/// It must not be the newer one, and is.
fn is_unused_for(
    library: &ModuleLibrary,
    own: &RootLibrary<'_>,
    compatibility: Compatibility,
) -> Result<bool> {
    let newer = own.newer_than(library);
    match (library.role, newer) {
        (LibraryRole::Replaces, _) if compatibility == Compatibility::Major => Ok(false),
        (LibraryRole::Replaces, Some(newer)) => Err(older(library, &newer).hint(format!(
            "use an image with the host's version or an older one, try it all the same ({}), or go without: {}",
            NamedOption::Mpi.with("host:major"),
            NamedOption::Mpi.with("image")
        ))),
        (LibraryRole::Replaces, None) if compatibility == Compatibility::Strict => {
            own.check_same_version(library).map(|()| false)
        }
        (LibraryRole::Named, Some(newer)) => Err(older(library, &newer)
            .hint("use an image with the host's version or an older one, or go without this module")),
        (LibraryRole::Replaces | LibraryRole::Named, None) => Ok(false),
        (LibraryRole::Needed, newer) => Ok(newer.is_some()),
        (LibraryRole::Compilers, newer) => {
            let host = SymbolVersions::of(library.versions.iter().map(String::as_str));
            Ok(newer.is_some() || own.versions.lacks(&host).is_none())
        }
    }
}

fn older(library: &ModuleLibrary, newer: &str) -> Fault {
    Fault::new(format!(
        "{}: older than the image's {newer}: programs may want functions that it lacks",
        library.host
    ))
}

/// Whether a root has all libraries whose place a module's take.
fn has_replaced(module: &ModuleSupport, known: &[Library]) -> bool {
    let mut replaced = module.libraries.iter().filter(|library| library.role == LibraryRole::Replaces);
    replaced.all(|library| known.iter().any(|known| known.name == library.name))
}

/// The age in a file's name as libtool makes them, `libx.so.MAJOR.AGE.REVISION`: one of a greater age has all interfaces of the lesser.
fn age(file: &Path) -> Option<u32> {
    let (_, version) = file.file_name()?.to_str()?.rsplit_once(".so.")?;
    version.split('.').nth(1)?.parse().ok()
}

/// Says what the root has in the place of a library.
fn missing(library: &ModuleLibrary, known: &[Library]) -> Fault {
    let stem = |name: &str| name.split(".so").next().unwrap_or_default().to_owned();
    let is_like = |name: &&str| {
        let (own, wanted) = (stem(name), stem(&library.name));
        own == wanted || [own, wanted].iter().all(|stem| OF_MPI.contains(&&**stem))
    };
    let like: Vec<&str> = known.iter().map(|one| &*one.name).filter(is_like).collect();
    let found = match like.as_slice() {
        [] => "none that its linker knows".into(),
        like => like.join(", "),
    };
    Fault::new(format!("{}: the image has {found}", library.name)).hint(format!(
        "the host's library takes the place of one with the same name: use an image whose MPI has it (and run ldconfig in it), or {}",
        NamedOption::Mpi.with("image")
    ))
}

/// The root's file behind links.
fn real_path(root: BorrowedFd<'_>, path: &Path) -> Option<PathBuf> {
    let file = open_in_root(root, path, OFlags::PATH).ok()?;
    let shown = |fd: BorrowedFd<'_>| std::fs::read_link(by_number(fd)).ok();
    let (file, top) = (shown(file.as_fd())?, shown(root)?);
    Some(Path::new("/").join(file.strip_prefix(top).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(role: LibraryRole, file: &str, versions: &str) -> ModuleLibrary {
        let versions = versions.split_whitespace().map(String::from).collect();
        ModuleLibrary { name: "libx.so.1".into(), host: file.into(), role, glibc: None, versions }
    }

    #[test]
    fn older_libraries_are_no_replacement() {
        let is_taken = |role, own: &str, host_file: &str| {
            let own = RootLibrary { file: Path::new(own), versions: SymbolVersions::default() };
            is_unused_for(&host(role, host_file, ""), &own, Compatibility::Full).map(|unused| !unused)
        };
        for role in [LibraryRole::Replaces, LibraryRole::Named] {
            let check = |own: &str, host: &str| is_taken(role, own, host).unwrap_or(false);
            assert!(check("/usr/lib/libmpi.so.40.30.4", "/opt/libmpi.so.40.30.2"));
            assert!(check("/usr/lib/libmpi.so.40.20.3", "/opt/libmpi.so.40.30.4"));
            assert!(!check("/usr/lib/libmpi.so.40.40.0", "/opt/libmpi.so.40.30.4"));
            assert!(check("/usr/lib/libmpi.so", "/opt/libmpi.so.12"), "nothing is known");
            assert!(check("/usr/lib/libmpi.so.x.y", "/opt/libmpi.so.12.1"));
        }
        let needed = |own: &str, host: &str| is_taken(LibraryRole::Needed, own, host).ok();
        assert_eq!(needed("/usr/lib/libz.so.1.3.1", "/usr/lib/libz.so.1.2.13"), Some(false));
        assert_eq!(needed("/usr/lib/libz.so.1.2.13", "/usr/lib/libz.so.1.2.13"), Some(true));
    }

    #[test]
    fn the_newer_library_of_compilers_is_taken() {
        let is_own = |role, own: &str, versions: &str| {
            let own = RootLibrary {
                file: Path::new("/usr/lib/libx.so.1"),
                versions: SymbolVersions::of(own.split_whitespace()),
            };
            let host = host(role, "/lib/libx.so.1", versions);
            is_unused_for(&host, &own, Compatibility::Full).map_err(|e| e.message)
        };
        let (old, new) = ("CXXABI_1.3.12 GLIBCXX_3.4.28", "CXXABI_1.3.13 GLIBCXX_3.4.30");
        assert_eq!(is_own(LibraryRole::Compilers, old, new), Ok(false));
        assert_eq!(is_own(LibraryRole::Compilers, new, old), Ok(true));
        assert_eq!(is_own(LibraryRole::Compilers, new, new), Ok(true));
        assert_eq!(is_own(LibraryRole::Needed, new, new), Ok(false));
        assert_eq!(is_own(LibraryRole::Needed, new, old), Ok(true));
        let why = is_own(LibraryRole::Named, new, old).expect_err("older");
        assert_eq!(
            why,
            "/lib/libx.so.1: older than the image's /usr/lib/libx.so.1, with CXXABI_1.3.13: programs may want functions that it lacks"
        );
    }

    #[test]
    fn versions_match_as_they_are_asked_to() {
        use Compatibility::{Full, Major, Strict};
        let check = |compatibility, own: &str, host_file: &str| {
            let own = RootLibrary { file: Path::new(own), versions: SymbolVersions::default() };
            is_unused_for(&host(LibraryRole::Replaces, host_file, ""), &own, compatibility)
                .map_err(|e| e.message)
        };
        let (older, newer, unknown) = ("/x/libmpi.so.12.1.9", "/x/libmpi.so.12.4.1", "/x/libmpi.so.12");
        for (own, host_file, taken) in [
            (older, newer, &[Major, Full][..]),
            (newer, older, &[Major]),
            (older, "/y/libmpi.so.12.1.0", &[Major, Full, Strict]),
            (unknown, older, &[Major, Full]),
            (older, unknown, &[Major, Full]),
            (unknown, unknown, &[Major, Full]),
        ] {
            for compatibility in [Major, Full, Strict] {
                let found = check(compatibility, own, host_file);
                assert_eq!(found.is_ok(), taken.contains(&compatibility), "{own}, {host_file}: {found:?}");
            }
        }
        let why = check(Strict, older, newer).expect_err("newer");
        assert_eq!(why, "/x/libmpi.so.12.4.1: not of the minor version of the image's /x/libmpi.so.12.1.9");
        let why = check(Strict, newer, older).expect_err("older");
        assert!(why.contains("older than the image's"), "{why}");
        // What others need is not asked for by its version.
        let own = RootLibrary { file: Path::new(newer), versions: SymbolVersions::default() };
        assert_eq!(is_unused_for(&host(LibraryRole::Needed, older, ""), &own, Major).ok(), Some(true));
    }

    #[test]
    fn what_an_image_has_instead_is_named() {
        let library = |name: &str| Library { name: name.into(), path: String::new() };
        let known = [library("libmpi.so.12"), library("libm.so.6"), library("libmpifort.so.12")];
        let wanted = ModuleLibrary { name: "libmpi.so.40".into(), ..host(LibraryRole::Replaces, "", "") };
        assert_eq!(missing(&wanted, &known).message, "libmpi.so.40: the image has libmpi.so.12");
        let known = [library("libmpi_abi.so.0"), library("libmpich.so.12"), library("libmpifort.so.12")];
        let message = "libmpi.so.40: the image has libmpi_abi.so.0, libmpich.so.12";
        assert_eq!(missing(&wanted, &known).message, message);
        assert_eq!(missing(&wanted, &[]).message, "libmpi.so.40: the image has none that its linker knows");
    }
}
