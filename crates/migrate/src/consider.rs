//! Whether an instance can come to this host, as far as that shows before it is stopped: for an instance that is offered, and for one of which that is
//! only asked.

use std::fs;
use std::path::Path;

use skiff_checkpoint::probe;
use skiff_checkpoint::record::IMAGES;
use skiff_checkpoint::required_criu;
use skiff_checkpoint::restore::fits;
use skiff_env::deploy::{own_layers, refuse_missing_layers};
use skiff_plan::{self as plan, get};
use skiff_runtime::network;
use skiff_runtime::record::InstanceDir;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::network::Net;
use skiff_user::context::UserContext;

use crate::job::beats::BeatSender;
use crate::memory_need::MemoryNeed;
use crate::peer::ControlChannel;
use crate::talk::{DestinationMessage, Offer, refuse_other_version};

/// Answers whether an instance could come, and changes nothing.
pub fn consider(context: &UserContext, peer: &mut ControlChannel, offer: &Offer) -> Result<()> {
    // Registries take their time.
    let _beats = BeatSender::start(peer)?;
    peer.tell(&match look(context, offer) {
        Ok(()) => DestinationMessage::Welcome,
        Err(why) => DestinationMessage::Refused(why.message, why.hint),
    })
}

fn look(context: &UserContext, offer: &Offer) -> Result<()> {
    admit(context, offer)?;
    if let Some(entry) = &offer.image {
        get::refuse_missing(context, entry)?;
    }
    if let Some(snapshot) = &offer.checkpoint.instance.snapshot {
        refuse_missing_layers(context, snapshot)?;
    }
    match offer.mode.is_diskless() {
        true => MemoryNeed::of(offer).map(drop),
        false => Ok(()),
    }
}

/// Refuses an instance that cannot come.
pub fn admit(context: &UserContext, offer: &Offer) -> Result<InstanceDir> {
    let checkpoint = &offer.checkpoint;
    refuse_other_version(&offer.version)?;
    plan::refuse_inside(context)?;
    let record = InstanceDir::named(context, &checkpoint.instance.name)?;
    record.refuse_taken()?;
    checkpoint.made_with.fit_criu(&probe::version_of(&required_criu()?)?)?;
    fits(context, checkpoint)?;
    if let Net::Named(name) = &checkpoint.instance.net {
        network::read(name)?;
    }
    offer.dir.as_deref().map_or(Ok(()), refuse_unseen)?;
    Ok(record)
}

/// Gets what an instance needs that has been admitted.
pub fn get_inputs(context: &UserContext, offer: &Offer) -> Result<()> {
    if let Some(entry) = &offer.image {
        get::again(context, entry.clone())?;
    }
    if let Some(snapshot) = &offer.checkpoint.instance.snapshot {
        own_layers(context, snapshot)?;
    }
    Ok(())
}

/// Checks that this host sees the sender's directory.
fn refuse_unseen(dir: &Path) -> Result<()> {
    match fs::read_dir(dir.join(IMAGES)) {
        Ok(_) => Ok(()),
        Err(e) => Err(Error::new(format!("{}: it cannot be read here: {e}", dir.display()))
            .hint("--mode disk needs a home that both hosts see; --mode diskless does not")),
    }
}
