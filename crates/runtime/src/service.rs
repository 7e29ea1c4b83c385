//! The command that an instance is there for, as the instance's supervisor starts it, listens to it and notes its end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitStatus};
use skiff_sandbox::clocks::Clocks;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::first::{Apart, First, Process, Stdio};
use skiff_sandbox::join::{Failed, SpawnAttr, as_me};
use skiff_sandbox::session::{self, CommandExit};
use skiff_sandbox::start::{RunningContainer, StartOptions, start, start_for};
use skiff_spec::fault::{Context as _, Fault as Error};
use skiff_spec::instance::End;
use skiff_spec::network::ReservationRequest;
use skiff_spec::plan::{Identity, Plan, inside};
use skiff_sys::IgnoreError;
use skiff_sys::process::Child;
use skiff_sys::signal::{SignalMask, send_to_group};
use skiff_user::context::UserContext;

use crate::enter;
use crate::output_limiter::OutputLimiter;
use crate::record::InstanceDir;

/// What to start, and how.
pub struct Service<'a> {
    /// The command; without one the instance is there to be entered.
    pub command: Option<&'a CommandSpec>,
    /// In its place: processes that are made again.
    pub restorer: Option<&'a dyn Restorer>,
    /// Who it is inside.
    pub identity: Identity,
    /// The signal that asks it to end.
    pub stop: i32,
    /// Whether the user is to be able to dump it.
    pub checkpoint: bool,
    /// What is kept of the instance.
    pub record: &'a InstanceDir,
}

/// Makes processes again that ran elsewhere or before, in an instance that is started for them.
pub trait Restorer {
    /// What gives them their address again.
    fn reserved(&self) -> Option<ReservationRequest>;

    /// From where their clocks go on.
    fn clocks(&self) -> Option<Clocks>;

    /// Makes them; gives the one that the instance is there for.
    fn restore(&self, instance: &RunningContainer) -> Result<Process, Error>;

    /// What the start depends on, if somebody has a say in whether they run.
    fn approval(&self) -> Option<Approval<'_>>;
}

/// What a start depends on that somebody has a say in.
#[derive(Clone, Copy)]
pub struct Approval<'a> {
    /// Descriptors that are needed until they have had it.
    pub kept: &'a [BorrowedFd<'a>],
    /// Whether the instance ends with the process that starts it.
    pub bound: bool,
}

/// A running command, with what serves it.
pub struct Running {
    main: Main,
    ended: Option<CommandExit>,
    limiter: OutputLimiter,
}

enum Main {
    /// A child of process 1, which tells how it fares.
    Inside(Process),
    /// A child of the supervisor's, without user namespace.
    Me(Child),
}

