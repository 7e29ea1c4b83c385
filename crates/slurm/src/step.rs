//! Before a step's tasks, as the user: process 1 of the step, watched over by a process that lives and dies with slurmstepd.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, fchdir, kill_process, pidfd_open, waitpid};
use skiff_ipc::ReportingChild;
use skiff_runtime::control::{CONTROL, ControlRequest, Live, Process1, answer, tell_last, wants_to_be_last};
use skiff_runtime::control_listener::{ControlListener, HeardRequest};
use skiff_sandbox::join::NetSpace;
use skiff_sandbox::start::detach_stdio;
use skiff_sandbox::step::{self, RunningStep};
use skiff_sandbox::{IDLE, STILL};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::{JobSpec, names};
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, close_all_except};
use skiff_sys::signal::block_all;
use skiff_user::context::UserContext;

use crate::job::{self, FAILED, SlurmJob, number};
use crate::{attach, job_supervisor};

/// How long the script's `srun`s have when it has ended. Those that are to end as well have some words to exchange with their steps first;
/// without them the steps try for seconds to reach them. The epilog does not wait for it.
const GRACE: Duration = Duration::from_secs(2);

/// How long a task that has ended waits for those that never came. Slurm starts all at one time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes the step ready; returns when its tasks can enter.
pub fn begin() -> Result<()> {
    let context = UserContext::load_silently()?.for_a_throw_away();
    if std::env::var_os("HOME").is_none() {
        return Err(with_home(&context.home));
    }
    let Some(job) = SlurmJob::from_variables()? else { return Ok(()) };
    if let Ok(why) = fs::read(job::dir(job.id).join(FAILED)) {
        return Err(Error::from_bytes(&why));
    }
    let dir = step_dir(&job)?;
    // The script is the first of a job's run.
    if is_script(&dir) {
        job_supervisor::end_earlier_run(&context, &job)?;
    }
    fs::create_dir_all(&dir).context(|| dir.display().to_string()).map_err(|e| {
        e.hint(
            "the prolog makes the job's directory: check that this node's plugstack.conf names the plug-in",
        )
    })?;
    let begun = try_begin(&context, &job, &dir);
    if begun.is_err() {
        fs::remove_dir_all(&dir).ignore_error("if it cannot be removed it goes with the job's");
    }
    begun
}

/// Begins anew with the user's home: jobs that slurmrestd submits need not have the variable, by which registries and logins are found. Returns only
/// if that fails.
fn with_home(home: &Path) -> Error {
    let program = Path::new("/proc/self/exe");
    let failed = Command::new(program).args(std::env::args_os().skip(1)).env("HOME", home).exec();
    Error::new(format!("{}: {failed}", program.display()))
}

fn try_begin(context: &UserContext, job: &SlurmJob, dir: &Path) -> Result<()> {
    let stepd = number(names::STEPD_PID)?;
    let stepd = i32::try_from(stepd)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| Error::new(format!("{}: not a process", names::STEPD_PID)))?;
    let stepd = pidfd_open(stepd, PidfdFlags::empty()).context(|| "slurmstepd")?;
    // What is made from here on is found by it at the job's end, whatever its user does to the names in their directory.
    let mark = job::dir(job.id);
    let mark = open_dir(&mark).context(|| mark.display().to_string())?;
    fchdir(&mark).context(|| "directory of the job")?;
    let root = job_supervisor::running(context, job)?;
    let entered = match &job.spec {
        JobSpec::Container(container) => attach::step_to_enter(job, container)?,
        JobSpec::Snapshot(_) => None,
    };
    let net = attach::net_space(job)?;
    let watcher = ReportingChild::fork("the step's watcher", CloneFlags::NONE, |reporter| {
        let (reported, ready) =
            match prepare(dir, (&root, entered.as_ref(), net), [&stepd, &mark], reporter.as_fd()) {
                Ok(ready) => (Ok(()), Some(ready)),
                Err(why) => (Err(why), None),
            };
        // It ends with slurmstepd, or when it is told to: a signal that is meant for the tasks, and that Slurm sends to all that it finds, would end
        // them by its own end, before they could handle it. Once it has reported there may be tasks.
        block_all(&[]);
        if let (true, Some((mut watcher, step))) = (reporter.tell(&reported), ready) {
            watcher.watch(&step, &stepd);
            watcher.end(&step, dir.file_name().unwrap_or_default());
        }
        0
    });
    watcher?.begun()?;
    match &job.spec {
        JobSpec::Container(container) => attach::note_step(job, container, dir),
        JobSpec::Snapshot(_) => Ok(()),
    }
}

fn prepare(
    dir: &Path,
    (root, entered, net): (&Live, Option<&Live>, NetSpace),
    [stepd, mark]: [&OwnedFd; 2],
    reporter: BorrowedFd<'_>,
) -> Result<(Watcher, RunningStep)> {
    rustix::process::setsid().context(|| "session")?;
    let kept = [root.init.as_fd(), root.connection(), stepd.as_fd(), mark.as_fd(), reporter];
    let kept: Vec<_> = kept.into_iter().chain(entered.map(|live| live.init.as_fd())).collect();
    close_all_except(&kept);
    detach_stdio();
    // Before the environment is entered: from in there the directory cannot be seen.
    let open = |path: &Path| open_dir(path).context(|| path.display().to_string());
    let watcher = Watcher {
        listener: ControlListener::new(dir)?,
        dir: open(dir)?,
        parent: open(dir.parent().unwrap_or(dir))?,
        // Without the number of tasks their ends say nothing.
        missing_tasks: number(names::STEP_TASKS).ok(),
        tasks: vec![],
        is_script: is_script(dir),
    };
    let step = match entered {
        Some(other) => {
            // In the other's root this process is not to be seen.
            let mounts = || fs::read_link("/proc/self/ns/mnt").ok();
            let outside = mounts();
            step::begin(other.init.as_fd(), net).or_else(|why| match mounts() == outside {
                // The other has ended at this moment, and its container may go on.
                true => step::begin(root.init.as_fd(), net),
                false => Err(why),
            })?
        }
        None => step::begin(root.init.as_fd(), net)?,
    };
    Ok((watcher, step))
}

