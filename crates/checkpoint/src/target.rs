//! Where a save goes: into a checkpoint of its own, or into its part of a whole job's, which others have to agree to.

use std::path::Path;

use skiff_cli::Retention;
use skiff_sandbox::enter::EnterTarget;
use skiff_spec::fault::Result;

use crate::member::{InstanceInterface, SavedInterface};
use crate::place::NewCheckpoint;
use crate::record::Checkpoint;

/// Where a save goes.
pub enum SaveTarget<'a> {
    /// A checkpoint of the instance alone.
    Own(&'a NewCheckpoint),
    /// The instance's part of a whole job's checkpoint.
    Joint(&'a JointSave<'a>),
}

/// An instance's part in the save of a whole job.
pub struct JointSave<'a> {
    /// Directory of its part, with what belongs into a new checkpoint.
    pub dir: &'a Path,
    /// Called before its processes are stopped, with its interface on one of the site's networks. If it fails, nothing is stopped.
    pub before_stop: &'a dyn Fn(Option<InstanceInterface>, EnterTarget<'_>) -> Result<()>,
    /// Called when its part is written and its processes stand still. If it fails, they go on.
    pub written: &'a dyn Fn(&Checkpoint) -> Result<()>,
}

impl SaveTarget<'_> {
    /// The directory.
    pub fn dir(&self) -> &Path {
        match self {
            Self::Own(new) => &new.dir,
            Self::Joint(joint) => joint.dir,
        }
    }

    /// The checkpoint, if it is of the instance alone.
    pub fn own(&self) -> Option<&NewCheckpoint> {
        match self {
            Self::Own(new) => Some(new),
            Self::Joint(_) => None,
        }
    }

    /// Whether others are saved at the same moment.
    pub fn is_joint(&self) -> bool {
        matches!(self, Self::Joint(_))
    }

    /// Waits until the processes may be stopped.
    pub fn before_stop(&self, member: Option<&SavedInterface>, inside: EnterTarget<'_>) -> Result<()> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Joint(joint) => (joint.before_stop)(member.map(SavedInterface::port), inside),
        }
    }

    /// Makes a checkpoint of what is written, or waits until somebody has.
    pub fn commit(&self, checkpoint: &Checkpoint, keep: Retention) -> Result<()> {
        match self {
            Self::Own(new) => new.publish(keep),
            Self::Joint(joint) => (joint.written)(checkpoint),
        }
    }

    /// Removes older ones that are not to be kept.
    pub fn prune(&self, keep: Retention) -> Result<()> {
        match self {
            Self::Own(new) => new.prune(keep),
            Self::Joint(_) => Ok(()),
        }
    }
}
