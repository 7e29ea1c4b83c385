//! What an environment is started with besides its plan.

use std::path::Path;

use skiff_spec::fault::{Fault, Result};
use skiff_spec::network::ReservationRequest;
use skiff_spec::plan::{Plan, Route};

use crate::clocks::Clocks;
use crate::helper::Helper;

/// What an environment is started with besides its plan.
#[derive(Default)]
pub struct StartOptions<'a> {
    /// The helper, where the plan's route is the helper's.
    pub helper: Option<&'a Path>,
    /// The same started ahead (see [`StartOptions::load`]).
    pub started: Option<Helper>,
    /// The supervisor's socket, shown inside.
    pub socket: Option<&'a Path>,
    /// The list of hosts inside, where the plan has one with the environment's address ([`skiff_spec::plan::Source::Hosts`]).
    pub hosts: Option<&'a str>,
    /// The address that it had before, where the plan's network is one of the site's that it has power over.
    pub reserved: Option<&'a ReservationRequest>,
    /// From where its clocks go on, where its processes can be saved.
    pub clocks: Option<Clocks>,
}

impl StartOptions<'_> {
    /// Starts the helper, if the plan wants it and it is not started yet, and has it make ready while its caller does other things.
    ///
    /// # Errors
    /// As [`Helper::spawn`], and that the plan wants it where there is none.
    pub fn load(&mut self, plan: &Plan) -> Result<()> {
        match (plan.route, self.helper) {
            (Route::Helper, None) => Err(Fault::new("the plan wants the helper, but there is none")),
            (Route::Helper, Some(path)) => {
                let stored = plan.stored();
                let started = match self.started.take() {
                    Some(started) => started.or_fresh(&stored)?,
                    None => Helper::spawn(path)?,
                };
                self.started.insert(started).prepare(plan.base, &stored)
            }
            _ => Ok(()),
        }
    }
}