/// Whether the step of this directory is the batch script.
fn is_script(dir: &Path) -> bool {
    dir.file_name() == Some(OsStr::new(&format!("step.{}", names::BATCH)))
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Gives process 1 to the step's tasks until the step has ended; then nothing of it is left.
struct Watcher {
    listener: ControlListener,
    dir: OwnedFd,
    parent: OwnedFd,
    /// How many tasks have not been here yet, if that is known.
    missing_tasks: Option<u32>,
    /// Tasks that have begun and have not ended.
    tasks: Vec<Task>,
    /// Whether its task is the batch script.
    is_script: bool,
}

/// A task, by its connection.
struct Task {
    connection: OwnedFd,
    /// Whether it waits to be the last one.
    waits: bool,
}

impl Task {
    /// Whether it goes on, having said something.
    fn goes_on(&mut self) -> bool {
        self.waits = wants_to_be_last(&self.connection);
        self.waits
    }
}

impl Watcher {
    /// Until slurmstepd or process 1 is gone, or the last task (slurmstepd waits for those who hold its output open, and what the
    /// tasks have left behind may), or someone says so.
    fn watch(&mut self, step: &RunningStep, stepd: &OwnedFd) {
        let (mut end, mut last_task_deadline) = (None, None);
        loop {
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return;
            }
            if self.all_tasks_ended() {
                if !self.is_script {
                    return;
                }
                end.get_or_insert_with(|| {
                    rustix::io::write(&step.control, &[STILL]).ignore_error("if it is gone, that shows soon");
                    now + GRACE
                });
            }
            match &mut self.tasks[..] {
                [last @ Task { waits: true, .. }] => {
                    let until = *last_task_deadline.get_or_insert(now + PATIENCE);
                    if self.missing_tasks.is_none_or(|tasks| tasks == 0) || now >= until {
                        tell_last(&last.connection);
                        last.waits = false;
                        last_task_deadline = None;
                    }
                }
                _ => last_task_deadline = None,
            }
            let tasks = self.tasks.iter().map(|task| &task.connection);
            // slurmstepd goes with the script.
            let stepd = if end.is_none() { stepd } else { &step.init.pidfd };
            let fixed = [stepd, &step.init.pidfd, &step.control];
            let (own, others) = (fixed.len(), fixed.len() + self.tasks.len());
            let all = fixed.into_iter().chain(tasks).chain(self.listener.descriptors());
            let mut fds: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let next = [end, last_task_deadline].into_iter().flatten().min();
            let left = next.map(|next: Instant| next.saturating_duration_since(now));
            let left = left.into_iter().chain(self.listener.patience()).min();
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            poll(&mut fds, left.as_ref()).ignore_error("interrupted or not: what is ready shows");
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut said = ready[own..others].iter();
            self.tasks.retain_mut(|task| !said.next().is_some_and(|said| *said) || task.goes_on());
            if ready[1] || (ready[0] && !(self.is_script && self.all_tasks_ended())) {
                return;
            }
            if ready[2] {
                // Process 1 says when it is idle, which is nothing to us as long as there are tasks.
                let mut said = [0; 64];
                let length = rustix::io::read(&step.control, &mut said).default_on_error(
                    "a failed read says nothing, and process 1 that is gone shows by its handle",
                );
                if end.is_some() && said[..length].contains(&IDLE) {
                    return;
                }
            }
            for HeardRequest { connection, want, .. } in self.listener.requests() {
                // A job keeps the root that it began with.
                let process1 = Process1 { pid: step.init.pid, sessions: 0, sees_host: true };
                let told = answer(&connection, &step.init, process1);
                match want {
                    ControlRequest::Stop => return,
                    ControlRequest::Session => {}
                    // One that wants to know, and is no task.
                    _ => continue,
                }
                self.missing_tasks = self.missing_tasks.map(|tasks| tasks.saturating_sub(1));
                // One that has gone meanwhile needs no answer.
                self.tasks.extend(told.is_ok().then_some(Task { connection, waits: false }));
            }
        }
    }

    /// Whether all tasks have come and gone.
    fn all_tasks_ended(&self) -> bool {
        self.missing_tasks == Some(0) && self.tasks.is_empty()
    }

    /// Ends every process of the step and removes its directory.
    fn end(&self, step: &RunningStep, name: &OsStr) {
        kill_process(step.init.pid, Signal::KILL).ignore_error("it may have ended already");
        // All others of its namespace go before it does.
        while matches!(waitpid(Some(step.init.pid), WaitOptions::empty()), Err(Errno::INTR)) {}
        unlinkat(&self.dir, CONTROL, AtFlags::empty())
            .ignore_error("what cannot be removed goes with the job's directory");
        unlinkat(&self.parent, name, AtFlags::REMOVEDIR)
            .ignore_error("what cannot be removed goes with the job's directory");
    }
}

/// Where this step has its socket.
pub fn step_dir(job: &SlurmJob) -> Result<PathBuf> {
    let step =
        job::JobStep::from_variable()?.ok_or_else(|| Error::new(format!("{} is not set", names::STEP)))?;
    Ok(job.user_dir().join(format!("step.{}", step.name)))
}
