//! Brings one range of a blob from a server into its file, and hashes what has arrived without a gap.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_sys::IgnoreError;
use ureq::Body;
use ureq::http::{Response, StatusCode, Uri, header};

use super::failure::Failure;
use super::growing::Growing;
use super::http::{Http, authority, header_text, io_failure};
use super::ingest::Ingest;
use super::location::{BlobLocation, Redirect};
use super::memory::{Memory, PIECE, Piece, Reserved};
use crate::error::{Error, Result};

/// A blob that is being fetched.
pub(super) struct Transfer {
    digest: Digest,
    ingest: Ingest,
    growing: Arc<Growing>,
    hashed: Mutex<Hashed>,
    redirect: Redirect,
}

struct Hashed {
    hasher: Hasher,
    bytes: u64,
    /// What is read again to be hashed goes through here.
    buffer: Vec<u8>,
}

/// How an attempt ended that was no success.
pub(super) enum Trouble {
    /// The server or the network failed.
    Failure(Failure),
    /// The server gives out blobs as a whole only.
    NoRanges,
    /// We failed, and would fail again.
    Fatal(Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Trouble::Failure(failure)
    }
}

impl Hashed {
    fn new(digest: &Digest) -> Hashed {
        Hashed { hasher: Hasher::like(digest), bytes: 0, buffer: vec![] }
    }
}

impl Transfer {
    pub(super) fn new(digest: Digest, ingest: Ingest, growing: Arc<Growing>) -> Transfer {
        growing.opened(ingest.data(), ingest.chunks(), ingest.filled());
        let hashed = Hashed::new(&digest);
        Transfer { digest, ingest, growing, hashed: Mutex::new(hashed), redirect: Redirect::default() }
    }

    /// The chunks that are still to be fetched, in the order to ask for them.
    pub(super) fn missing(&self) -> Vec<usize> {
        let chunks = self.ingest.chunks();
        let is_missing = |i: &usize| {
            let (begin, end) = chunks.range(*i);
            self.growing.filled(*i) < end - begin
        };
        chunks.order().filter(is_missing).collect()
    }

    pub(super) fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Room in memory for a chunk.
    pub(super) fn room(&self, chunk: usize, memory: &Arc<Memory>) -> Option<Reserved> {
        let (begin, end) = self.ingest.chunks().range(chunk);
        memory.reserve(end - begin)
    }

    /// Whether a chunk must come at once, if need be by the disk.
    pub(super) fn is_urgent(&self, chunk: usize) -> bool {
        let (begin, end) = self.ingest.chunks().range(chunk);
        self.growing.is_urgent(begin, end)
    }

    /// Whether a chunk says how much room the blob needs.
    pub(super) fn is_edge(&self, chunk: usize) -> bool {
        self.ingest.chunks().is_edge(chunk)
    }

    /// How many bytes are here, or will be when so many requests are answered, that nobody has read.
    pub(super) fn ahead(&self, requests: usize) -> u64 {
        self.growing.ahead() + self.ingest.chunks().chunk_size() * requests as u64
    }

    /// How many bytes of a chunk, or of all, are here.
    pub(super) fn received(&self, chunk: Option<usize>) -> u64 {
        chunk.map_or_else(|| self.growing.progress().0, |chunk| self.growing.filled(chunk))
    }

    /// Fetches what is missing of one chunk. What there is room for stays in memory until it has been read; the rest comes
    /// through `buffer`.
    pub(super) fn chunk(
        &self,
        http: &Http,
        origin: &BlobLocation,
        chunk: usize,
        mut room: Option<Reserved>,
        buffer: &mut [u8],
    ) -> Result<(), Trouble> {
        let (begin, end) = self.ingest.chunks().range(chunk);
        let begin = begin + self.growing.filled(chunk);
        // Brought by a request for the whole blob that broke off later.
        if begin == end {
            return Ok(());
        }
        let size = self.ingest.chunks().size();
        let (response, from) = self.redirect.ask(http, (&self.digest, origin), Some((begin, end - 1)))?;
        if response.status() == StatusCode::OK && (begin, end) != (0, size) {
            return Err(Trouble::NoRanges);
        }
        self.check_range(&response, begin, end)?;
        let mut body = response.into_body().into_reader();
        let mut at = begin;
        while at < end {
            let wanted = PIECE.min((end - at) as usize);
            let served = self.growing.is_served();
            let (got, ended) = match room.as_mut().filter(|_| !served).and_then(Reserved::piece) {
                Some(mut piece) => {
                    let (got, ended) = fill(&mut body, &mut piece[..wanted]);
                    piece.truncate(got);
                    self.take_in_piece(chunk, piece, at)?;
                    (got, ended)
                }
                None => {
                    let (got, ended) = fill(&mut body, &mut buffer[..wanted]);
                    let cached = room.as_mut().and_then(|room| room.cached(got));
                    self.take_in(chunk, &buffer[..got], at, cached)?;
                    (got, ended)
                }
            };
            at += got as u64;
            ended_early(ended, at, begin, end, &from)?;
        }
        see_end(&mut body);
        Ok(())
    }

