//! A layer's tar stream out of its compressed bytes: gzip, zstd or neither, as the first bytes tell.
//!
//! Measured and chosen in docs/image-files.md. The digest is taken of the very bytes that are inflated, while they are in the
//! processor's cache.

use flate2::{Decompress, FlushDecompress, Status};
use skiff_oci::digest::Digest;
use skiff_tar::ByteStream;
use zstd::stream::raw::{DParameter, Decoder as Zstd, Operation};

use crate::blob::Blob;
use crate::hashing::Hashing;
use crate::{Error, Result};

const CHUNK: usize = 256 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The first three bytes of a zstd frame that holds no data; the lower half of its first byte is free.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];
/// A zstd frame may ask for as much memory: 128 MiB, what the command allows too.
const ZSTD_WINDOW_LOG: u32 = 27;

/// How a blob is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerCompression {
    Plain,
    Gzip,
    Zstd,
}

impl LayerCompression {
    /// What the first bytes of a blob say.
    pub fn of(head: &[u8]) -> LayerCompression {
        let skippable = || head.get(1..4) == Some(&ZSTD_SKIPPABLE) && head[0] >> 4 == 5;
        if head.starts_with(&GZIP) {
            LayerCompression::Gzip
        } else if head.starts_with(&ZSTD) || skippable() {
            LayerCompression::Zstd
        } else {
            LayerCompression::Plain
        }
    }
}

/// How many bytes at its beginning tell a blob's compression, and zstd's promise of a size.
pub(crate) const HEAD: usize = 18;

/// About how many bytes the blob inflates to, exactly in nearly all cases: the same for the same blob, whatever it is.
pub(crate) fn promised_size(blob: &dyn Blob) -> Result<u64> {
    let size = blob.size();
    let mut head = [0; HEAD];
    let head = &mut head[..HEAD.min(usize::try_from(size).unwrap_or(HEAD))];
    blob.read_at(head, 0)?;
    let promise = match LayerCompression::of(head) {
        LayerCompression::Plain => return Ok(size),
        LayerCompression::Gzip if size < HEAD as u64 => 0,
        LayerCompression::Gzip => {
            let mut last = [0; 4];
            blob.read_at(&mut last, size - 4)?;
            gzip_promise(size, u32::from_le_bytes(last))
        }
        // Streams have none. Four times is more than nearly all shrink to.
        LayerCompression::Zstd => zstd_promise(head).unwrap_or(size.saturating_mul(4)),
    };
    // Deflate cannot do better, and no sane layer does.
    Ok(promise.min(size.saturating_mul(1100)))
}

/// The last four bytes have the size modulo 4 GiB, if they are the end of the only member.
fn gzip_promise(size: u64, last: u32) -> u64 {
    let last = u64::from(last);
    match size {
        // Deflate makes nothing longer than by a few bytes in 64 KiB.
        _ if last + (last >> 10) + 64 >= size => last,
        // Several members, one for each file perhaps.
        ..0x4000_0000 => size.saturating_mul(4),
        _ => last + (size.saturating_mul(2).saturating_sub(last)).div_ceil(1 << 32) * (1 << 32),
    }
}

/// The content size in a zstd frame's header (RFC 8878, 3.1.1.1).
fn zstd_promise(head: &[u8]) -> Option<u64> {
    let descriptor = *head.strip_prefix(&ZSTD)?.first()?;
    let single_segment = descriptor & 0x20 != 0;
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let start = 5 + usize::from(!single_segment) + dictionary;
    let len = match descriptor >> 6 {
        0 if single_segment => 1,
        0 => return None,
        flag => 1 << flag,
    };
    let mut bytes = [0; 8];
    bytes[..len].copy_from_slice(head.get(start..start + len)?);
    let offset = if len == 2 { 256 } else { 0 };
    Some(u64::from_le_bytes(bytes).saturating_add(offset))
}

/// What reading a layer must heed beside the bytes.
pub(crate) trait InflateWatch {
    /// Called before each chunk; an error ends the reading.
    fn before_read(&self) -> Result<()>;
    /// Bytes are not here yet: reads them, blocking, while someone else may use the processor.
    fn wait(&self, read: &mut dyn FnMut() -> Result<()>) -> Result<()>;
    /// So many bytes have been read, so many have come of them. An error ends the reading.
    fn progress(&self, read: u64, inflated: u64) -> Result<()>;
}

/// The inflated bytes of a blob.
pub(crate) struct Inflater<'a, W> {
    blob: &'a dyn Blob,
    watch: &'a W,
    hash: Option<Hashing>,
    /// Compressed bytes that have been read, and which of them are unused.
    input: Vec<u8>,
    unused: std::ops::Range<usize>,
    read: u64,
    decoder: Decoder,
    output: Vec<u8>,
    ready: std::ops::Range<usize>,
}

enum Decoder {
    /// Before the first byte.
    Unknown,
    Plain,
    Gzip(Decompress),
    /// Between two members, where the file may end.
    GzipEnd,
    Zstd {
        decoder: Zstd<'static>,
        /// No frame is begun.
        between: bool,
    },
}

