//! CRIU's commands for pages between the two sides of a migration, which say the same to each other as CRIU says to its page server.

use std::convert::Infallible;
use std::io::{Read, Write};

use skiff_checkpoint::criu::fault;
use skiff_criu::page_protocol::{self, PageServerCommand};
use skiff_spec::fault::{Context as _, Fault, Result};

/// The other end of a connection by which pages come.
pub const OTHER_SIDE: &str = "pages from the other side";

/// Reads the next command.
///
/// # Errors
/// When there is none, or one that is not known.
pub fn read(socket: &mut impl Read) -> Result<PageServerCommand> {
    PageServerCommand::read(socket).map_err(|e| about(OTHER_SIDE, e))
}

/// Sends a command.
///
/// # Errors
/// When nobody is there any more.
pub fn write(command: &PageServerCommand, socket: &mut impl Write) -> Result<()> {
    command.write(socket).map_err(|e| about("connection for pages", e))
}

/// Number of bytes in so many pages.
///
/// # Errors
/// When there cannot be so many.
pub fn bytes(pages: u64) -> Result<u64> {
    page_protocol::bytes(pages).map_err(|e| about(OTHER_SIDE, e))
}

/// What another side is told that sends what it has not announced.
pub fn strange() -> Fault {
    Fault::new(format!("{OTHER_SIDE}: not as they were announced"))
}

fn about(what: &str, error: skiff_criu::Error) -> Fault {
    match error {
        skiff_criu::Error::Io { source, .. } => {
            let Err(fault) = Err::<Infallible, _>(source).context(|| what);
            fault
        }
        error => fault(error).about(what),
    }
}
