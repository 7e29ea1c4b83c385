//! Daemons come back as children of the command's reaper. CRIU makes a process for the session of each, which ends before the reaper is again
//! what takes over orphans: they would become children of process 1, and nobody could save them again.

use std::os::fd::AsFd;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use skiff_ipc::ReportingChild;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::process::positive_pid;
use skiff_sys::subreaper::Maker;

use crate::record::Checkpoint;

/// In messages.
const NAME: &str = "the parent of daemons";

/// What has CRIU's first process take over orphans from its beginning, where that is needed.
pub struct Daemons<'a> {
    inside: EnterTarget<'a>,
    /// The numbers inside of CRIU and of the first process that it makes; nothing if there are no daemons.
    numbers: Option<(Pid, Pid)>,
    adopting: Option<ReportingChild<()>>,
}

impl<'a> Daemons<'a> {
    /// Of a checkpoint that a CRIU in `inside` restores, which has the number that is given there.
    ///
    /// # Errors
    /// When there is no process in it.
    pub fn of(checkpoint: &Checkpoint, inside: EnterTarget<'a>) -> Result<Self> {
        let reaper = checkpoint.main()?.pid;
        let children = checkpoint.processes.iter().filter(|process| process.parent == reaper).count();
        let has_any = checkpoint.instance.plan.has_reaper() && children > 1;
        let numbers = inside.number.zip(positive_pid(reaper)).filter(|_| has_any);
        Ok(Self { inside: EnterTarget { number: None, ..inside }, numbers, adopting: None })
    }

    /// Does what is to be done at a stage of CRIU's work.
    ///
    /// # Errors
    /// When CRIU or its process cannot be traced.
    pub fn at(&mut self, stage: &str) -> Result<()> {
        match (stage, self.numbers) {
            ("pre-restore", Some((criu, first))) => {
                self.adopting = Some(begin(self.inside, criu, first)?);
                Ok(())
            }
            ("post-restore", Some(_)) => {
                let untold = || Fault::new(format!("{NAME}: CRIU has not said when it makes that"));
                self.adopting.take().ok_or_else(untold)?.end()
            }
            _ => Ok(()),
        }
    }
}

/// Has a process inside do it, as soon as CRIU makes that process.
fn begin(inside: EnterTarget<'_>, criu: Pid, first: Pid) -> Result<ReportingChild<()>> {
    let about = || NAME;
    let (ready, told) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
    let child = enter::begin(inside, &[told.as_fd()], || {
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
