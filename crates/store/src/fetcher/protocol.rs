//! What the writer and the fetcher say to each other.
//!
//! Neither believes the other: a server may have taken over the one, an image the other.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use skiff_ipc::{self as ipc, Framing, Message, Protocol};
use skiff_registry::policy::{PolicyFiles, Signature};
use skiff_registry::{self as registry, Event, Origin, Told};

use crate::error::Error;

/// No text is longer, in bytes: a manifest and a configuration of 4 MiB each, with what JSON adds.
const LONGEST: usize = 32 << 20;

/// What the writer wants of the fetcher.
#[derive(Debug, Serialize, Deserialize)]
pub enum FetcherQuestion {
    /// The site's policy. Asked before anything else: what the fetcher says before it has heard from a server is the site's word.
    Policy,
    /// Where the file lies that follows, as policies name it.
    Place,
    /// The pull that the user wants, as the user's program said it. Only once: what comes later may be an image's wish.
    Begin(String),
    /// The digest that the image's name has now.
    Digest,
    /// The documents that lead from its name to its layers.
    Resolve,
    /// Signatures of the image.
    Signatures,
    /// Where it was found, if that can be an origin.
    Origin,
    /// Where it may be found that could be an origin.
    ClaimedOrigins,
    /// Whether an origin gives the user the manifest and these layers of it.
    AskOrigin {
        /// One of those that have been named.
        origin: Origin,
        /// Numbers of the layers in the manifest.
        layers: Vec<usize>,
    },
    /// Fetch its layers; `number` comes back with all that is told of them.
    Fetch {
        /// Of the attempt.
        number: u32,
    },
    /// Somebody waits for these bytes of a layer, of which all before `read` have been read. No answer.
    Want {
        /// The layer's number in the manifest.
        layer: usize,
        /// Where they begin.
        begin: u64,
        /// Where they end.
        end: u64,
        /// How far it was read.
        read: u64,
    },
    /// So much of a layer was read. No answer.
    Read {
        /// The layer's number in the manifest.
        layer: usize,
        /// How far.
        read: u64,
    },
    /// All of a layer was read in this round. No answer.
    Settle {
        /// The layer's number in the manifest.
        layer: usize,
        /// As it was told.
        round: u32,
        /// Digest that the layer has, if it is not the right one.
        got: Option<String>,
    },
}

/// What the fetcher says.
#[derive(Debug, Serialize, Deserialize)]
pub enum FetcherAnswer {
    /// The site's policy, if there is one.
    Policy(Option<PolicyFiles>),
    /// Where a file lies, if that is known.
    Place(Option<String>),
    /// The image's name in full.
    Name(String),
    /// A digest.
    Digest(String),
    /// The documents, in the order in which they lead to each other: bytes and media type; then the configuration.
    Documents {
        /// The first one's digest.
        digest: String,
        /// The last one is the manifest.
        documents: Vec<(String, Option<String>)>,
        /// The configuration.
        config: String,
    },
    /// Signatures.
    Signatures(Vec<Signature>),
    /// Places.
    Origins(Vec<Origin>),
    /// Done.
    Done,
    /// Not done.
    Failed(Told),
    /// What happens to a layer, which nobody asked for.
    Event {
        /// Of which attempt to fetch.
        number: u32,
        /// The layer's number in the manifest.
        layer: usize,
        /// What.
        event: Event,
    },
}

/// An error, for the other process.
#[must_use]
pub fn told(error: &Error) -> Told {
    Told {
        message: error.to_string(),
        hint: error.hint().map(Cow::into_owned),
        is_refusal: error.is_refusal(),
    }
}

/// The other process has said what makes no sense.
pub(super) fn nonsense() -> Error {
    because("the store's fetcher: sent an invalid message").into()
}

fn because(message: &str) -> registry::Error {
    registry::Error::Told(Told {
        message: message.into(),
        hint: Some("try again: what was fetched is kept".into()),
        is_refusal: false,
    })
}

impl Message for FetcherQuestion {
    const LONGEST: usize = LONGEST;
    const DESCRIPTORS: usize = 1;
}

impl Message for FetcherAnswer {
    const LONGEST: usize = LONGEST;
}

impl Protocol for FetcherQuestion {
    type Answer = FetcherAnswer;
    const NAME: &'static str = "Fetcher";
    const SIDES: [&'static str; 2] = ["the image store's writer", "the fetcher"];
    const FRAMING: Framing = Framing::Stream;
}

impl From<ipc::Error> for Error {
    fn from(error: ipc::Error) -> Self {
        match error {
            ipc::Error::Closed | ipc::Error::TimedOut | ipc::Error::Io(_) => ended().into(),
            error => because(&format!("the store's fetcher: {error}")).into(),
        }
    }
}

pub(super) fn ended() -> registry::Error {
    because("the store's fetcher: exited without an answer")
}
