//! Which of a site's modules fit a root: the host's libraries may take the place of the root's own if these have the same names, and no interface
//! that the host's lack.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use skiff_cdi::Library;
use skiff_spec::device::{DeviceSupport, ModuleSupport, ReplacedLibrary};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::plan::inside;

use crate::glibc;
use crate::mounts::{by_number, open_in_root};

/// More files of one name no root has.
const MOST: usize = 16;

/// The modules whose libraries are used.
#[derive(Default)]
pub(crate) struct FittingModules<'a> {
    /// Names of these modules.
    pub names: Vec<&'a str>,
    /// The host's library and the root's file that it is mounted on.
    pub replaced: Vec<(PathBuf, PathBuf)>,
    /// Where the files of the others would be mounted.
    pub without: Vec<&'a str>,
}

/// The modules that fit this root, whose linker has this cache.
///
/// # Errors
/// One that must fit does not.
pub(crate) fn fitting<'a>(
    root: BorrowedFd<'_>,
    devices: &'a DeviceSupport,
    cache: &[u8],
) -> Result<FittingModules<'a>> {
    let (mut fitting, mut why_not) = (FittingModules::default(), None);
    let known = skiff_cdi::listed(cache);
    let mut has_mpi = false;
    for module in &devices.modules {
        let found = replacements(root, module, &known);
        if found.is_err() {
            fitting.without.extend(module.mounts.iter().map(String::as_str));
        }
        match found {
            Ok(replaced) => {
                fitting.names.push(&module.name);
                fitting.replaced.extend(replaced);
                has_mpi |= module.is_mpi;
            }
            Err(e) if module.must_fit => return Err(e.about(&format!("module {}", module.name))),
            Err(e) if module.is_mpi => {
                why_not.get_or_insert_with(|| e.about(&format!("module {}", module.name)));
            }
            Err(_) => {}
        }
    }
    match why_not {
        Some(why) if devices.needs_mpi && !has_mpi => Err(why),
        _ => Ok(fitting),
    }
}

/// The libraries of a module, and the root's files in whose place they are used.
fn replacements(
    root: BorrowedFd<'_>,
    module: &ModuleSupport,
    known: &[Library],
) -> Result<Vec<(PathBuf, PathBuf)>> {
    if let Some(needed) = &module.glibc {
        glibc::check(root, needed)?;
    }
    let mut replaced = vec![];
    for library in &module.replaces {
        // The linker takes the first; those of other directories may be used by their paths.
        let own = known.iter().filter(|known| known.name == library.name).take(MOST);
        let own: BTreeSet<PathBuf> = own.filter_map(|one| real_path(root, Path::new(&one.path))).collect();
        if own.is_empty() {
            return Err(missing(library, known));
        }
        let of_module = Path::new(inside::MODULES).join(&module.name).join(&library.name);
        for file in own {
            check_interface(&file, &library.host)?;
            replaced.push((of_module.clone(), file));
        }
    }
    Ok(replaced)
}

/// Says what the root has in the place of a library.
fn missing(library: &ReplacedLibrary, known: &[Library]) -> Fault {
    let stem = |name: &str| name.split(".so").next().unwrap_or_default().to_owned();
    let like: Vec<&str> =
        known.iter().map(|one| &*one.name).filter(|name| stem(name) == stem(&library.name)).collect();
    let found = match like.as_slice() {
        [] => "none that its linker knows".into(),
        like => like.join(", "),
    };
    Fault::new(format!("{}: the image has {found}", library.name)).hint(
        "the host's library takes the place of one with the same name: use an image whose MPI has it (and run ldconfig in it), or --mpi image",
    )
}

/// The root's file behind links.
fn real_path(root: BorrowedFd<'_>, path: &Path) -> Option<PathBuf> {
    let file = open_in_root(root, path, OFlags::PATH).ok()?;
    let shown = |fd: BorrowedFd<'_>| std::fs::read_link(by_number(fd)).ok();
    let (file, top) = (shown(file.as_fd())?, shown(root)?);
    Some(Path::new("/").join(file.strip_prefix(top).ok()?))
}

/// Compares files' names as libtool makes them, `libx.so.MAJOR.AGE.REVISION`: one of a greater age has all interfaces of the lesser.
fn check_interface(own: &Path, host: &str) -> Result<()> {
    let age = |name: Option<&OsStr>| -> Option<u32> {
        let (_, version) = name?.to_str()?.rsplit_once(".so.")?;
        version.split('.').nth(1)?.parse().ok()
    };
    let (own_name, host_name) = (own.file_name(), Path::new(host).file_name());
    match (age(own_name), age(host_name)) {
        (Some(own_age), Some(host_age)) if own_age > host_age => Err(Fault::new(format!(
            "{host}: older than the image's {}, which may have functions that it lacks",
            own.display()
        ))
        .hint("use --mpi image, or an image with the host's version or an older one")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_libraries_are_no_replacement() {
        let check = |own: &str, host: &str| check_interface(Path::new(own), host).is_ok();
        assert!(check("/usr/lib/libmpi.so.40.30.4", "/opt/libmpi.so.40.30.2"));
        assert!(check("/usr/lib/libmpi.so.40.20.3", "/opt/libmpi.so.40.30.4"));
        assert!(!check("/usr/lib/libmpi.so.40.40.0", "/opt/libmpi.so.40.30.4"));
        assert!(check("/usr/lib/libmpi.so", "/opt/libmpi.so.12"), "nothing is known");
        assert!(check("/usr/lib/libmpi.so.x.y", "/opt/libmpi.so.12.1"));
    }

    #[test]
    fn what_an_image_has_instead_is_named() {
        let library = |name: &str| Library { name: name.into(), path: String::new(), behind: false };
        let known = [library("libmpi.so.12"), library("libm.so.6"), library("libmpifort.so.12")];
        let wanted = ReplacedLibrary { name: "libmpi.so.40".into(), host: String::new() };
        assert_eq!(missing(&wanted, &known).message, "libmpi.so.40: the image has libmpi.so.12");
        assert_eq!(missing(&wanted, &[]).message, "libmpi.so.40: the image has none that its linker knows");
    }
}
