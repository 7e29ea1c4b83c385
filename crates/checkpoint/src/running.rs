//! A running instance, as whoever saves it or moves it has it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use skiff_runtime::control;
use skiff_runtime::record::InstanceDir;
use skiff_sandbox::clocks::Clocks;
use skiff_sandbox::enter::EnterTarget;
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::instance::Started;
use skiff_sys::clock::now;
use skiff_user::context::UserContext;

use crate::criu::CriuProcess;
use crate::obstacles::{PreflightReport, SavedProcess};
use crate::probe;
use crate::record::Checkpoint;
use crate::required_criu;
use crate::versions::Versions;

/// A running instance whose processes have been looked at.
#[derive(Clone, Copy)]
pub struct RunningInstance<'a> {
    /// The user whose instance it is.
    pub context: &'a UserContext,
    /// Where it is recorded.
    pub record: &'a InstanceDir,
    /// How it was started.
    pub started: &'a Started,
    /// PID of its process 1 on the host.
    pub init: Pid,
    /// Where its processes are.
    pub inside: EnterTarget<'a>,
    /// What was found before they were stopped.
    pub found: &'a PreflightReport,
}

impl RunningInstance<'_> {
    /// The number inside of the process that is saved first.
    #[must_use]
    pub fn first_process(&self) -> Option<i32> {
        self.found.processes.first().map(|process| process.pid)
    }

    /// What is known of it without its files, by a CRIU of this version.
    ///
    /// # Errors
    /// When its record or its clocks cannot be read.
    pub fn outline(&self, criu: &str, processes: Vec<SavedProcess>) -> Result<Checkpoint> {
        Ok(Checkpoint {
            created: now(),
            instance: self.started.clone(),
            processes,
            left_running: false,
            trees: vec![],
            written: self.record.written()?,
            // Nobody of theirs writes to them before they go on.
            written_files: vec![],
            read_files: vec![],
            // While they stand still: this is called again then. Not before their timers have been read, or these would end early.
            clocks: Some(Clocks::of(self.init)?),
            sysv: None,
            posix_queues: None,
            made_with: Versions::here(criu),
            files: vec![],
            stored: vec![],
        })
    }

    /// The same before anything is stopped, if CRIU runs in there.
    ///
    /// # Errors
    /// When CRIU is missing, too old or does not run.
    pub fn outline_now(&self) -> Result<Checkpoint> {
        let criu = CriuProcess::start(&required_criu()?, self.inside, None)?;
        let version = probe::version(&criu);
        criu.end();
        self.outline(&version?, self.found.processes.clone())
    }

    /// Ends it, without its supervisor if that does not.
    ///
    /// # Errors
    /// When neither does.
    pub(crate) fn end(&self) -> Result<()> {
        let told = control::stop_at(&self.record.dir);
        if self.has_ended() {
            return Ok(());
        }
        let killed =
            pidfd_send_signal(self.inside.init, Signal::KILL).context(|| "process 1 of the instance");
        told.and(killed)
    }

    /// Whether its process 1 has.
    pub(crate) fn has_ended(&self) -> bool {
        let (mut init, now) =
            ([PollFd::new(&self.inside.init, PollFlags::IN)], Timespec { tv_sec: 0, tv_nsec: 0 });
        poll(&mut init, Some(&now)).is_ok() && !init[0].revents().is_empty()
    }
}
