//! What sender and receiver say to each other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skiff_checkpoint::record::Checkpoint;
use skiff_cli::Mode;
use skiff_ipc::{Framing, Message, Protocol};
use skiff_launch::frame::LONGEST;
use skiff_runtime::record::InstanceDir;
use skiff_spec::fault::{Fault, Result};
use skiff_spec::name::EnvName;
use skiff_store::index::ImageName;

use crate::direct::MemoryRanges;
use crate::parcel::TransferFile;

/// Both sides must be of one version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Refuses a sender of another version.
pub fn refuse_other_version(senders: &str) -> Result<()> {
    match senders == VERSION {
        true => Ok(()),
        false => Err(Fault::new(format!("skiff here is version {VERSION}, the sender's {senders}"))
            .hint("have the same version installed on both hosts")),
    }
}

/// The names of the connections.
pub const CONTROL: &str = "control";
/// The one for pages and files.
pub const GOODS: &str = "goods";

/// The sender to the receiver. Closing the connection takes everything back that is not decided.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceMessage {
    /// Offers an instance; the answer says whether it can come.
    Offer(Box<Offer>),
    /// Asks whether an instance could come, of which nothing is sent.
    Consider(Box<Offer>),
    /// So many bytes come on the other connection, for nothing but to see how long they take.
    Probe(u64),
    /// The memory comes now; packed or not.
    Memory {
        /// As `crate::squeeze` has it.
        packed: bool,
    },
    /// All of it is there, or comes now: make the processes, and hold them.
    Restore(Box<RestoreRequest>),
    /// Hands the processes over.
    Go,
    /// Nothing here has the locks any more that are shared there.
    Released,
    /// Whether an instance has been taken that was offered with this token. If not, it will not be any more.
    Ask(EnvName, String),
    /// Looks for an instance that is to be saved with others of a whole job.
    Save(Box<JointSaveOrder>),
    /// Takes the instance for this save alone, and looks at its processes.
    Claim,
    /// Shuts the instance's network: those of all others are being shut, too.
    Shut,
    /// Stops the processes and saves them: all networks are shut.
    Stop,
    /// All are saved: they end, or go on if they are to.
    End,
    /// Not all can be saved: they go on.
    Abort,
    /// The coordinator of a whole job is there.
    Beat,
    /// Asks for the end of an instance of a whole job; the sender's version.
    Watch(EnvName, String),
    /// Restores an instance of a whole job, and holds it.
    Load(Box<JointRestoreOrder>),
}

impl Message for SourceMessage {
    const LONGEST: usize = LONGEST;
}

impl Message for DestinationMessage {
    const LONGEST: usize = LONGEST;
}

impl Protocol for SourceMessage {
    type Answer = DestinationMessage;
    const NAME: &'static str = "Migration";
    const SIDES: [&'static str; 2] = ["the source", "the destination"];
    const FRAMING: Framing =
        Framing::Own("The frames of a cluster's agents, whose launchers start the receiver.");
}

/// An instance that is to be saved with others.
#[derive(Debug, Serialize, Deserialize)]
pub struct JointSaveOrder {
    /// The sender's version.
    pub version: String,
    /// The instance.
    pub instance: EnvName,
    /// Name of the checkpoint.
    pub checkpoint: EnvName,
    /// By which this save is known.
    pub token: String,
    /// Directory of its part, which both see; none if the instance is only to be looked at.
    pub dir: Option<PathBuf>,
    /// Whether it goes on afterwards.
    pub leave_running: bool,
}

/// An instance that is to be restored with others.
#[derive(Debug, Serialize, Deserialize)]
pub struct JointRestoreOrder {
    /// The sender's version.
    pub version: String,
    /// The instance.
    pub instance: EnvName,
    /// Directory of its part, which both see.
    pub dir: PathBuf,
    /// Digest of the part's record.
    pub record: String,
    /// What becomes of files elsewhere that have changed, by its word on the command line; nothing: what the configuration says.
    pub files: Option<String>,
    /// Whether the sender waits for its end.
    pub wait: bool,
}

/// What is to come.
#[derive(Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The sender's version.
    pub version: String,
    /// By which this move is known.
    pub token: String,
    /// What the instance is, as far as that is known while it runs.
    pub checkpoint: Checkpoint,
    /// The image below it.
    pub image: Option<ImageName>,
    /// How it comes.
    pub mode: Mode,
    /// Directory of its files, which both are to see; none if they are sent.
    pub dir: Option<PathBuf>,
    /// Memory of processes that comes straight into those that are made of them, as it is now.
    pub direct: MemoryRanges,
}

impl Offer {
    /// An instance that comes by this way.
    pub fn of(record: &InstanceDir, checkpoint: Checkpoint, mode: Mode) -> Result<Self> {
        Ok(Self::new(checkpoint, record.image()?, mode))
    }

    /// The same over this image.
    pub fn new(checkpoint: Checkpoint, image: Option<ImageName>, mode: Mode) -> Self {
        let (token, direct) = (String::new(), MemoryRanges::new());
        Self { version: VERSION.into(), token, checkpoint, image, mode, dir: None, direct }
    }
}

/// What has come.
#[derive(Debug, Serialize, Deserialize)]
pub struct RestoreRequest {
    /// What the instance is.
    pub checkpoint: Checkpoint,
    /// Where its files are.
    pub files: FileLocation,
}

/// Where files are.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileLocation {
    /// Files that follow on the other connection.
    Follow(Vec<TransferFile>),
    /// In this directory, which both see.
    Lie(PathBuf),
}

/// The receiver to the sender.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DestinationMessage {
    /// The instance can come.
    Welcome,
    /// The instance could not come: message and hint.
    Refused(String, String),
    /// What was to be seen has come.
    Probed,
    /// So many bytes of memory have come.
    Received(u64),
    /// The processes are there without most of their memory: that may come now.
    Made,
    /// The processes are there, and stand still.
    Held,
    /// The processes are to run, and share the locks on files that those of the source have.
    Locked,
    /// The processes run.
    Running,
    /// Whether the instance has been taken.
    Taken(bool),
    /// No instance of that name runs here.
    Absent,
    /// An instance of that name runs here.
    Present,
    /// Another save has the instance, or a move. The receiver waits for its end.
    Busy,
    /// Nobody else saves the instance or moves it.
    Claimed,
    /// What was found of an instance that is to be saved.
    Found(Box<FoundInstance>),
    /// The processes can be stopped at a word.
    Poised,
    /// The instance's network is shut.
    Silent,
    /// The instance is saved, and stands still.
    Written(JointPart),
    /// The save is over, and the processes stood still for so many milliseconds.
    Over(u64),
    /// The instance has ended with this exit code.
    Ended(i32),
    /// The receiver of an instance of a whole job is there.
    Beat,
    /// The move has failed, and nothing is left of it: message and hint.
    Failed(String, String),
}

/// What was found of an instance that is to be saved with others.
#[derive(Debug, Serialize, Deserialize)]
pub struct FoundInstance {
    /// How many processes it has.
    pub processes: usize,
    /// What is in the way of saving them, a line each.
    pub obstacles: Vec<String>,
    /// What other nodes are asked by whether it could come; none if it is to be saved at once, or cannot be.
    pub offer: Option<Offer>,
}

/// An instance's part of a whole job's checkpoint.
#[derive(Debug, Serialize, Deserialize)]
pub struct JointPart {
    /// How many processes it has.
    pub processes: usize,
    /// Bytes of its files.
    pub bytes: u64,
    /// Digest of its record.
    pub record: String,
}
