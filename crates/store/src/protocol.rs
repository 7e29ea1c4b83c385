//! What the user's `skiff` and the store's writer say to each other. Neither trusts the other: what the writer gets it checks as it checks
//! what comes from a network.

use serde::{Deserialize, Serialize};
use skiff_image::source::Description;
use skiff_ipc::{Framing, Message, Protocol};
use skiff_oci::manifest::MAX_LAYERS;
use skiff_registry::Certificates;
use skiff_spec::fault::Fault;
use skiff_spec::image::ImageId;

use crate::store::{Collected, ImageMetadata, Usage};

/// What the writer is asked for: once, then it ends.
#[derive(Debug, Serialize, Deserialize)]
pub enum StoreRequest {
    /// Pull an image.
    Pull {
        /// The image's name, as the user wrote it.
        reference: String,
        /// The machine it is for: `linux/amd64`.
        platform: String,
        /// The texts of registries.conf that count, with their files' names, the weakest first.
        registries: Vec<(String, String)>,
        /// The user's credentials for the servers concerned.
        logins: Vec<RegistryLogin>,
        /// The user's own certificates.
        certificates: Certificates,
        /// Milliseconds that the name service may take.
        name_service_ms: u32,
    },
    /// Import an image from files that the user has opened, and which follow.
    Import {
        /// What they are.
        source: Description,
        /// The machine it is for.
        platform: String,
    },
    /// Take a layer of an environment. It comes by the socket that follows, as it is in the depot, unless it is there.
    Layer(LayerRequest),
    /// An image that the user may use: its file, to be read.
    Open(ImageId),
    /// What is known of an image that the user may use.
    Find(ImageId),
    /// The user does not want an image any more.
    Forget(ImageId),
    /// How much room the store takes.
    Usage,
    /// Make room.
    Collect {
        /// How many bytes may stay; nothing: all that somebody may use.
        budget: Option<u64>,
        /// Only say what would go.
        dry_run: bool,
    },
    /// Check images: this one, or all.
    Verify(Option<ImageId>),
    /// The files of an image that the user may use, a line for each.
    Files(ImageId),
}

/// A layer of an environment that a user has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayerRequest {
    /// The layer's digest.
    pub id: ImageId,
    /// How long it is, in bytes. No more of it is read.
    pub size: u64,
    /// How many bytes all of the user's layers may take on the disk.
    pub budget: u64,
    /// All layers of its snapshot: none of them goes to make room for another.
    pub snapshot: Vec<ImageId>,
    /// For how many milliseconds another user who makes the same layer is waited for at most: what is left of what a start spends on that.
    pub patience_ms: u32,
}

/// Who the user is to a server.
#[derive(Serialize, Deserialize)]
pub struct RegistryLogin {
    /// The server and the beginning of a path there, as in `auth.json`.
    pub place: String,
    /// Name and password.
    pub basic: Option<(String, String)>,
    /// Or a token that others are had for.
    pub identity_token: Option<String>,
}

impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegistryLogin({})", self.place)
    }
}

/// What the writer answers: any number of messages on its progress, then the result.
#[derive(Debug, Serialize, Deserialize)]
pub enum StoreReply {
    /// Another process makes the same image.
    Waiting,
    /// Images are removed that may still be mounted, as the helper keeps mounts: now it can let go of them. The writer waits a moment for that.
    Removed,
    /// How far the layers are, the lowest first.
    Layers(Vec<LayerState>),
    /// Success: the image is in the store.
    Pulled {
        /// The name in full.
        name: String,
        /// The image.
        id: ImageId,
        /// What the name means in the registry.
        digest: String,
        /// What is known of it.
        record: Box<ImageMetadata>,
        /// Whether it was there already.
        there: bool,
    },
    /// Success: the layer is in the store.
    Layer {
        /// Whether it was there already.
        there: bool,
        /// How many others of this user's went for it.
        removed: usize,
        /// For how many milliseconds another process that makes the same layer was waited for.
        waited_ms: u32,
    },
    /// What is known of the image whose file, open, follows.
    Opened(Box<ImageMetadata>),
    /// What is known of the image; nothing if it is not there.
    Found(Option<Box<ImageMetadata>>),
    /// Success, without a result.
    Done,
    /// The room that the store takes.
    Usage(Usage),
    /// What went.
    Collected(Collected),
    /// What was checked.
    Verified(Vec<CheckedImage>),
    /// Some lines of text.
    Lines(Vec<String>),
    /// Refused, or failed on the way.
    Failed(Fault),
}

/// A layer on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerState {
    /// The layer's digest.
    pub digest: String,
    /// The layer's size as it is sent, in bytes.
    pub size: u64,
    /// How many are here.
    pub fetched: u64,
    /// How many of them are unpacked.
    pub unpacked: u64,
}

/// An image that was checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckedImage {
    /// The image.
    pub id: ImageId,
    /// What is wrong with it; nothing if it is sound.
    pub fault: Option<String>,
}

impl Message for StoreRequest {
    // A configuration of 4 MiB with all around it fits.
    const LONGEST: usize = 16 << 20;
    // An image consists of no more files: layers, and the documents that lead to them.
    const DESCRIPTORS: usize = MAX_LAYERS + 8;
}

impl StoreReply {
    /// Whether others follow it.
    #[must_use]
    pub fn is_progress(&self) -> bool {
        matches!(
            self,
            StoreReply::Waiting | StoreReply::Removed | StoreReply::Layers(_) | StoreReply::Lines(_)
        )
    }
}

impl Message for StoreReply {
    const LONGEST: usize = 16 << 20;
    const DESCRIPTORS: usize = 1;
}

impl Protocol for StoreRequest {
    type Answer = StoreReply;
    const NAME: &'static str = "Image store";
    const SIDES: [&'static str; 2] = ["`skiff`, as the user", "the image store's writer"];
    const FRAMING: Framing = Framing::Stream;
}
