//! Processes that outlive their node: CRIU, run as the user inside the user's own namespaces, dumps an instance's processes and
//! makes them again, here or elsewhere.
//!
//! Nothing in here has privilege on the host. What CRIU may do to processes it may do because the instance's user namespace is the
//! user's; and a forged image can do no more in there than the user could by themselves.

pub mod ahead;
mod block;
pub mod criu;
pub mod direct;
pub mod early;
pub mod enter;
mod layout;
mod ledger;
pub mod memory;
pub mod obstacles;
mod page_io;
pub mod pages;
pub mod parcel;
pub mod populate;
pub mod probe;
pub mod record;
pub mod sort;
pub mod squeeze;
pub mod versions;
