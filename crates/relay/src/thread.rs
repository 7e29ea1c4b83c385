//! Threads of the relay, of which there may be many, and what they share.

use std::io::{ErrorKind, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// Each thread's stack. What is large lies on the heap.
const STACK: usize = 256 << 10;
/// Of those that speak TLS and read JSON.
const LARGE_STACK: usize = 2 << 20;

pub(crate) fn spawn_thread(act: impl FnOnce() + Send + 'static) -> Result<()> {
    spawn(STACK, act)
}

/// The same, with a larger stack.
pub(crate) fn spawn_large_thread(act: impl FnOnce() + Send + 'static) -> Result<()> {
    spawn(LARGE_STACK, act)
}

fn spawn(stack: usize, act: impl FnOnce() + Send + 'static) -> Result<()> {
    Builder::new().stack_size(stack).spawn(act).map(drop).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => std::io::Error::new(e.kind(), "no more threads"),
        _ => e,
    })
}

/// Locks what threads share, also where one of them has panicked.
pub(crate) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
