//! How a job's root came to be on a node: what it is made of, where that came from, and how long it took.

use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use skiff_plan::get::ImageOrigin;
use skiff_snapshot::{PieceCounts, SnapshotId};
use skiff_spec::array_task::ArrayTask;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::CommitNodes;
use skiff_store::index::ImageName;
use skiff_sys::small_file;

/// In the directory of a job's root on a node.
const STARTED: &str = "started.json";
/// Longest such file that is read, in bytes.
const LONGEST: u64 = 64 << 10;

/// How a job's root came to be on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRecord {
    /// The environment, or what stands in its place.
    pub environment: String,
    /// The task of an array that the job is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_task: Option<ArrayTask>,
    /// The snapshot, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Which nodes' changes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitNodes>,
    /// When it was there, in seconds since 1970.
    pub started: u64,
    /// What that took, in the order in which it was done.
    pub parts: Vec<StartPart>,
}

/// A part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartPart {
    /// What it was.
    pub part: StartPartKind,
    /// Where it came from.
    pub from: StartOrigin,
    /// How many bytes that were; 0 of what was there already.
    pub bytes: u64,
    /// Where the job's relays read the depot, an image's file or a registry: how many bytes of that this node needed and its own relay has read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub read: u64,
    /// How many bytes of layers or of an image were taken from others that the node had.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reused: u64,
    /// How long it took, in milliseconds.
    pub ms: u64,
}

/// What has to be on a node before a job's root is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartPartKind {
    /// The image below all else.
    Image,
    /// The layers of the snapshot.
    Snapshot,
    /// The mounts, and the processes that hold them.
    Root,
}

/// Where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartOrigin {
    /// This node: nothing had to come.
    Node,
    /// The user's cache on this node.
    Cache,
    /// The user's depot.
    Depot,
    /// The depot, or an image's file or registry, through the job's relays.
    Relay,
    /// This node's store of images, which has layers too.
    Store,
    /// A file.
    File,
    /// A registry.
    Registry,
}

impl StartPartKind {
    /// As records and figures have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Snapshot => "snapshot",
            Self::Root => "root",
        }
    }
}

impl StartOrigin {
    /// As records and figures have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Cache => "cache",
            Self::Depot => "depot",
            Self::Relay => "relay",
            Self::Store => "store",
            Self::File => "file",
            Self::Registry => "registry",
        }
    }
}

impl From<ImageOrigin> for StartOrigin {
    fn from(origin: ImageOrigin) -> Self {
        match origin {
            ImageOrigin::Store => Self::Store,
            ImageOrigin::File => Self::File,
            ImageOrigin::Depot => Self::Depot,
            ImageOrigin::Registry => Self::Registry,
            ImageOrigin::Nodes => Self::Relay,
        }
    }
}

impl StartPart {
    /// An image that was looked for since `begun`.
    pub fn image(entry: &ImageName, origin: ImageOrigin, begun: Instant) -> Self {
        let bytes = if origin == ImageOrigin::Store { 0 } else { entry.size };
        Self { part: StartPartKind::Image, from: origin.into(), bytes, read: 0, reused: 0, ms: since(begun) }
    }

    /// The same, if so much of it has come by the job's relays.
    #[must_use]
    pub fn by_relay(self, came: PieceCounts) -> Self {
        if came == PieceCounts::default() {
            return self;
        }
        Self { from: StartOrigin::Relay, read: came.read, ..self }
    }

    /// The layers of a snapshot that were asked for since `begun`; `here`: where they are on this node; `missing`: the bytes of those that were
    /// not there; `came`: what of the depot's files has come by a relay.
    pub fn snapshot(here: StartOrigin, missing: Option<u64>, came: PieceCounts, begun: Instant) -> Self {
        let from = match missing {
            None => here,
            Some(_) if came == PieceCounts::default() => StartOrigin::Depot,
            Some(_) => StartOrigin::Relay,
        };
        let (part, bytes, read) = (StartPartKind::Snapshot, missing.unwrap_or(0), came.read);
        Self { part, from, bytes, read, reused: 0, ms: since(begun) }
    }

    /// The root itself, made since `begun`.
    pub fn root(begun: Instant) -> Self {
        Self {
            part: StartPartKind::Root,
            from: StartOrigin::Node,
            bytes: 0,
            read: 0,
            reused: 0,
            ms: since(begun),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// What a job has needed on a node, and what became of its changes, as its user's process tells root's: numbers and kinds only.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFigures {
    /// Of all its roots.
    pub parts: Vec<StartPart>,
    /// Changes that are kept: how many bytes were written.
    pub kept: Vec<u64>,
    /// How often nothing had been changed.
    pub unchanged: u64,
    /// How often changes could not be kept.
    pub failed: u64,
}

impl JobFigures {
    /// Adds those of another directory of the job.
    pub fn add(&mut self, other: Self) {
        self.parts.extend(other.parts);
        self.kept.extend(other.kept);
        self.unchanged = self.unchanged.saturating_add(other.unchanged);
        self.failed = self.failed.saturating_add(other.failed);
    }
}

impl StartRecord {
    /// Writes it for the end of the job into its directory.
    pub fn write_beside(&self, dir: &Path) -> Result<()> {
        let file = dir.join(STARTED);
        let shown = || file.display().to_string();
        let bytes = serde_json::to_vec(self).map_err(|e| Error::new(format!("{}: {e}", shown())))?;
        small_file::write(&file, &bytes).context(shown)
    }

    /// What was written there, if anything was that can be read.
    pub fn beside(dir: &Path) -> Option<Self> {
        let bytes = small_file::read_below(rustix::fs::CWD, dir.join(STARTED), LONGEST).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}
