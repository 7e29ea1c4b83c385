//! Files of any server: what somebody names by an address, and a sum if they know it. The same care as for registries, but no login.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::thread::sleep;
use std::time::Duration;

use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use ureq::http::Uri;

use crate::http::{Http, HttpRequest, authority, io_failure, is_good, status_failure};
use crate::{ClientSettings, Failure};

/// What is read at once.
const PIECE: usize = 256 << 10;
/// So often it is tried, with as many seconds between as have failed.
const TRIES: u64 = 3;

/// Writes what is at an address into an empty file, but no more than `most` bytes; gives its digest, which is the wanted one if there is one.
///
/// # Errors
/// It cannot be had, or is another file than the one that is wanted.
pub fn download(
    settings: ClientSettings,
    address: &str,
    wanted: Option<&Digest>,
    (to, most): (&File, u64),
) -> Result<Digest, Failure> {
    let uri: Uri = address.parse().map_err(|e| Failure::Nonsense(format!("not an address: {e}")))?;
    let http = Http::new(settings);
    let mut failed = 0;
    loop {
        match once(&http, &uri, wanted, (to, most)) {
            Err(failure) if failure.is_transient() && failed + 1 < TRIES => {
                failed += 1;
                sleep(Duration::from_secs(failed));
            }
            done => return done,
        }
    }
}

fn once(
    http: &Http,
    uri: &Uri,
    wanted: Option<&Digest>,
    (mut to, most): (&File, u64),
) -> Result<Digest, Failure> {
    let too_large = |bytes: u64| match bytes > most {
        true => {
            Err(Failure::Unreadable(format!("the file is larger than {most} bytes, for which there is room")))
        }
        false => Ok(()),
    };
    let unwritable =
        |e: std::io::Error| Failure::Unreadable(format!("a temporary file cannot be written: {e}"));
    to.rewind().and_then(|()| to.set_len(0)).map_err(unwritable)?;
    let (response, from) = http.send(&HttpRequest::get(uri.clone()), false)?;
    if !is_good(response.status()) {
        return Err(status_failure(response));
    }
    let expected = response.body().content_length();
    too_large(expected.unwrap_or(0))?;
    let mut body = response.into_body().into_reader();
    let mut hasher = Hasher::like(wanted.unwrap_or(&Digest::Sha256([0; 32])));
    let (mut buffer, mut got) = (vec![0; PIECE], 0);
    loop {
        let count = body.read(&mut buffer).map_err(|e| io_failure(e, authority(&from)))?;
        if count == 0 {
            break;
        }
        got += count as u64;
        too_large(got)?;
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count]).map_err(unwritable)?;
    }
    if let Some(expected) = expected.filter(|expected| got < *expected) {
        return Err(Failure::Short { got, expected });
    }
    let digest = hasher.finish();
    match wanted {
        Some(wanted) if *wanted != digest => {
            Err(Failure::Nonsense(format!("the file has the digest {digest}, not {wanted}")))
        }
        _ => Ok(digest),
    }
}
