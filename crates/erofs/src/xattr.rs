//! Extended attributes: behind their inode, or in an area of shared ones where several inodes have the same, or long ones.

use std::collections::BTreeMap;

use super::format::{XATTR_HEADER, XATTR_SIZE_MAX};
use super::tree::{Tree, Xattrs, XattrsId};

/// Longer values are kept apart, so that inodes lie close together.
const LONG: usize = 512;
/// As many shared ones an inode can have.
const SHARED_MAX: usize = u8::MAX as usize;
/// As long the kernel lets a name be, its prefix included.
const NAME_MAX: usize = 255;

const PREFIXES: [(u8, &[u8]); 4] = [(1, b"user."), (4, b"trusted."), (5, b"lustre."), (6, b"security.")];
const WHOLE_NAMES: [(u8, &[u8]); 2] = [(2, b"system.posix_acl_access"), (3, b"system.posix_acl_default")];

/// Whether an extended attribute of this full name can be kept in an image. Linux takes no others from a user either, so
/// others come only from other systems' archives.
pub fn is_storable(name: &[u8]) -> bool {
    split(name).is_some()
}

/// An attribute's name as the format has it: the number of its prefix, and the rest.
fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    if name.len() > NAME_MAX || name.contains(&0) {
        return None;
    }
    if let Some((index, _)) = WHOLE_NAMES.iter().find(|(_, whole)| *whole == name) {
        return Some((*index, b""));
    }
    let (index, rest) =
        PREFIXES.iter().find_map(|(index, prefix)| Some((*index, name.strip_prefix(*prefix)?)))?;
    (!rest.is_empty()).then_some((index, rest))
}

/// The full name.
pub(super) fn join(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let prefix = PREFIXES.iter().chain(&WHOLE_NAMES).find(|(number, _)| *number == index)?.1;
    let name = [prefix, rest].concat();
    (split(&name)? == (index, rest)).then_some(name)
}

/// One attribute as it lies in the file.
type Entry<'t> = (u8, &'t [u8], &'t [u8]);

fn entry_size((_, name, value): Entry<'_>) -> usize {
    (4 + name.len() + value.len()).next_multiple_of(4)
}

fn encode_entry((index, name, value): Entry<'_>, out: &mut Vec<u8>) {
    out.extend([name.len() as u8, index]);
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(name);
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Where the attributes of each set of a tree come to lie.
pub(super) struct XattrPlan<'t> {
    sets: BTreeMap<XattrsId, Result<Set<'t>, String>>,
    shared: BTreeMap<Entry<'t>, u32>,
    shared_size: u64,
}

/// The attributes of some inodes.
#[derive(Default)]
struct Set<'t> {
    shared: Vec<Entry<'t>>,
    inline: Vec<Entry<'t>>,
}

impl Set<'_> {
    fn size(&self) -> u64 {
        let inline: usize = self.inline.iter().map(|entry| entry_size(*entry)).sum();
        u64::from(XATTR_HEADER) + 4 * self.shared.len() as u64 + inline as u64
    }
}

impl<'t> XattrPlan<'t> {
    /// `uses`: each set that some inode has, and how many have it.
    pub fn new(tree: &'t Tree, uses: &BTreeMap<XattrsId, u32>) -> XattrPlan<'t> {
        let mut sets = BTreeMap::new();
        let mut shared = BTreeMap::new();
        for (&id, &count) in uses {
            let set = plan(tree.xattrs(id), count > 1);
            if let Ok(set) = &set {
                shared.extend(set.shared.iter().map(|entry| (*entry, 0)));
            }
            sets.insert(id, set);
        }
        let mut shared_size = 0;
        for (entry, place) in &mut shared {
            *place = (shared_size / 4) as u32;
            shared_size += entry_size(*entry) as u64;
        }
        XattrPlan { sets, shared, shared_size }
    }

    /// How many bytes a set takes behind an inode; or why it cannot be kept.
    pub fn size(&self, id: XattrsId) -> Result<u32, String> {
        match self.sets.get(&id) {
            None => Ok(0),
            Some(Err(why)) => Err(why.clone()),
            Some(Ok(set)) => Ok(set.size() as u32),
        }
    }

    /// What stands behind an inode that has this set.
    pub fn encode(&self, id: XattrsId, out: &mut Vec<u8>) {
        out.clear();
        let Some(Ok(set)) = self.sets.get(&id) else { return };
        out.extend([0; XATTR_HEADER as usize]);
        out[4] = set.shared.len() as u8;
        for entry in &set.shared {
            out.extend(self.shared[entry].to_le_bytes());
        }
        set.inline.iter().for_each(|entry| encode_entry(*entry, out));
    }

    /// How long the area of the shared ones is. Its places are numbers of 32 bits, in units of 4 bytes.
    pub fn shared_size(&self) -> u64 {
        self.shared_size
    }

    /// The area of the shared ones, piece by piece.
    pub fn shared(&self) -> impl Iterator<Item = Vec<u8>> {
        self.shared.keys().map(|entry| {
            let mut piece = Vec::with_capacity(entry_size(*entry));
            encode_entry(*entry, &mut piece);
            piece
        })
    }
}

fn plan(xattrs: &Xattrs, several: bool) -> Result<Set<'_>, String> {
    let mut set = Set::default();
    for (at, (name, value)) in xattrs.iter().enumerate() {
        let shown = name.escape_ascii();
        let (index, rest) =
            split(name).ok_or_else(|| format!("an extended attribute cannot be named '{shown}'"))?;
        if value.len() > usize::from(u16::MAX) {
            let len = value.len();
            return Err(format!("its extended attribute {shown} has {len} bytes, and 65535 are possible"));
        }
        if at > 0 && xattrs[at - 1].0 == *name {
            return Err(format!("it has the extended attribute {shown} twice"));
        }
        let apart = (several || value.len() > LONG) && set.shared.len() < SHARED_MAX;
        let list = if apart { &mut set.shared } else { &mut set.inline };
        list.push((index, rest, value));
    }
    if set.size() > u64::from(XATTR_SIZE_MAX) {
        let (number, size) = (xattrs.len(), set.size());
        return Err(format!(
            "its {number} extended attributes take {size} bytes, and {XATTR_SIZE_MAX} are possible"
        ));
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let longest = [&b"user."[..], &[b'x'; 250]].concat();
        for name in [
            &b"user.x"[..],
            b"security.capability",
            b"trusted.overlay.opaque",
            b"system.posix_acl_access",
            b"system.posix_acl_default",
            &longest,
        ] {
            let (index, rest) = split(name).unwrap();
            assert_eq!(join(index, rest).unwrap(), name);
        }
    }

    #[test]
    fn other_names_are_not_storable() {
        let too_long = [&b"user."[..], &[b'x'; 251]].concat();
        for name in [&b""[..], b"user.", b"system.nfs4_acl", b"com.apple.quarantine", b"user.a\0b", &too_long]
        {
            assert!(!is_storable(name), "{}", name.escape_ascii());
        }
        assert_eq!(join(2, b"x"), None);
        assert_eq!(join(7, b"x"), None);
        assert_eq!(join(1, b""), None);
    }
}
