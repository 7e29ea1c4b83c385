//! One file of credentials: read leniently, since several programs write it; written atomically, for its owner's eyes only.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use skiff_sys::IgnoreError;

use super::{Credential, Secret, helper};
use crate::error::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

/// No file of credentials is longer, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Docker's name for Docker Hub, in files and to helpers.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// The content of an `auth.json` or `config.json`.
#[derive(Debug, Clone)]
pub struct AuthFile {
    path: String,
    content: Content,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Content {
    auths: BTreeMap<String, Entry>,
    #[serde(rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(rename = "credsStore")]
    store: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

impl AuthFile {
    /// Reads one; nothing if there is no such file.
    ///
    /// # Errors
    /// It cannot be read, or is no such file.
    pub fn read(path: &Path) -> Result<Option<AuthFile>> {
        let file = match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => {
                return Err(SystemError::new("open", path.as_os_str().as_encoded_bytes(), errno).into());
            }
        };
        AuthFile::parse(&path.to_string_lossy(), &read_all(file, path)?).map(Some)
    }

    /// From its bytes; `path` is for messages.
    ///
    /// # Errors
    /// It is no such file.
    pub fn parse(path: &str, bytes: &[u8]) -> Result<AuthFile> {
        // Podman makes an empty file now and then.
        if bytes.trim_ascii().is_empty() {
            return Ok(AuthFile { path: path.into(), content: Content::default() });
        }
        let content = serde_json::from_slice(bytes).map_err(|e| bad(path, e.to_string()))?;
        Ok(AuthFile { path: path.into(), content })
    }

    /// The credential for a repository, if the file has one.
    ///
    /// # Errors
    /// The entry is damaged, or the credential helper failed.
    pub fn find(&self, server: &str, repository: &str) -> Result<Option<Credential>> {
        if let Some(name) = self.helper_of(server)
            && let Some(found) = helper::get(name, server_key(server))?
        {
            return Ok(Some(found));
        }
        for key in keys(server, repository) {
            if let Some(entry) = self.entry(&key) {
                return self.credential(&key, entry);
            }
        }
        Ok(None)
    }

    fn helper_of(&self, server: &str) -> Option<&str> {
        let own = self.content.helpers.get(server).or_else(|| self.content.helpers.get(server_key(server)));
        own.map(String::as_str).or(Some(&self.content.store)).filter(|name| !name.is_empty())
    }

    /// Docker writes servers as URLs, some with a path of the registry's version.
    fn entry(&self, key: &str) -> Option<&Entry> {
        self.content.auths.get(key).or_else(|| {
            let same = |written: &str| plain_server(written) == key;
            self.content.auths.iter().find(|(written, _)| same(written)).map(|(_, entry)| entry)
        })
    }

    fn credential(&self, key: &str, entry: &Entry) -> Result<Option<Credential>> {
        if !entry.identitytoken.is_empty() {
            return Ok(Some(Credential::IdentityToken(Secret(entry.identitytoken.clone()))));
        }
        if entry.auth.is_empty() {
            let (user, password) = (entry.username.clone(), Secret(entry.password.clone()));
            return Ok((!user.is_empty()).then_some(Credential::Basic { user, password }));
        }
        let damaged = || bad(&self.path, format!("the entry of {key} is not the base64 of USER:PASSWORD"));
        let bytes = BASE64_STANDARD.decode(entry.auth.trim()).map_err(|_| damaged())?;
        let text = String::from_utf8(bytes).map_err(|_| damaged())?;
        let (user, password) = text.split_once(':').ok_or_else(damaged)?;
        // Old versions of Docker padded with zeros.
        let password = Secret(password.trim_end_matches('\0').into());
        Ok(Some(Credential::Basic { user: user.into(), password }))
    }
}

/// From the whole path to the server alone.
fn keys(server: &str, repository: &str) -> Vec<String> {
    let full = format!("{server}/{repository}");
    let cuts = full.match_indices('/').map(|(at, _)| at).rev();
    std::iter::once(full.len()).chain(cuts).map(|end| full[..end].to_owned()).collect()
}

/// `https://index.docker.io/v1/` -> `docker.io`; `https://quay.io` -> `quay.io`; what is no URL stays as it is.
fn plain_server(written: &str) -> &str {
    let Some(rest) = written.strip_prefix("https://").or_else(|| written.strip_prefix("http://")) else {
        return if written == "index.docker.io" { "docker.io" } else { written };
    };
    match rest.split('/').next().unwrap_or_default() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        server => server,
    }
}

/// What helpers know a server by.
fn server_key(server: &str) -> &str {
    if server == "docker.io" { DOCKER_HUB } else { server }
}

fn bad(path: &str, why: String) -> Error {
    Error::Config { file: path.into(), why }
}

fn read_all(file: OwnedFd, path: &Path) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = vec![];
    let path = path.to_string_lossy();
    let read = std::fs::File::from(file).take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|e| bad(&path, e.to_string()))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(bad(&path, format!("it is longer than {MAX_FILE} bytes")));
    }
    Ok(bytes)
}

