//! A directory's content: blocks of entries, each followed by their names, sorted by their bytes throughout.

use std::collections::BTreeMap;

use super::format::{BLOCK_SIZE, DIRENT_SIZE, NAME_MAX, get16, get64, put16, put64};
use super::tree::InodeId;

/// A name and what it names.
pub(super) type Dirent<'t> = (&'t [u8], InodeId);

/// All entries of a directory, `.` and `..` in their places among the others; or why one cannot be.
pub(super) fn entries(
    children: &BTreeMap<Box<[u8]>, InodeId>,
    directory: InodeId,
    parent: InodeId,
) -> Result<Vec<Dirent<'_>>, String> {
    let mut entries = Vec::with_capacity(children.len() + 2);
    for (name, &child) in children {
        check(name)?;
        entries.push((&name[..], child));
    }
    for (name, id) in [(&b"."[..], directory), (b"..", parent)] {
        let place = entries.partition_point(|(other, _)| *other < name);
        entries.insert(place, (name, id));
    }
    Ok(entries)
}

fn check(name: &[u8]) -> Result<(), String> {
    if name.len() > NAME_MAX {
        return Err(format!(
            "a name in it has {} bytes, and no more than {NAME_MAX} are possible",
            name.len()
        ));
    }
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(format!("'{}' in it is not a name", name.escape_ascii()));
    }
    Ok(())
}

/// The entries of each block, and how many of its bytes they take.
pub(super) fn blocks<'a, 't>(
    mut entries: &'a [Dirent<'t>],
) -> impl Iterator<Item = (&'a [Dirent<'t>], usize)> + use<'a, 't> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |(name, _): &&Dirent<'_>| {
            bytes += DIRENT_SIZE + name.len();
            bytes <= BLOCK_SIZE
        };
        let count = entries.iter().take_while(fits).count();
        let (block, rest) = entries.split_at(count);
        entries = rest;
        let bytes = block.iter().map(|(name, _)| DIRENT_SIZE + name.len()).sum();
        (count > 0).then_some((block, bytes))
    })
}

