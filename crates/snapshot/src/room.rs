//! How much a disk that is full lacks, for whoever has to make room there. What is free is asked before anything is written: after a failure some of
//! that may have been removed again.

use std::os::fd::AsFd;

use rustix::fs::fstatvfs;
use rustix::io::Errno;

use crate::error::Error;

/// What was free on a disk before something was written to it.
pub(crate) struct DiskRoom {
    free: Option<u64>,
}

impl DiskRoom {
    /// On the disk that has this file or directory.
    pub(crate) fn of(dir: impl AsFd) -> Self {
        Self { free: free_bytes(dir).ok().flatten() }
    }

    /// Adds to an error of a full disk how many bytes may be needed, if there were fewer. Where there were more, others have taken them, or it is a
    /// quota that is full.
    pub(crate) fn explain(&self, error: Error, needed: u64) -> Error {
        match (error, self.free) {
            (Error::Io(error), Some(free)) if is_full(error.source) && needed > free => {
                Error::Full { error, needed, free }
            }
            (error, _) => error,
        }
    }
}

/// Bytes that are free on the disk that has this file or directory; nothing where the disk does not know how large it is.
pub(crate) fn free_bytes(dir: impl AsFd) -> rustix::io::Result<Option<u64>> {
    let disk = fstatvfs(dir)?;
    Ok((disk.f_blocks > 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// Whether a disk, or the user's quota of it, is full.
pub(crate) fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

#[cfg(test)]
mod tests {
    use skiff_sys::SystemError;

    use super::*;

    #[test]
    fn of_a_full_disk_is_said_what_it_lacks() {
        let failed = |errno| Error::Io(SystemError::new("write to", "packs/x", errno));
        let room = DiskRoom { free: Some(300 << 20) };
        let said = |room: &DiskRoom, errno, needed| room.explain(failed(errno), needed).to_string();
        let full = room.explain(failed(Errno::NOSPC), 1200 << 20);
        let why = "cannot write to packs/x: No space left on device (os error 28)";
        assert_eq!(full.to_string(), format!("{why}: it needs up to 1.2 GiB, 300.0 MiB are free"));
        assert_eq!(full.errno(), Some(Errno::NOSPC));
        assert_eq!(full.hint(), failed(Errno::NOSPC).hint());
        // Others have taken the room, nobody knows what is free, or it is another fault.
        assert_eq!(said(&room, Errno::NOSPC, 300 << 20), why);
        assert_eq!(said(&DiskRoom { free: None }, Errno::NOSPC, 1200 << 20), why);
        assert!(!said(&room, Errno::IO, 1200 << 20).contains("free"));
    }
}
