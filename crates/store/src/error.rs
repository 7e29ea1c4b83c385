//! What can go wrong while an image is got or kept.
//!
//! Every message says what was tried, on which object, and why it failed; [`Error::hint`] says how to mend it.

use std::borrow::Cow;

use rustix::io::Errno;
use skiff_image::{document_hint, io_hint};
use skiff_oci::platform::Platform;
use skiff_spec::fault::Fault;
use skiff_spec::image::ImageId;
use skiff_sys::SystemError;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a registry, an image file or the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] SystemError),
    /// An image cannot be made, or is not what it should be.
    #[error(transparent)]
    Image(skiff_image::Error),
    /// A registry did not give what was asked for, or a configuration file does not let it be asked.
    #[error(transparent)]
    Registry(skiff_registry::Error),
    /// A layer of an environment is not what it should be.
    #[error(transparent)]
    Layer(#[from] skiff_snapshot::Error),
    /// A manifest, index or configuration is not sound, or not for the platform wanted.
    #[error(transparent)]
    Document(#[from] skiff_oci::Error),
    /// A name is none of an image.
    #[error(transparent)]
    Reference(#[from] skiff_oci::reference::ReferenceError),
    /// A machine's architecture is none that is known.
    #[error(transparent)]
    Platform(#[from] skiff_oci::platform::PlatformError),
    /// What is plain data cannot become JSON, or what another process sent is none.
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Whatever the layers below, or another process, say for people.
    #[error("{}", .0.message)]
    Fault(#[from] Fault),
    /// The user has no image of this name.
    #[error("image {0}: not in your image list")]
    NotPulled(String),
    /// The user has no image of this file.
    #[error("image {0}: you have not imported it")]
    NotImported(String),
    /// The user has imported no image under this name, and no registry is asked for it.
    #[error("image {0}: you have not imported an image of this name")]
    NoImport(String),
    /// Several of the user's images have an id that begins with these digits.
    #[error("image {0}: several begin so")]
    Ambiguous(String),
    /// Only an image in a registry can be pulled.
    #[error("image {0}: not in a registry")]
    NotInRegistry(String),
    /// An image cannot be given this name, which is a file's.
    #[error("name {0:?}: this names a file")]
    NamesFile(String),
    /// An image cannot be given this name.
    #[error("name {0:?}: an image's digest follows from what is in it")]
    HasDigest(String),
    /// What is noted of an image cannot be read.
    #[error("{file}: {why}")]
    BadEntry {
        /// The note.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// What a name means cannot be read.
    #[error("{0}")]
    BadName(Box<Error>),
    /// An image's programs do not run here.
    #[error("image {image}: made for {made_for}, and this host is {machine}")]
    OtherMachine {
        /// Name of the image.
        image: String,
        /// What it runs on.
        made_for: Box<Platform>,
        /// What this is.
        machine: Box<Platform>,
    },
    /// An image of changes has no programs of its own.
    #[error("image {0}: holds changes to a host's root, and no root of its own")]
    OnlyChanges(String),
    /// The store does not have an image, or not for this user.
    #[error("image {0}: not yours on this host")]
    NotYours(ImageId),
    /// What only the store's administrator may do.
    #[error("the trusted store: only its administrator may set it a size")]
    NotAdministrator,
    /// As many processes work for the user as may.
    #[error("store: all of your writers are busy")]
    Busy,
    /// The store's writer ended too early.
    #[error("the store's writer: exited without an answer")]
    NoAnswer,
    /// The store's writer has said what is no answer to the question.
    #[error("{0}: the store's writer answered something else")]
    OtherAnswer(String),
    /// One of the store's processes was started or asked in a way that it never is.
    #[error("{0}")]
    Misused(&'static str),
    /// A store was made by a later version of this program.
    #[error("store {store}: its layout is version {version}, which this program does not know")]
    Newer {
        /// The store's path.
        store: String,
        /// What it says of itself.
        version: String,
    },
    /// Another process has made the same image meanwhile.
    #[error("image {0}: made by another process meanwhile")]
    Overtaken(ImageId),
    /// A user has failed too often to show that they can have images that others have.
    #[error("image access refused for {wait} s: {times} failed proofs of access within an hour")]
    RefusedTooOften {
        /// How often.
        times: usize,
        /// Seconds until the next one is heard.
        wait: u64,
    },
    /// One user would have too much of a store that others use, too.
    #[error("store quota exceeded: {used} bytes used, {more} more needed, {quota} allowed")]
    Quota {
        /// Bytes that this user has.
        used: u64,
        /// Bytes that are needed besides, as far as is known.
        more: u64,
        /// The quota.
        quota: u64,
    },
    /// What works for one user would have too much in files that are needed only meanwhile.
    #[error("temporary files of your pulls and imports take {bytes} bytes, {quota} are allowed")]
    TooMuchTemporary {
        /// How much they take.
        bytes: u64,
        /// The quota, which holds for these once more.
        quota: u64,
    },
    /// One user has too many images.
    #[error("store quota exceeded: {most} images used, {most} allowed")]
    TooManyImages {
        /// How many.
        most: u64,
    },
}

impl Error {
    /// A document of an image is not what its digest, its descriptor or its format promises.
    pub(crate) fn unsound(object: impl Into<String>, why: impl Into<String>) -> Self {
        skiff_oci::Error::BadManifest { object: object.into(), why: why.into() }.into()
    }

    /// How to mend it, where that is known: one sentence without a full stop.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        match self {
            Error::NotPulled(image) => Some(Cow::Owned(format!(
                "`skiff images` lists yours; `skiff pull {image}` gets it from a registry"
            ))),
            Error::NotImported(image) => {
                Some(Cow::Owned(format!("`skiff import {image}` does it, and `skiff run {image}` at once")))
            }
            Error::OnlyChanges(image) => Some(Cow::Owned(format!(
                "`skiff env import image:{image} NAME` makes an environment of it; an image that runs: skiff commit --full"
            ))),
            Error::OtherMachine { image, .. } => Some(Cow::Owned(format!(
                "skiff pull {image}; or administrator: QEMU's user mode emulation runs it (binfmt_misc)"
            ))),
            Error::Registry(error) => registry_hint(error),
            error => error.fixed_hint().map(Cow::Borrowed),
        }
    }

    /// Those without a name in them.
    fn fixed_hint(&self) -> Option<&str> {
        match self {
            Error::Io(error) => io_hint(error).or(match error.source {
                Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                    Some("the store must be writable to whoever fills it; `skiff doctor` says whose it is")
                }
                _ => None,
            }),
            Error::Image(error) => error.hint(),
            Error::Layer(error) => error.hint(),
            Error::Document(error) => document_hint(error),
            Error::Reference(error) => Some(error.hint()),
            Error::Fault(fault) => Some(&*fault.hint).filter(|hint| !hint.is_empty()),
            Error::Ambiguous(_) => Some("more digits tell them apart"),
            Error::NoImport(_) => Some(
                "skiff import FILE NAME gives one; names under localhost/ are never looked up in a registry",
            ),
            Error::NotInRegistry(_) => Some("`skiff import` takes files"),
            Error::NamesFile(_) => Some("skiff import FILE NAME[:TAG] gives the image in FILE that name"),
            Error::HasDigest(_) => Some("give it a NAME[:TAG]"),
            Error::BadName(_) => Some("remove the file and pull the image again"),
            Error::NotYours(_) => {
                Some("`skiff pull` gets it from its registry; one that came from none: `skiff import`")
            }
            Error::NotAdministrator => {
                Some("without --budget, what nobody uses any more goes; `skiff rmi` gives up what is yours")
            }
            Error::Busy => Some("wait until a pull, import or other question to the store has ended"),
            Error::NoAnswer => Some("try again: what was fetched is kept"),
            Error::Newer { .. } => Some("use the newer skiff, or another store"),
            Error::RefusedTooOften { .. } => Some(
                "`skiff login SERVER` for the registry that the image is private in; after an hour you are heard again",
            ),
            Error::Quota { .. } | Error::TooManyImages { .. } => Some(
                "`skiff rmi IMAGE` gives up what you need no longer; `skiff store du` shows what you have; \
                 administrator: store_user_quota in /etc/skiff/helper.conf",
            ),
            Error::TooMuchTemporary { .. } => Some(
                "what inflates to so much may be a bomb; an archive that is inflated before it is imported needs no temporary file; \
                 administrator: store_user_quota in /etc/skiff/helper.conf",
            ),
            _ => None,
        }
    }

    /// Whether it says that layers are not to be had. That a network fails says nothing of that.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Error::Image(skiff_image::Error::WrongDigest { .. }) => true,
            Error::Registry(error) => error.is_refusal(),
            _ => false,
        }
    }
}

/// The registry client's own hint, and the command by which users log in where that may help.
fn registry_hint(error: &skiff_registry::Error) -> Option<Cow<'_, str>> {
    match error {
        skiff_registry::Error::Shared(error) => registry_hint(error),
        skiff_registry::Error::Registry(error) if error.failure.may_need_login() => {
            error.hint().map(|hint| Cow::Owned(format!("{hint}: skiff login {}", error.server)))
        }
        error => error.hint().map(Cow::Borrowed),
    }
}