impl Service<'_> {
    /// Carries out the plan, with the command in it.
    pub fn start(
        &self,
        context: &UserContext,
        plan: &Plan,
        options: StartOptions<'_>,
        mask: SignalMask,
    ) -> Result<(RunningContainer, Option<Running>), Failed> {
        let output = self.record.output();
        if let Some(restorer) = self.restorer {
            let reserved = restorer.reserved();
            let (reserved, clocks) = (reserved.as_ref(), restorer.clocks());
            let instance = start(plan, StartOptions { reserved, clocks, ..options })?;
            let revived = self.note_address(&instance).and_then(|()| restorer.restore(&instance));
            return match revived {
                Ok(process) => {
                    let limiter = OutputLimiter::watch(&output)?;
                    Ok((instance, Some(Running { main: Main::Inside(process), ended: None, limiter })))
                }
                Err(why) => {
                    instance.end();
                    Err(why.into())
                }
            };
        }
        let Some(command) = self.command else {
            let instance = start(plan, options)?;
            self.note_address(&instance)?;
            return Ok((instance, None));
        };
        // One that CRIU makes again is CRIU's child at first, and must not end with it. With process 1 it ends anyway.
        let death_signal = if self.checkpoint { 0 } else { Signal::KILL.as_raw() };
        let attr = SpawnAttr { own_session: true, death_signal, ..SpawnAttr::default() };
        let (instance, main) = if self.identity == Identity::Root {
            let (output, filter, reaper) = (Path::new(inside::OUTPUT), !self.checkpoint, plan.has_reaper());
            let apart = Apart { output, filter, reaper };
            let first = First { command, attr, mask, stdio: Stdio::Apart(apart) };
            let (instance, process) = start_for(plan, options, &first)?;
            (instance, Main::Inside(process))
        } else {
            let instance = start(plan, options)?;
            match self.start_as_me(
                context,
                command,
                (&instance, plan.hostname.is_some()),
                (attr, mask),
                &output,
            ) {
                Ok(child) => (instance, Main::Me(child)),
                Err(why) => {
                    instance.end();
                    return Err(why);
                }
            }
        };
        self.note_address(&instance)?;
        let limiter = OutputLimiter::watch(&output)?;
        Ok((instance, Some(Running { main, ended: None, limiter })))
    }

    /// Writes down where it is reached, if it has an address that it is to have again.
    fn note_address(&self, instance: &RunningContainer) -> Result<(), Error> {
        instance.address().map_or(Ok(()), |address| self.record.note_address(address))
    }

    /// Through the helper, which hands our own standard descriptors on: for as long as that takes, they are the output.
    fn start_as_me(
        &self,
        context: &UserContext,
        command: &CommandSpec,
        (instance, own_name): (&RunningContainer, bool),
        (attr, mask): (SpawnAttr, SignalMask),
        output: &Path,
    ) -> Result<Child, Failed> {
        let helper = enter::helper_for_me(context)?;
        let about = || format!("output {}", output.display());
        let file: OwnedFd = std::fs::File::options().append(true).open(output).context(about)?.into();
        rustix::stdio::dup2_stdout(&file).and_then(|()| rustix::stdio::dup2_stderr(&file)).context(about)?;
        let child = as_me(helper, (instance.init.pid, own_name), command, attr, mask);
        skiff_sandbox::start::detach_stdio();
        child
    }

    /// Writes down how it ended; nothing if there was no command. Whoever has ended it since it goes on elsewhere has written that.
    pub fn note_end(&self, ended: Option<CommandExit>) {
        if self.record.end_is_noted() {
            return;
        }
        let end = ended.map(|ended| match ended {
            CommandExit::Code(code) => End::Exited(code),
            CommandExit::Signal(number) => End::Killed(number),
        });
        self.record
            .note_end(end)
            .ignore_error("without room for it, the instance is shown as one that was lost");
    }
}

impl Running {
    /// What wakes us when there is new output.
    pub fn output(&self) -> Option<BorrowedFd<'_>> {
        self.limiter.news()
    }

    /// How long to wait for anything else.
    pub fn patience(&self) -> Option<Duration> {
        self.limiter.patience()
    }

    /// Keeps the output within its bounds; whether the command has ended.
    pub fn look(&mut self) -> bool {
        self.limiter.look();
        self.ended.is_some()
    }

    /// A child of ours has ended.
    pub fn buried(&mut self, pid: Pid, status: WaitStatus) {
        if let Main::Me(child) = &self.main
            && child.pid == pid
        {
            let ended = status.exit_status().map(CommandExit::Code);
            self.ended = ended.or_else(|| status.terminating_signal().map(CommandExit::Signal));
        }
    }

    /// Process 1 has said something; whether that was for us.
    pub fn hear(&mut self, instance: &RunningContainer) -> bool {
        let inside = matches!(self.main, Main::Inside(_));
        if inside && self.ended.is_none() {
            self.ended = session::ended(instance.control.as_fd()).default_on_error(
                "what cannot be read any more has ended, as process 1 has, which shows by itself",
            );
        }
        inside
    }

    /// Asks it to end.
    pub fn end_kindly(&self, signal: i32) {
        self.signal(signal);
        // One that is stopped would never hear of it.
        self.signal(Signal::CONT.as_raw());
    }

    /// Sends a signal to its process group.
    pub fn signal(&self, signal: i32) {
        let group = match &self.main {
            Main::Inside(process) => process.group(),
            Main::Me(child) => Some(child.pid),
        };
        if let Some(group) = group {
            send_to_group(group, signal).ignore_error("the group may be gone by now");
        }
    }

    /// How it ended; one that has not, does so now, by force.
    pub fn ended(&self) -> CommandExit {
        self.ended.unwrap_or(CommandExit::Signal(Signal::KILL.as_raw()))
    }
}
