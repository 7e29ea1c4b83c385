//! How often users have failed to show that they can have an image that is there (`proof`): who fails often waits.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat, renameat};
use skiff_sys::clock::now;

use super::{Store, unique};
use crate::error::{Error, Result};
use skiff_sys::SystemContext;

/// So many failures within this time are forgiven: a registry's password that has changed costs a few.
const FORGIVEN: usize = 10;
const WITHIN: Duration = Duration::from_secs(60 * 60);
/// From this length on, in bytes, a list is cut; its entries are the seconds when each happened, eight bytes each.
const LONG: usize = 4096;
const ENTRY: usize = 8;

impl Store {
    /// Refuses who has failed too often lately.
    pub(crate) fn check_refusals(&self, uid: u32) -> Result<()> {
        let recent = recent(&self.refusals(uid)?, now());
        match recent.len().checked_sub(FORGIVEN).and_then(|at| recent.get(at)) {
            None => Ok(()),
            Some(then) => Err(Error::RefusedTooOften {
                times: recent.len(),
                wait: (then + WITHIN.as_secs()).saturating_sub(now()).max(1),
            }),
        }
    }

    /// Notes that a user has failed.
    pub(crate) fn note_refusal(&self, uid: u32) -> Result<()> {
        let name = format!("refusals/{uid}");
        let before = self.refusals(uid)?;
        if before.len() >= LONG {
            let recent = recent(&before, now());
            let last = recent[recent.len().saturating_sub(FORGIVEN)..].iter();
            let kept: Vec<u8> = last.flat_map(|then| then.to_le_bytes()).collect();
            let new = unique("tmp/refusals");
            self.write_new(&new, &kept)?;
            renameat(&self.dir, &new, &self.dir, &name).on("rename", self.shown(&name))?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            openat(&self.dir, &name, flags, Mode::from_raw_mode(0o600)).on("create", self.shown(&name))?;
        // Appended in one piece: another writer of the same user may do so at the same time.
        let written = File::from(file).write_all(&now().to_le_bytes());
        Ok(written.on("write to", self.shown(&name))?)
    }

    fn refusals(&self, uid: u32) -> Result<Vec<u8>> {
        let name = format!("refusals/{uid}");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match openat(&self.dir, &name, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(vec![]),
            opened => opened.on("open", self.shown(&name))?,
        };
        let mut bytes = vec![];
        let read = File::from(file).take(16 * LONG as u64).read_to_end(&mut bytes);
        read.on("read", self.shown(&name))?;
        Ok(bytes)
    }
}

/// Refusals that still count. One that seems to be in the future does: the clock may have been set.
fn recent(bytes: &[u8], now: u64) -> Vec<u64> {
    let (entries, _) = bytes.as_chunks::<ENTRY>();
    let entries = entries.iter().map(|entry| u64::from_le_bytes(*entry));
    entries.filter(|then| now.saturating_sub(*then) < WITHIN.as_secs()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_often_waits_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for _ in 0..FORGIVEN {
            store.check_refusals(1).unwrap();
            store.note_refusal(1).unwrap();
        }
        let refused = store.check_refusals(1).unwrap_err();
        assert!(
            matches!(refused, Error::RefusedTooOften { times: FORGIVEN, wait: 3590..=3600 }),
            "{refused}"
        );
        store.check_refusals(2).unwrap();
        // A long list is cut, and still says enough.
        for _ in 0..LONG / ENTRY + 3 {
            store.note_refusal(1).unwrap();
        }
        assert!(store.refusals(1).unwrap().len() <= LONG);
        store.check_refusals(1).unwrap_err();
    }

    #[test]
    fn an_hour_later_all_is_forgotten() {
        let bytes: Vec<u8> = [10u64, 20, 30].into_iter().flat_map(u64::to_le_bytes).collect();
        assert_eq!(recent(&bytes, 3615), [20, 30]);
        assert_eq!(recent(&bytes, 5), [10, 20, 30]);
        assert!(recent(&bytes, 9999).is_empty());
    }
}