impl From<skiff_image::Error> for Error {
    fn from(error: skiff_image::Error) -> Error {
        use skiff_image::Error as Image;
        match error {
            Image::Io(error) => Error::Io(error),
            Image::Document(error) => error.into(),
            Image::Reference(error) => error.into(),
            // Which says what one of our blobs has met.
            Image::Blob(error) => {
                error.downcast().map_or_else(|error| Error::Image(Image::Blob(error)), |ours| *ours)
            }
            error => Error::Image(error),
        }
    }
}

/// What one of our blobs has met, for whoever reads it.
impl From<Error> for skiff_image::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => Self::Io(error),
            Error::Image(error) => error,
            Error::Registry(skiff_registry::Error::Restarted { blob }) => Self::Restarted { layer: blob },
            error => Self::Blob(Box::new(error)),
        }
    }
}

impl From<skiff_registry::Error> for Error {
    fn from(error: skiff_registry::Error) -> Error {
        match error {
            skiff_registry::Error::Io(error) => Error::Io(error),
            skiff_registry::Error::Document(error) => error.into(),
            skiff_registry::Error::Reference(error) => error.into(),
            error => Error::Registry(error),
        }
    }
}

impl From<skiff_erofs::Error> for Error {
    fn from(error: skiff_erofs::Error) -> Error {
        skiff_image::Error::from(error).into()
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        match error {
            Error::Fault(fault) => fault,
            error => Fault::new(error.to_string()).hint(error.hint().unwrap_or_default()),
        }
    }
}

