//! A descriptor as a stream of bytes.

use std::fs::File;
use std::io::{self, Read};

use skiff_spec::fault::Fault;
use skiff_tar::ByteStream;

use crate::CopyError;

const PIECE: usize = 256 << 10;

/// Bytes of a pipe or file, from its position on.
pub struct FileStream {
    file: File,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
}

impl FileStream {
    /// A stream of what the file has.
    pub fn new(file: File) -> Self {
        Self { file, buffer: vec![0; PIECE], at: 0, end: 0 }
    }

    /// Reads to the end, so that whoever writes meets no closed pipe.
    pub fn drain(&mut self) -> io::Result<()> {
        loop {
            match self.fill()?.len() {
                0 => return Ok(()),
                len => self.consume(len),
            }
        }
    }
}

impl ByteStream for FileStream {
    type Error = io::Error;

    fn fill(&mut self) -> io::Result<&[u8]> {
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
            self.end = loop {
                match self.file.read(&mut self.buffer) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    read => break read?,
                }
            };
        }
        Ok(&self.buffer[self.at..self.end])
    }

    fn consume(&mut self, used: usize) {
        self.at += used;
    }
}

/// What the other side has sent is not what was to come.
pub(crate) fn bad_stream(why: &str) -> CopyError {
    CopyError::Stream(Fault::new(format!("stream of files: {why}")))
}
