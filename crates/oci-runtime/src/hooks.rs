//! Programs that a configuration has run at points of a container's life. Each is run as the user, with what the user may do there: outside, or
//! as root of the container's namespaces.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::close_on_exec_from;
use skiff_sys::signal::{SignalMask, start_with};

use crate::config::OciHook;
use crate::log::Log;

/// So long may one take that has no limit of its own.
const LONGEST: Duration = Duration::from_hours(24);
/// So much of what it says on standard error is told.
const MOST_SAID: u64 = 2000;

/// Runs them one after the other. Each gets the container's state to read.
///
/// # Errors
/// The first that fails.
pub fn run(kind: &str, hooks: &[OciHook], state: &[u8]) -> Result<()> {
    hooks.iter().try_for_each(|hook| {
        run_one(hook, state).map_err(|e| e.about(&format!("hooks.{kind}: {}", hook.path.display())))
    })
}

/// Runs them all; what fails is noted, as the container has been started or has ended already.
pub fn run_all(kind: &str, hooks: &[OciHook], state: &[u8], log: &Log) {
    for hook in hooks {
        if let Err(e) = run(kind, std::slice::from_ref(hook), state) {
            log.warn(&e.to_string());
        }
    }
}

fn run_one(hook: &OciHook, state: &[u8]) -> Result<()> {
    if !hook.path.is_absolute() {
        return Err(Fault::new("not an absolute path"));
    }
    let mut said = memory_file("output").context(|| "its output")?;
    // A file, not a pipe: nobody has to wait until the hook has read it.
    let mut input = memory_file("state").context(|| "its input")?;
    input.write_all(state).and_then(|()| input.rewind()).context(|| "its input")?;
    let mut command = Command::new(&hook.path);
    if let Some((first, others)) = hook.args.split_first() {
        command.arg0(first).args(others);
    }
    let variables = hook.env.iter().filter_map(|variable| variable.split_once('='));
    command.env_clear().envs(variables).stdin(input).stdout(Stdio::null());
    command.stderr(said.try_clone().context(|| "its output")?);
    // Those that this call was started with are the engine's, or for the container's program.
    close_on_exec_from(3).context(|| "descriptors")?;
    // Whoever waits for a container has signals blocked.
    start_with(&mut command, SignalMask::none());
    let mut child = command.spawn().context(|| "started")?;
    let limit = hook.timeout.map_or(LONGEST, Duration::from_secs);
    let Some(status) = skiff_sys::lock::within(limit, || child.try_wait()).context(|| "waited for")? else {
        child.kill().and_then(|()| child.wait().map(drop)).ignore_error("it has ended meanwhile");
        return Err(Fault::new(format!("took longer than its {} s", limit.as_secs())));
    };
    match status.success() {
        true => Ok(()),
        false => Err(Fault::new(format!("{}{}", ended(status), text(&mut said)))),
    }
}

fn memory_file(name: &str) -> std::io::Result<File> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC).map(File::from)?)
}

fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("ended by signal {}", signal.unwrap_or_default()),
    }
}

fn text(said: &mut File) -> String {
    let mut bytes = vec![];
    let read = said.rewind().and_then(|()| said.take(MOST_SAID).read_to_end(&mut bytes));
    read.map(drop).ignore_error("its exit code says the most");
    match String::from_utf8_lossy(&bytes).trim() {
        "" => String::new(),
        text => format!(": {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(script: &str, timeout: Option<u64>) -> OciHook {
        let args = ["sh", "-c", script].map(String::from).to_vec();
        OciHook { path: "/bin/sh".into(), args, env: vec!["A=b".into()], timeout }
    }

    #[test]
    fn hooks_read_the_state_and_can_fail() {
        let run = |script: &str| {
            run("poststop", &[hook(script, None)], b"{\"id\":\"x\"}").map_err(|e| e.to_string())
        };
        assert_eq!(
            run("read state; [ \"$state\" = '{\"id\":\"x\"}' ] && [ $A = b ] && [ -z \"$HOME\" ]"),
            Ok(())
        );
        assert_eq!(run("exit 0"), Ok(()), "without reading");
        assert_eq!(run("echo no >&2; exit 3"), Err("hooks.poststop: /bin/sh: exit code 3: no".into()));
        let late = super::run("prestart", &[hook("exec sleep 60", Some(1))], b"").expect_err("late");
        assert!(late.to_string().contains("longer than its 1 s"), "{late}");
        let long = vec![b' '; 1 << 20];
        let late = super::run("prestart", &[hook("exec sleep 5", Some(1))], &long).expect_err("late");
        assert!(late.to_string().contains("longer than its 1 s"), "a long state that is not read: {late}");
        assert_eq!(super::run("prestart", &[hook("[ $(wc -c) = 1048576 ]", None)], &long), Ok(()));
        let relative = OciHook { path: "sh".into(), ..hook("", None) };
        assert!(super::run("prestart", &[relative], b"").is_err());
    }
}
