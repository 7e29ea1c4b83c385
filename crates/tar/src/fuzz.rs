//! The parser of tar streams, for fuzzing: it takes any bytes, tells whether they were taken, and panics where what must hold of what
//! was taken does not.

use crate::TarReader;

/// A tar stream.
pub fn tar(bytes: &[u8]) -> bool {
    let bytes = with_checksums(bytes);
    let mut reader = TarReader::new(&bytes[..]);
    let mut sum = 0;
    loop {
        match reader.next_entry() {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
        while let Ok(len @ 1..) = reader.data().map(<[u8]>::len) {
            sum += len;
            reader.consume(len);
        }
        assert!(sum <= bytes.len(), "more data than there is");
    }
}

/// The stream with all its headers' checksums right: who forges a layer makes them so too.
#[must_use]
pub fn with_checksums(stream: &[u8]) -> Vec<u8> {
    let mut stream = stream.to_vec();
    for header in stream.chunks_exact_mut(512).filter(|record| record[257..].starts_with(b"ustar")) {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    stream
}
