//! Files of the host's that descriptions of devices name: whether they are there, and what the linker has to know of the libraries among them. The
//! files are foreign, and nothing of them is executed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_cdi::{ElfFacts, HostMount};
use skiff_spec::device::{DeviceLibrary, DeviceLink, DeviceSupport, NeededGlibc};
use skiff_spec::fault::{Fault, Result};

/// The description that names each path of the host's.
pub type NamingFiles = BTreeMap<String, PathBuf>;

/// What a file that is mounted says of itself, if it is a library.
///
/// # Errors
/// The file is not there.
pub fn library(host: &str, named_by: &NamingFiles) -> Result<Option<ElfFacts>> {
    std::fs::metadata(host).map_err(|e| not_there(host, named_by, &e))?;
    if !is_called_library(host) {
        return Ok(None);
    }
    // A named pipe in its place makes nobody wait. What cannot be read, as a socket, is mounted all the same.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = openat(CWD, host, flags, Mode::empty()).map(File::from);
    Ok(opened.ok().and_then(|library| ElfFacts::of(&library)))
}

/// Notes the newest glibc that a library needs.
pub fn note_glibc(support: &mut DeviceSupport, host: &str, elf: &ElfFacts) {
    let Some(version) = elf.needs.map(|needed| [needed.0, needed.1]) else { return };
    if support.glibc.as_ref().is_none_or(|known| known.version < version) {
        support.glibc = Some(NeededGlibc { version, library: host.into(), optional: false });
    }
}

/// Notes how the linker finds a library that is mounted at this path, if that is in one of its directories.
pub fn note_name(
    support: &mut DeviceSupport,
    inside: &Path,
    elf: ElfFacts,
    dirs: &BTreeSet<&Path>,
    mounts: &[HostMount],
) {
    let (Some(dir), Some(name), Some(soname)) =
        (inside.parent(), inside.file_name().and_then(|name| name.to_str()), elf.soname)
    else {
        return;
    };
    if !dirs.contains(dir) || soname.contains('/') || matches!(&*soname, "" | "." | "..") {
        return;
    }
    // As the linker's own program does: under its name, too, for those who look in the directory.
    let link = dir.join(&soname).display().to_string();
    let is_taken = mounts.iter().any(|mount| mount.inside == link)
        || support.links.iter().any(|known| known.link == link);
    if !is_taken {
        support.links.push(DeviceLink { link, target: name.into() });
    }
    support.libraries.push(DeviceLibrary { name: soname, path: inside.display().to_string() });
}

/// Whether a file is a library by its name.
fn is_called_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.ends_with(".so") || name.contains(".so.")
}

fn shown_file(path: &str, named_by: &NamingFiles) -> String {
    named_by.get(path).map_or_else(|| "a description".into(), |file| file.display().to_string())
}

fn not_there(path: &str, named_by: &NamingFiles, e: &std::io::Error) -> Fault {
    Fault::new(format!("{path}: {e}, and {} names it", shown_file(path, named_by)))
        .hint("administrator: have the vendor's tool write the file anew, as after an update of the driver")
}

/// Refuses what is not a device.
///
/// # Errors
/// The file is no device, or is not there.
pub fn check_node(host: &str, named_by: &NamingFiles) -> Result<()> {
    let kind = std::fs::metadata(host).map_err(|e| not_there(host, named_by, &e))?.file_type();
    match kind.is_char_device() || kind.is_block_device() {
        true => Ok(()),
        false => {
            let file = shown_file(host, named_by);
            Err(Fault::new(format!("{host}: not a device, and {file} names it as one"))
                .hint("skiff cdi check"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_names_its_own_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let _socket = std::os::unix::net::UnixListener::bind(path("driver.so")).expect("a socket");
        let named_by: NamingFiles = [("driver.so", "/etc/cdi/first.yaml"), ("gone", "/etc/cdi/second.yaml")]
            .map(|(name, file)| (path(name), file.into()))
            .into();
        let found =
            library(&path("driver.so"), &named_by).expect("a socket is mounted, whatever it is called");
        assert!(found.is_none());
        let why = library(&path("gone"), &named_by).expect_err("not there");
        assert!(
            why.message
                .ends_with("gone: No such file or directory (os error 2), and /etc/cdi/second.yaml names it"),
            "{why}"
        );
        let why = check_node(&path("driver.so"), &named_by).expect_err("no device");
        assert!(
            why.message.ends_with("driver.so: not a device, and /etc/cdi/first.yaml names it as one"),
            "{why}"
        );
        for (name, want) in [("/a.so", true), ("/a.so.1", true), ("/a.sock", false), ("/x.so/a", false)] {
            assert_eq!(is_called_library(name), want, "{name}");
        }
    }
}
