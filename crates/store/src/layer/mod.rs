//! Layers of environments in the store: a node mounts a snapshot's layers as it mounts images, and unpacks nothing.
//!
//! A user's process reads the depot, which is theirs, and sends a layer as it is; the writer checks it against its digest while it makes the
//! file. Who has sent a whole layer has shown that they have it: so another user's layer that is there already is used without being
//! written again. What was used longest ago goes first when a user's layers take more than they are to.

mod data;
mod file;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use serde_json::json;
use skiff_erofs as erofs;
use skiff_erofs::tree::BLOCK;
use skiff_image::assemble::WrittenImage;
use skiff_snapshot::LayerId;
use skiff_snapshot::stream::LayerReader;
use skiff_spec::image::ImageId;
use skiff_sys::SystemContext;

use crate::error::Result;
use crate::store::{Begun, ImageMetadata, Patience, Store, UnfinishedImage};
use file::LayerFile;

/// So long may whoever sends a layer send nothing: depots lie on file systems that may hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often is looked whether what grows is too much for its user.
const LOOK_AT_QUOTA: Duration = Duration::from_secs(1);

/// A layer that a user has, and wants to be mounted.
pub(crate) struct LayerJob<'a> {
    pub store: &'a Store,
    pub uid: u32,
    /// The digest that it is asked for by.
    pub id: ImageId,
    /// Where it is sent.
    pub sent: UnixStream,
    /// How long it is, as its sender says.
    pub size: u64,
    /// How many bytes all of the user's layers may take; the rest goes, but for this one.
    pub budget: u64,
}

/// What came of it.
pub(crate) struct Taken {
    /// Whether it was there already.
    pub there: bool,
    /// How many other layers of the user's went for it.
    pub removed: usize,
}

/// Takes the layer into the store, for this user.
pub(crate) fn take(job: &LayerJob<'_>, waiting: &mut dyn FnMut()) -> Result<Taken> {
    let LayerJob { store, uid, id, .. } = *job;
    job.sent.set_read_timeout(Some(PATIENCE)).on("wait for", id.to_string())?;
    if store.permitted(uid, id) && store.find(id)?.is_some() {
        return store.permit(uid, id).map(|()| Taken { there: true, removed: 0 });
    }
    let (there, removed) = match store.begin((id, uid), Patience::default(), waiting)? {
        Begun::There(_) => {
            prove(job)?;
            store.permit_more(uid, id)?;
            (true, 0)
        }
        Begun::New(making) => (false, make(job, making)?),
    };
    let removed = removed + store.keep_layers_within(uid, job.budget, id)?;
    Ok(Taken { there, removed })
}

fn reader<'j>(job: &'j LayerJob<'_>) -> Result<LayerReader<&'j UnixStream>> {
    Ok(LayerReader::new(&job.sent, job.id.to_string())?)
}

fn digest(id: ImageId) -> LayerId {
    LayerId(id.0)
}

/// Reads all of a layer that is there: whoever can send it has it.
fn prove(job: &LayerJob<'_>) -> Result<()> {
    let mut reader = reader(job)?;
    while reader.record()?.is_some() {}
    Ok(reader.finish_as(&digest(job.id))?)
}

/// Makes its file; says how many other layers went for it.
fn make(job: &LayerJob<'_>, mut making: UnfinishedImage<'_>) -> Result<usize> {
    let LayerJob { store, uid, id, .. } = *job;
    let removed = store.make_room_for_layer(uid, job.size)?;
    making.count_for(uid)?;
    let (room, name) = (making.room(), making.name());
    let room_name = room.display().to_string();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let scratch: OwnedFd = open(&room, flags, Mode::empty()).on("open", &*room_name)?;
    let mut looked = Instant::now();
    let mut watch = |_| {
        if looked.elapsed() < LOOK_AT_QUOTA {
            return Ok(());
        }
        looked = Instant::now();
        store.check_quota(uid)
    };
    let target = LayerFile {
        image: making.file(),
        name: &name,
        scratch: (scratch.as_fd(), &room_name),
        watch: &mut watch,
    };
    let WrittenImage { summary, data_sum } = file::write(reader(job)?, digest(id), target)?;
    store.check_quota(uid)?;
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
    making.publish(&record).map(|()| removed)
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
