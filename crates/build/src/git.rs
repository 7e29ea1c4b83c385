//! Git repositories that ADD names. The user's own `git` fetches them, as the user, into a directory of its own.
//!
//! The Dockerfile may be a stranger's: so none of the user's settings, hooks and passwords are at work, no transport but the one that the
//! address names, and `ssh` only with an agent that the user has given (`--ssh`).

mod command;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use serde::Serialize;
use skiff_spec::fault::{Context as _, Fault, Result};

use crate::room::WorkRoom;

/// Lengths of commits, in hexadecimal digits.
const COMMIT: [usize; 2] = [40, 64];

/// What is wanted of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GitSource {
    /// Where it is, as git takes it.
    address: String,
    /// A branch, tag or commit; the server's own choice if none is named. The commit that it means is what counts.
    #[serde(skip)]
    reference: Option<String>,
    /// The directory in it.
    subdirectory: String,
}

/// How an address is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Https,
    Ssh,
    Git,
}

impl Transport {
    /// As git calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Ssh => "ssh",
            Self::Git => "git",
        }
    }
}

impl GitSource {
    /// Reads `ADDRESS[#REFERENCE[:DIRECTORY]]`; nothing if that is another source.
    ///
    /// # Errors
    /// The text is a repository's address, but one that cannot be used.
    #[must_use]
    pub fn parse(text: &str) -> Option<Result<Self>> {
        let (address, fragment) = text.split_once('#').unwrap_or((text, ""));
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        if !is_repository(path) {
            return None;
        }
        let refused = |what: &str, hint: &str| Some(Err(Fault::new(format!("{text}: {what}")).hint(hint)));
        // To a server of http a user's name alone may be a token; to one of ssh it is the login.
        let is_secret = |user: &str| user.contains(':') || path.starts_with("http");
        if Address::of(path).is_some_and(|address| address.user.is_some_and(is_secret)) {
            let what = "a password or token in an address is not supported";
            let fault = Fault::new(format!("{}: {what}", without_user(path)));
            let hint = "others would see it among the processes: use ssh with --ssh, or clone the repository and COPY it";
            return Some(Err(fault.hint(hint)));
        }
        if !query.is_empty() || address.contains('?') {
            return refused("words behind `?` are not supported", "ADDRESS#REFERENCE:DIRECTORY");
        }
        if path.starts_with("http://") {
            return refused("by http anybody on the way could change it", "name it by https");
        }
        if !is_address(path) || path.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return refused("not an address of a repository", "https://HOST/PATH.git, or git@HOST:PATH");
        }
        let (reference, subdirectory) = fragment.split_once(':').unwrap_or((fragment, ""));
        if !is_reference(reference) {
            return refused("not a branch, tag or commit", "ADDRESS#REFERENCE:DIRECTORY");
        }
        if subdirectory.split('/').any(|name| name == "..") {
            return refused("the directory leads out", "ADDRESS#REFERENCE:DIRECTORY");
        }
        Some(Ok(Self {
            address: path.into(),
            reference: (!reference.is_empty()).then(|| reference.into()),
            subdirectory: subdirectory.trim_matches('/').into(),
        }))
    }

    /// Whether a text is a whole commit.
    #[must_use]
    pub fn is_commit(text: &str) -> bool {
        COMMIT.contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    /// The commit, if the reference is one.
    #[must_use]
    pub fn commit(&self) -> Option<&str> {
        self.reference.as_deref().filter(|reference| Self::is_commit(reference))
    }

    /// Whether nobody on the way can exchange what is fetched.
    #[must_use]
    pub fn is_private_on_the_way(&self) -> bool {
        self.transport() != Transport::Git
    }

    fn transport(&self) -> Transport {
        match self.address.split_once("://") {
            Some(("https", _)) => Transport::Https,
            Some(("git", _)) => Transport::Git,
            _ => Transport::Ssh,
        }
    }

    /// The address without its user, who may be a token, too.
    #[must_use]
    pub fn shown(&self) -> String {
        without_user(&self.address)
    }
}

fn is_repository(path: &str) -> bool {
    let begins = |schemes: [&str; 2]| schemes.iter().any(|scheme| path.starts_with(scheme));
    match begins(["https://", "http://"]) {
        true => path.ends_with(".git"),
        false => begins(["git://", "ssh://"]) || scp_host(path).is_some(),
    }
}

/// The parts of `SCHEME://[USER@]HOST[:PORT]/PATH`.
struct Address<'a> {
    scheme: &'a str,
    user: Option<&'a str>,
    /// With the port.
    host: &'a str,
    /// With the slash.
    path: &'a str,
}

