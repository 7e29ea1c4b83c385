//! One host, and its agent.

use skiff_launch::channel::{Channel, Incoming};
use skiff_spec::fault::{Fault, Result};

use crate::key;
use crate::wire::{AgentMessage, SshAddress, VERSION};

/// How far it is.
#[derive(Clone, Debug)]
pub enum RemoteState {
    /// Somebody is to start an agent there.
    Launched,
    /// The agent has said where its container will be.
    Prepared(SshAddress),
    /// The agent's container runs.
    Started(SshAddress),
}

/// One host.
pub struct Remote {
    /// Name of the host.
    pub name: String,
    /// The talk with its agent, once that is there and as long as it is.
    pub channel: Option<Channel>,
    /// How far it is.
    pub stage: RemoteState,
    /// How many beats in a row have gone without a word of it.
    pub missed: u32,
}

impl Remote {
    /// One that nothing is known of yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), channel: None, stage: RemoteState::Launched, missed: 0 }
    }

    /// The next that it has said.
    ///
    /// # Errors
    /// When it does not talk as we do.
    pub fn take(&mut self) -> Result<Option<Incoming<AgentMessage>>> {
        let taken = self.channel.as_mut().map_or(Ok(None), Channel::take);
        taken.map_err(|e| Fault::from(e).about(&format!("host {}", self.name)))
    }

    /// Where its container is to be, if that is known.
    #[must_use]
    pub fn place(&self) -> Option<&SshAddress> {
        match &self.stage {
            RemoteState::Launched => None,
            RemoteState::Prepared(place) | RemoteState::Started(place) => Some(place),
        }
    }

    /// Notes that the container runs.
    pub fn started(&mut self) {
        if let RemoteState::Prepared(place) = &self.stage {
            self.stage = RemoteState::Started(place.clone());
        }
    }

    /// Notes that the container runs no more.
    pub fn stopped(&mut self) {
        if let RemoteState::Started(place) = &self.stage {
            self.stage = RemoteState::Prepared(place.clone());
        }
    }

    /// Whether its container runs.
    #[must_use]
    pub fn has_started(&self) -> bool {
        matches!(self.stage, RemoteState::Started(_))
    }
}

/// Refuses a place that would lead others astray.
pub fn check(name: &str, place: &SshAddress) -> Result<()> {
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
