//! What a user writes to name an image: in a registry as Docker reads it, or in a file or directory.
//!
//! Grammar of registry references: <https://pkg.go.dev/github.com/distribution/reference>; prefixes of the others:
//! containers-transports(5).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::digest::Digest;

mod grammar;

use grammar::{BadPart, MAX_REPOSITORY, check_name, check_tag, normal, split_server};

/// The server meant where Docker's users name none.
pub const DEFAULT_SERVER: &str = "docker.io";
/// In the place of a server's name: images that are in no registry.
const LOCAL: &str = "localhost";
/// The tag meant where none is named.
pub const DEFAULT_TAG: &str = "latest";
/// No reference is longer; more is not even looked at.
const MAX_REFERENCE: usize = 4096;

/// An image, wherever it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ImageReference {
    /// In a registry: `docker://NAME`, or `SERVER/NAME`.
    Registry(Named),
    /// In a registry that was not named: Docker Hub, unless registries.conf says otherwise.
    Short(ShortName),
    /// A file that a registry keeps as an artifact, as Apptainer pushes its images: `oras://NAME`.
    Artifact(Named),
    /// A directory in OCI's layout: `oci:DIR[:TAG]`.
    Oci {
        /// The directory.
        dir: PathBuf,
        /// The name in its index; needed where that has several.
        tag: Option<String>,
    },
    /// A tar file of OCI's layout: `oci-archive:FILE[:TAG]`.
    OciArchive {
        /// The file.
        file: PathBuf,
        /// The name in its index; needed where that has several.
        tag: Option<String>,
    },
    /// What `docker save` writes: `docker-archive:FILE[:REF]`.
    DockerArchive {
        /// The file.
        file: PathBuf,
        /// The image's name in it; needed where it has several.
        tag: Option<String>,
    },
    /// What skopeo's `dir:` writes: blobs side by side.
    Dir(PathBuf),
    /// A squashfs file: `*.sqsh`, `*.squashfs`.
    Squashfs(PathBuf),
    /// An EROFS file: `*.erofs`.
    Erofs(PathBuf),
    /// A squashfs in Apptainer's format: `*.sif`.
    Sif(PathBuf),
}

/// A repository of a server, and which of its images. Shown and compared in full: `docker.io/library/debian:12`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Named {
    server: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// A repository without a server: `debian:12`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortName {
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Which part of a reference was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferencePart {
    /// All of it.
    Whole,
    /// What is in front of `://`.
    Transport,
    /// Host and port.
    Server,
    /// The path at the server.
    Repository,
    /// What follows the colon.
    Tag,
    /// What follows the `@`.
    Digest,
    /// The file or directory.
    Path,
}

/// Why a text names no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("image reference {text:?}: {part} {reason}")]
pub struct ReferenceError {
    text: String,
    /// Where it is wrong.
    pub part: ReferencePart,
    reason: &'static str,
    hint: String,
}

impl ReferenceError {
    fn new(text: &str, (part, reason): BadPart) -> Self {
        let capitals = text.bytes().any(|b| b.is_ascii_uppercase());
        let hint = match part {
            ReferencePart::Repository if capitals && text.len() <= MAX_REPOSITORY => {
                format!("repositories are named in lower case: {}", text.to_lowercase())
            }
            ReferencePart::Tag => "a tag has letters, digits, '_', '.' and '-', at most 128".into(),
            ReferencePart::Digest => "a digest is written NAME@sha256:64_HEX_DIGITS".into(),
            ReferencePart::Path => {
                "files are named *.sqsh, *.squashfs, *.erofs, *.sif, or begin with docker-archive:, oci-archive:, oci:, dir:"
                    .into()
            }
            ReferencePart::Transport => {
                "an image of a registry is written docker://NAME or NAME; what is elsewhere has to be had as a file first".into()
            }
            ReferencePart::Whole | ReferencePart::Server | ReferencePart::Repository => {
                "it is written [SERVER[:PORT]/]NAME[:TAG][@sha256:DIGEST]".into()
            }
        };
        let shown: String = text.chars().take(80).collect();
        let text = if shown.len() < text.len() { shown + "..." } else { shown };
        Self { text, part, reason, hint }
    }

    /// How to mend it.
    #[must_use]
    pub fn hint(&self) -> &str {
        &self.hint
    }
}

impl fmt::Display for ReferencePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReferencePart::Whole => "it",
            ReferencePart::Transport => "the transport",
            ReferencePart::Server => "the server",
            ReferencePart::Repository => "the repository",
            ReferencePart::Tag => "the tag",
            ReferencePart::Digest => "the digest",
            ReferencePart::Path => "the path",
        })
    }
}

