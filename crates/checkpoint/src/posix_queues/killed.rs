//! Where tests end whoever takes messages, as a kill does: between any two things that it does.

/// Here something has just been done.
#[cfg(not(test))]
pub(super) const fn point(_done: &str) {}

#[cfg(test)]
pub(super) use at_points::*;

#[cfg(test)]
mod at_points {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    pub(in super::super) fn point(done: &'static str) {
        match LEFT.get() {
            Some(0) => resume_unwind(Box::new(done)),
            left => LEFT.set(left.map(|left| left - 1)),
        }
    }

    /// Does something and kills it after so many points; gives what was done last, or nothing if it came to its end before.
    pub(in super::super) fn killed_after(points: usize, act: impl FnOnce()) -> Option<&'static str> {
        LEFT.set(Some(points));
        let killed = catch_unwind(AssertUnwindSafe(act)).err();
        LEFT.set(None);
        killed.map(|why| *why.downcast::<&'static str>().unwrap_or_else(|why| resume_unwind(why)))
    }
}