/// How many bytes a directory has. Only its last block may be shorter than a block.
pub(super) fn size(entries: &[Dirent<'_>]) -> u64 {
    let (count, last) = blocks(entries).fold((0, 0), |(count, _), (_, bytes)| (count + 1, bytes));
    (count - 1) * BLOCK_SIZE as u64 + last as u64
}

/// Writes one block's entries into `place`, which has as many bytes as they take or a whole block. `target` gives the inode's
/// number and its type.
pub(super) fn encode(entries: &[Dirent<'_>], place: &mut [u8], target: impl Fn(InodeId) -> (u64, u8)) {
    let mut name_at = entries.len() * DIRENT_SIZE;
    for (index, (name, id)) in entries.iter().enumerate() {
        let (number, file_type) = target(*id);
        let at = index * DIRENT_SIZE;
        put64(place, at, number);
        put16(place, at + 8, name_at as u16);
        place[at + 10] = file_type;
        place[at + 11] = 0;
        place[name_at..name_at + name.len()].copy_from_slice(name);
        name_at += name.len();
    }
}

/// An entry as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Read {
    pub name: Box<[u8]>,
    pub number: u64,
    pub file_type: u8,
}

/// The entries of one block, sorted as they must be; or what is wrong with it. The last block of a directory may be short.
pub(super) fn decode(block: &[u8]) -> Result<Vec<Read>, &'static str> {
    const WRONG: &str = "has a block of entries that are not what we write";
    let name_at = |index: usize| {
        let at = index * DIRENT_SIZE + 8;
        block.get(at..at + 2).map(|_| usize::from(get16(block, at))).ok_or(WRONG)
    };
    let count = name_at(0)? / DIRENT_SIZE;
    let mut entries: Vec<Read> = Vec::with_capacity(count);
    let mut at = count * DIRENT_SIZE;
    for index in 0..count {
        if name_at(index)? != at {
            return Err(WRONG);
        }
        let rest = block.get(at..).ok_or(WRONG)?;
        let length = if index + 1 < count {
            name_at(index + 1)?.checked_sub(at).ok_or(WRONG)?
        } else {
            // Behind the last name of a full block there is nothing but zeros.
            rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len())
        };
        let name =
            rest.get(..length).filter(|name| !name.is_empty() && name.len() <= NAME_MAX).ok_or(WRONG)?;
        let entry = index * DIRENT_SIZE;
        if name.iter().any(|&byte| byte == b'/' || byte == 0) || block[entry + 11] != 0 {
            return Err(WRONG);
        }
        if entries.last().is_some_and(|last| *last.name >= *name) {
            return Err("has names that are not sorted");
        }
        entries.push(Read { name: name.into(), number: get64(block, entry), file_type: block[entry + 10] });
        at += length;
    }
    let padded = block.len() == BLOCK_SIZE || at == block.len();
    if count == 0 || !padded || block[at..].iter().any(|&byte| byte != 0) {
        return Err(WRONG);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(names: &[&[u8]]) -> BTreeMap<Box<[u8]>, InodeId> {
        names.iter().enumerate().map(|(index, name)| (Box::from(*name), InodeId(index as u32 + 2))).collect()
    }

    #[test]
    fn dots_are_sorted_too() {
        let children = children(&[b"!", b"-", b".-", b"...", b".a", b"a"]);
        let entries = entries(&children, InodeId(0), InodeId(1)).unwrap();
        let names: Vec<_> = entries.iter().map(|(name, _)| name.escape_ascii().to_string()).collect();
        assert_eq!(names, ["!", "-", ".", ".-", "..", "...", ".a", "a"]);
        assert_eq!((entries[2].1, entries[4].1), (InodeId(0), InodeId(1)));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            entries(&children(&[name]), InodeId(0), InodeId(0)).unwrap_err();
        }
        entries(&children(&[&[b'x'; 255]]), InodeId(0), InodeId(0)).unwrap();
    }

    #[test]
    fn blocks_are_filled_to_their_last_byte() {
        let names: Vec<Vec<u8>> = (0..400u16).map(|number| format!("{number:04}").into_bytes()).collect();
        let entries: Vec<Dirent<'_>> = names.iter().map(|name| (&name[..], InodeId(0))).collect();
        assert_eq!(size(&entries[..256]), 4096);
        assert_eq!(size(&entries[..257]), 4096 + 16);
        assert_eq!(size(&entries[..255]), 4080);
        let counts: Vec<_> = blocks(&entries).map(|(block, bytes)| (block.len(), bytes)).collect();
        assert_eq!(counts, [(256, 4096), (144, 2304)]);
    }

    #[test]
    fn blocks_come_back_and_others_are_refused() {
        let names: Vec<Vec<u8>> = (0..200u16).map(|number| format!("{number:05}").into_bytes()).collect();
        let entries: Vec<Dirent<'_>> =
            (0..).zip(&names).map(|(number, name)| (&name[..], InodeId(number))).collect();
        for length in [200 * 17, BLOCK_SIZE] {
            let mut block = vec![0; length];
            encode(&entries, &mut block, |id| (u64::from(id.0) + 7, 1));
            let read = decode(&block).unwrap();
            assert_eq!(read.len(), 200);
            assert_eq!(read[9], Read { name: b"00009".to_vec().into(), number: 16, file_type: 1 });
            let unsound = |change: &dyn Fn(&mut Vec<u8>)| {
                let mut block = block.clone();
                change(&mut block);
                decode(&block).unwrap_err();
            };
            unsound(&|block| block[8] ^= 1);
            unsound(&|block| block[20] += 1);
            unsound(&|block| block[11] = 1);
            unsound(&|block| block[2400] = b'/');
            unsound(&|block| block[2400] = b'1');
            unsound(&|block| block[2404] = 0);
            unsound(&|block| block[3399] = b'8');
            unsound(&|block| block.truncate(2399));
            unsound(&|block| block.clear());
            unsound(&|block| block.fill(0));
            if length == BLOCK_SIZE {
                unsound(&|block| block[BLOCK_SIZE - 1] = 1);
            }
        }
    }
}
