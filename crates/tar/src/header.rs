//! One 512-byte header, as V7, ustar, star or GNU tar write it.

/// Tar's unit, in bytes: headers are one, data is padded to it.
pub(super) const RECORD: usize = 512;

/// Where a field lies in the header.
type Field = std::ops::Range<usize>;

const NAME: Field = 0..100;
pub(super) const MODE: Field = 100..108;
pub(super) const UID: Field = 108..116;
pub(super) const GID: Field = 116..124;
pub(super) const SIZE: Field = 124..136;
pub(super) const MTIME: Field = 136..148;
const CHECKSUM: Field = 148..156;
const TYPE: usize = 156;
const LINK: Field = 157..257;
const MAGIC_AND_VERSION: Field = 257..265;
pub(super) const MAJOR: Field = 329..337;
pub(super) const MINOR: Field = 337..345;
const PREFIX: Field = 345..500;
const STAR_PREFIX: Field = 345..476;
const STAR_TRAILER: Field = 508..512;

/// Who wrote the header decides what its last third means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V7,
    Ustar,
    Star,
    Gnu,
}

/// A header whose checksum is right.
pub(super) struct Header<'a>(&'a [u8; RECORD]);

impl<'a> Header<'a> {
    /// `None` if the checksum is wrong: then this is no header.
    pub fn new(record: &'a [u8; RECORD]) -> Option<Header<'a>> {
        let header = Header(record);
        let promised = octal(&record[CHECKSUM]).ok()?;
        let outside = |at: &usize| !CHECKSUM.contains(at);
        let blanks = CHECKSUM.len() as i64 * i64::from(b' ');
        let unsigned: i64 = (0..RECORD).filter(outside).map(|at| i64::from(record[at])).sum();
        // Some old programs on machines with signed characters summed them so.
        let signed = || (0..RECORD).filter(outside).map(|at| i64::from(record[at] as i8)).sum::<i64>();
        (promised == blanks + unsigned || promised == blanks + signed()).then_some(header)
    }

    /// The type flag: `b'0'` for a file.
    pub fn flag(&self) -> u8 {
        self.0[TYPE]
    }

    /// The name, with the prefix where the dialect has one.
    pub fn name(&self) -> Vec<u8> {
        let prefix = match self.dialect() {
            Dialect::Ustar => text(&self.0[PREFIX]),
            Dialect::Star => text(&self.0[STAR_PREFIX]),
            // GNU tar keeps other things there.
            Dialect::V7 | Dialect::Gnu => b"",
        };
        let name = text(&self.0[NAME]);
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    /// The target of a link.
    pub fn link(&self) -> Vec<u8> {
        text(&self.0[LINK]).to_vec()
    }

    /// A number, in octal or in base 256; a blank field is 0.
    pub fn number(&self, field: Field) -> Result<i64, String> {
        number(&self.0[field])
    }

    /// Major and minor number of a device. V7 has no field for them.
    pub fn device(&self) -> Result<(i64, i64), String> {
        match self.dialect() {
            Dialect::V7 => Ok((0, 0)),
            _ => Ok((self.number(MAJOR)?, self.number(MINOR)?)),
        }
    }

    /// The raw bytes, for what only GNU tar has.
    pub fn record(&self) -> &'a [u8; RECORD] {
        self.0
    }

    fn dialect(&self) -> Dialect {
        match &self.0[MAGIC_AND_VERSION] {
            b"ustar\x0000" if &self.0[STAR_TRAILER] == b"tar\0" => Dialect::Star,
            b"ustar  \0" => Dialect::Gnu,
            // Some programs write another version, or blanks, behind the magic of ustar.
            magic if magic.starts_with(b"ustar\0") => Dialect::Ustar,
            _ => Dialect::V7,
        }
    }
}

/// What stands before the first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A numeric field: octal digits, or with the top bit set a big-endian two's complement number of the other bits.
pub(super) fn number(field: &[u8]) -> Result<i64, String> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => base_256(field),
        _ => octal(field),
    }
}

fn base_256(field: &[u8]) -> Result<i64, String> {
    // The second bit is the sign.
    let negative = field[0] & 0x40 != 0;
    let fill = if negative { 0xff } else { 0 };
    let first = if negative { field[0] } else { field[0] & 0x7f };
    let bytes: Vec<u8> = std::iter::once(first).chain(field[1..].iter().copied()).collect();
    let (high, low) = bytes.split_at(bytes.len().saturating_sub(8));
    let mut wide = [fill; 8];
    wide[8 - low.len()..].copy_from_slice(low);
    let value = i64::from_be_bytes(wide);
    if high.iter().any(|&byte| byte != fill) || (value < 0) != negative {
        return Err("a number beyond 64 bits".into());
    }
    Ok(value)
}

fn octal(field: &[u8]) -> Result<i64, String> {
    let blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !blank(byte)).unwrap_or(field.len());
    let digits = text(&field[start..]);
    let digits = &digits[..digits.iter().rposition(|byte| !blank(byte)).map_or(0, |last| last + 1)];
    digits.iter().try_fold(0i64, |value, &digit| match digit {
        // A field of 12 digits has room in 64 bits.
        b'0'..=b'7' => Ok(value << 3 | i64::from(digit - b'0')),
        _ => Err(format!("{:?} where an octal number belongs", String::from_utf8_lossy(digits))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_all_their_forms() {
        let cases: &[(&[u8], Option<i64>)] = &[
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"644\0junk", Some(0o644)),
            (b"        ", Some(0)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"77777777777\0", Some(0o77777777777)),
            (b"777777777777", Some(0o777777777777)),
            (b"\x80\0\0\0\0\0\0\x05", Some(5)),
            (b"\x80\0\0\0\x02\0\0\0\0\0\0\x01", Some((2 << 56) + 1)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\x7f\0\0\0\0\0\0\0", None),
            (b"0000849\0", None),
            (b"-000001\0", None),
        ];
        for (field, wanted) in cases {
            assert_eq!(number(field).ok(), *wanted, "{field:?}");
        }
    }
}
