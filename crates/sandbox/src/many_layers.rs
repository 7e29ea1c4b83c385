//! Overlays of many layers. An option of the new mount interface has 255 bytes at most, and that of layers may be given only once before Linux
//! 6.7; mount(2) takes a page of options on every kernel.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MountFlags, OpenTreeFlags, UnmountFlags, mount, open_tree, unmount};

/// The longest value of an option, in bytes.
const LONGEST: usize = 255;

/// Whether the list of layers is too long for the new interface.
pub(crate) fn are_many(lower: &[String]) -> bool {
    lower.iter().map(|layer| layer.len() + 1).sum::<usize>() > LONGEST
}

/// Stacks the layers on the directory `place`; gives it as a detached mount. `options` are those beside the layers.
pub(crate) fn stack(place: &str, lower: &[String], options: &str) -> rustix::io::Result<OwnedFd> {
    let options = format!("userxattr,lowerdir={},{options}", lower.join(":"));
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    mount("skiff", place, "overlay", MountFlags::NODEV, Some(options.as_c_str()))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let made = open_tree(CWD, place, flags);
    unmount(place, UnmountFlags::DETACH)?;
    made
}
