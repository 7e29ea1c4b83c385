//! How far the reading of a container's files is, and whether there is room for them.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{StatVfs, fstat, fstatvfs, stat, statvfs};
use skiff_env::host_image::ReadProgress;
use skiff_output as output;
use skiff_plan::progress::PullProgress;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_store::protocol::LayerState;

/// Between two pictures of how far it is.
const PAUSE: Duration = Duration::from_millis(100);

/// Shows how far it is.
pub struct Reading {
    progress: PullProgress,
    files: [LayerState; 1],
    told: Instant,
}

impl Reading {
    /// Of so many bytes.
    pub fn new(name: &str, size: u64, quiet: bool) -> Self {
        let files = [LayerState { digest: format!("files of {name}"), size, fetched: 0, unpacked: 0 }];
        Self { progress: PullProgress::new(None, quiet), files, told: Instant::now() }
    }
}

impl ReadProgress for Reading {
    fn read(&mut self, bytes: u64) {
        let [files] = &mut self.files;
        // What has grown since it was looked at is no more than all.
        let read = bytes.min(files.size);
        (files.fetched, files.unpacked) = (read, read);
        if self.told.elapsed() >= PAUSE {
            self.told = Instant::now();
            self.progress.layers(&self.files);
        }
    }

    fn end(&mut self) {
        self.progress.end();
    }
}

/// Refuses what there is no room for. The files go into a file in `room` first. The store copies that, and makes the image of the copy.
pub fn check_room(bytes: u64, (room, name): (BorrowedFd<'_>, &str), store: &Path) -> Result<()> {
    let free = free(&fstatvfs(room).context(|| name)?);
    let image = image_size(bytes);
    let of_store = statvfs(store).ok();
    let device = fstat(room).context(|| name)?.st_dev;
    let is_one = stat(store).is_ok_and(|store| store.st_dev == device);
    check(image.saturating_mul(if is_one { 3 } else { 1 }), free, name).map_err(|e| {
        e.hint("make room there, or name another directory for temporary files: TMPDIR=DIR skiff commit ...")
    })?;
    match of_store {
        Some(of_store) if !is_one => {
            check(image.saturating_mul(2), self::free(&of_store), &store.display().to_string())
                .map_err(|e| e.hint("`skiff rmi IMAGE` gives up what you need no longer"))
        }
        // What cannot be looked at is the store's to complain of.
        _ => Ok(()),
    }
}

fn free(file_system: &StatVfs) -> u64 {
    file_system.f_bavail.saturating_mul(file_system.f_frsize)
}

/// Of files of so many bytes: a part of a block is kept for the end of each, and what is said about them.
fn image_size(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 10)
}

fn check(needed: u64, free: u64, place: &str) -> Result<()> {
    if needed <= free {
        return Ok(());
    }
    let [needed, free] = [needed, free].map(output::size);
    Err(Fault::new(format!("commit: {place}: about {needed} needed, {free} free")))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_there_is_no_room_for_is_refused_before_anything_is_read() {
        let dir = std::fs::File::open(std::env::temp_dir()).expect("there");
        let store = std::env::temp_dir();
        check_room(1, (dir.as_fd(), "here"), &store).expect("room for a byte");
        let fault = check_room(1 << 60, (dir.as_fd(), "here"), &store).expect_err("more than any disk has");
        assert!(fault.message.starts_with("commit: here: about 3"), "{fault}");
        assert!(fault.hint.contains("TMPDIR"), "{}", fault.hint);
    }
}