    /// Fetches the blob as a whole; what is there already is not written again, since it may have been read.
    pub(super) fn whole(&self, http: &Http, origin: &BlobLocation, piece: &mut [u8]) -> Result<(), Trouble> {
        let chunks = self.ingest.chunks();
        let (response, from) = self.redirect.ask(http, (&self.digest, origin), None)?;
        self.check_range(&response, 0, chunks.size())?;
        let mut body = response.into_body().into_reader();
        for chunk in 0..chunks.count() {
            let (begin, end) = chunks.range(chunk);
            let mut at = begin;
            while at < end {
                let wanted = piece.len().min((end - at) as usize);
                let (got, ended) = fill(&mut body, &mut piece[..wanted]);
                let known = (begin + self.growing.filled(chunk)).saturating_sub(at).min(got as u64);
                self.take_in(chunk, &piece[known as usize..got], at + known, None)?;
                at += got as u64;
                ended_early(ended, at, 0, chunks.size(), &from)?;
            }
        }
        see_end(&mut body);
        Ok(())
    }

    /// The next bytes come from there.
    pub(super) fn comes_from(&self, origin: Option<super::Origin>) {
        self.ingest.comes_from(origin);
    }

    /// Once all is there: its digest, if it is not the one asked for.
    pub(super) fn wrong_digest(&self) -> Result<Option<Digest>> {
        let mut hashed = self.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        self.hash(&mut hashed)?;
        let got = hashed.hasher.clone().finish();
        Ok((got != self.digest).then_some(got))
    }

    /// Which attempt to fetch it this is.
    pub(super) fn round(&self) -> u32 {
        self.growing.round()
    }

    /// Releases a blob that is whole and written to no more.
    pub(super) fn release(&self) -> Result<()> {
        self.ingest.release()
    }

    /// Throws all away, to begin again.
    pub(super) fn restart(&self) -> Result<()> {
        let mut hashed = self.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        *hashed = Hashed::new(&self.digest);
        self.forget_location();
        self.growing.restart();
        self.ingest.reset()
    }

    pub(super) fn forget_location(&self) {
        self.redirect.forget();
    }

    /// The answer must be about the bytes asked for, of a blob of the size that the manifest says.
    fn check_range(&self, response: &Response<Body>, begin: u64, end: u64) -> Result<(), Failure> {
        let size = self.ingest.chunks().size();
        if response.status() == StatusCode::OK {
            return match response.body().content_length() {
                Some(length) if length != size => {
                    Err(Failure::Nonsense(format!("it has {length} bytes where its descriptor says {size}")))
                }
                _ => Ok(()),
            };
        }
        let text = header_text(response.headers(), header::CONTENT_RANGE).unwrap_or_default();
        match content_range(text) {
            Some((.., Some(total))) if total != size => {
                Err(Failure::Nonsense(format!("it has {total} bytes where its descriptor says {size}")))
            }
            Some((first, last, _)) if first == begin && last + 1 == end => Ok(()),
            _ => Err(Failure::Nonsense(format!("asked for bytes {begin}-{}, got {text:?}", end - 1))),
        }
    }

