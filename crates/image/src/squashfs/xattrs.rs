//! Extended attributes: a table of sets, each a row of names and values.

use skiff_erofs::tree::Xattrs;

use crate::error::Result;
use crate::transport::FilePart;

use super::metadata::{Bad, LookupTable, MetadataBlocks, u32_at, u64_at};
use super::unpack::Decompressor;

const LONGEST_NAME: usize = 255;
const LONGEST_VALUE: usize = 65_536;
/// More do not fit into what Linux lists of a file.
const MOST: u32 = 8192;
/// The value is a reference to where it stands.
const ELSEWHERE: u16 = 0x100;

pub(super) struct XattrTable {
    part: FilePart,
    sets: LookupTable,
    values: MetadataBlocks,
}

impl XattrTable {
    pub fn open(part: &FilePart, unpacker: Decompressor, at: u64) -> Result<XattrTable> {
        let mut header = [0; 16];
        part.read(&mut header, at)
            .map_err(|_| Bad::new("its table of attributes does not lie in it").in_file(part))?;
        let values = MetadataBlocks::new(part.clone(), unpacker, u64_at(&header, 0));
        let blocks = MetadataBlocks::new(part.clone(), unpacker, 0);
        let sets = LookupTable::new(blocks, at + 16, u32_at(&header, 8), 16)?;
        Ok(XattrTable { part: part.clone(), sets, values })
    }

    /// One set.
    pub fn read(&self, index: u32) -> Result<Xattrs> {
        let entry = self.sets.entry(index)?;
        self.set(u64_at(&entry, 0), u32_at(&entry, 8)).map_err(|error| error.in_file(&self.part))
    }

    fn set(&self, reference: u64, count: u32) -> Result<Xattrs, Bad> {
        if count > MOST {
            return Err(Bad::new(format!("a file has {count} extended attributes; {MOST} are the limit")));
        }
        let mut cursor = self.values.at(reference);
        let mut xattrs = vec![];
        for _ in 0..count {
            let (kind, len) = (cursor.u16()?, usize::from(cursor.u16()?));
            let rest = cursor.bytes(len, LONGEST_NAME, "an attribute's name")?;
            let prefix: &[u8] = match kind & 0xff {
                0 => b"user.",
                1 => b"trusted.",
                2 => b"security.",
                _ => return Err(Bad::new("an attribute is of a kind that does not exist")),
            };
            let size = cursor.u32()? as usize;
            let value = if kind & ELSEWHERE == 0 {
                cursor.bytes(size, LONGEST_VALUE, "an attribute")?
            } else {
                let mut there = self.values.at(cursor.u64()?);
                let size = there.u32()? as usize;
                there.bytes(size, LONGEST_VALUE, "an attribute")?
            };
            xattrs.push(([prefix, &rest].concat().into(), value));
        }
        xattrs.sort();
        xattrs.dedup_by(|one, other| one.0 == other.0);
        Ok(xattrs)
    }
}
