//! What the sender hears from the receiver.

use std::time::{Duration, Instant};

use skiff_spec::fault::{Fault as Error, Result};

use crate::peer::ControlChannel;
use crate::progress::Progress;
use crate::talk::DestinationMessage;

/// How long it may take to say why it has closed the connection.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why it takes no more, if it still says so.
pub fn last_words(peer: &mut ControlChannel, lost: Error) -> Error {
    let until = Instant::now() + FAREWELL;
    loop {
        match peer.hear(until) {
            Ok(DestinationMessage::Received(_)) => {}
            Ok(DestinationMessage::Failed(message, hint)) => return Error::new(message).hint(hint),
            _ => return lost,
        }
    }
}

/// Why an instance could not come, if it could not, by the answer of who was asked.
pub fn refusal(answer: DestinationMessage) -> Result<Option<Error>> {
    match answer {
        DestinationMessage::Welcome => Ok(None),
        DestinationMessage::Refused(message, hint) => Ok(Some(Error::new(message).hint(hint))),
        DestinationMessage::Failed(message, hint) => Err(Error::new(message).hint(hint)),
        other => Err(strange(&other)),
    }
}

/// Hears how many bytes have arrived; whether those are all, and the processes stand ready.
pub fn hear_progress(peer: &mut ControlChannel, progress: &mut Progress) -> Result<bool> {
    peer.read()?;
    while let Some(report) = peer.heard()? {
        match said(report, progress)? {
            DestinationProgress::Received => {}
            DestinationProgress::Held => return Ok(true),
            DestinationProgress::Made => return Err(strange(&DestinationMessage::Made)),
        }
    }
    Ok(false)
}

/// How far the other side is.
#[derive(PartialEq, Eq)]
pub enum DestinationProgress {
    /// More of the memory has arrived.
    Received,
    /// The processes are there.
    Made,
    /// And have all of it.
    Held,
}

/// How far it is; notes how much has arrived.
pub fn said(report: DestinationMessage, progress: &mut Progress) -> Result<DestinationProgress> {
    match report {
        DestinationMessage::Held => Ok(DestinationProgress::Held),
        DestinationMessage::Made => Ok(DestinationProgress::Made),
        DestinationMessage::Received(bytes) => {
            progress.arrived(bytes);
            Ok(DestinationProgress::Received)
        }
        DestinationMessage::Failed(message, hint) => Err(Error::new(message).hint(hint)),
        other => Err(strange(&other)),
    }
}

pub fn strange(report: &DestinationMessage) -> Error {
    Error::new(format!("the other side says {report:?}, which was not to be expected"))
}
