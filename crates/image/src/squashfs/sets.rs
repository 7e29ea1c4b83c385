//! Extended attributes as they are written: each set of them once.

use std::collections::HashMap;

use skiff_erofs::tree::Xattrs;

use crate::error::Result;

use super::tables::{Out, Row};

/// The number of no set.
const NONE: u32 = u32::MAX;

/// All sets so far.
#[derive(Default)]
pub(super) struct Sets {
    values: Row,
    sets: Row,
    known: HashMap<Xattrs, u32>,
}

impl Sets {
    /// The number of a set, of which what squashfs does not have is left out; nothing if no reference leads so far.
    pub fn number(&mut self, mut set: Xattrs) -> Option<u32> {
        set.retain(|(name, _)| prefix(name).is_some());
        if set.is_empty() {
            return Some(NONE);
        }
        if let Some(number) = self.known.get(&set) {
            return Some(*number);
        }
        let place = self.values.next()?;
        let mut listed = 0;
        for (name, value) in &set {
            let (kind, rest) = prefix(name)?;
            self.values.put16(kind);
            self.values.put16(rest.len() as u16);
            self.values.put(rest);
            self.values.put32(value.len() as u32);
            self.values.put(value);
            listed += name.len() as u32 + 1;
        }
        self.sets.put64(place.reference());
        self.sets.put32(set.len() as u32);
        self.sets.put32(listed);
        let number = self.known.len() as u32;
        self.known.insert(set, number);
        Some(number)
    }

    /// Gives where their table stands; nothing if there are none.
    pub fn write(&self, out: &mut Out<'_>) -> Result<Option<u64>> {
        if self.known.is_empty() {
            return Ok(None);
        }
        let values = out.at();
        out.row(&self.values)?;
        let table = out.table(&self.sets, |out| {
            out.put(&values.to_le_bytes())?;
            out.put(&(self.known.len() as u64).to_le_bytes())
        })?;
        Ok(Some(table))
    }
}

/// An attribute's name as the format has it; nothing for one that it has no number for.
fn prefix(name: &[u8]) -> Option<(u16, &[u8])> {
    let prefixes: [(u16, &[u8]); 3] = [(0, b"user."), (1, b"trusted."), (2, b"security.")];
    prefixes.into_iter().find_map(|(number, prefix)| Some((number, name.strip_prefix(prefix)?)))
}