/// An error of this library, or of those below it, for people.
pub fn ours(e: impl Into<Error>) -> Fault {
    e.into().into()
}

/// Why the store's writer was not understood, or not heard.
pub(crate) fn talk(e: skiff_ipc::Error) -> Error {
    Fault::from(e).about("the store's writer").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_what_is_wrong_and_how_to_mend_it() {
        let machine = |name| Box::new(Platform::linux(name, None));
        let said = Fault::new("helper: not there").hint("install it");
        let cases = [
            (Error::NotPulled("x".into()), "image x: not in your image list", "`skiff images` lists yours"),
            (
                Error::NotPulled("x:1".into()),
                "image x:1: not in your image list",
                "`skiff images` lists yours; `skiff pull x:1` gets it",
            ),
            (
                Error::NotImported("./x".into()),
                "image ./x: you have not imported it",
                "`skiff import ./x` does",
            ),
            (
                Error::OtherMachine {
                    image: "x".into(),
                    made_for: machine("arm64"),
                    machine: machine("amd64"),
                },
                "image x: made for linux/arm64, and this host is linux/amd64",
                "skiff pull x;",
            ),
            (
                Error::OnlyChanges("x:1".into()),
                "image x:1: holds changes to a host's root, and no root of its own",
                "`skiff env import image:x:1 NAME`",
            ),
            (
                Error::BadName(Box::new(Error::BadEntry { file: "/x.json".into(), why: "empty".into() })),
                "/x.json: empty",
                "remove the file",
            ),
            (Error::OtherAnswer("image x".into()), "image x: the store's writer answered something else", ""),
            (said.into(), "helper: not there", "install it"),
        ];
        for (error, message, hint) in cases {
            let fault = Fault::from(error);
            assert_eq!(fault.message, message);
            assert!(fault.hint.starts_with(hint) && fault.hint.is_empty() == hint.is_empty(), "{fault:?}");
        }
    }

    #[test]
    fn what_a_blob_has_met_comes_back_through_the_image_that_is_made_of_it() {
        let denied = || skiff_registry::Error::Abandoned { blob: "sha256:0".into() };
        let told = skiff_image::Error::from(Error::from(denied()));
        assert!(matches!(told, skiff_image::Error::Blob(_)), "{told:?}");
        assert_eq!(told.to_string(), denied().to_string());
        let back = Error::from(told);
        assert!(matches!(back, Error::Registry(skiff_registry::Error::Abandoned { .. })), "{back:?}");
        // By these a full disk and a layer that comes anew are known.
        let full = Error::Io(SystemError::new("write to", "x", Errno::NOSPC));
        let told = skiff_image::Error::from(full);
        assert!(matches!(told, skiff_image::Error::Io(SystemError { source: Errno::NOSPC, .. })), "{told:?}");
        let anew = skiff_registry::Error::Restarted { blob: "sha256:0".into() };
        assert!(skiff_image::Error::from(Error::from(anew)).is_restart());
    }
}
