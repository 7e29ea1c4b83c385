//! Programs on other hosts: whose hosts there are, what starts a program on them, how that calls back, and how both sides talk.
//!
//! Clusters start their agents so, and migrations their receivers. Neither is known here, and nothing is printed.

pub mod address;
pub mod callback;
pub mod channel;
mod error;
pub mod frame;
pub mod handshake;
pub mod hosts;
pub mod launcher;
pub mod launching;
pub mod listener;
pub mod manager;
pub mod sealed_box;
pub mod secure;

pub use error::{Error, Result};
