//! Threads of the relay, of which there may be many.

use std::io::{ErrorKind, Result};
use std::thread::Builder;

/// Each thread's stack. What is large lies on the heap.
const STACK: usize = 256 << 10;

pub(crate) fn spawn_thread(act: impl FnOnce() + Send + 'static) -> Result<()> {
    Builder::new().stack_size(STACK).spawn(act).map(drop).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => std::io::Error::new(e.kind(), "no more threads"),
        _ => e,
    })
}
