//! The host's commands for those inside: `srun` typed as root of an environment is a link to Skiff, which asks the environment's
//! supervisor to run the real one, with the user's own identity, in the same files.

mod broadcast;
mod client;
mod own;
mod server;
pub mod words;

pub use client::{call_outside, run_as};
pub use server::{Served, serve};
pub use words::{LATER, MPI_OF_ROOT};
