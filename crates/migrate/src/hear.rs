//! What the sender hears from the receiver.

use std::time::{Duration, Instant};

use skiff_spec::fault::{Fault as Error, Result};

use crate::peer::Peer;
use crate::progress::Progress;
use crate::talk::Report;

/// How long it may take to say why it has closed the connection.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why it takes no more, if it still says so.
pub fn last_words(peer: &mut Peer, lost: Error) -> Error {
    let until = Instant::now() + FAREWELL;
    loop {
        match peer.hear(until) {
            Ok(Report::Received(_)) => {}
            Ok(Report::Failed(message, hint)) => return Error { message, hint },
            _ => return lost,
        }
    }
}

/// Hears how many bytes have arrived; whether those are all, and the processes stand ready.
pub fn hear_progress(peer: &mut Peer, progress: &mut Progress) -> Result<bool> {
    peer.read()?;
    while let Some(report) = peer.heard()? {
        match said(report, progress)? {
            Said::Received => {}
            Said::Held => return Ok(true),
            Said::Made => return Err(strange(&Report::Made)),
        }
    }
    Ok(false)
}

/// How far the other side is.
#[derive(PartialEq, Eq)]
pub enum Said {
    /// More of the memory has arrived.
    Received,
    /// The processes are there.
    Made,
    /// And have all of it.
    Held,
}

/// How far it is; notes how much has arrived.
pub fn said(report: Report, progress: &mut Progress) -> Result<Said> {
    match report {
        Report::Held => Ok(Said::Held),
        Report::Made => Ok(Said::Made),
        Report::Received(bytes) => {
            progress.arrived(bytes);
            Ok(Said::Received)
        }
        Report::Failed(message, hint) => Err(Error { message, hint }),
        other => Err(strange(&other)),
    }
}

pub fn strange(report: &Report) -> Error {
    Error::new(format!("the other side says {report:?}, which was not to be expected"))
}
