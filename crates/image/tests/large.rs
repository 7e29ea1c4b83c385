//! Layers that inflate to more than 4 GiB of real data. Not part of the usual run: each costs 4 GiB of the disk for some seconds.
//!
//!     cargo test --release -p skiff-image --test main large:: -- --ignored

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::common;
use crate::common::layers::build::RawEntry as Tar;
use crate::common::layers::from_bytes;
use crate::common::mounted::Mounted;
use crate::common::{bytes, is_root};
use flate2::{Compress, Compression, Crc, FlushCompress};
use skiff_erofs::{Reader, verify};

const MIB: usize = 1 << 20;

/// A gzip stream that is made of pieces which know nothing of each other, so that a million zeros are deflated once.
struct Gzip {
    stream: Vec<u8>,
    crc: Crc,
    deflated_zeros: Vec<u8>,
}

impl Gzip {
    fn new() -> Gzip {
        let stream = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
        Gzip { stream, crc: Crc::new(), deflated_zeros: deflated(&[0; MIB], FlushCompress::Full) }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
        self.stream.extend(deflated(bytes, FlushCompress::Full));
    }

    fn zeros(&mut self, mut count: u64) {
        while count >= MIB as u64 {
            self.crc.update(&[0; MIB]);
            self.stream.extend(&self.deflated_zeros);
            count -= MIB as u64;
        }
        self.bytes(&vec![0; count as usize]);
    }

    /// With the length as gzip tells it: modulo 4 GiB.
    fn finish(mut self) -> Vec<u8> {
        self.stream.extend(deflated(&[], FlushCompress::Finish));
        self.stream.extend(self.crc.sum().to_le_bytes());
        self.stream.extend(self.crc.amount().to_le_bytes());
        self.stream
    }
}

fn deflated(bytes: &[u8], flush: FlushCompress) -> Vec<u8> {
    let mut output = Vec::with_capacity(bytes.len() + 1024);
    Compress::new(Compression::fast(), false).compress_vec(bytes, &mut output, flush).unwrap();
    output
}

/// What the stream's end says, of which the layer's place in the image follows, is too little by 4 GiB: less than the stream itself has, or
/// what a smaller layer could have.
#[test]
#[ignore = "writes 8 GiB"]
fn a_gzip_stream_of_more_than_4_gib_is_unpacked_whole() {
    for more in [0, 100 * MIB as u64] {
        let size = (4 << 30) + more + 4097;
        let (first, last) = (bytes(4096, 1), bytes(5000, 2));
        let mut gzip = Gzip::new();
        gzip.bytes(&Tar::file("large", b"").pax("size", size.to_string()).bytes());
        gzip.bytes(&first);
        gzip.zeros(size - (first.len() + last.len()) as u64);
        gzip.bytes(&last);
        gzip.zeros(size.wrapping_neg() % 512);
        gzip.bytes(&Tar::file("behind", bytes(9000, 3)).bytes());
        gzip.zeros(1024);
        assert_eq!(gzip.crc.amount() >> 20, more as u32 >> 20, "modulo 4 GiB");
        let other = common::layers::build::archive(&[Tar::file("other", bytes(50_000, 4))]);
        let image = from_bytes(&[gzip.finish(), other]).unwrap();

        let reader = Reader::open(File::open(&image.path).unwrap(), "image.erofs").unwrap();
        verify(&reader).unwrap();
        let read = |path: &str, at: u64, len: usize| {
            let found = reader.files().map(Result::unwrap).find(|file| file.path == path.as_bytes());
            let mut buffer = vec![0xAA; len];
            assert_eq!(reader.read_at(&found.unwrap().inode, &mut buffer, at).unwrap(), len);
            buffer
        };
        let mounted = is_root("the kernel's view").then(|| Mounted::new(&image.path).unwrap());
        for (path, at, expected) in [
            ("large", 0, first),
            ("large", 4096, vec![0; 4096]),
            ("large", (4 << 30) - 8192, vec![0; 4096]),
            ("large", size - 5000, last),
            ("behind", 0, bytes(9000, 3)),
            ("other", 0, bytes(50_000, 4)),
        ] {
            assert!(read(path, at, expected.len()) == expected, "{path} at {at}");
            if let Some(mounted) = &mounted {
                let mut found = vec![0xAA; expected.len()];
                let file = File::open(mounted.path().join(path)).unwrap();
                file.read_exact_at(&mut found, at).unwrap();
                assert!(found == expected, "{path} at {at}, by the kernel");
            }
        }
    }
}
