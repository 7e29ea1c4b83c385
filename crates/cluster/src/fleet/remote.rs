//! One host, and its agent.

use skiff_launch::channel::{Channel, Come};
use skiff_spec::fault::{Fault, Result};

use crate::key;
use crate::wire::{Place, Report, VERSION};

/// How far it is.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Somebody is to start an agent there.
    Launched,
    /// The agent has said where its container will be.
    Prepared(Place),
    /// The agent's container runs.
    Started(Place),
}

/// One host.
pub struct Remote {
    /// Name of the host.
    pub name: String,
    /// The talk with its agent, once that is there and as long as it is.
    pub channel: Option<Channel>,
    /// How far it is.
    pub stage: Stage,
    /// How many beats in a row have gone without a word of it.
    pub missed: u32,
}

impl Remote {
    /// One that nothing is known of yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), channel: None, stage: Stage::Launched, missed: 0 }
    }

    /// The next that it has said.
    ///
    /// # Errors
    /// When it does not talk as we do.
    pub fn take(&mut self) -> Result<Option<Come<Report>>> {
        let taken = self.channel.as_mut().map_or(Ok(None), Channel::take);
        taken.map_err(|e| Fault::from(e).about(&format!("host {}", self.name)))
    }

    /// Where its container is to be, if that is known.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match &self.stage {
            Stage::Launched => None,
            Stage::Prepared(place) | Stage::Started(place) => Some(place),
        }
    }

    /// Notes that the container runs.
    pub fn started(&mut self) {
        if let Stage::Prepared(place) = &self.stage {
            self.stage = Stage::Started(place.clone());
        }
    }

    /// Notes that the container runs no more.
    pub fn stopped(&mut self) {
        if let Stage::Started(place) = &self.stage {
            self.stage = Stage::Prepared(place.clone());
        }
    }

    /// Whether its container runs.
    #[must_use]
    pub fn has_started(&self) -> bool {
        matches!(self.stage, Stage::Started(_))
    }
}

/// Refuses a place that would lead others astray.
pub fn check(name: &str, place: &Place) -> Result<()> {
    if place.version != VERSION {
        return Err(Fault::new(format!(
            "host {name}: its skiff is version {}, ours {VERSION}",
            place.version
        ))
        .hint("have the same version installed on all hosts"));
    }
    if !key::is_public(&place.host_key) || !key::is_public(&place.user_key) || place.port == 0 {
        return Err(Fault::new(format!("host {name}: it gives no keys or no port")));
    }
    Ok(())
}
