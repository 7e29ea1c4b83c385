//! Runs a command and all that comes of it one instruction at a time.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// A place in a program: which of those watched, and the address as in its symbol table.
pub type CodeAddress = (usize, u64);

/// More than a hundred starts take: whatever runs longer will not end.
const MOST_STEPS: u64 = 100_000_000;

/// What a process runs, if that is watched.
#[derive(Clone, Copy)]
struct Image {
    program: usize,
    /// What is to be taken off its addresses, and where its code ends.
    base: u64,
    end: u64,
}

/// The places of `programs` that `command` runs through, in the order of the first time. It begins by reading a line.
pub fn watch(mut command: Command, programs: &[&str]) -> anyhow::Result<Vec<CodeAddress>> {
    let mut child = command.stdin(Stdio::piped()).spawn().context("starting it")?;
    let first = Pid::from_raw(i32::try_from(child.id()).context("its number")?);
    ptrace::attach(first).context("tracing it")?;
    waitpid(first, None).context("waiting for it")?;
    let children = Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK;
    ptrace::setoptions(first, children | Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_EXITKILL)?;
    writeln!(child.stdin.take().context("its input")?, "go").context("its input")?;
    ptrace::step(first, None)?;
    follow(first, programs)
}

fn follow(first: Pid, programs: &[&str]) -> anyhow::Result<Vec<CodeAddress>> {
    let mut images: HashMap<Pid, Option<Image>> = HashMap::new();
    let mut alive = HashSet::from([first]);
    let (mut seen, mut order, mut code) = (HashSet::new(), vec![], None);
    for _ in 0..MOST_STEPS {
        // Others of our children go on.
        if alive.is_empty() {
            ensure!(code == Some(0), "it ended with {code:?}");
            return Ok(order);
        }
        let (pid, deliver) = match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(pid, status)) => {
                alive.remove(&pid);
                code = if pid == first { Some(status) } else { code };
                continue;
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                ensure!(pid != first, "it was ended by {signal}");
                alive.remove(&pid);
                continue;
            }
            Ok(WaitStatus::PtraceEvent(pid, _, _)) => {
                // It runs another program, or has made a process.
                images.remove(&pid);
                alive.insert(Pid::from_raw(
                    i32::try_from(ptrace::getevent(pid)?).context("a process's number")?,
                ));
                (pid, None)
            }
            Ok(WaitStatus::Stopped(pid, Signal::SIGTRAP)) => {
                let image = *images.entry(pid).or_insert_with(|| image(pid, programs));
                if let Some(place) = image.zip(position(pid).ok()).and_then(|(image, at)| image.place(at))
                    && seen.insert(place)
                {
                    order.push(place);
                }
                (pid, None)
            }
            // A new process begins with this one.
            Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)) => (pid, None),
            Ok(WaitStatus::Stopped(pid, signal)) => (pid, Some(signal)),
            Ok(_) | Err(nix::errno::Errno::EINTR) => continue,
            Err(e) => return Err(e).context("waiting for a step"),
        };
        // It may have been killed meanwhile.
        match ptrace::step(pid, deliver) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(e) => return Err(e).context("taking a step"),
        }
    }
    bail!("it does not end")
}

impl Image {
    fn place(self, at: u64) -> Option<CodeAddress> {
        (self.base..self.end).contains(&at).then(|| (self.program, at - self.base))
    }
}

/// What a process runs; nothing if that is not watched, or the process is gone.
fn image(pid: Pid, programs: &[&str]) -> Option<Image> {
    let runs = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let program = programs.iter().position(|program| Path::new(program) == runs)?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let of_it = maps.lines().filter(|line| line.ends_with(programs[program]));
    let mut ranges = of_it.filter_map(|line| line.split_whitespace().next()?.split_once('-'));
    let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
    let (start, end) = ranges.next()?;
    let end = number(ranges.next_back().map_or(end, |(_, end)| end))?;
    // The ELF header's type: only of a program that may lie anywhere do the addresses count from its start.
    let anywhere = std::fs::read(&runs).ok()?.get(16) == Some(&3);
    Some(Image { program, base: if anywhere { number(start)? } else { 0 }, end })
}

/// The address of the next instruction.
fn position(pid: Pid) -> nix::Result<u64> {
    let registers = ptrace::getregset::<ptrace::regset::NT_PRSTATUS>(pid)?;
    #[cfg(target_arch = "x86_64")]
    return Ok(registers.rip);
    #[cfg(target_arch = "aarch64")]
    return Ok(registers.pc);
}
