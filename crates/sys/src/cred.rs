//! The credentials that file access is judged by, apart from those of the process.

use std::io;

/// Sets the user and group that this thread touches files as, and takes them back when dropped.
///
/// The kernel clears the file capabilities of a thread whose file-system uid leaves 0, and restores them when it comes
/// back; so the guard is also a way to be nobody for a moment.
pub struct FsIds {
    old: (u32, u32),
}

impl FsIds {
    /// Becomes `uid`/`gid` for file access.
    ///
    /// # Errors
    /// `EPERM` where the kernel refused: the call itself does not say so, hence it is asked afterwards.
    pub fn become_(uid: u32, gid: u32) -> io::Result<Self> {
        let old_gid = set_gid(gid);
        let old_uid = set_uid(uid);
        let guard = Self { old: (old_uid, old_gid) };
        if set_uid(uid) != uid || set_gid(gid) != gid {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Ok(guard)
    }
}

impl Drop for FsIds {
    fn drop(&mut self) {
        set_uid(self.old.0);
        set_gid(self.old.1);
    }
}

fn set_uid(uid: u32) -> u32 {
    // SAFETY: plain integer in and out; affects this thread only.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) as u32 }
}

fn set_gid(gid: u32) -> u32 {
    // SAFETY: plain integer in and out; affects this thread only.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) as u32 }
}
