//! A cluster on one machine: its controller and workers are containers in one user namespace, joined by a bridge of their own.
//!
//! Its *hub* is process 1 of the group that they are: it makes and ends them as the supervisor outside says.

pub mod hub;
pub mod members;
pub mod slurm;
