//! Where tests disturb whoever takes messages, between any two things that it does: end it, as a kill does, let no file be written any more, or put
//! messages in.

/// Here something has just been done.
#[cfg(not(test))]
pub(super) const fn point(_done: &str) {}

#[cfg(test)]
pub(super) use at_points::*;

#[cfg(test)]
mod at_points {
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

    /// What is done at each point, with the name of that.
    type AtPoint = Box<dyn FnMut(&'static str)>;

    thread_local! {
        static AT_POINT: RefCell<Option<AtPoint>> = const { RefCell::new(None) };
    }

    pub(in super::super) fn point(done: &'static str) {
        AT_POINT.with_borrow_mut(|at| at.iter_mut().for_each(|at| at(done)));
    }

    /// Does something and kills it after so many points; gives what was done last, or nothing if it came to its end before.
    pub(in super::super) fn killed_after(points: usize, act: impl FnOnce()) -> Option<&'static str> {
        let mut left = points;
        AT_POINT.set(Some(Box::new(move |done| match left {
            0 => resume_unwind(Box::new(done)),
            _ => left -= 1,
        })));
        let killed = catch_unwind(AssertUnwindSafe(act)).err();
        AT_POINT.set(None);
        killed.map(|why| *why.downcast::<&'static str>().unwrap_or_else(|why| resume_unwind(why)))
    }

    /// Does something, and lets no file be written after so many points of it; whether it came to that, and what was given.
    pub(in super::super) fn full_after<T>(points: usize, act: impl FnOnce() -> T) -> (bool, T) {
        // Else it ends this process.
        skiff_sys::signal::hold(Signal::XFSZ.as_raw());
        let before = getrlimit(Resource::Fsize);
        let mut left = points;
        AT_POINT.set(Some(Box::new(move |_| match left {
            0 => setrlimit(Resource::Fsize, Rlimit { current: Some(0), ..before }).expect("set"),
            _ => left -= 1,
        })));
        let given = act();
        AT_POINT.set(None);
        let is_full = getrlimit(Resource::Fsize).current == Some(0);
        setrlimit(Resource::Fsize, before).expect("set back");
        (is_full, given)
    }

    /// Does something, and something else at each point of it.
    pub(in super::super) fn between_points<T>(
        mut other: impl FnMut() + 'static,
        act: impl FnOnce() -> T,
    ) -> T {
        AT_POINT.set(Some(Box::new(move |_| other())));
        let given = act();
        AT_POINT.set(None);
        given
    }
}
