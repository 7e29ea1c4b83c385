//! PAX headers: records `LENGTH KEY=VALUE\n` that overrule what a header of fixed fields can hold.

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::sparse::Segment;

/// No value of a record may be longer: the longest ones seen are extended attributes, of which Linux holds 64 KiB.
const LONGEST_VALUE: usize = 1 << 20;

/// No file has more: ext4 and EROFS have room for a few hundred.
const MOST_XATTRS: usize = 1000;

/// What PAX headers say about the entry that follows. `None`: nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct Pax {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<i64>,
    pub gid: Option<i64>,
    pub mtime: Option<(i64, u32)>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub sparse: SparseKeys,
}

/// The keys `GNU.sparse.*`, of all three versions of that format.
#[derive(Debug, Clone, Default)]
pub(super) struct SparseKeys {
    pub major: Option<u64>,
    pub minor: Option<u64>,
    pub name: Option<Vec<u8>>,
    /// The file's size, holes counted.
    pub size: Option<u64>,
    /// Versions 0.0 and 0.1 have the map here.
    pub map: Option<Vec<Segment>>,
    /// 0.0 gives offset and length in two records.
    offset: Option<u64>,
}

/// Whom a header is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The next entry.
    Local,
    /// All entries that follow.
    Global,
}

impl Pax {
    /// Takes up all records of a header's body.
    pub fn add(&mut self, mut body: &[u8], scope: Scope) -> Result<(), String> {
        while !body.is_empty() {
            let (key, value, rest) = record(body)?;
            self.set(key, value, scope).map_err(|why| format!("PAX record {}: {why}", key.escape_ascii()))?;
            body = rest;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8], scope: Scope) -> Result<(), String> {
        if value.len() > LONGEST_VALUE {
            return Err(format!("a value of {} bytes, more than the {LONGEST_VALUE} allowed", value.len()));
        }
        // An empty value takes back what a global header said.
        let given = !value.is_empty();
        match key {
            b"uid" => self.uid = given.then(|| decimal(value)).transpose()?,
            b"gid" => self.gid = given.then(|| decimal(value)).transpose()?,
            b"mtime" => self.mtime = given.then(|| time(value)).transpose()?,
            b"path" | b"linkpath" | b"size" if scope == Scope::Global => {
                // Programs disagree about these, and a size read two ways is two archives (CVE-2025-62518).
                return Err("in a global header, where it means nothing".into());
            }
            b"path" => self.path = given.then(|| name(value)).transpose()?,
            b"linkpath" => self.link = given.then(|| name(value)).transpose()?,
            b"size" => self.size = given.then(|| unsigned(value)).transpose()?,
            _ if scope == Scope::Global => {}
            _ => self.set_extension(key, value)?,
        }
        Ok(())
    }

    fn set_extension(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        if let Some(attribute) = key.strip_prefix(b"SCHILY.xattr.") {
            self.set_xattr(attribute.to_vec(), value.to_vec())?;
        } else if let Some(attribute) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            self.set_xattr(percent_decoded(attribute)?, base64_decoded(value)?)?;
        } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
            self.sparse.set(key, value)?;
        }
        Ok(())
    }

    fn set_xattr(&mut self, attribute: Vec<u8>, value: Vec<u8>) -> Result<(), String> {
        self.xattrs.retain(|(known, _)| *known != attribute);
        self.xattrs.push((attribute, value));
        match self.xattrs.len() {
            0..=MOST_XATTRS => Ok(()),
            _ => Err(format!("more than {MOST_XATTRS} extended attributes on one file")),
        }
    }
}

impl SparseKeys {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match key {
            b"major" => self.major = Some(unsigned(value)?),
            b"minor" => self.minor = Some(unsigned(value)?),
            b"name" => self.name = Some(name(value)?),
            b"size" | b"realsize" => self.size = Some(unsigned(value)?),
            // How many follow: they are counted when they have come.
            b"numblocks" => drop(self.map.get_or_insert_default()),
            b"offset" => self.offset = Some(unsigned(value)?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or("a length without an offset")?;
                self.map.get_or_insert_default().push(Segment { offset, len: unsigned(value)? });
            }
            b"map" => self.map = Some(pairs(value)?),
            _ => {}
        }
        Ok(())
    }
}

/// Version 0.1's map: `offset,length,offset,length...`.
fn pairs(value: &[u8]) -> Result<Vec<Segment>, String> {
    if value.is_empty() {
        return Ok(vec![]);
    }
    let mut numbers = value.split(|&byte| byte == b',').map(unsigned);
    let mut map = vec![];
    while let Some(offset) = numbers.next() {
        let len = numbers.next().ok_or("an offset without a length")??;
        map.push(Segment { offset: offset?, len });
    }
    Ok(map)
}

/// A key, its value, and what follows the record.
type PaxRecord<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// The first record of a body.
fn record(body: &[u8]) -> Result<PaxRecord<'_>, String> {
    let broken = || "a PAX header whose records are not of the form LENGTH KEY=VALUE".to_string();
    let digits = body.iter().position(|&byte| byte == b' ').ok_or_else(broken)?;
    let len = unsigned(&body[..digits]).map_err(|_| broken())?;
    let len =
        usize::try_from(len).ok().filter(|len| *len <= body.len() && *len > digits + 1).ok_or_else(broken)?;
    let (record, rest) = body.split_at(len);
    let record = record[digits + 1..].strip_suffix(b"\n").ok_or_else(broken)?;
    let equals = record.iter().position(|&byte| byte == b'=').filter(|at| *at > 0).ok_or_else(broken)?;
    Ok((&record[..equals], &record[equals + 1..], rest))
}

