//! What is asked of a mirror: requests of the distribution protocol, by anybody who can connect to it.

use std::io::{ErrorKind, Read, Result};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use skiff_oci::digest::Digest;

use crate::piece::RelayFile;

/// How long a request may take from its first byte on, and how long after another one it may begin.
const TO_ASK: Duration = Duration::from_secs(5);
const BETWEEN_REQUESTS: Duration = Duration::from_secs(60);
/// No request has a longer head, in bytes, nor more lines.
pub(crate) const LONGEST_HEAD: usize = 8 << 10;
const MOST_HEADERS: usize = 32;
/// Below the address of the mirror: what has come by it.
pub(crate) const COUNTS: &str = "counts";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MirrorRequest {
    /// Whether this is a registry.
    Version,
    /// What has come.
    Counts,
    /// Whether there is such a manifest. Always answered with yes: the client knows the digest.
    HasManifest(Digest),
    /// All of a manifest or of a small blob.
    Whole(RelayFile),
    /// The bytes from the first up to and with the last one.
    Range(RelayFile, u64, u64),
    /// Something else.
    Unknown,
}

/// Reads up to the end of a request's head: how long it is; nothing where the client has hung up.
pub(crate) fn receive_head(socket: &mut TcpStream, received: &mut Vec<u8>) -> Result<Option<usize>> {
    let (mut looked, mut buffer) = (0, [0; 1024]);
    let mut deadline = Instant::now() + if received.is_empty() { BETWEEN_REQUESTS } else { TO_ASK };
    loop {
        if let Some(at) = received[looked..].windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok(Some(looked + at + 4));
        }
        looked = received.len().saturating_sub(3);
        // A client that tries TLS first waits for an answer to that.
        let is_not_http = received.first().is_some_and(|first| !first.is_ascii_uppercase());
        if is_not_http || received.len() > LONGEST_HEAD {
            return Err(ErrorKind::InvalidData.into());
        }
        let is_first = received.is_empty();
        match read_until(socket, &mut buffer, deadline)? {
            0 if is_first => return Ok(None),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => received.extend_from_slice(&buffer[..count]),
        }
        if is_first {
            deadline = Instant::now() + TO_ASK;
        }
    }
}

/// Reads what comes next, if it comes before the deadline.
pub(crate) fn read_until(socket: &mut TcpStream, buffer: &mut [u8], deadline: Instant) -> Result<usize> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    socket.set_read_timeout(Some(left))?;
    socket.read(buffer)
}

/// What a request asks for. Fails if it is not HTTP, or has a body.
pub(crate) fn parse(head: &[u8], path: &str) -> Result<MirrorRequest> {
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
        return Ok(MirrorRequest::Version);
    }
    let below = target.strip_prefix("/v2/").and_then(|rest| rest.strip_prefix(path)?.strip_prefix('/'));
    let Some((kind, name)) = below.map(|below| below.split_once('/').unwrap_or((below, ""))) else {
        return Ok(MirrorRequest::Unknown);
    };
    let digest = match name.parse() {
        Ok(Digest::Sha256(digest)) => Some(digest),
        _ => None,
    };
    Ok(match (method, kind, digest, header("range")) {
        ("GET", COUNTS, None, _) if name.is_empty() => MirrorRequest::Counts,
        ("HEAD", "manifests", Some(digest), _) => MirrorRequest::HasManifest(Digest::Sha256(digest)),
        ("GET", "manifests", Some(digest), None) => MirrorRequest::Whole(RelayFile::Manifest(digest)),
        ("GET", "blobs", Some(digest), None) => MirrorRequest::Whole(RelayFile::Blob(digest)),
        ("GET", "blobs", Some(digest), Some(range)) => {
            let range = std::str::from_utf8(range.value).ok().and_then(parse_range);
            range.map_or(MirrorRequest::Unknown, |(first, last)| {
                MirrorRequest::Range(RelayFile::Blob(digest), first, last)
            })
        }
        _ => MirrorRequest::Unknown,
    })
}

