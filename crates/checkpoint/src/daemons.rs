//! Daemons come back as children of the command's reaper. CRIU makes a process for the session of each, which ends before the reaper is again
//! what takes over orphans: they would become children of process 1, and nobody could save them again.
//!
//! CRIU is traced for that. A process has one tracer: so where the sockets of what CRIU makes are moved (`transport_sockets`), that tracer does both.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use skiff_ipc::ReportingChild;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::process::positive_pid;
use skiff_sys::subreaper::Maker;

use crate::record::Checkpoint;
use crate::transport_sockets::TransportSockets;

/// In messages.
const NAME: &str = "the parent of daemons";

/// How long what CRIU made first may take to be known when CRIU has made all: that was done long before.
const PATIENCE: Duration = Duration::from_secs(10);

/// What has CRIU's first process take over orphans from its beginning, where that is needed, and moves sockets on the host's network.
pub struct Daemons<'a> {
    inside: EnterTarget<'a>,
    /// CRIU's number inside.
    criu: Option<Pid>,
    /// The number of the first process that CRIU makes; nothing if there are no daemons.
    first: Option<Pid>,
    moves_sockets: bool,
    tracing: Option<Tracing>,
}

/// Who traces CRIU.
enum Tracing {
    Adopting(ReportingChild<()>, Pid),
    Moving(TransportSockets),
}

impl<'a> Daemons<'a> {
    /// Of a checkpoint that a CRIU in `inside` restores, which has the number that is given there; and whether sockets are to be moved.
    ///
    /// # Errors
    /// When there is no process in it.
    pub fn of(checkpoint: &Checkpoint, inside: EnterTarget<'a>, moves_sockets: bool) -> Result<Self> {
        let reaper = checkpoint.main()?.pid;
        let children = checkpoint.processes.iter().filter(|process| process.parent == reaper).count();
        let has_any = checkpoint.instance.plan.has_reaper() && children > 1;
        let first = positive_pid(reaper).filter(|_| has_any);
        Ok(Self {
            inside: EnterTarget { number: None, ..inside },
            criu: inside.number,
            first,
            moves_sockets,
            tracing: None,
        })
    }

    /// Does what is to be done at a stage of CRIU's work.
    ///
    /// # Errors
    /// When CRIU or its process cannot be traced.
    pub fn at(&mut self, stage: &str) -> Result<()> {
        match stage {
            "pre-restore" => self.tracing = self.begin()?,
            "post-restore" => match self.tracing.take() {
                Some(Tracing::Adopting(adopting, first)) => finish(adopting, first, PATIENCE)?,
                Some(Tracing::Moving(sockets)) => {
                    let is_adopting = sockets.end()?;
                    self.first.filter(|_| !is_adopting).map_or(Ok(()), |first| Err(unmade(first)))?;
                }
                None if self.first.is_some() => {
                    return Err(Fault::new(format!("{NAME}: CRIU has not said when it makes that")));
                }
                None => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn begin(&self) -> Result<Option<Tracing>> {
        let Some(criu) = self.criu else { return Ok(None) };
        if self.moves_sockets {
            return TransportSockets::begin(self.inside, criu, self.first).map(Tracing::Moving).map(Some);
        }
        let adopting = |first| Ok(Tracing::Adopting(begin(self.inside, criu, first)?, first));
        self.first.map(adopting).transpose()
    }
}

/// The fault that CRIU has made no process with this number.
fn unmade(first: Pid) -> Fault {
    let first = first.as_raw_nonzero();
    Fault::new(format!("{NAME}: CRIU has made all processes, and none with the number {first}"))
        .hint("the checkpoint's record is not of its images: take another checkpoint")
}

/// Waits until it is done. CRIU waits for that, and whoever does it for CRIU: if the first process has another number than the record says, one of
/// the two has to give up.
fn finish(adopting: ReportingChild<()>, first: Pid, patience: Duration) -> Result<()> {
    adopting.end_by(Instant::now() + patience)?.ok_or_else(|| unmade(first))
}

/// Has a process inside do it, as soon as CRIU makes that process.
fn begin(inside: EnterTarget<'_>, criu: Pid, first: Pid) -> Result<ReportingChild<()>> {
    let about = || NAME;
    let (ready, told) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
    let child = enter::begin(inside, &[told.as_fd()], || {
        // Whoever waits for this process ends it so, and the kernel lets go of what it traces.
        set_parent_process_death_signal(Some(Signal::KILL)).context(about)?;
        let maker = Maker::trace(criu).context(about)?;
        rustix::io::write(&told, b"t").context(about)?;
        maker.make_subreaper(|made| made == first).context(about)
    })?;
    drop(told);
    match rustix::io::read(&ready, &mut [0]) {
        Ok(1) => Ok(child),
        _ => Err(child.end().err().unwrap_or_else(|| Fault::new(format!("{NAME}: CRIU is not traced")))),
    }
}

#[cfg(test)]
mod tests {
    use skiff_ipc::Descriptors;
    use skiff_sys::process::CloneFlags;

    use super::*;

    #[test]
    fn a_record_of_other_images_ends_the_restore() {
        let first = Pid::from_raw(7).expect("a number");
        let waits = |limit: Duration| {
            let wait = move || {
                std::thread::sleep(limit);
                Ok(())
            };
            let child = ReportingChild::begin(NAME, CloneFlags::NONE, Descriptors::All, wait).expect("begun");
            finish(child, first, Duration::from_millis(300))
        };
        let begun = Instant::now();
        let why = waits(Duration::from_secs(60)).expect_err("CRIU makes no such process");
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert!(why.message.ends_with("none with the number 7"), "{}", why.message);
        waits(Duration::ZERO).expect("made");
    }
}
