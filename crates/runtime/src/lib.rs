//! What runs and what is kept of it: environments and instances on disk, the supervisors that hold them, and the ways to those.

pub mod agent_relay;
pub mod control;
pub mod control_listener;
pub mod enter;
pub mod environments;
pub mod host_changes;
pub mod instances;
pub mod lock;
pub mod naming;
pub mod network;
pub mod output_limiter;
pub mod package_database;
pub mod proxy;
pub mod record;
pub mod service;
pub mod supervisor;
mod supervisor_process;
