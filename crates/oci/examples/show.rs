//! Shows what a manifest, an index or a configuration in a file says: `cargo run -p skiff-oci --example show FILE`.

use std::error::Error;
use std::io::{Write, stdout};

use skiff_oci::hash::sha256;
use skiff_oci::manifest::{Document, ImageConfig, parse};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: show FILE")?;
    let bytes = std::fs::read(&path)?;
    let mut out = stdout().lock();
    writeln!(out, "{}", sha256(&bytes))?;
    match parse(&path, &bytes, None) {
        Ok(Document::Manifest(manifest)) => {
            writeln!(out, "an image of {} bytes", manifest.bytes())?;
            for layer in &manifest.layers {
                let blob = &layer.blob;
                writeln!(out, "layer {} {:?} {} bytes", blob.digest, layer.compression, blob.size)?;
            }
        }
        Ok(Document::Index(index)) => {
            for entry in &index.entries {
                let platform = entry.platform.as_ref().map_or("any platform".into(), ToString::to_string);
                writeln!(out, "{} for {platform}", entry.manifest.digest)?;
            }
        }
        // Configurations do not say that they are.
        Err(error) => match ImageConfig::parse(&path, &bytes) {
            Ok(config) => writeln!(out, "a configuration: {:#?}", config.exec)?,
            Err(_) => return Err(error.into()),
        },
    }
    Ok(())
}