/// One range, with both ends.
fn parse_range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_digests_below_the_secret_path_are_known() {
        let hex = "ab".repeat(32);
        let ask = |line: &str, headers: &str| {
            parse(format!("{line} HTTP/1.1\r\nHost: here\r\n{headers}\r\n").as_bytes(), "relay/secret").ok()
        };
        let blob = RelayFile::Blob([0xab; 32]);
        for (line, headers, expected) in [
            ("GET /v2/".to_owned(), "", MirrorRequest::Version),
            ("GET /v2/relay/secret/counts".to_owned(), "", MirrorRequest::Counts),
            (format!("GET /v2/relay/secret/blobs/sha256:{hex}"), "", MirrorRequest::Whole(blob)),
            (
                format!("GET /v2/relay/secret/blobs/sha256:{hex}"),
                "range: bytes=5-9\r\n",
                MirrorRequest::Range(blob, 5, 9),
            ),
            (
                format!("GET /v2/relay/secret/manifests/sha256:{hex}"),
                "",
                MirrorRequest::Whole(RelayFile::Manifest([0xab; 32])),
            ),
            (
                format!("HEAD /v2/relay/secret/manifests/sha256:{hex}"),
                "",
                MirrorRequest::HasManifest(Digest::Sha256([0xab; 32])),
            ),
            (format!("GET /v2/relay/other/blobs/sha256:{hex}"), "", MirrorRequest::Unknown),
            (format!("GET /v2/relay/secretblobs/sha256:{hex}"), "", MirrorRequest::Unknown),
            (format!("GET /v2/relay/secret/blobs/sha256:{hex}0"), "", MirrorRequest::Unknown),
            ("GET /v2/relay/secret/manifests/latest".to_owned(), "", MirrorRequest::Unknown),
            (format!("DELETE /v2/relay/secret/blobs/sha256:{hex}"), "", MirrorRequest::Unknown),
            (
                format!("GET /v2/relay/secret/blobs/sha256:{hex}"),
                "Range: bytes=5-\r\n",
                MirrorRequest::Unknown,
            ),
            (
                format!("GET /v2/relay/secret/blobs/sha256:{hex}"),
                "Range: bytes=1-2,4-5\r\n",
                MirrorRequest::Unknown,
            ),
        ] {
            assert_eq!(ask(&line, headers), Some(expected), "{line} {headers}");
        }
        // What would have to be read, and might be taken for the next request.
        assert_eq!(ask("GET /v2/", "Content-Length: 5\r\n"), None);
        assert_eq!(ask("GET /v2/", "Transfer-Encoding: chunked\r\n"), None);
        assert_eq!(ask("\x16\x03\x01", ""), None);
    }

    /// What a client that sends this and hangs up is heard to ask, head by head.
    fn heads(bytes: &[u8]) -> Vec<Result<Option<usize>>> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let mut socket = listener.accept().expect("a client").0;
        client.write_all(bytes).expect("sent");
        drop(client);
        let (mut received, mut heads) = (vec![], vec![]);
        loop {
            heads.push(receive_head(&mut socket, &mut received));
            match heads.last() {
                Some(Ok(Some(length))) => drop(received.drain(..*length)),
                _ => return heads,
            }
        }
    }

    #[test]
    fn a_head_ends_at_an_empty_line_and_is_short() {
        let two = b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nA: b\r\n\r\n";
        let lengths: Vec<_> = heads(two).into_iter().map(|head| head.expect("whole")).collect();
        assert_eq!(lengths, [Some(18), Some(24), None]);
        assert!(heads(b"GET / HTTP/1.1\r\n\r\nGET")[1].is_err(), "half of a request");
        assert!(heads(&[b'G'; 2 * LONGEST_HEAD])[0].is_err());
        // Who tries TLS first gets an answer to that at once.
        assert!(heads(b"\x16\x03\x01")[0].is_err());
    }
}