/// Adds an entry, or gives it to the helper that the file names.
pub(super) fn save(path: &Path, key: &str, user: &str, password: &Secret) -> Result<String> {
    let (locked, mut content) =
        LockedFile::open(path, true)?.ok_or_else(|| bad("auth.json", "it vanished".into()))?;
    let file = AuthFile::parse(&locked.shown(), content.to_string().as_bytes())?;
    if let Some(name) = file.helper_of(key) {
        helper::store(name, server_key(key), user, password)?;
        return Ok(format!("docker-credential-{name}"));
    }
    let auth = BASE64_STANDARD.encode(format!("{user}:{}", password.0));
    let root = content.as_object_mut().ok_or_else(|| bad(&locked.shown(), "it is not an object".into()))?;
    let auths = root.entry("auths").or_insert_with(|| Value::Object(Map::new()));
    let auths = auths.as_object_mut().ok_or_else(|| bad(&locked.shown(), "auths is not an object".into()))?;
    auths.retain(|written, _| plain_server(written) != key);
    auths.insert(key.into(), json!({ "auth": auth }));
    locked.write(&content)?;
    Ok(locked.shown())
}

/// Removes the entries for `key`; gives the places where there were some.
pub(super) fn forget(path: &Path, key: &str) -> Result<Vec<String>> {
    let Some((locked, mut content)) = LockedFile::open(path, false)? else {
        return Ok(vec![]);
    };
    let file = AuthFile::parse(&locked.shown(), content.to_string().as_bytes())?;
    let mut places = vec![];
    if let Some(name) = file.helper_of(key)
        && helper::erase(name, server_key(key))?
    {
        places.push(format!("docker-credential-{name}"));
    }
    if let Some(auths) = content.get_mut("auths").and_then(Value::as_object_mut) {
        let before = auths.len();
        auths.retain(|written, _| plain_server(written) != key);
        if auths.len() < before {
            locked.write(&content)?;
            places.push(locked.shown());
        }
    }
    Ok(places)
}

/// A file's directory, locked against others who log in, and the file's name there.
struct LockedFile {
    dir: OwnedFd,
    path: PathBuf,
    name: String,
}

impl LockedFile {
    /// With what the file says now; nothing if there is no such directory and none is to be made.
    fn open(path: &Path, make: bool) -> Result<Option<(LockedFile, Value)>> {
        // Who keeps their files elsewhere and links to them wants the link kept.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(bad(&path.to_string_lossy(), "it is not a file name".into()));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        if make {
            use std::os::unix::fs::DirBuilderExt;
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(|e| bad(&parent.to_string_lossy(), e.to_string()))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(parent, flags, Mode::empty()) {
            Err(Errno::NOENT) if !make => return Ok(None),
            dir => dir.on("open", parent.as_os_str().as_encoded_bytes())?,
        };
        rustix::fs::flock(&dir, FlockOperation::LockExclusive)
            .on("lock", parent.as_os_str().as_encoded_bytes())?;
        let locked = LockedFile { dir, name: name.to_string_lossy().into(), path: path.clone() };
        let content = locked.read()?;
        Ok(Some((locked, content)))
    }

    fn shown(&self) -> String {
        self.path.to_string_lossy().into()
    }

    fn read(&self) -> Result<Value> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let bytes = match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(file) => read_all(file, &self.path)?,
            Err(Errno::NOENT) => vec![],
            Err(errno) => return Err(SystemError::new("open", self.shown(), errno).into()),
        };
        if bytes.trim_ascii().is_empty() {
            return Ok(json!({}));
        }
        serde_json::from_slice(&bytes).map_err(|e| bad(&self.shown(), e.to_string()))
    }

    /// Whole or not at all, and never readable for others, not even for a moment.
    fn write(&self, content: &Value) -> Result<()> {
        let temporary = format!(".{}.{}.new", self.name, std::process::id());
        // Left behind by a process of the same number that was killed: we hold the lock.
        rustix::fs::unlinkat(&self.dir, &temporary, AtFlags::empty()).ignore_error("usually there is none");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.dir, &temporary, flags, mode).on("create", self.shown())?;
        let written = self.fill(&file, content, &temporary);
        if written.is_err() {
            rustix::fs::unlinkat(&self.dir, &temporary, AtFlags::empty())
                .ignore_error("the first error is the one to tell");
        }
        written
    }

    fn fill(&self, file: &OwnedFd, content: &Value, temporary: &str) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(content).map_err(|e| bad(&self.shown(), e.to_string()))?;
        text.push(b'\n');
        skiff_sys::positional::write_all_at(file.as_fd(), &text, 0).on("write to", self.shown())?;
        rustix::fs::fsync(file).on("sync", self.shown())?;
        Ok(rustix::fs::renameat(&self.dir, temporary, &self.dir, &self.name)
            .on("rename into place", self.shown())?)
    }
}
