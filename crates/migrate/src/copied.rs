//! A process for tests of memory that goes from one process into another.

use rustix::process::Pid;
use skiff_sys::process::{CloneFlags, Fork, fork};

/// A process that has what this one has, and does nothing.
pub fn copy() -> (Pid, i32) {
    match fork(CloneFlags::NONE).expect("a process") {
        Fork::Parent(child) => (child.pid, child.pid.as_raw_nonzero().get()),
        Fork::Child => loop {
            std::thread::park();
        },
    }
}
