//! Removing a tree by descriptors: nothing outside it can be reached, whatever links lie in it.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use crate::error::Result;
use crate::tree::{DirStack, dir_flags, names};
use skiff_sys::{SystemContext, SystemError};

/// Removes `name` in `dir` with all that is in it; nothing there is no error.
pub(crate) fn remove_all(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(SystemError::new("remove", name, errno).into()),
    }
    let top = rustix::fs::openat(dir, name, dir_flags(), Mode::empty()).on("open", name)?;
    open_up(top.as_fd());
    let mut stack = DirStack::new(top.as_fd())?;
    let mut pending = vec![(Vec::new(), names(stack.dir()).on("read the directory", name)?.into_iter())];
    while let Some((own, level)) = pending.last_mut() {
        let Some(child) = level.next() else {
            let own = std::mem::take(own);
            pending.pop();
            if !pending.is_empty() {
                stack.leave()?;
                rustix::fs::unlinkat(stack.dir(), &own[..], AtFlags::REMOVEDIR)
                    .on("remove", stack.child(&own))?;
            }
            continue;
        };
        match rustix::fs::unlinkat(stack.dir(), &child[..], AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(SystemError::new("remove", stack.child(&child), errno).into()),
        }
        stack.enter(&child)?.on("open", &child)?;
        open_up(stack.dir());
        pending.push((child, names(stack.dir()).on("read the directory", stack.path())?.into_iter()));
    }
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR).on("remove", name)?)
}

/// Lets the owner change a directory that is about to go. Where that fails, the removal itself tells.
fn open_up(dir: BorrowedFd<'_>) {
    let (Ok(()) | Err(_)) = rustix::fs::fchmod(dir, Mode::RWXU);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_tree_goes_and_what_its_links_lead_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        std::fs::write(out.path().join("secret"), "x").unwrap();
        let mut path = dir.path().join("top");
        for level in 0..300 {
            path.push(format!("d{level}"));
        }
        std::fs::create_dir_all(&path).unwrap();
        for at in [&path, &dir.path().join("top"), dir.path()] {
            std::os::unix::fs::symlink(out.path(), at.join("way")).unwrap();
        }
        let fd = std::fs::File::open(dir.path()).unwrap();
        for name in ["top", "way", "nothing"] {
            remove_all(fd.as_fd(), name.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(out.path().join("secret").exists());
    }
}
