//! A program that is run for what it prints, and whom nobody trusts: what is kept of its words and the time that it has are bounded.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitOptions, pidfd_send_signal, waitpid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::Child;
use skiff_sys::signal::SignalMask;

use crate::command::{CommandSpec, DEFAULT_PATH};
use crate::join::{SpawnAttr, as_we_are};

/// The most that is kept of standard error, in bytes; the rest is read and forgotten.
const LONGEST_ERRORS: usize = 16 << 10;

/// Variables of such a program: where programs are, a home without anybody's settings, and English messages.
pub const VARIABLES: [(&str, &str); 3] = [("PATH", DEFAULT_PATH), ("HOME", "/nonexistent"), ("LC_ALL", "C")];

/// What a program prints, as it comes, until a point in time. What it says on standard error is put aside meanwhile.
pub struct ProgramOutput {
    output: OwnedFd,
    errors: Option<OwnedFd>,
    said: Vec<u8>,
    until: Instant,
}

impl ProgramOutput {
    /// Of a program whose standard output and error are these pipes.
    #[must_use]
    pub fn new(output: OwnedFd, errors: OwnedFd, until: Instant) -> Self {
        Self { output, errors: Some(errors), said: vec![], until }
    }

    /// The beginning of what it has said on standard error, to be printed.
    #[must_use]
    pub fn errors(&self) -> String {
        let text = String::from_utf8_lossy(&self.said);
        text.chars().map(|char| if char.is_control() && char != '\n' { ' ' } else { char }).collect()
    }

    /// Waits for words on either pipe; whether there are some on standard output.
    fn has_output(&mut self) -> io::Result<bool> {
        let left = self.until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut polled = vec![PollFd::new(&self.output, PollFlags::IN)];
        polled.extend(self.errors.iter().map(|errors| PollFd::new(errors, PollFlags::IN)));
        if retry_on_intr(|| poll(&mut polled, Some(&timeout)))? == 0 {
            return Err(Errno::TIMEDOUT.into());
        }
        let [has_output, has_errors] =
            [0, 1].map(|n| polled.get(n).is_some_and(|polled| !polled.revents().is_empty()));
        if has_errors {
            self.put_aside()?;
        }
        Ok(has_output)
    }

    fn put_aside(&mut self) -> io::Result<()> {
        let Some(errors) = &self.errors else { return Ok(()) };
        let mut buffer = [0; 4096];
        let count = retry_on_intr(|| rustix::io::read(errors, &mut buffer))?;
        if count == 0 {
            self.errors = None;
        }
        let rest = LONGEST_ERRORS.saturating_sub(self.said.len()).min(count);
        self.said.extend(&buffer[..rest]);
        Ok(())
    }

    /// Reads what is left of standard error, once there is no more output.
    fn end(&mut self) -> io::Result<()> {
        while self.errors.is_some() {
            self.has_output()?;
        }
        Ok(())
    }
}

impl Read for ProgramOutput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.has_output()? {}
        let count = retry_on_intr(|| rustix::io::read(&self.output, &mut *buffer))?;
        if count == 0 && !buffer.is_empty() {
            self.end()?;
        }
        Ok(count)
    }
}

/// Runs a program where this process is, and as what it is; which has nothing open as its standard descriptors that it needs. `read` is given
/// what the program prints; then the program must end well.
///
/// # Errors
/// When it cannot be started, fails, or has not ended by then; and those of `read`.
pub fn run_program<T>(
    argv: &[&str],
    input: Option<BorrowedFd<'_>>,
    until: Instant,
    read: impl FnOnce(&mut ProgramOutput) -> Result<T>,
) -> Result<T> {
    let name = argv.first().copied().unwrap_or_default();
    let (output, stdout) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let (errors, stderr) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let command = CommandSpec {
        argv: argv.iter().map(Into::into).collect(),
        env: VARIABLES.map(|(name, value)| (name.into(), value.into())).into(),
        cwd: "/".into(),
        ..CommandSpec::default()
    };
    let attr = SpawnAttr { death_signal: Signal::KILL.as_raw(), ..SpawnAttr::default() };
    if let Some(input) = input {
        dup2_stdin(input).context(|| "standard input of a program")?;
    }
    dup2_stdout(stdout).and_then(|()| dup2_stderr(stderr)).context(|| "standard output of a program")?;
    let started = as_we_are(&command, attr, SignalMask::from_bits(0));
    close_standard()?;
    let child = started.map_err(crate::failed::Failed::into_error)?;
    let mut output = ProgramOutput::new(output, errors, until);
    let read = read(&mut output);
    if read.is_err() {
        pidfd_send_signal(&child.pidfd, Signal::KILL).ignore_error("it may have ended by itself");
    }
    let has_succeeded = has_succeeded(&child, until)?;
    let read = read?;
    match has_succeeded {
        true => Ok(read),
        false => Err(Fault::new(format!("{name} failed: {}", output.errors().trim()))),
    }
}

/// Waits for the program's end: it may close its output and go on.
fn has_succeeded(child: &Child, until: Instant) -> Result<bool> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let mut polled = [PollFd::new(&child.pidfd, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut polled, Some(&timeout))).context(|| "poll")? == 0 {
        pidfd_send_signal(&child.pidfd, Signal::KILL).ignore_error("it may have ended by itself");
    }
    let ended = retry_on_intr(|| waitpid(Some(child.pid), WaitOptions::empty())).context(|| "waitpid")?;
    Ok(ended.is_some_and(|(_, status)| status.exit_status() == Some(0)))
}

/// Puts the null device in the place of the three standard descriptors.
pub(crate) fn close_standard() -> Result<()> {
    let about = || "/dev/null";
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).context(about)?;
    for dup in [dup2_stdin, dup2_stdout, dup2_stderr] {
        dup(null.as_fd()).context(about)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    fn said(script: &str, time: Duration) -> (io::Result<Vec<u8>>, String) {
        let mut command = Command::new("/bin/sh");
        let piped = command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("a shell");
        let pipes = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        let mut output = ProgramOutput::new(pipes.0.into(), pipes.1.into(), Instant::now() + time);
        let mut all = vec![];
        let read = output.read_to_end(&mut all).map(|_| all);
        child.kill().expect("a child");
        child.wait().expect("a child");
        let errors = output.errors();
        (read, errors)
    }

    #[test]
    fn both_outputs_are_read_whatever_there_is_of_them() {
        let long = Duration::from_secs(20);
        let (output, errors) = said("echo a; echo b >&2; echo c; exec >&-; echo d >&2", long);
        assert_eq!((output.unwrap(), &errors[..]), (b"a\nc\n".to_vec(), "b\nd\n"));
        let (output, errors) = said("head -c 1000000 /dev/zero >&2; echo a", long);
        assert_eq!((output.unwrap().len(), errors.len()), (2, LONGEST_ERRORS));
    }

    #[test]
    fn what_hangs_is_not_waited_for() {
        let (output, _) = said("echo a; sleep 60", Duration::from_millis(200));
        assert_eq!(output.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
