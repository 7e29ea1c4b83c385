//! Paragraphs of fields, as dpkg's and apt's files have them.

use std::collections::BTreeMap;

use crate::Error;

/// No distribution has as many.
const MOST: usize = 300_000;
/// Neither dpkg nor a file system takes longer names.
const LONGEST_NAME: usize = 200;

/// What is known of one package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stanza<'a> {
    text: &'a [u8],
}

/// The packages of a database, by what their files in `info/` begin with: the name, and the architecture if several may be there.
#[derive(Debug, Clone, Default)]
pub struct Database<'a> {
    pub(crate) stanzas: BTreeMap<String, Stanza<'a>>,
}

/// A hash that does not depend on the order of the fields, which another version of dpkg may change.
pub type Hash = [u8; 16];

/// A hash as text.
pub(crate) fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// From that text.
pub(crate) fn hash_from_hex(hex: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    if hex.len() != hash.len() * 2 || !hex.is_ascii() {
        return None;
    }
    for (n, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[n * 2..n * 2 + 2], 16).ok()?;
    }
    Some(hash)
}

impl<'a> Database<'a> {
    /// Reads a status file.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &'a [u8]) -> Result<Self, Error> {
        let mut stanzas = BTreeMap::new();
        for (n, text) in paragraphs(text).enumerate() {
            let stanza = Stanza { text };
            stanzas.insert(stanza.key().ok_or(Error::Name(n + 1))?, stanza);
            if stanzas.len() > MOST {
                return Err(Error::TooMany(MOST));
            }
        }
        Ok(Self { stanzas })
    }

    /// A package that is there or has left its configuration behind.
    pub fn get(&self, key: &str) -> Option<Stanza<'a>> {
        self.stanzas.get(key).copied().filter(|stanza| stanza.state() != b"not-installed")
    }

    /// The keys of all packages.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.stanzas.keys().map(String::as_str)
    }
}

impl<'a> Stanza<'a> {
    pub(crate) fn text(self) -> &'a [u8] {
        self.text
    }

    /// The first line of a field.
    #[must_use]
    pub fn field(self, name: &str) -> Option<&'a [u8]> {
        field(self.text, name)
    }

    /// The version, if the package is there.
    #[must_use]
    pub fn installed(self) -> Option<String> {
        if matches!(self.state(), b"not-installed" | b"config-files") {
            return None;
        }
        Some(printable(self.field("Version")?))
    }

    /// Whether its administrator wants it to stay at its version.
    #[must_use]
    pub fn is_held(self) -> bool {
        self.field("Status").is_some_and(|status| status.split(|b| *b == b' ').next() == Some(b"hold"))
    }

    /// Whether nothing is left to be done for it.
    pub(crate) fn is_settled(self) -> bool {
        let reinstall = self.field("Status").and_then(|status| status.split(|b| *b == b' ').nth(1));
        reinstall == Some(b"ok") && matches!(self.state(), b"installed" | b"config-files" | b"not-installed")
    }

    fn state(self) -> &'a [u8] {
        self.field("Status").and_then(|status| status.split(|b| *b == b' ').nth(2)).unwrap_or_default()
    }

    fn key(self) -> Option<String> {
        let name = plain(self.field("Package")?)?;
        if self.field("Multi-Arch") != Some(b"same") {
            return Some(name.to_owned());
        }
        Some(format!("{name}:{}", plain(self.field("Architecture")?)?))
    }

    pub(crate) fn hash(self) -> Hash {
        let mut fields: Vec<&[u8]> = vec![];
        let mut begin = 0;
        for (at, _) in self.text.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            if !matches!(self.text.get(at + 1), Some(b' ' | b'\t')) {
                fields.push(&self.text[begin..at]);
                begin = at + 1;
            }
        }
        fields.push(&self.text[begin..]);
        fields.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        for field in fields.into_iter().filter(|field| !field.is_empty()) {
            hasher.update(field).update(b"\n");
        }
        let mut hash = Hash::default();
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        hash
    }

    /// The packages that must be there for this one, one name for each where several would do.
    pub(crate) fn needs(self) -> impl Iterator<Item = &'a str> {
        let fields = ["Pre-Depends", "Depends"].into_iter().filter_map(move |name| self.field(name));
        let relations = fields.flat_map(|field| field.split(|byte| *byte == b','));
        relations.filter(|relation| !relation.contains(&b'|')).filter_map(|relation| {
            let relation = relation.trim_ascii();
            let end = relation.iter().position(|byte| b" (:[".contains(byte)).unwrap_or(relation.len());
            plain(&relation[..end])
        })
    }
}

/// The paragraphs of a text: what stands between empty lines.
pub fn paragraphs(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        while let [b'\n', more @ ..] = rest {
            rest = more;
        }
        if rest.is_empty() {
            return None;
        }
        let end = rest.windows(2).position(|pair| pair == b"\n\n").unwrap_or(rest.len());
        let (paragraph, more) = rest.split_at(end);
        rest = more;
        Some(paragraph.strip_suffix(b"\n").unwrap_or(paragraph))
    })
}

/// The first line of a field of a paragraph.
#[must_use]
pub fn field<'a>(paragraph: &'a [u8], name: &str) -> Option<&'a [u8]> {
    paragraph.split(|byte| *byte == b'\n').find_map(|line| {
        let (found, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":")?;
        found.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
    })
}

/// Names and architectures are part of file names, and are printed.
fn plain(name: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-._".contains(byte);
    let fits = name.first().is_some_and(u8::is_ascii_alphanumeric) && name.len() <= LONGEST_NAME;
    if fits && name.iter().all(is_plain) { std::str::from_utf8(name).ok() } else { None }
}

/// A version as it may be printed and written on a line.
fn printable(version: &[u8]) -> String {
    version
        .iter()
        .take(LONGEST_NAME)
        .map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' })
        .collect()
}
