//! The sender's part while the processes still run: their memory goes ahead.

use std::os::fd::AsFd;

use rustix::event::PollFlags;
use rustix::net::{Shutdown, shutdown};
use serde::Serialize;
use skiff_checkpoint::tries::{CheckpointAction, refuse_interrupted};
use skiff_sandbox::enter::EnterTarget;
use skiff_sandbox::idle::INTERVAL;
use skiff_spec::fault::Result;
use skiff_sys::IgnoreError;

use crate::direct::MemoryRanges;
use crate::hear::{hear_progress, last_words, strange};
use crate::page_link::Pages;
use crate::peer::wait;
use crate::progress::Progress;
use crate::talk::DestinationMessage;
use crate::way::ReceiverLink;

/// One time in which all of the memory was looked at, and sent what had not been sent as it was.
#[derive(Clone, Debug, Serialize)]
pub struct RoundReport {
    bytes: u64,
    ms: u128,
}

/// Sends what is in these ranges until the processes are to be stopped.
pub fn send(
    pages: &mut Pages,
    way: &mut ReceiverLink,
    (inside, ranges): (EnterTarget<'_>, &MemoryRanges),
    progress: &mut Progress,
) -> Result<Vec<RoundReport>> {
    let ahead = pages.begin_ahead(way, inside, ranges)?;
    loop {
        let both = [(ahead.news(), PollFlags::IN), (way.peer.as_fd(), PollFlags::IN)];
        let ready = wait(&both, Some(INTERVAL))?;
        let held = match ready[1].is_empty() {
            true => Ok(false),
            false => hear_progress(&mut way.peer, progress),
        };
        let heard = held.and_then(|held| if held { Err(strange(&DestinationMessage::Held)) } else { Ok(()) });
        if let Err(why) = heard.and_then(|()| refuse_interrupted(CheckpointAction::Move)) {
            // Whoever sends finds that there is nobody to send to.
            shutdown(&way.goods, Shutdown::Both).ignore_error("a connection that is lost has ended already");
            return Err(why);
        }
        if !ready[0].is_empty() {
            let rounds = ahead.rounds().map_err(|lost| last_words(&mut way.peer, lost))?;
            let round = |round: &crate::ahead::PrecopyRound| RoundReport {
                bytes: round.bytes,
                ms: round.time.as_millis(),
            };
            return Ok(rounds.iter().map(round).collect());
        }
    }
}