impl<'a> Address<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let schemes = ["https", "http", "git", "ssh"];
        let (scheme, rest) = text.split_once("://").filter(|(scheme, _)| schemes.contains(scheme))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) =
            authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        Some(Self { scheme, user, host, path })
    }
}

fn without_user(text: &str) -> String {
    match Address::of(text) {
        Some(Address { scheme, host, path, .. }) => format!("{scheme}://{host}{path}"),
        None => text.into(),
    }
}

/// Whether user, host and port have only characters that mean nothing to a shell, to `ssh` and in its settings.
fn is_address(text: &str) -> bool {
    let (is_good, path) = match Address::of(text) {
        Some(Address { user, host, path, .. }) => (user.is_none_or(is_name) && is_host(host), path),
        None => (scp_host(text).is_some(), text),
    };
    // To git `@[` in a path, which it decodes first, belongs to the host.
    is_good && !path.contains('[') && !path.to_ascii_lowercase().contains("%5b")
}

/// Whether a text is a host, with a port or without.
fn is_host(text: &str) -> bool {
    let (is_good, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address.parse::<Ipv6Addr>().is_ok(), port),
        None => {
            let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            (is_name(name), port)
        }
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    is_good && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// The host of `USER@HOST:PATH`.
fn scp_host(text: &str) -> Option<&str> {
    let (user, host) = text.split_once(':')?.0.split_once('@')?;
    (is_name(user) && is_name(host)).then_some(host)
}

/// Whether a text can be a reference, or is none; git's own rules are stricter.
fn is_reference(text: &str) -> bool {
    !text.starts_with(['-', '+', '^'])
        && !text.contains("..")
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "~^?*[\\".contains(c))
}

/// Access to repositories.
#[derive(Default)]
pub struct Git {
    /// The agent that `ssh` may ask.
    pub agent: Option<PathBuf>,
    /// Commits that were asked for.
    known: RefCell<BTreeMap<(String, Option<String>), String>>,
}

/// A repository's files.
pub struct Cloned {
    /// The directory that is wanted.
    pub files: OwnedFd,
    /// Whether there are other repositories in it, which are not fetched.
    pub has_submodules: bool,
}

impl Git {
    /// With this agent.
    #[must_use]
    pub fn new(agent: Option<PathBuf>) -> Self {
        Self { agent, ..Self::default() }
    }

    /// The commit that a repository's reference means.
    ///
    /// # Errors
    /// The server does not answer, or does not have it.
    pub fn commit(&self, repository: &GitSource) -> Result<String> {
        if let Some(commit) = repository.commit() {
            return Ok(commit.into());
        }
        let wanted = (repository.address.clone(), repository.reference.clone());
        if let Some(commit) = self.known.borrow().get(&wanted) {
            return Ok(commit.clone());
        }
        let names = names_of(repository.reference.as_deref());
        let listed = self.list(repository, &names)?;
        let commit = names.iter().find_map(|name| listed.get(name)).cloned().ok_or_else(|| {
            let reference = repository.reference.as_deref().unwrap_or("HEAD");
            Fault::new(format!("{}: no branch or tag {reference}", repository.shown()))
                .hint("a commit must be named with all its digits")
        })?;
        self.known.borrow_mut().insert(wanted, commit.clone());
        Ok(commit)
    }

    /// Fetches the files of a whole commit into a new directory `place`. What the reference means is not asked again.
    ///
    /// # Errors
    /// The server does not have the commit, the commit has no such directory, or there is no room for its files.
    pub fn clone_to(
        &self,
        repository: &GitSource,
        commit: &str,
        keeps_git: bool,
        (place, room): (&Path, &WorkRoom),
    ) -> Result<Cloned> {
        let about = || place.display().to_string();
        if place.exists() {
            std::fs::remove_dir_all(place).context(about)?;
        }
        std::fs::create_dir(place).context(about)?;
        self.fetch(repository, commit, (place, &room.limit()?))?;
        if !keeps_git {
            std::fs::remove_dir_all(place.join(".git")).context(about)?;
        }
        let has_submodules = place.join(".gitmodules").symlink_metadata().is_ok();
        let top = openat(CWD, place, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .context(about)?;
        let directory = if repository.subdirectory.is_empty() { "." } else { &repository.subdirectory };
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let files =
            openat2(&top, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), how)
                .context(|| format!("{}: {directory}", repository.shown()))?;
        Ok(Cloned { files, has_submodules })
    }
}

