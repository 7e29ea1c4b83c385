//! What is asked of a mirror: requests of the distribution protocol, by anybody who can connect to it.

use std::io::{ErrorKind, Read, Result};

use skiff_oci::digest::Digest;

use crate::piece::RelayFile;

/// No request has a longer head, in bytes, nor more lines.
pub(crate) const LONGEST_HEAD: usize = 8 << 10;
const MOST_HEADERS: usize = 32;
/// Below the address of the mirror: what has come by it.
pub(crate) const COUNTS: &str = "counts";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether this is a registry.
    Version,
    /// What has come.
    Counts,
    /// Whether there is such a manifest: whoever has its digest is told that.
    HasManifest(Digest),
    /// All of a manifest or of a small blob.
    Whole(RelayFile),
    /// The bytes from the first up to and with the last one.
    Range(RelayFile, u64, u64),
    /// Something else.
    Unknown,
}

/// Reads up to the end of a request's head: how long it is; nothing where the client has hung up.
pub(crate) fn receive_head(socket: &mut impl Read, received: &mut Vec<u8>) -> Result<Option<usize>> {
    let mut looked = 0;
    let mut buffer = [0; 1024];
    loop {
        if let Some(at) = received[looked..].windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok(Some(looked + at + 4));
        }
        looked = received.len().saturating_sub(3);
        // A client that tries TLS first waits for an answer to that.
        let is_none = received.first().is_some_and(|first| !first.is_ascii_uppercase());
        if is_none || received.len() > LONGEST_HEAD {
            return Err(ErrorKind::InvalidData.into());
        }
        match socket.read(&mut buffer)? {
            0 if received.is_empty() => return Ok(None),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => received.extend_from_slice(&buffer[..count]),
        }
    }
}

/// What a request asks for; fails where it is none, or brings something along.
pub(crate) fn parse(head: &[u8], path: &str) -> Result<Question> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(head).map_err(|_| ErrorKind::InvalidData)?;
    let brings = ["content-length", "transfer-encoding"];
    let header = |name: &str| request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    if parsed.is_partial() || brings.iter().any(|name| header(name).is_some()) {
        return Err(ErrorKind::InvalidData.into());
    }
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Err(ErrorKind::InvalidData.into());
    };
    if (method, target) == ("GET", "/v2/") {
        return Ok(Question::Version);
    }
    let below = target.strip_prefix("/v2/").and_then(|rest| rest.strip_prefix(path)?.strip_prefix('/'));
    let Some((kind, name)) = below.map(|below| below.split_once('/').unwrap_or((below, ""))) else {
        return Ok(Question::Unknown);
    };
    let digest = match name.parse() {
        Ok(Digest::Sha256(digest)) => Some(digest),
        _ => None,
    };
    Ok(match (method, kind, digest, header("range")) {
        ("GET", COUNTS, None, _) if name.is_empty() => Question::Counts,
        ("HEAD", "manifests", Some(digest), _) => Question::HasManifest(Digest::Sha256(digest)),
        ("GET", "manifests", Some(digest), None) => Question::Whole(RelayFile::Manifest(digest)),
        ("GET", "blobs", Some(digest), None) => Question::Whole(RelayFile::Blob(digest)),
        ("GET", "blobs", Some(digest), Some(range)) => {
            let range = std::str::from_utf8(range.value).ok().and_then(parse_range);
            range.map_or(Question::Unknown, |(first, last)| {
                Question::Range(RelayFile::Blob(digest), first, last)
            })
        }
        _ => Question::Unknown,
    })
}

/// One range, with both ends.
fn parse_range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digests_below_the_secret_path_are_known() {
        let hex = "ab".repeat(32);
        let ask = |line: &str, headers: &str| {
            parse(format!("{line} HTTP/1.1\r\nHost: here\r\n{headers}\r\n").as_bytes(), "relay/secret").ok()
        };
        let blob = RelayFile::Blob([0xab; 32]);
        for (line, headers, expected) in [
            ("GET /v2/".to_owned(), "", Question::Version),
            ("GET /v2/relay/secret/counts".to_owned(), "", Question::Counts),
            (format!("GET /v2/relay/secret/blobs/sha256:{hex}"), "", Question::Whole(blob)),
            (
                format!("GET /v2/relay/secret/blobs/sha256:{hex}"),
                "range: bytes=5-9\r\n",
                Question::Range(blob, 5, 9),
            ),
            (
                format!("GET /v2/relay/secret/manifests/sha256:{hex}"),
                "",
                Question::Whole(RelayFile::Manifest([0xab; 32])),
            ),
            (
                format!("HEAD /v2/relay/secret/manifests/sha256:{hex}"),
                "",
                Question::HasManifest(Digest::Sha256([0xab; 32])),
            ),
            (format!("GET /v2/relay/other/blobs/sha256:{hex}"), "", Question::Unknown),
            (format!("GET /v2/relay/secretblobs/sha256:{hex}"), "", Question::Unknown),
            (format!("GET /v2/relay/secret/blobs/sha256:{hex}0"), "", Question::Unknown),
            ("GET /v2/relay/secret/manifests/latest".to_owned(), "", Question::Unknown),
            (format!("DELETE /v2/relay/secret/blobs/sha256:{hex}"), "", Question::Unknown),
            (format!("GET /v2/relay/secret/blobs/sha256:{hex}"), "Range: bytes=5-\r\n", Question::Unknown),
            (
                format!("GET /v2/relay/secret/blobs/sha256:{hex}"),
                "Range: bytes=1-2,4-5\r\n",
                Question::Unknown,
            ),
        ] {
            assert_eq!(ask(&line, headers), Some(expected), "{line} {headers}");
        }
        // What would have to be read, and might be taken for the next request.
        assert_eq!(ask("GET /v2/", "Content-Length: 5\r\n"), None);
        assert_eq!(ask("GET /v2/", "Transfer-Encoding: chunked\r\n"), None);
        assert_eq!(ask("\x16\x03\x01", ""), None);
    }

    #[test]
    fn a_head_ends_at_an_empty_line_and_is_short() {
        let mut received = vec![];
        let mut client = &b"GET / HTTP/1.1\r\n\r\nGET"[..];
        assert_eq!(receive_head(&mut client, &mut received).ok(), Some(Some(18)));
        received.drain(..18);
        assert!(receive_head(&mut client, &mut received).is_err(), "half of a request");
        assert_eq!(receive_head(&mut &b""[..], &mut vec![]).ok(), Some(None));
        let endless = [b'G'; 2 * LONGEST_HEAD];
        assert!(receive_head(&mut &endless[..], &mut vec![]).is_err());
        // Who tries TLS first gets an answer to that at once.
        let mut hello = (&b"\x16\x03\x01"[..]).chain(std::io::repeat(0));
        assert!(receive_head(&mut hello, &mut vec![]).is_err());
    }
}
