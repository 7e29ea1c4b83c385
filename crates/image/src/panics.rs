//! A thread that panics must not leave those hanging who wait for it: its panic becomes an error, which ends them as any
//! other does. The installed program ends at a panic as a whole (`panic = "abort"`); whoever else uses this crate may unwind.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// Does the work; a panic in it is an error, which says `what` was being done. Whatever the work has shared with others is to
/// be given up after an error: it may be half done.
pub(crate) fn caught<T>(what: impl Fn() -> String, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(Error::Panicked { what: what(), why: message(&*panic) }))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given").into()
}
