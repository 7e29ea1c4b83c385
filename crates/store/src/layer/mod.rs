//! Layers of environments in the store: a node mounts a snapshot's layers as it mounts images, and unpacks nothing.
//!
//! A user's process reads the depot, which is theirs, and sends a layer as it is; the writer checks it against its digest while it makes the
//! file. A user who has sent a whole layer has shown that they have it: so another user's layer that is there already is used without being
//! written again. What was used longest ago goes first when a user's layers take more than they are to.

mod data;
mod file;
mod pace;
mod stored;

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use rustix::io::Errno;
use serde_json::json;
use skiff_erofs as erofs;
use skiff_erofs::tree::BLOCK;
use skiff_image::assemble::{ImageLimits, WrittenImage};
use skiff_snapshot::LayerId;
use skiff_snapshot::stream::LayerReader;
use skiff_spec::image::ImageId;
use skiff_sys::{IgnoreError, SystemContext, SystemError};

use crate::error::{Error, Result};
use crate::protocol::LayerRequest;
use crate::store::{Begun, ImageMetadata, Patience, Store, UnfinishedImage};
use file::LayerFile;
use pace::PacedReader;

pub(crate) use pace::Pace;
pub use stored::StoredLayer;

/// Interval between two checks of the user's quota.
const BETWEEN_CHECKS: Duration = Duration::from_secs(1);

/// A layer that a user has, and wants to be mounted.
pub(crate) struct LayerJob<'a> {
    pub store: &'a Store,
    pub uid: u32,
    pub wanted: &'a LayerRequest,
    /// The socket by which it comes.
    pub sent: &'a UnixStream,
    /// How fast it must come.
    pub pace: Pace,
}

/// What came of it.
pub(crate) struct ReceivedLayer {
    /// Whether it was there already.
    pub there: bool,
    /// How many other layers of the user's went for it.
    pub removed: usize,
    /// How long another process that makes the same layer was waited for.
    pub waited: Duration,
}

/// Takes the layer into the store, for this user.
pub(crate) fn receive(job: &LayerJob<'_>, waiting: &mut dyn FnMut()) -> Result<ReceivedLayer> {
    let (store, uid, id) = (job.store, job.uid, job.wanted.id);
    if store.permitted(uid, id) && store.find(id)?.is_some() {
        let waited = Duration::ZERO;
        return store.permit(uid, id).map(|()| ReceivedLayer { there: true, removed: 0, waited });
    }
    // Whoever waits for another user's layer sends all of it afterwards, to show that they have it: to wait saves little.
    let patience = Patience::default().for_others(Duration::from_millis(job.wanted.patience_ms.into()));
    let (begun, mut has_waited) = (Instant::now(), false);
    let found = store.begin((id, uid), patience, &mut || {
        has_waited = true;
        waiting();
    })?;
    let waited = if has_waited { begun.elapsed() } else { Duration::ZERO };
    let (there, removed) = match found {
        // Made by another process of this user, who was waited for.
        Begun::There(_) if store.permitted(uid, id) => (true, 0),
        Begun::There(_) => {
            check_possession(job)?;
            store.permit_more(uid, id)?;
            (true, 0)
        }
        Begun::New(making) => (false, make(job, making)?),
    };
    let removed = removed + store.keep_layers_within(uid, job.wanted.budget, &job.wanted.snapshot)?;
    if store.find(id)?.is_none() {
        // Whoever had it has let go of it meanwhile.
        store.forbid(uid, id).ignore_error("it counts as one of the user's until the next collection");
        return Err(Error::Overtaken(id));
    }
    Ok(ReceivedLayer { there, removed, waited })
}

/// Reads no more than the sender has said that there is: that is what the quota was asked for.
fn reader<'j>(job: &'j LayerJob<'_>) -> Result<LayerReader<impl Read + use<'j>>> {
    let sent = PacedReader::new(job.sent, job.pace).take(job.wanted.size);
    Ok(LayerReader::new(sent, job.wanted.id.to_string())?)
}

fn digest(id: ImageId) -> LayerId {
    LayerId(id.0)
}

/// Reads all of a layer that is there: a user who can send it has it.
fn check_possession(job: &LayerJob<'_>) -> Result<()> {
    let mut reader = reader(job)?;
    while reader.record()?.is_some() {}
    Ok(reader.finish_as(&digest(job.wanted.id))?)
}

/// Makes its file; says how many other layers went for it.
fn make(job: &LayerJob<'_>, mut making: UnfinishedImage<'_>) -> Result<usize> {
    let LayerJob { store, uid, wanted, .. } = *job;
    let LayerRequest { id, size, .. } = *wanted;
    let removed = store.make_room_for_layer(uid, size, &wanted.snapshot)?;
    making.count_for(uid, size)?;
    // Once more now that it counts, before it takes any room: of several at the same time, each has found room for itself alone.
    let removed = removed + store.make_room_for_layer(uid, 0, &wanted.snapshot)?;
    let (room, name) = (making.room(), making.name());
    reserve(&making, size)?;
    let room_name = room.display().to_string();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let scratch: OwnedFd = open(&room, flags, Mode::empty()).on("open", &*room_name)?;
    let mut checked = Instant::now();
    let mut check_quota = || {
        if checked.elapsed() < BETWEEN_CHECKS {
            return Ok(());
        }
        checked = Instant::now();
        store.make_room_for_layer(uid, 0, &wanted.snapshot).map(drop)
    };
    let within_quota = || store.make_room_for_layer(uid, 0, &wanted.snapshot).map(drop);
    let target = LayerFile {
        image: making.file(),
        name: &name,
        scratch: (scratch.as_fd(), &room_name),
        limits: ImageLimits::default(),
        check_quota: &mut check_quota,
        room: &mut |bytes| making.announce(uid, bytes, &within_quota),
    };
    let WrittenImage { summary, data_sum } = file::write(reader(job)?, digest(id), target)?;
    store.make_room_for_layer(uid, 0, &wanted.snapshot)?;
    check(&making)?;
    let record = ImageMetadata {
        size: u64::from(summary.blocks) * BLOCK,
        data_sum: Some(data_sum),
        layers: vec![],
        origins: vec![],
        layer: true,
        files: summary.inodes,
        config: json!({}),
    };
    // Before it is there: what nobody may use, anybody may have collected.
    store.permit(uid, id)?;
    making.publish(&record).inspect_err(|_| {
        store
            .forbid(uid, id)
            .ignore_error("it counts as one of the user's images until there is one of this id");
    })?;
    Ok(removed)
}

/// Allocates the file's room at once, which counts for the user already: written into such room, data costs less.
fn reserve(making: &UnfinishedImage<'_>, size: u64) -> Result<()> {
    match fallocate(making.file(), FallocateFlags::empty(), 0, size.max(1)) {
        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
            Err(SystemError::new("allocate room for", making.name(), errno).into())
        }
        // Not every file system can.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Reads the finished file as whoever trusts the store will: what our writer did wrong must not reach a kernel.
fn check(making: &UnfinishedImage<'_>) -> Result<()> {
    let file = making.file().try_clone_to_owned().on("open", making.name())?;
    let reader = erofs::Reader::open(std::fs::File::from(file), making.name())?;
    erofs::verify_layer(&reader)?;
    Ok(())
}

#[cfg(test)]
mod tests;