fn name(value: &[u8]) -> Result<Vec<u8>, String> {
    if value.contains(&0) {
        return Err("a NUL within a name".into());
    }
    Ok(value.to_vec())
}

pub(super) fn unsigned(digits: &[u8]) -> Result<u64, String> {
    let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let number =
        std::str::from_utf8(digits).ok().filter(|_| all_digits).and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| format!("{:?} where a number belongs", String::from_utf8_lossy(digits)))
}

fn decimal(value: &[u8]) -> Result<i64, String> {
    let (negative, digits) = match value.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, value),
    };
    let magnitude = i64::try_from(unsigned(digits)?).map_err(|_| "a number beyond 63 bits")?;
    Ok(if negative { -magnitude } else { magnitude })
}

/// Seconds since 1970, with a fraction of which nine digits count: seconds rounded down, and nanoseconds.
fn time(value: &[u8]) -> Result<(i64, u32), String> {
    let point = value.iter().position(|&byte| byte == b'.').unwrap_or(value.len());
    let (whole, fraction) = (&value[..point], value.get(point + 1..).unwrap_or_default());
    let seconds = decimal(whole)?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(format!("{:?} where a time belongs", String::from_utf8_lossy(value)));
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    // "-0.5" is half a second before 1970.
    match (whole.starts_with(b"-"), nanos) {
        (true, 1..) => Ok((seconds - 1, 1_000_000_000 - nanos)),
        _ => Ok((seconds, nanos)),
    }
}

fn percent_decoded(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut decoded = vec![];
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
            let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            decoded.push(byte.ok_or("a % without two hexadecimal digits")?);
            rest = &tail[2..];
        } else {
            decoded.push(*first);
        }
    }
    name(&decoded)
}

fn base64_decoded(text: &[u8]) -> Result<Vec<u8>, String> {
    // libarchive leaves the padding out.
    let padding = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let engine = GeneralPurpose::new(&base64::alphabet::STANDARD, padding);
    engine.decode(text).map_err(|error| format!("a value that is not base64: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(records: &[(&str, &[u8])]) -> Vec<u8> {
        records.iter().flat_map(|(key, value)| crate::build::pax_record(key.as_bytes(), value)).collect()
    }

    fn local(records: &[(&str, &[u8])]) -> Result<Pax, String> {
        let mut pax = Pax::default();
        pax.add(&body(records), Scope::Local).map(|()| pax)
    }

    #[test]
    fn times_are_rounded_down() {
        for (text, wanted) in [
            ("0", (0, 0)),
            ("1350244992.023960108", (1350244992, 23960108)),
            ("12.5", (12, 500_000_000)),
            ("12.", (12, 0)),
            ("12.0000000019", (12, 1)),
            ("-1.5", (-2, 500_000_000)),
            ("-0.000000001", (-1, 999_999_999)),
            ("-7", (-7, 0)),
        ] {
            assert_eq!(time(text.as_bytes()), Ok(wanted), "{text}");
        }
        for text in ["", ".5", "1.5s", "--1", "1e9", "99999999999999999999"] {
            assert!(time(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn both_kinds_of_extended_attributes_are_read() {
        let pax = local(&[
            ("SCHILY.xattr.user.raw", b"\xff\n=\0"),
            ("LIBARCHIVE.xattr.user.a%3db", b"/wo9"),
            ("SCHILY.xattr.user.raw", b"again"),
        ]);
        let xattrs = pax.unwrap().xattrs;
        assert_eq!(
            xattrs,
            [(b"user.a=b".to_vec(), b"\xff\n=".to_vec()), (b"user.raw".to_vec(), b"again".to_vec())]
        );
    }

    #[test]
    fn an_empty_value_takes_back() {
        let mut pax = Pax::default();
        pax.add(&body(&[("mtime", b"5"), ("uid", b"7")]), Scope::Global).unwrap();
        pax.add(&body(&[("mtime", b"")]), Scope::Local).unwrap();
        assert_eq!((pax.mtime, pax.uid), (None, Some(7)));
    }

    #[test]
    fn broken_records_are_refused() {
        for text in [
            "5 a=b",
            "7 a=b\n",
            "6 a=bc",
            "6 =bc\n",
            "x a=b\n",
            " a=b\n",
            "3 \n",
            "+6 a=b\n",
            "99999999999999999999 a=b\n",
        ] {
            assert!(Pax::default().add(text.as_bytes(), Scope::Local).is_err(), "{text}");
        }
        for (key, value) in
            [("path", &b"a\0b"[..]), ("size", b"-1"), ("uid", b"x"), ("GNU.sparse.map", b"1,2,3")]
        {
            assert!(local(&[(key, value)]).is_err(), "{key}");
        }
        for key in ["path", "linkpath", "size"] {
            assert!(Pax::default().add(&body(&[(key, b"1")]), Scope::Global).is_err(), "{key}");
        }
        assert!(local(&[("comment", &vec![b'x'; LONGEST_VALUE + 1])]).is_err());
    }
}