impl Named {
    /// Puts one together, holding its parts to the grammar.
    ///
    /// # Errors
    /// Says which part is wrong.
    pub fn new(
        server: &str,
        repository: &str,
        tag: Option<&str>,
        digest: Option<Digest>,
    ) -> Result<Self, ReferenceError> {
        check_name(server, repository)
            .and_then(|()| tag.map_or(Ok(()), check_tag))
            .map_err(|fault| ReferenceError::new(&format!("{server}/{repository}"), fault))?;
        let (server, repository) = normal(server, repository);
        Ok(Self { server, repository, tag: tag.map(Into::into), digest })
    }

    /// The server as users name it: `docker.io`, `localhost:5000`, `[::1]:5000`.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Whether it names an image that is in no registry: `localhost/tool:1`, as Podman calls those. (`localhost:5000` is a registry.)
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.server == LOCAL
    }

    /// The path at the server: `library/debian`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag that was written.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest that was written. It decides; a tag beside it is decoration.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What to ask the server for: the digest, else the tag, else `latest`.
    #[must_use]
    pub fn wanted(&self) -> String {
        match &self.digest {
            Some(digest) => digest.to_string(),
            None => self.tag.clone().unwrap_or_else(|| DEFAULT_TAG.into()),
        }
    }

    /// Server and repository: `docker.io/library/debian`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.server, self.repository)
    }

    /// The same with the tag `latest` if it has neither tag nor digest.
    #[must_use]
    pub fn with_default_tag(mut self) -> Self {
        if self.tag.is_none() && self.digest.is_none() {
            self.tag = Some(DEFAULT_TAG.into());
        }
        self
    }
}

/// A reference to a registry as `docker pull` reads it: without a server, Docker Hub is meant.
impl FromStr for Named {
    type Err = ReferenceError;
    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        match registry(text).map_err(|fault| ReferenceError::new(text, fault))? {
            ImageReference::Short(short) => Ok(short.at_docker_hub()),
            ImageReference::Registry(named) => Ok(named),
            _ => {
                Err(ReferenceError::new(text, (ReferencePart::Whole, "does not name an image of a registry")))
            }
        }
    }
}

impl ShortName {
    /// As Docker understands it.
    #[must_use]
    pub fn at_docker_hub(&self) -> Named {
        let (server, repository) = normal(DEFAULT_SERVER, &self.repository);
        Named { server, repository, tag: self.tag.clone(), digest: self.digest }
    }

    /// As an image that is in no registry: see [`Named::is_local`].
    #[must_use]
    pub fn local(&self) -> Named {
        let (server, repository) = (LOCAL.into(), self.repository.clone());
        Named { server, repository, tag: self.tag.clone(), digest: self.digest }
    }

    /// At a server of registries.conf's list, or under the name that an alias there gives it.
    ///
    /// # Errors
    /// The prefix is no server or repository.
    pub fn below(&self, prefix: &str) -> Result<Named, ReferenceError> {
        let (server, path) = match prefix.split_once('/') {
            Some((server, path)) => (server, format!("{path}/{}", self.repository)),
            None => (prefix, self.repository.clone()),
        };
        Named::new(server, &path, self.tag.as_deref(), self.digest)
    }

    /// The same image under the full name that an alias gives to the repository.
    #[must_use]
    pub fn alias(&self, target: &Named) -> Named {
        let tag = self.tag.clone().or_else(|| target.tag.clone());
        Named { tag, digest: self.digest.or(target.digest), ..target.clone() }
    }

    /// The repository as written: `debian`, `team/tool`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }
}

impl FromStr for ImageReference {
    type Err = ReferenceError;
    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        parse(text).map_err(|fault| ReferenceError::new(text, fault))
    }
}

