//! Whether who knows what an image is called can have it.
//!
//! A store that users share has an image once. Whoever names it second need not fetch it again, but must show that he could: a registry of
//! his own answers whatever he likes when asked what a name means, and digests are no secrets. So of each layer as it came some
//! bytes are noted, and the registry that he names is asked for some of these.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::manifest::Descriptor;
use crate::pull::Pull;
use crate::registry::{BlobDir, Client, Resolved, Source};
use crate::store::Record;

/// How many pieces of a layer are noted, how many are asked for, and their length: compressed bytes are not to be guessed.
const NOTED: usize = 16;
const ASKED: usize = 2;
const LENGTH: u64 = 32;

/// Some bytes of a layer as it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Where they begin.
    pub at: u64,
    /// They, in hexadecimal digits.
    pub bytes: String,
}

/// Notes pieces of a layer of this size, nobody knows which.
///
/// # Errors
/// Of `read`, which fills a buffer from an offset on; or without randomness.
pub(crate) fn samples(size: u64, read: &dyn Fn(&mut [u8], u64) -> Result<()>) -> Result<Vec<Sample>> {
    let length = LENGTH.min(size);
    let mut samples = Vec::with_capacity(NOTED);
    for _ in 0..NOTED {
        let at = random()? % (size - length + 1);
        let mut bytes = vec![0; length as usize];
        read(&mut bytes, at)?;
        samples.push(Sample { at, bytes: hex(&bytes) });
    }
    Ok(samples)
}

/// Shows that the layers of an image that is there can be had from where it was found.
///
/// # Errors
/// They cannot.
pub(crate) fn prove(pull: &Pull<'_>, found: &Resolved, record: &Record) -> Result<()> {
    let noted = record.samples.iter().map(Some).chain(std::iter::repeat(None));
    let mut unknown = vec![];
    for (layer, samples) in found.manifest.layers.iter().zip(noted) {
        match samples.filter(|samples| !samples.is_empty()) {
            Some(samples) => ask_for(pull.client, &found.source, &layer.blob, samples)?,
            None => unknown.push(&layer.blob),
        }
    }
    fetch_all(pull, found, &unknown)
}

fn ask_for(client: &Client, source: &Source, layer: &Descriptor, samples: &[Sample]) -> Result<()> {
    for _ in 0..ASKED {
        let sample = &samples[random()? as usize % samples.len()];
        if hex(&client.piece(source, layer, sample.at, sample.bytes.len() / 2)?) != sample.bytes {
            return Err(Error::WrongDigest { layer: layer.digest.to_string() });
        }
    }
    Ok(())
}

/// Where nothing was noted, all bytes are the proof.
fn fetch_all(pull: &Pull<'_>, found: &Resolved, layers: &[&Descriptor]) -> Result<()> {
    if layers.is_empty() {
        return Ok(());
    }
    let blobs = BlobDir::open(&pull.store.blobs(pull.uid)?)?;
    let fetch = pull.client.fetch(&found.source, blobs.clone())?;
    let growing: Vec<_> = layers.iter().map(|layer| fetch.blob(layer)).collect();
    growing.iter().try_for_each(|layer| layer.wait())?;
    layers.iter().try_for_each(|layer| blobs.remove(&layer.digest).map(drop))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let failed = |source: Errno| Error::Io { what: "get", object: "random numbers".into(), source };
    if got.map_err(failed)? < bytes.len() {
        return Err(failed(Errno::AGAIN));
    }
    Ok(u64::from_le_bytes(bytes))
}
