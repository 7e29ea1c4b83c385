//! Bytes by their place, of memory or of a file. Tables of symbol versions are read in pieces of a few bytes, thousands in a large library: a file is read in
//! blocks for them, since a call for each piece took most of a container's start.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// What bytes are read from by their place.
pub(crate) trait Bytes {
    /// Fills the buffer from a place on, and says how far: less than all of it only at the end.
    fn fill(&self, buffer: &mut [u8], at: u64) -> Option<usize>;
}

impl Bytes for [u8] {
    fn fill(&self, buffer: &mut [u8], at: u64) -> Option<usize> {
        let rest = self.get(usize::try_from(at).ok()?..)?;
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Some(length)
    }
}

/// The tables of most libraries lie in one or two of these.
const BLOCK: usize = 16 << 10;
/// So many are kept: a file that is no honest library must not take more memory.
const MOST_KEPT: usize = 64;

/// A file that is read in blocks.
pub(crate) struct FileBytes<'a> {
    file: &'a File,
    kept: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl<'a> FileBytes<'a> {
    pub(crate) fn new(file: &'a File) -> Self {
        Self { file, kept: RefCell::default() }
    }

    /// A block from the file. It is shorter than others only at the file's end.
    fn read(&self, number: u64) -> Option<Vec<u8>> {
        let start = number.checked_mul(BLOCK as u64)?;
        let (mut block, mut filled) = (vec![0; BLOCK], 0);
        while filled < BLOCK {
            match self.file.read_at(&mut block[filled..], start.checked_add(filled as u64)?) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        block.truncate(filled);
        Some(block)
    }
}

impl Bytes for FileBytes<'_> {
    fn fill(&self, buffer: &mut [u8], at: u64) -> Option<usize> {
        let mut kept = self.kept.borrow_mut();
        let mut filled = 0;
        while filled < buffer.len() {
            let place = at.checked_add(filled as u64)?;
            let number = place / BLOCK as u64;
            if !kept.contains_key(&number) {
                if kept.len() >= MOST_KEPT {
                    kept.clear();
                }
                kept.insert(number, self.read(number)?);
            }
            let within = usize::try_from(place % BLOCK as u64).ok()?;
            let rest = kept.get(&number)?.get(within..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let length = rest.len().min(buffer.len() - filled);
            buffer[filled..filled + length].copy_from_slice(&rest[..length]);
            filled += length;
        }
        Some(filled)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn blocks_are_the_file() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 77).map(|at| (at % 251) as u8).collect();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("written");
        let blocks = FileBytes::new(&file);
        let far = 200 * BLOCK as u64;
        for (at, length) in
            [(0, 10), (BLOCK - 3, 7), (5, 3 * BLOCK), (3 * BLOCK + 70, 30), (3 * BLOCK + 77, 5)]
        {
            let (mut of_file, mut of_memory) = (vec![0; length], vec![0; length]);
            let expected = bytes[..].fill(&mut of_memory, at as u64);
            assert_eq!(blocks.fill(&mut of_file, at as u64), expected, "{at}");
            assert_eq!(of_file, of_memory, "{at}");
        }
        assert_eq!(blocks.fill(&mut [0; 4], far), Some(0), "behind the end");
        assert_eq!(blocks.fill(&mut [0; 4], u64::MAX - 1), None, "no place at all");
    }

    #[test]
    fn few_blocks_are_kept() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1000 * BLOCK as u64).expect("long");
        let blocks = FileBytes::new(&file);
        for number in 0..500 {
            blocks.fill(&mut [0], number * BLOCK as u64).expect("read");
        }
        assert!(blocks.kept.borrow().len() <= MOST_KEPT);
    }
}
