//! Shows what a name means in its registry for this host: `cargo run -p skiff-registry --example resolve debian:12`.

use std::error::Error;
use std::io::{Write, stdout};

use skiff_oci::platform::Platform;
use skiff_registry::auth::Credentials;
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{Client, ClientSettings};

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: resolve IMAGE")?;
    let client = Client::new(ClientSettings::default(), RegistriesConf::load()?, Credentials::load()?);
    let found = client.resolve(&name.parse()?, &Platform::host())?;
    let mut out = stdout().lock();
    writeln!(out, "{} {}", found.name, found.digest)?;
    for layer in &found.manifest.layers {
        writeln!(out, "{} {} bytes", layer.blob.digest, layer.blob.size)?;
    }
    Ok(())
}