/// What a reference may be on the server, what counts first at the beginning: as in BuildKit a branch counts for more than a tag. Of a tag with
/// a text of its own the commit is listed behind `^{}`.
fn names_of(reference: Option<&str>) -> Vec<String> {
    match reference {
        None => vec!["HEAD".into()],
        Some(name) if name.starts_with("refs/") => vec![format!("{name}^{{}}"), name.into()],
        Some(name) => vec![
            format!("refs/heads/{name}"),
            format!("refs/tags/{name}^{{}}"),
            format!("refs/tags/{name}"),
            format!("refs/{name}"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The facts are those of BuildKit's tests of such addresses, as far as they say what is one.
    #[test]
    fn addresses_of_repositories() {
        for (text, want) in [
            ("https://example.com/", None),
            ("https://example.com/foo", None),
            ("https://example.com/foo.git.bar", None),
            ("https://example.com/foo.git/", None),
            ("github.com/moby/buildkit", None),
            ("custom.example/moby/buildkit.git", None),
            ("./.git", None),
            (".git", None),
            ("a@b", None),
            ("git@-oProxyCommand=x:y", None),
            ("git@-x:y", None),
            ("-x@example.com:y", None),
            ("https://example.com/foo.git", Some(("https://example.com/foo.git", None, ""))),
            ("https://example.com/foo.git#v1/2", Some(("https://example.com/foo.git", Some("v1/2"), ""))),
            ("https://example.com/a.git#b/c:d/e", Some(("https://example.com/a.git", Some("b/c"), "d/e"))),
            ("https://example.com/a.git#:/d/", Some(("https://example.com/a.git", None, "d"))),
            ("git://example.com/foo", Some(("git://example.com/foo", None, ""))),
            ("ssh://git@example.com:22/foo", Some(("ssh://git@example.com:22/foo", None, ""))),
            ("ssh://git@[::1]:22/foo", Some(("ssh://git@[::1]:22/foo", None, ""))),
            ("https://example.com/@a/b@c.git", Some(("https://example.com/@a/b@c.git", None, ""))),
            ("git@example.com:moby/buildkit.git", Some(("git@example.com:moby/buildkit.git", None, ""))),
        ] {
            let found = GitSource::parse(text).map(|found| found.unwrap_or_else(|e| panic!("{text}: {e}")));
            let found = found
                .as_ref()
                .map(|found| (&*found.address, found.reference.as_deref(), &*found.subdirectory));
            assert_eq!(found, want, "{text}");
        }
        for text in [
            "http://example.com/foo.git",
            "https://example.com/foo.git?ref=v1",
            "ssh://-oProxyCommand=x/y",
            "ssh://git@-x/y",
            "ssh://-x@example.com/y",
            "ssh://git@x$(id).example/a",
            "ssh://a;b@host/x",
            "ssh://git@h%h/x",
            "ssh://-oProxyCommand=x/y@z/w",
            "ssh://host/$(id)@[x]/y",
            "ssh://host/$(id)%40%5Bx]/y",
            "git@host:$(id)@[x]:y",
            "ssh://[::1%25x]/y",
            "ssh://[x]/y",
            "ssh://host:/y",
            "ssh://host:+22/y",
            "ssh:///y",
            "git://example.com/a b",
            "https://example.com/a.git#-x",
            "https://example.com/a.git#a..b",
            "https://example.com/a.git#a:../b",
            "https://example.com/a.git#v1^{}",
        ] {
            assert!(GitSource::parse(text).is_some_and(|read| read.is_err()), "{text}");
        }
    }

    #[test]
    fn no_password_is_shown_and_no_transport_guessed() {
        for (text, shown, transport) in [
            ("https://x.example/b@c.git", "https://x.example/b@c.git", Transport::Https),
            ("git@x.example:a", "git@x.example:a", Transport::Ssh),
            ("ssh://git@x.example/a", "ssh://x.example/a", Transport::Ssh),
            ("git://x.example/a", "git://x.example/a", Transport::Git),
        ] {
            let read = GitSource::parse(text).expect("a repository").expect("a good one");
            assert_eq!((&*read.shown(), read.transport()), (shown, transport), "{text}");
        }
        for text in [
            "https://secret@x.example/b@c.git",
            "https://u:secret@x.example/a.git",
            "ssh://u:secret@x/a",
            "https://a@b:secret@x/a.git#v1",
        ] {
            let fault = GitSource::parse(text).expect("a repository").expect_err("a password");
            assert!(!fault.to_string().contains("secret"), "{fault}");
        }
    }
}
