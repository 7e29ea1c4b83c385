//! `skiff migrate`: a running instance goes to another host. Two programs do it, both the user's own and with their rights: the *sender*,
//! which they have started here, and the *receiver*, which that starts there and which calls back.
//!
//! At most one of the two sides ever runs the processes. They stand still on both when the sender gives them away: CRIU, which holds
//! them here, is stopped first, so that nothing makes them run again whatever happens to the sender; then it says `go`. Whether the
//! receiver has taken them is written down there (`decision`), once and for all, and can be asked for afterwards.

pub mod agent;
pub mod ahead;
mod block;
mod consider;
#[cfg(test)]
mod copied;
mod decision;
pub mod direct;
mod drain;
pub mod early;
mod hand_over;
mod hear;
pub mod job;
mod layout;
mod leaving;
mod ledger;
mod lock_hand_over;
mod memory_need;
mod page_io;
mod page_link;
pub mod pages;
pub mod parcel;
mod peer;
pub mod populate;
mod progress;
mod receive;
mod rounds;
mod sender;
pub mod sort;
pub mod squeeze;
pub mod talk;
mod way;

use skiff_cli::{DrainArgs, MigrateArgs};
use skiff_spec::fault::Result;
use skiff_user::context::UserContext;

/// Does what was asked; the exit code.
pub fn run(words: &MigrateArgs) -> Result<i32> {
    sender::migrate(&UserContext::load()?, words)
}

/// Has all instances that can leave a host; the exit code.
pub fn drain(words: &DrainArgs) -> Result<i32> {
    drain::drain(&UserContext::load()?, words)
}

/// What Slurm sets for programs of a step, and ends with it.
const STEP: &str = "SLURM_STEP_ID";

fn in_step() -> bool {
    std::env::var_os(STEP).is_some()
}

/// Serves those who have neither ssh nor a job to get here by; the exit code.
pub fn agent() -> Result<i32> {
    agent::serve(&UserContext::load()?)
}

/// Asks the agent of another host to start a receiver; the exit code.
pub fn call_agent(node: &str, port: u16) -> Result<i32> {
    agent::call(node, port)
}

/// On the other host; the exit code.
pub fn receive() -> Result<i32> {
    receive::receive(&UserContext::load()?)
}
