//! Work in threads that may not be had.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::Result;

/// Work that has been begun in a thread of its own; where none is to be had, it is done when it is waited for.
pub(crate) struct StartedWork<'s, T, W> {
    thread: std::io::Result<ScopedJoinHandle<'s, Result<T>>>,
    work: W,
}

/// Begins work in a thread of this name.
pub(crate) fn begin<'s, T: Send + 's, W: Fn() -> Result<T> + Copy + Send + 's>(
    scope: &'s Scope<'s, '_>,
    name: &str,
    work: W,
) -> StartedWork<'s, T, W> {
    StartedWork { thread: Builder::new().name(name.into()).spawn_scoped(scope, work), work }
}

impl<T, W: Fn() -> Result<T>> StartedWork<'_, T, W> {
    /// What comes of it.
    pub fn done(self) -> Result<T> {
        match self.thread.map(ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => (self.work)(),
        }
    }
}
