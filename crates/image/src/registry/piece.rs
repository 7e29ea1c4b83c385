//! A few bytes of a blob.

use std::io::Read;

use ureq::Body;
use ureq::http::{Method, Response, StatusCode};

use super::failure::Failure;
use super::http::{authority, io_failure};
use super::place::Wish;
use super::{Client, Source};
use crate::error::Result;
use crate::manifest::Descriptor;

impl Client {
    /// The `length` bytes of a blob from `at` on, or fewer, where the server has no more.
    ///
    /// # Errors
    /// They cannot be had.
    pub fn piece(&self, source: &Source, blob: &Descriptor, at: u64, length: usize) -> Result<Vec<u8>> {
        if length == 0 {
            return Ok(vec![]);
        }
        let path = format!("blobs/{}", blob.digest);
        let range = Some((at, at + length as u64 - 1));
        self.ask_source(source, &format!("a part of the blob {}", blob.digest), |place| {
            let wish = Wish { method: &Method::GET, path: &path, accept: None, range };
            let (response, from) = place.ask(&self.http, wish)?;
            // A server without ranges gives all of it.
            let skipped = if response.status() == StatusCode::OK { at } else { 0 };
            read(response, skipped, length, authority(&from))
        })
    }
}

fn read(response: Response<Body>, skipped: u64, length: usize, server: &str) -> Result<Vec<u8>, Failure> {
    let mut body = response.into_body().into_reader();
    let mut bytes = vec![];
    let failed = |e| io_failure(e, server);
    std::io::copy(&mut (&mut body).take(skipped), &mut std::io::sink()).map_err(failed)?;
    body.take(length as u64).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
