//! Tables of the System V objects in this process's IPC namespace, and whether these can be made again.

use std::fs::{self, File};
use std::io;

use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::sysv::Kind;

/// Of a segment's mode: it is marked for removal (`SHM_DEST`); it stays out of swap space. Source: `linux/shm.h`.
pub(crate) const MARKED_FOR_REMOVAL: u32 = 0o1000;
pub(crate) const LOCKED: u32 = 0o2000;
/// Owner, creator, rights and key of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SystemVObject {
    pub id: i32,
    pub key: i32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Who has made it.
    pub creator: (u32, u32),
}

/// A line of a table of `/proc/sysvipc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub id: i32,
    pub key: i32,
    pub size: u64,
    pub object: SystemVObject,
    /// All numbers of the line.
    numbers: Vec<i64>,
}

impl Entry {
    /// Of a line. What stands where differs from table to table.
    fn parse(kind: Kind, line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (size, ids) = match kind {
            Kind::Semaphores => (3, 4),
            Kind::Queue => (4, 7),
            Kind::Segment => (3, 7),
        };
        let number = |place: usize| words.get(place)?.parse::<u32>().ok();
        let (id, key) = (words.get(1)?.parse().ok()?, words.first()?.parse().ok()?);
        let mode = u32::from_str_radix(words.get(2)?, 8).ok()?;
        let object = SystemVObject {
            id,
            key,
            mode,
            uid: number(ids)?,
            gid: number(ids + 1)?,
            creator: (number(ids + 2)?, number(ids + 3)?),
        };
        let numbers = words.iter().map(|word| word.parse().unwrap_or(0)).collect();
        Some(Self { id, key, size: words.get(size)?.parse().ok()?, object, numbers })
    }

    pub(crate) fn number(&self, place: usize) -> i64 {
        self.numbers.get(place).copied().unwrap_or(0)
    }

    pub(crate) fn process(&self, place: usize) -> i32 {
        i32::try_from(self.number(place)).unwrap_or(0)
    }

    /// Whether a segment is marked for removal: it goes once nobody has it attached.
    pub(crate) fn is_marked_for_removal(&self) -> bool {
        self.object.mode & MARKED_FOR_REMOVAL != 0
    }
}

/// The objects of a kind in this process's IPC namespace.
///
/// # Errors
/// When the kernel does not show them.
pub(crate) fn table(kind: Kind) -> Result<Vec<Entry>> {
    let path = format!("/proc/sysvipc/{}", kind.name());
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().skip(1).filter_map(|line| Entry::parse(kind, line)).collect()),
        // A kernel without them.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        Err(e) => Err(e).context(|| path),
    }
}

/// Whether an object can be given its number again.
pub(crate) fn can_number(kind: Kind) -> bool {
    File::options().write(true).open(next_number(kind)).is_ok()
}

pub(crate) fn next_number(kind: Kind) -> String {
    format!("/proc/sys/kernel/{}_next_id", kind.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read() {
        let segment = "     24122      98307  1600                  8192    12    13      2     1     2     3     4 1795686000          0 1795686000                  4096                     0";
        let entry = Entry::parse(Kind::Segment, segment).expect("an entry");
        assert_eq!((entry.id, entry.key, entry.size, entry.process(4)), (98_307, 24_122, 8192, 12));
        assert_eq!((entry.object.mode, entry.object.uid, entry.object.creator), (0o1600, 1, (3, 4)));
        assert_eq!((entry.number(14), entry.number(15), entry.is_marked_for_removal()), (4096, 0, true));
        let set = "-1      0   600          2     0     0     5     6          7 1795686000";
        let entry = Entry::parse(Kind::Semaphores, set).expect("an entry");
        assert_eq!((entry.key, entry.size, entry.number(8), entry.object.creator), (-1, 2, 7, (5, 6)));
        let queue = "0 3 600 11 2 40 41 1 2 3 4 0 0 0";
        let entry = Entry::parse(Kind::Queue, queue).expect("an entry");
        assert_eq!((entry.number(3), entry.size, entry.process(5), entry.object.gid), (11, 2, 40, 2));
        assert_eq!(Entry::parse(Kind::Queue, "key msqid perms"), None);
    }
}
