//! What can go wrong between an environment's upper, the depot and a node's cache.
//!
//! Every message says what was tried, on which object, and the system's reason; [`Error::hint`] says how to mend it.

use rustix::io::Errno;
use skiff_sys::SystemError;
use skiff_sys::size::size;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a walk, a snapshot, the depot or the cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] SystemError),
    /// A disk was full that had less room than what was written to it may need.
    #[error("{error}: it needs up to {}, {} are free", size(*needed), size(*free))]
    Full {
        /// The system call that failed.
        error: SystemError,
        /// Bytes that are needed at most.
        needed: u64,
        /// Bytes that were free before.
        free: u64,
    },
    /// A layer file is not what its name and its format promise.
    #[error("layer {layer} is damaged or hostile: {why}")]
    BadLayer {
        /// The layer's digest, or the name of what was read.
        layer: String,
        /// What is wrong with it, and where.
        why: String,
    },
    /// Another version of Skiff has written a layer.
    #[error("layer {layer} is of version {version}, which is unknown here")]
    OtherVersion {
        /// The layer's digest, or the name of what was read.
        layer: String,
        /// Version of the layer.
        version: u32,
    },
    /// Chunks of a checkpoint, or the list of them, are not what they were.
    #[error("{object} is damaged: {why}")]
    BadChunks {
        /// The file.
        object: String,
        /// What is wrong with it, and where.
        why: String,
    },
    /// Somebody else removes chunks from a store, and does not end.
    #[error("{object}: somebody else has been removing what is not needed there for {seconds} s")]
    Collecting {
        /// The store's directory.
        object: String,
        /// How long it was waited for that.
        seconds: u64,
    },
    /// A snapshot manifest is not what its name promises, or of a version unknown here.
    #[error("snapshot {snapshot} is damaged: {why}")]
    BadManifest {
        /// The snapshot asked for.
        snapshot: String,
        /// What is wrong with it.
        why: String,
    },
    /// The depot does not hold what was asked for.
    #[error("{what} is not in the depot {depot}")]
    Missing {
        /// "snapshot 12ab..." or "layer 12ab...".
        what: String,
        /// The depot's path.
        depot: String,
    },
    /// Something changed each time it was read.
    #[error("{object} kept changing while it was read ({tries} tries)")]
    Busy {
        /// The path in the environment.
        object: String,
        /// How often it was tried.
        tries: u32,
    },
    /// The upper holds something that cannot be carried to another node.
    #[error("cannot take {object} into a snapshot: {why}")]
    Unsupported {
        /// The path in the environment.
        object: String,
        /// Why not.
        why: String,
    },
    /// More entries than there is memory for.
    #[error("cannot take {object} into a snapshot: with it there are more than {most} files and directories")]
    TooMany {
        /// The directory in the environment that was looked at then.
        object: String,
        /// How many there may be.
        most: usize,
    },
    /// A node has no room to make one layer of many.
    #[error(
        "there would be {layers} layers, and to make one of them takes {} for a moment on this node's disk, which has {} free",
        size(*needed), size(*free)
    )]
    NoRoom {
        /// How many.
        layers: usize,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The disk that is to have all files of an exported environment has not enough room.
    #[error("{object}: its files take {}, and the disk for them has {} free", size(*needed), size(*free))]
    NoRoomFor {
        /// The exported environment.
        object: String,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A directory that other users could exchange.
    #[error(transparent)]
    Untrusted(#[from] skiff_site::Error),
    /// What was to be read changed its kind or went: the snapshot is begun again. Never leaves this crate.
    #[error("{object} changed its kind during the snapshot")]
    #[doc(hidden)]
    Moved {
        /// The path in the environment, or the depot.
        object: String,
    },
}

impl Error {
    /// How to mend it, where that is known: one sentence without a full stop.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Io(error) => error.hint().or(match (error.what, error.source) {
                ("change the owner of", Errno::INVAL | Errno::PERM) => {
                    Some("the id range of the user namespace is too small or absent; see `skiff doctor`")
                }
                ("set an extended attribute of", Errno::OPNOTSUPP) => {
                    Some("the file system there has no extended attributes; use ext4, xfs or a recent tmpfs")
                }
                (_, Errno::FBIG) => Some("the file system there cannot hold so large a file"),
                (_, Errno::NAMETOOLONG) => {
                    Some("a path has at most 4,095 bytes: move what lies deeper, or remove it")
                }
                _ => None,
            }),
            Error::Full { error, .. } => error.hint(),
            Error::BadLayer { .. } | Error::BadManifest { .. } => Some(
                "`skiff depot verify --remove` removes what is damaged; submit again, and a new snapshot is made",
            ),
            Error::OtherVersion { .. } => Some("install the same Skiff everywhere"),
            Error::Missing { .. } => {
                Some("it was removed, or the depot is another directory on this node; submit again")
            }
            Error::Busy { .. } => {
                Some("stop the program that writes it, or move the file to the home directory")
            }
            Error::TooMany { .. } => Some(
                "keep directories of very many files outside of the environment, where `skiff env create -v` shows them inside",
            ),
            Error::NoRoom { .. } => Some(
                "on the login node: `skiff env rollback` to the job's snapshot and `skiff env snapshot` make it one layer; run the job in that",
            ),
            Error::NoRoomFor { .. } => Some("free room there, or import it where there is more"),
            Error::Untrusted(_) => {
                Some("name a directory of your own, in directories that only root and you can write to")
            }
            _ => None,
        }
    }

    /// The system's error number, where a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Io(error) | Error::Full { error, .. } => Some(error.source),
            Error::Untrusted(e) => e.errno(),
            _ => None,
        }
    }
}
