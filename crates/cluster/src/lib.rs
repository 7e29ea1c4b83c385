//! Virtual clusters: one container on each of several hosts, for as long as one script runs; and several on one machine (in [`local`]).
//!
//! The *head*, which the user has started, finds the hosts, and has an *agent* started on each by the means of whoever manages
//! them. Between the head and every agent is one [`channel`]: the end of either ends the other, and with it all that was made.
//! Private keys never travel: each agent makes its own, and says the public halves.

pub mod files;
pub mod fleet;
pub mod head;
pub mod key;
pub mod local;
pub mod wire;