    fn take_in(&self, chunk: usize, bytes: &[u8], at: u64, cached: Option<Piece>) -> Result<(), Trouble> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.growing.is_served() {
            self.ingest.write_cached(bytes, at).map_err(Trouble::Fatal)?;
            return self.note(chunk, bytes.len() as u64, cached);
        }
        self.ingest.write(bytes, at).map_err(Trouble::Fatal)?;
        if let Ok(mut hashed) = self.hashed.try_lock()
            && hashed.bytes == at
        {
            hashed.hasher.update(bytes);
            hashed.bytes += bytes.len() as u64;
        }
        self.note(chunk, bytes.len() as u64, None)
    }

    /// The same with a piece that stays in memory.
    fn take_in_piece(&self, chunk: usize, piece: Piece, at: u64) -> Result<(), Trouble> {
        if piece.is_empty() {
            return Ok(());
        }
        self.ingest.write(&piece, at).map_err(Trouble::Fatal)?;
        self.note(chunk, piece.len() as u64, Some(piece))
    }

    /// More of a chunk is in the file.
    fn note(&self, chunk: usize, bytes: u64, piece: Option<Piece>) -> Result<(), Trouble> {
        self.growing.extend(chunk, bytes, piece);
        self.ingest.mark(chunk, self.growing.filled(chunk)).map_err(Trouble::Fatal)?;
        self.hash_what_is_there().map_err(Trouble::Fatal)
    }

    /// One hashes; the others need not wait for it, since it looks again for what has come meanwhile.
    fn hash_what_is_there(&self) -> Result<()> {
        // Who unpacks it hashes it, and needs not believe us.
        if self.growing.is_served() {
            return Ok(());
        }
        while let Ok(mut hashed) = self.hashed.try_lock() {
            self.hash(&mut hashed)?;
            let done = hashed.bytes;
            drop(hashed);
            if self.growing.prefix() <= done {
                break;
            }
        }
        Ok(())
    }

    /// Hashes all that is there without a gap. In pieces small enough to be still in the processor's cache.
    fn hash(&self, hashed: &mut Hashed) -> Result<()> {
        while hashed.bytes < self.growing.prefix() {
            let wanted = PIECE.min((self.growing.prefix() - hashed.bytes) as usize);
            let Hashed { hasher, bytes, buffer } = hashed;
            let end = *bytes + wanted as u64;
            match self.growing.pieces(*bytes, end).first() {
                Some((begin, piece)) if begin <= bytes => {
                    let have = &piece[(*bytes - begin) as usize..];
                    hasher.update(have);
                    *bytes += have.len() as u64;
                }
                next => {
                    // Up to where the next one in memory begins.
                    let wanted = next.map_or(wanted, |(begin, _)| (begin - *bytes) as usize);
                    buffer.resize(PIECE, 0);
                    self.ingest.read(&mut buffer[..wanted], *bytes)?;
                    hasher.update(&buffer[..wanted]);
                    *bytes += wanted as u64;
                }
            }
            self.growing.hashed(hashed.bytes);
        }
        Ok(())
    }
}

/// Reads until the buffer is full, the answer ends or the connection breaks.
fn fill(body: &mut impl Read, buffer: &mut [u8]) -> (usize, Option<std::io::Result<()>>) {
    let mut filled = 0;
    while filled < buffer.len() {
        match body.read(&mut buffer[filled..]) {
            Ok(0) => return (filled, Some(Ok(()))),
            Ok(read) => filled += read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return (filled, Some(Err(e))),
        }
    }
    (filled, None)
}

/// A connection is kept only if its answer was read to the end; if that fails, it is just not kept.
fn see_end(body: &mut impl Read) {
    std::io::copy(&mut body.take(1), &mut std::io::sink())
        .ignore_error("a connection whose end is not seen is just not kept");
}

fn ended_early(
    ended: Option<std::io::Result<()>>,
    at: u64,
    begin: u64,
    end: u64,
    from: &Uri,
) -> Result<(), Failure> {
    match ended {
        None => Ok(()),
        Some(Err(e)) if e.kind() != std::io::ErrorKind::UnexpectedEof => Err(io_failure(e, authority(from))),
        Some(_) => Err(Failure::Short { got: at - begin, expected: end - begin }),
    }
}

/// `bytes FIRST-LAST/TOTAL` (RFC 9110, 14.4).
pub(super) fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse::<u64>().ok().filter(|last| *last < u64::MAX)?);
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((first, last, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        for (text, meant) in [
            ("bytes 0-9/10", Some((0, 9, Some(10)))),
            ("bytes 5-9/*", Some((5, 9, None))),
            ("bytes */10", None),
            ("bytes 0-18446744073709551615/1", None),
            ("items 0-9/10", None),
            ("", None),
        ] {
            assert_eq!(content_range(text), meant, "{text}");
        }
    }
}
