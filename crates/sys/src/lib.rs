//! System calls that rustix does not wrap: process creation with namespaces, id-mapped mounts, questions to
//! namespaces, seccomp, and signals taken as data.
//!
//! This is the only crate of the product that may hold `unsafe`; everything it gives is safe to call, and it depends on
//! nothing of Skiff. Errors are plain `io::Error`: the callers know the object and add it ([`SystemContext`]).

pub mod alloc;
pub mod allow;
#[cfg(test)]
mod apart;
pub mod caps;
pub mod clock;
pub mod cred;
pub mod error;
pub mod fdpass;
mod ignore;
pub mod intercept;
pub mod io_priority;
pub mod kernel;
pub mod keyring;
pub mod landlock;
pub mod lease;
pub mod lock;
pub mod loopdev;
pub mod memory;
pub mod mount;
pub mod mqueue;
pub mod net;
pub mod ns;
pub mod path;
pub mod positional;
pub mod process;
pub mod project_quota;
pub mod reaper;
pub mod seccomp;
pub mod signal;
pub mod signal_owner;
pub mod size;
pub mod small_file;
pub mod socket_option;
pub mod subreaper;
pub mod syscalls;
pub mod sysv;
pub mod time_slice;
pub mod timer;
pub mod title;
pub mod traced;
pub mod uncached;
pub mod unnamed;
pub mod verity;
pub mod writeback;
pub mod written;

pub use error::{SystemContext, SystemError};
pub use ignore::IgnoreError;
