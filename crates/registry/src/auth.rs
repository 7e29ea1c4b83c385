//! Who the user is to a registry: found where Docker and Podman keep it, written where both find it.
//!
//! Formats: containers-auth.json(5), Docker's `config.json`, and the protocol of docker-credential-helpers.

mod file;
mod helper;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;

use crate::error::{Error, Result};
pub use file::AuthFile;

/// What must not be shown in messages or logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// What to show to a registry or its token service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// Name and password, or a token in the password's place.
    Basic {
        /// The user's name there.
        user: String,
        /// The user's password.
        password: Secret,
    },
    /// A refresh token of OAuth 2, which the token service gives others for.
    IdentityToken(Secret),
}

/// The credentials of the user who runs this program.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    given: Vec<(String, Credential)>,
    files: Vec<AuthFile>,
}

impl Credentials {
    /// Reads the files that Podman and Docker read, in their order: `$REGISTRY_AUTH_FILE` and no other; else
    /// `$XDG_RUNTIME_DIR/containers/auth.json`, `~/.config/containers/auth.json`, `~/.docker/config.json`.
    ///
    /// # Errors
    /// A file cannot be read or is none of these.
    pub fn load() -> Result<Credentials> {
        let mut files = vec![];
        for path in readable() {
            files.extend(AuthFile::read(&path)?);
        }
        Ok(Credentials { given: vec![], files })
    }

    /// These files, the first wins.
    pub fn of(files: Vec<AuthFile>) -> Credentials {
        Credentials { given: vec![], files }
    }

    /// Adds one for exactly this place, a server and a path there; before all files.
    pub fn add(&mut self, place: String, credential: Credential) {
        self.given.push((place, credential));
    }

    /// The credential for a repository: the longest matching key of the first file that has one.
    ///
    /// # Errors
    /// An entry is damaged, or a credential helper failed.
    pub fn find(&self, server: &str, repository: &str) -> Result<Option<Credential>> {
        let place = format!("{server}/{repository}");
        if let Some((_, given)) = self.given.iter().find(|(for_place, _)| *for_place == place) {
            return Ok(Some(given.clone()));
        }
        for file in &self.files {
            if let Some(credential) = file.find(server, repository)? {
                return Ok(Some(credential));
            }
        }
        Ok(None)
    }
}

/// Remembers a credential for `key`: a server, or a server and the beginning of a path there. Gives the file's path, or
/// the helper's name.
///
/// # Errors
/// The file cannot be read or written, or the helper refuses.
pub fn save(key: &str, user: &str, password: &Secret) -> Result<String> {
    file::save(&writable()?, key, user, password)
}

/// Forgets the credential for `key`, wherever it is. Gives the places where there was one.
///
/// # Errors
/// A file cannot be read or written, or a helper refuses.
pub fn forget(key: &str) -> Result<Vec<String>> {
    let mut places = vec![];
    for path in readable() {
        places.extend(file::forget(&path, key)?);
    }
    Ok(places)
}

fn readable() -> Vec<PathBuf> {
    if let Some(only) = std::env::var_os("REGISTRY_AUTH_FILE") {
        return vec![only.into()];
    }
    let runtime = crate::user_dirs::from_env("XDG_RUNTIME_DIR").map(|dir| dir.join("containers/auth.json"));
    let docker = crate::user_dirs::from_env("DOCKER_CONFIG")
        .or_else(|| Some(crate::user_dirs::home()?.join(".docker")))
        .map(|dir| dir.join("config.json"));
    [runtime, user_file(), docker].into_iter().flatten().collect()
}

/// Not the one in `$XDG_RUNTIME_DIR`: other nodes do not see it, and it is gone after the logout.
fn writable() -> Result<PathBuf> {
    let only = std::env::var_os("REGISTRY_AUTH_FILE").map(PathBuf::from);
    only.or_else(user_file).ok_or_else(|| Error::Config {
        file: "auth.json".into(),
        why: "neither REGISTRY_AUTH_FILE nor HOME says where it is".into(),
    })
}

fn user_file() -> Option<PathBuf> {
    Some(crate::user_dirs::config_home()?.join("containers/auth.json"))
}