impl<'a, W: InflateWatch> Inflater<'a, W> {
    /// A reader of the whole blob.
    pub fn new(blob: &'a dyn Blob, watch: &'a W) -> Inflater<'a, W> {
        Inflater {
            blob,
            watch,
            hash: blob.digest().map(|digest| Hashing::like(&digest)),
            input: vec![0; CHUNK],
            unused: 0..0,
            read: 0,
            decoder: Decoder::Unknown,
            output: vec![],
            ready: 0..0,
        }
    }

    /// Inflates what is left.
    pub fn skip(&mut self) -> Result<()> {
        loop {
            match self.fill()?.len() {
                0 => return Ok(()),
                len => self.consume(len),
            }
        }
    }

    /// Reads what is left of the blob without inflating it; gives its digest if that is not the right one.
    pub fn finish(mut self) -> Result<Option<Digest>> {
        while self.read < self.blob.size() {
            self.unused = 0..0;
            self.refill()?;
        }
        let got = self.hash.map(Hashing::finish);
        Ok(got.filter(|got| Some(*got) != self.blob.digest()))
    }

    /// Reads more compressed bytes behind the unused ones, if there are any.
    fn refill(&mut self) -> Result<()> {
        self.watch.before_read()?;
        self.input.copy_within(self.unused.clone(), 0);
        self.unused = 0..self.unused.len();
        let room = &mut self.input[self.unused.end..];
        let len = usize::try_from(self.blob.size() - self.read).unwrap_or(room.len()).min(room.len());
        let room = &mut room[..len];
        if self.blob.has(self.read + len as u64) {
            self.blob.read_at(room, self.read)?;
        } else {
            self.watch.wait(&mut || self.blob.read_at(room, self.read))?;
        }
        if let Some(hash) = &mut self.hash {
            hash.update(room);
        }
        self.unused.end += len;
        self.read += len as u64;
        let inflated = if matches!(self.decoder, Decoder::Plain) { len } else { 0 };
        self.watch.progress(len as u64, inflated as u64)
    }

    /// Inflates until there is something in `ready`, or all has been.
    fn inflate(&mut self) -> Result<()> {
        loop {
            // So many bytes tell what begins here. At the blob's end there may be fewer.
            if self.unused.len() < HEAD && self.read < self.blob.size() {
                self.refill()?;
            }
            let input = &self.input[self.unused.clone()];
            let last = self.read == self.blob.size();
            let (used, made) = match &mut self.decoder {
                Decoder::Unknown => {
                    self.decide()?;
                    continue;
                }
                Decoder::Plain => return Ok(()),
                Decoder::GzipEnd | Decoder::Zstd { between: true, .. } if input.is_empty() => return Ok(()),
                Decoder::GzipEnd if input.starts_with(&GZIP) => {
                    self.decoder = Decoder::Gzip(Decompress::new_gzip(15));
                    continue;
                }
                // Tapes were filled up with zeros, and some tools still do so.
                Decoder::GzipEnd if input.iter().all(|&byte| byte == 0) => (input.len(), 0),
                Decoder::GzipEnd => return Err(self.bad("bytes behind the end of its gzip stream")),
                Decoder::Gzip(gzip) => {
                    let before = (gzip.total_in(), gzip.total_out());
                    let status = gzip.decompress(input, &mut self.output, FlushDecompress::None);
                    let step = (gzip.total_in() - before.0, gzip.total_out() - before.1);
                    match status {
                        Ok(Status::StreamEnd) => self.decoder = Decoder::GzipEnd,
                        Ok(_) => {}
                        Err(error) => {
                            return Err(self.bad(&format!("its gzip stream cannot be inflated: {error}")));
                        }
                    }
                    (step.0 as usize, step.1 as usize)
                }
                Decoder::Zstd { decoder, between } => {
                    let step = decoder.run_on_buffers(input, &mut self.output);
                    let step = step.map_err(|error| {
                        bad(self.blob, &format!("its zstd stream cannot be inflated: {error}"))
                    })?;
                    *between = step.remaining == 0;
                    (step.bytes_read, step.bytes_written)
                }
            };
            if (used, made) == (0, 0) && last {
                return Err(self.bad("its compressed stream is cut off"));
            }
            self.unused.start += used;
            self.watch.progress(0, made as u64)?;
            if made > 0 {
                self.ready = 0..made;
                return Ok(());
            }
        }
    }

    /// Looks at the first bytes.
    fn decide(&mut self) -> Result<()> {
        let compression = LayerCompression::of(&self.input[self.unused.clone()]);
        self.decoder = Decoder::new(compression)
            .map_err(|_| self.bad("there is no memory to inflate its zstd stream"))?;
        match compression {
            LayerCompression::Plain => self.watch.progress(0, self.unused.len() as u64),
            _ => {
                self.output = vec![0; CHUNK];
                Ok(())
            }
        }
    }

    fn bad(&self, why: &str) -> Error {
        bad(self.blob, why)
    }
}

fn bad(blob: &dyn Blob, why: &str) -> Error {
    Error::BadLayer { layer: blob.name().into(), why: why.into() }
}

impl Decoder {
    fn new(compression: LayerCompression) -> std::io::Result<Decoder> {
        Ok(match compression {
            LayerCompression::Plain => Decoder::Plain,
            LayerCompression::Gzip => Decoder::GzipEnd,
            LayerCompression::Zstd => {
                let mut decoder = Zstd::new()?;
                decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
                Decoder::Zstd { decoder, between: true }
            }
        })
    }
}

impl<W: InflateWatch> ByteStream for Inflater<'_, W> {
    type Error = Error;

    fn fill(&mut self) -> Result<&[u8]> {
        if self.ready.is_empty() {
            self.inflate()?;
        }
        if !matches!(self.decoder, Decoder::Plain) {
            return Ok(&self.output[self.ready.clone()]);
        }
        if self.unused.is_empty() {
            self.refill()?;
        }
        Ok(&self.input[self.unused.clone()])
    }

    fn consume(&mut self, used: usize) {
        match self.decoder {
            Decoder::Plain => self.unused.start += used,
            _ => self.ready.start += used,
        }
    }
}