fn parse(text: &str) -> Result<ImageReference, BadPart> {
    if text.len() > MAX_REFERENCE {
        return Err((ReferencePart::Whole, "is longer than 4096 bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err((ReferencePart::Whole, "holds a control character"));
    }
    let file_and_tag = |rest: &str| {
        let (path, tag) = rest.split_once(':').map_or((rest, None), |(path, tag)| (path, Some(tag)));
        if tag.is_some_and(str::is_empty) {
            return Err((ReferencePart::Tag, "is empty"));
        }
        Ok((some_path(path)?, tag.map(String::from)))
    };
    match text.split_once(':') {
        Some(("docker", rest)) if rest.starts_with("//") => match registry(&rest[2..])? {
            ImageReference::Short(short) => Ok(ImageReference::Registry(short.at_docker_hub())),
            full => Ok(full),
        },
        Some(("oras", rest)) if rest.starts_with("//") => match registry(&rest[2..])? {
            ImageReference::Short(short) => Ok(ImageReference::Artifact(short.at_docker_hub())),
            ImageReference::Registry(named) => Ok(ImageReference::Artifact(named)),
            _ => Err((ReferencePart::Whole, "does not name an artifact of a registry")),
        },
        Some(("oci", rest)) if !is_port(rest) => {
            file_and_tag(rest).map(|(dir, tag)| ImageReference::Oci { dir, tag })
        }
        Some(("oci-archive", rest)) => {
            file_and_tag(rest).map(|(file, tag)| ImageReference::OciArchive { file, tag })
        }
        Some(("docker-archive", rest)) => {
            file_and_tag(rest).map(|(file, tag)| ImageReference::DockerArchive { file, tag })
        }
        Some(("dir", rest)) if !is_port(rest) => some_path(rest).map(ImageReference::Dir),
        Some((_, rest)) if rest.starts_with("//") => {
            Err((ReferencePart::Transport, "is not one that images are got by"))
        }
        _ => match image_file(text) {
            Some(file) => Ok(file),
            None if looks_like_a_path(text) => {
                Err((ReferencePart::Path, "does not tell what kind of image it is"))
            }
            None => registry(text),
        },
    }
}

/// `oci:5000/x` is a repository of the server `oci` at port 5000, not a directory called 5000.
fn is_port(rest: &str) -> bool {
    let port = rest.split_once('/').map(|(port, _)| port);
    port.is_some_and(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

fn some_path(path: &str) -> Result<PathBuf, BadPart> {
    if path.is_empty() { Err((ReferencePart::Path, "is empty")) } else { Ok(path.into()) }
}

fn looks_like_a_path(text: &str) -> bool {
    text.starts_with(['/', '.', '~'])
}

fn image_file(text: &str) -> Option<ImageReference> {
    let path = PathBuf::from(text);
    match path.extension()?.to_str()? {
        "sqsh" | "squashfs" => Some(ImageReference::Squashfs(path)),
        "erofs" => Some(ImageReference::Erofs(path)),
        "sif" => Some(ImageReference::Sif(path)),
        _ => None,
    }
}

/// `[SERVER/]NAME[:TAG][@DIGEST]`; or as Enroot writes it, `[USER@]SERVER#NAME[:TAG]`.
fn registry(text: &str) -> Result<ImageReference, BadPart> {
    if text.is_empty() {
        return Err((ReferencePart::Whole, "is empty"));
    }
    if text.contains(char::is_whitespace) {
        return Err((ReferencePart::Whole, "holds a space"));
    }
    let (enroots_server, text) = match text.split_once('#') {
        // Which user is logged in there is not the name's to say.
        Some((server, rest)) => (Some(server.rsplit_once('@').map_or(server, |(_, server)| server)), rest),
        None => (None, text),
    };
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            (rest, Some(digest.parse::<Digest>().map_err(|e| (ReferencePart::Digest, e.reason()))?))
        }
        None => (text, None),
    };
    // A colon before the last slash belongs to a port.
    let name_end = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[name_end..].find(':') {
        Some(colon) => (&rest[..name_end + colon], Some(&rest[name_end + colon + 1..])),
        None => (rest, None),
    };
    let (server, repository) = match enroots_server {
        // In full it is written with a slash, and must be the same then.
        Some(server) if split_server(&format!("{server}/{name}")).0 != Some(server) => {
            return Err((ReferencePart::Server, "before '#' must have a dot or a port"));
        }
        Some(server) => (Some(server), name),
        None => split_server(name),
    };
    check_name(server.unwrap_or(DEFAULT_SERVER), repository)?;
    tag.map_or(Ok(()), check_tag)?;
    let tag = tag.map(String::from);
    Ok(match server {
        Some(server) => {
            let (server, repository) = normal(server, repository);
            ImageReference::Registry(Named { server, repository, tag, digest })
        }
        None => ImageReference::Short(ShortName { repository: repository.into(), tag, digest }),
    })
}

fn write_name(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    tag: &Option<String>,
    digest: &Option<Digest>,
) -> fmt::Result {
    f.write_str(name)?;
    tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
    digest.iter().try_for_each(|digest| write!(f, "@{digest}"))
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(f, &self.name(), &self.tag, &self.digest)
    }
}

impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(f, &self.repository, &self.tag, &self.digest)
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = |f: &mut fmt::Formatter<'_>, prefix: &str, path: &Path, tag: &Option<String>| {
            write_name(f, &format!("{prefix}:{}", path.display()), tag, &None)
        };
        match self {
            ImageReference::Registry(named) => {
                // `docker://x/tool.sif` is an image of a registry, `x/tool.sif` would be a file.
                let is_plain = matches!(parse(&named.to_string()), Ok(ImageReference::Registry(_)));
                if is_plain { named.fmt(f) } else { write!(f, "docker://{named}") }
            }
            ImageReference::Short(short) => short.fmt(f),
            ImageReference::Artifact(named) => write!(f, "oras://{named}"),
            ImageReference::Oci { dir, tag } => write(f, "oci", dir, tag),
            ImageReference::OciArchive { file, tag } => write(f, "oci-archive", file, tag),
            ImageReference::DockerArchive { file, tag } => write(f, "docker-archive", file, tag),
            ImageReference::Dir(path) => write(f, "dir", path, &None),
            ImageReference::Squashfs(path) | ImageReference::Erofs(path) | ImageReference::Sif(path) => {
                path.display().fmt(f)
            }
        }
    }
}

#[cfg(test)]
mod tests;
