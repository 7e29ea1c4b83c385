//! Files of other servers that ADD names, each fetched once for a build; and repositories beside them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::str::FromStr;

use skiff_oci::digest::Digest;
use skiff_registry::{ClientSettings, download};
use skiff_spec::fault::{Context as _, Fault, Result};

use crate::git::Git;
use crate::room::{HeldRoom, WorkRoom};

/// What a build has of other servers.
#[derive(Default)]
pub struct Remotes {
    /// Files.
    pub downloads: Downloads,
    /// Repositories.
    pub git: Git,
    /// Where files are meanwhile.
    pub room: WorkRoom,
}

impl Remotes {
    /// The digest of what is at an address.
    ///
    /// # Errors
    /// The file cannot be fetched, or there is no room for it.
    pub fn digest(&self, address: &str) -> Result<String> {
        self.downloads.fetch(address, None, &self.room).map(|(_, digest)| digest.to_string())
    }

    /// The file that is at an address, if it has this digest.
    ///
    /// # Errors
    /// The same; or it has another.
    pub fn file(&self, address: &str, digest: &str) -> Result<File> {
        let wanted = checksum(digest)?;
        let (file, found) = self.downloads.fetch(address, Some(&wanted), &self.room)?;
        match found == wanted {
            true => Ok(file),
            false => Err(Fault::new(format!("{address}: the file has the digest {found}, not {wanted}"))),
        }
    }
}

/// What has been fetched.
#[derive(Default)]
pub struct Downloads(RefCell<BTreeMap<String, (File, Digest, HeldRoom)>>);

impl Downloads {
    fn fetch(&self, address: &str, wanted: Option<&Digest>, room: &WorkRoom) -> Result<(File, Digest)> {
        if let Some((file, digest, _)) = self.0.borrow().get(address) {
            return Ok((file.try_clone().context(|| address.to_owned())?, *digest));
        }
        let (to, most) = room.file()?;
        let digest = download(anonymous(), address, wanted, (&to, most)).map_err(|failure| {
            Fault::new(format!("{address}: {failure}"))
                .hint("see whether curl gets it; or put the file into the context")
        })?;
        // Until the build's end.
        let held = room.hold(to.metadata().context(|| address.to_owned())?.len());
        let kept = (to.try_clone().context(|| address.to_owned())?, digest, held);
        self.0.borrow_mut().insert(address.into(), kept);
        Ok((to, digest))
    }
}

/// As who is nobody in particular: certificates for registries are the user's, not a Dockerfile's.
fn anonymous() -> ClientSettings {
    ClientSettings { certs_d: vec![], ..ClientSettings::default() }
}

/// A sum as `--checksum` has it.
///
/// # Errors
/// The text is no such sum.
pub fn checksum(text: &str) -> Result<Digest> {
    Digest::from_str(text).map_err(|e| {
        Fault::new(format!("--checksum={text}: {e}")).hint("--checksum=sha256:...: sha256sum FILE says it")
    })
}

/// What a file is called by its address.
#[must_use]
pub fn name_of(address: &str) -> String {
    let path = address.split(['?', '#']).next().unwrap_or_default();
    let path = path.split_once("://").map_or("", |(_, path)| path);
    let name = path.split_once('/').map_or("", |(_, path)| path).rsplit('/').next().unwrap_or_default();
    if matches!(name, "." | "..") { String::new() } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_called_as_in_their_address() {
        for (address, want) in [
            ("https://x.example/a/b.tar.gz?x=/y#z", "b.tar.gz"),
            ("https://x.example/b", "b"),
            ("https://x.example/", ""),
            ("https://x.example", ""),
            ("https://x.example/a/..", ""),
            ("https://x.example/a%2Fb", "a%2Fb"),
        ] {
            assert_eq!(name_of(address), want, "{address}");
        }
        assert!(checksum("sha256:12").is_err() && checksum("md5:x").is_err());
    }
}
