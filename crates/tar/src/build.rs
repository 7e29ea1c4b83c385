//! Writes tar streams for tests: also such as no sane program writes.

/// Pads to a whole record.
#[must_use]
pub fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// A PAX record, `LENGTH KEY=VALUE\n`.
#[must_use]
pub fn pax_record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len.to_string().len() + rest != len {
        len += 1;
    }
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// One entry, with the headers before it.
#[derive(Debug, Clone)]
pub struct RawEntry {
    header: [u8; 512],
    before: Vec<u8>,
    pax: Vec<u8>,
    extensions: Vec<u8>,
    data: Vec<u8>,
}

impl RawEntry {
    /// An entry of this type; the name goes into the header as far as it fits, longer ones into a GNU long name.
    #[must_use]
    pub fn new(flag: u8, name: impl AsRef<[u8]>) -> RawEntry {
        let mut header = [0; 512];
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[156] = flag;
        let entry = RawEntry { header, before: vec![], pax: vec![], extensions: vec![], data: vec![] };
        let entry =
            entry.octal(100..108, if flag == b'5' { 0o755 } else { 0o644 }).octal(136..148, 1_700_000_000);
        let entry = entry
            .octal(108..116, 0)
            .octal(116..124, 0)
            .octal(124..136, 0)
            .octal(329..337, 0)
            .octal(337..345, 0);
        entry.name(0..100, b'L', name.as_ref())
    }

    /// A file with these bytes.
    #[must_use]
    pub fn file(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> RawEntry {
        RawEntry::new(b'0', name).data(data)
    }

    /// A directory.
    #[must_use]
    pub fn directory(name: impl AsRef<[u8]>) -> RawEntry {
        RawEntry::new(b'5', name)
    }

    /// A symbolic link.
    #[must_use]
    pub fn symlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> RawEntry {
        RawEntry::new(b'2', name).name(157..257, b'K', target.as_ref())
    }

    /// Another name of the file `target`.
    #[must_use]
    pub fn hard_link(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> RawEntry {
        RawEntry::new(b'1', name).name(157..257, b'K', target.as_ref())
    }

    fn name(mut self, field: std::ops::Range<usize>, flag: u8, name: &[u8]) -> RawEntry {
        if name.len() > 100 {
            let long = RawEntry::new(flag, "././@LongLink").data([name, b"\0"].concat());
            self.before.extend(long.bytes());
        }
        let len = name.len().min(100);
        self.header[field][..len].copy_from_slice(&name[..len]);
        self
    }

    /// Puts an octal number into a field of the header.
    #[must_use]
    pub fn octal(self, field: std::ops::Range<usize>, value: u64) -> RawEntry {
        let width = field.len() - 1;
        self.raw(field, format!("{value:0width$o}\0").as_bytes())
    }

    /// Puts bytes into a part of the header.
    #[must_use]
    pub fn raw(mut self, field: std::ops::Range<usize>, bytes: &[u8]) -> RawEntry {
        self.header[field].copy_from_slice(bytes);
        self
    }

    /// Permission bits.
    #[must_use]
    pub fn mode(self, mode: u64) -> RawEntry {
        self.octal(100..108, mode)
    }

    /// Owner and group.
    #[must_use]
    pub fn owner(self, uid: u64, gid: u64) -> RawEntry {
        self.octal(108..116, uid).octal(116..124, gid)
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn mtime(self, mtime: u64) -> RawEntry {
        self.octal(136..148, mtime)
    }

    /// Major and minor number.
    #[must_use]
    pub fn device(self, major: u64, minor: u64) -> RawEntry {
        self.octal(329..337, major).octal(337..345, minor)
    }

    /// The size that the header claims, whatever data follows.
    #[must_use]
    pub fn size(self, size: u64) -> RawEntry {
        self.octal(124..136, size)
    }

    /// The bytes that follow, and their number as its size.
    #[must_use]
    pub fn data(mut self, data: impl AsRef<[u8]>) -> RawEntry {
        self.data = data.as_ref().to_vec();
        let len = self.data.len() as u64;
        self.size(len)
    }

    /// A PAX record before it.
    #[must_use]
    pub fn pax(mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> RawEntry {
        self.pax.extend(pax_record(key.as_ref(), value.as_ref()));
        self
    }

    /// Bytes between header and data: GNU tar's sparse extensions.
    #[must_use]
    pub fn extension(mut self, record: &[u8; 512]) -> RawEntry {
        self.extensions.extend(record);
        self
    }

    /// The entry as it stands in an archive.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut header = self.header;
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut bytes = vec![];
        if !self.pax.is_empty() {
            bytes.extend(RawEntry::new(b'x', "PaxHeaders/x").data(&self.pax).bytes());
        }
        bytes.extend(&self.before);
        bytes.extend(header);
        bytes.extend(&self.extensions);
        bytes.extend(padded(self.data.clone()));
        bytes
    }
}

/// The entries and an archive's end.
#[must_use]
pub fn archive(entries: &[RawEntry]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(RawEntry::bytes).collect();
    bytes.extend([0; 1024]);
    bytes
}
