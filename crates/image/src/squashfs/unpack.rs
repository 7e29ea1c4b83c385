//! What blocks are compressed with.

use std::io::Read;

use flate2::{Crc, Decompress, FlushDecompress, Status};
use lzma_rust2::filter::bcj::BcjReader;

/// One of squashfs's compressors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decompressor {
    Gzip,
    Xz,
    Lz4,
    Zstd,
}

/// Why it is not understood, and what to do.
type Refusal = (&'static str, Option<&'static str>);

impl Decompressor {
    /// By its number in the superblock.
    pub fn new(id: u16) -> Result<Decompressor, Refusal> {
        let hint = Some("make it anew: mksquashfs DIR FILE -comp zstd");
        match id {
            1 => Ok(Decompressor::Gzip),
            4 => Ok(Decompressor::Xz),
            5 => Ok(Decompressor::Lz4),
            6 => Ok(Decompressor::Zstd),
            2 => Err(("it is compressed with lzma; gzip, xz, lz4 and zstd are understood", hint)),
            3 => Err(("it is compressed with lzo; gzip, xz, lz4 and zstd are understood", hint)),
            _ => Err(("it is compressed in a way that is not known", hint)),
        }
    }

    /// Unpacks a block; gives how many bytes came of it. More than there is room for is an error.
    pub fn unpack(self, packed: &[u8], room: &mut [u8]) -> Result<usize, String> {
        match self {
            Decompressor::Gzip => {
                let mut zlib = Decompress::new(true);
                match zlib.decompress(packed, room, FlushDecompress::Finish) {
                    Ok(Status::StreamEnd) => Ok(zlib.total_out() as usize),
                    Ok(_) => Err("a block's zlib stream is cut off, or too long".into()),
                    Err(error) => Err(format!("a block's zlib stream: {error}")),
                }
            }
            Decompressor::Xz => xz(packed, room),
            Decompressor::Lz4 => lz4_flex::block::decompress_into(packed, room)
                .map_err(|error| format!("a block's lz4 stream: {error}")),
            Decompressor::Zstd => zstd::bulk::decompress_to_buffer(packed, room)
                .map_err(|error| format!("a block's zstd stream: {error}")),
        }
    }
}

const STREAM_MAGIC: &[u8] = b"\xfd7zXZ\0";
const STREAM_HEADER: usize = 12;
const LZMA2: u8 = 0x21;
const X86: u8 = 0x04;

/// The one block of an xz stream: <https://tukaani.org/xz/xz-file-format.txt>. The container is read here, since only its
/// simplest form occurs.
fn xz(packed: &[u8], room: &mut [u8]) -> Result<usize, String> {
    let bad = |why: &str| format!("a block's xz stream: {why}");
    let (header, rest) = packed.split_at_checked(STREAM_HEADER).ok_or_else(|| bad("it is cut off"))?;
    if !header.starts_with(STREAM_MAGIC) {
        return Err(bad("it has no header"));
    }
    let check = header[7] & 15;
    let header_len = rest.first().map_or(0, |size| (usize::from(*size) + 1) * 4);
    let (block, data) = rest.split_at_checked(header_len).ok_or_else(|| bad("it is cut off"))?;
    let Filters { dictionary, x86 } = filters(block).map_err(bad)?;
    let reader = lzma_rust2::Lzma2Reader::new(data, dictionary, None);
    let (count, left) = if x86 {
        let mut reader = BcjReader::new_x86(reader, 0);
        (fill(&mut reader, room), reader.into_inner().into_inner())
    } else {
        let mut reader = reader;
        (fill(&mut reader, room), reader.into_inner())
    };
    let count = count.map_err(|why| bad(&why))?;
    // Padded to four bytes from the block's start, which its header keeps.
    let padding = (data.len() - left.len()).wrapping_neg() % 4;
    if check == 1 {
        let mut crc = Crc::new();
        crc.update(&room[..count]);
        if left.get(padding..padding + 4) != Some(&crc.sum().to_le_bytes()) {
            return Err(bad("its checksum is wrong"));
        }
    }
    Ok(count)
}

/// Reads all there is, for which there must be room.
fn fill(reader: &mut dyn Read, room: &mut [u8]) -> Result<usize, String> {
    let mut count = 0;
    while count < room.len() {
        match reader.read(&mut room[count..]).map_err(|error| error.to_string())? {
            0 => return Ok(count),
            read => count += read,
        }
    }
    match reader.read(&mut [0]).map_err(|error| error.to_string())? {
        0 => Ok(count),
        _ => Err("it has more bytes than a block".into()),
    }
}

/// What a block went through.
struct Filters {
    /// The size of the dictionary that it needs.
    dictionary: u32,
    /// Jumps of x86 programs were made absolute first, which `mksquashfs -Xbcj x86` does where it helps.
    x86: bool,
}

/// By the block's header.
fn filters(header: &[u8]) -> Result<Filters, &'static str> {
    let (&[_, flags], mut rest) = header.split_first_chunk().ok_or("it has no block")?;
    if flags & 0x3c != 0 {
        return Err("it has flags that are not known");
    }
    // Sizes, if they are given, are numbers of seven bits a byte.
    for _ in 0..(flags >> 6 & 1) + (flags >> 7) {
        let len = rest.iter().position(|byte| byte & 0x80 == 0).ok_or("it is cut off")?;
        rest = &rest[len + 1..];
    }
    let (x86, rest) = match (flags & 3, rest) {
        (0, rest) => (false, rest),
        (1, [X86, 0, rest @ ..]) => (true, rest),
        _ => return Err("it is packed for a kind of processor that is not understood (-Xbcj)"),
    };
    match rest {
        [LZMA2, 1, bits, ..] if *bits <= 40 => {
            // 2 or 3 times a power of two; a block needs no more than its own length.
            let size = (2 | u64::from(bits & 1)) << (bits / 2 + 11);
            Ok(Filters { dictionary: size.min(1 << 20) as u32, x86 })
        }
        _ => Err("it is packed with a filter that is not understood"),
    }
}
