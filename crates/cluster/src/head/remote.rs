//! A host, as the head sees it.

use skiff_sandbox::Result;

use crate::channel::{Channel, Come};
use crate::wire::{Place, Report};

/// How far it is.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Somebody is to start an agent there.
    Launched,
    /// It is known where its container will be.
    Prepared(Place),
    /// Its container runs.
    Started,
}

/// One host.
pub struct Remote {
    /// Its name.
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
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), channel: None, stage: Stage::Launched, missed: 0 }
    }

    /// The next that it has said.
    pub fn take(&mut self) -> Result<Option<Come<Report>>> {
        let taken = self.channel.as_mut().map_or(Ok(None), Channel::take);
        taken.map_err(|e| e.about(&format!("host {}", self.name)))
    }

    /// Whether it is known where its container is.
    pub fn is_prepared(&self) -> bool {
        !matches!(self.stage, Stage::Launched)
    }
}
