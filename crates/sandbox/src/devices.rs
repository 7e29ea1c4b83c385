//! What devices and modules need in a root beside mounts: links, and a cache of the linker's that has the host's libraries. All is made by
//! Skiff itself; no program of the root's is run for it, and of the root's files only bounded pieces are read.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, OFlags, fstat, readlinkat, statat, symlinkat, unlinkat};
use rustix::io::Errno;
use skiff_cdi::Library;
use skiff_spec::device::{DeviceLibrary, DeviceLink, DeviceSupport};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::plan::inside;
use skiff_sys::mount::{MountAttr, set_attributes};

use crate::glibc::{self, open};
use crate::modules::{self, FittingModules};
use crate::mounts::{bind_one, open_in_root, resolve_or_make};
use crate::rootfs_inputs::RootfsInputs;

/// No cache is longer, in bytes.
const LONGEST: u64 = 32 << 20;

/// Where the linker looks for its cache.
pub const CACHE: &str = "/etc/ld.so.cache";

/// Which of a plan's modules fit this root, on which nothing is mounted yet.
pub fn select_modules<'a>(root: BorrowedFd<'_>, devices: &'a DeviceSupport) -> Result<FittingModules<'a>> {
    if devices.modules.is_empty() {
        return Ok(FittingModules::default());
    }
    modules::select(root, devices, &read(root, Path::new(CACHE))?.unwrap_or_default())
}

/// Makes it all, if a device or a module was asked for. What is to be mounted besides, and where: the linker's cache, and the host's libraries over
/// those of the root that they replace.
pub fn make(
    root: BorrowedFd<'_>,
    inputs: &RootfsInputs<'_>,
    fitting: FittingModules<'_>,
) -> Result<Vec<(OwnedFd, PathBuf)>> {
    let devices = &inputs.plan.devices;
    let unfit = match &devices.glibc {
        Some(needed) => match glibc::check(root, needed) {
            Err(why) if needed.optional => Some(why.message),
            fits => fits.map(|()| None)?,
        },
        None => None,
    };
    for link in &devices.links {
        make_link(root, inputs, link).map_err(|e| e.about(&format!("link {}", link.link)))?;
    }
    let mut mounts = vec![];
    if let Some(why) = &unfit {
        mounts
            .push((inputs.bytes_with("drivers.unfit", why.as_bytes(), 0o444)?, inside::UNFIT_DRIVERS.into()));
    }
    if !devices.modules.is_empty() {
        let used: String = fitting.names.iter().map(|name| format!("{name}\n")).collect();
        mounts.push((inputs.bytes_with("modules", used.as_bytes(), 0o444)?, inside::USED_MODULES.into()));
    }
    let library =
        |library: &DeviceLibrary| Library { name: library.name.clone(), path: library.path.clone() };
    let drivers = devices.libraries.iter().filter(|_| unfit.is_none()).map(library);
    let libraries: Vec<Library> = drivers.chain(fitting.libraries).collect();
    if libraries.is_empty() {
        return read_only(mounts);
    }
    let cache = skiff_cdi::merged(read(root, Path::new(CACHE))?.as_deref(), &libraries);
    mounts.push((inputs.bytes_with("ld.so.cache", &cache, 0o644)?, CACHE.into()));
    let mut mounts = read_only(mounts)?;
    for (file, target) in fitting.replaced {
        let file = open_in_root(root, &file, OFlags::PATH).context(|| file.display().to_string())?;
        let mount = bind_one(file.as_fd()).context(|| target.display().to_string())?;
        mounts.push((mount, target));
    }
    Ok(mounts)
}

/// These files as mounts that nobody can write to.
fn read_only(files: Vec<(OwnedFd, PathBuf)>) -> Result<Vec<(OwnedFd, PathBuf)>> {
    let mount = |(file, target): (OwnedFd, PathBuf)| {
        let about = || target.display().to_string();
        let mount = bind_one(file.as_fd()).context(about)?;
        set_attributes(mount.as_fd(), MountAttr::RDONLY, false).context(about)?;
        Ok((mount, target))
    };
    files.into_iter().map(mount).collect()
}

/// A file of the root's; nothing if there is none that could be it.
fn read(root: BorrowedFd<'_>, path: &Path) -> Result<Option<Vec<u8>>> {
    let Some(file) = open(root, path)? else { return Ok(None) };
    let mut bytes = vec![];
    file.take(LONGEST + 1).read_to_end(&mut bytes).context(|| path.display().to_string())?;
    // Of a part no entry would be found, and the root's libraries would be gone for the linker.
    match bytes.len() as u64 > LONGEST {
        true => Err(Fault::new(format!("{}: longer than {} MiB", path.display(), LONGEST >> 20))
            .hint("run ldconfig in the image; without devices and modules it is not read")),
        false => Ok(Some(bytes)),
    }
}

/// Makes a link, in the place of what is there.
fn make_link(root: BorrowedFd<'_>, inputs: &RootfsInputs<'_>, link: &DeviceLink) -> Result<()> {
    let path = Path::new(&link.link);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Fault::new("not a path for a link"));
    };
    let is_device = path.starts_with("/dev");
    let dir = match resolve_or_make(root, dir.strip_prefix("/").unwrap_or(dir), true) {
        // The host's own, which has such links where they are wanted.
        Err(Errno::ROFS | Errno::PERM | Errno::ACCESS) if is_device => return Ok(()),
        dir => dir.context(|| "its directory")?,
    };
    if readlinkat(&dir, name, vec![]).is_ok_and(|target| target.as_bytes() == link.target.as_bytes()) {
        return Ok(());
    }
    let device = |of: BorrowedFd<'_>| fstat(of).map(|stat| stat.st_dev).context(|| "file system");
    let own = [device(root)?, device(inputs.memory())?];
    if !own.contains(&device(dir.as_fd())?) {
        return match is_device {
            true => Ok(()),
            // The file would stay there when this root is gone.
            false => Err(Fault::new("its directory is a mount of the host's")
                .hint("mount something else there, or nothing: -v, and `mounts` in the configuration")),
        };
    }
    if let Ok(there) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        let is_dir = FileType::from_raw_mode(there.st_mode) == FileType::Directory;
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match unlinkat(&dir, name, flags) {
            // What is mounted there is what the link would lead to, or was asked for in its place.
            Err(Errno::BUSY) => return Ok(()),
            removed => removed.context(|| "what is there")?,
        }
    }
    symlinkat(&*link.target, &dir, name).context(|| "made")
}
