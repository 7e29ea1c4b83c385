//! How `git` is called: with a clean environment, so that neither the user's settings nor a stranger's files have a say.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::process::{Pid, Signal, kill_process};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::signal::end_with_caller;

use super::{Git, GitSource, Transport};
use crate::room::RoomLimit;

/// What of the user's variables git gets: where programs are, how servers are reached, and whose certificates count.
const PASSED: [&str; 11] = [
    "PATH",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "GIT_SSL_CAINFO",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
/// A server that sends less than this many bytes a second for so many seconds has gone.
const SLOWEST: [(&str, &str); 2] = [("GIT_HTTP_LOW_SPEED_LIMIT", "1000"), ("GIT_HTTP_LOW_SPEED_TIME", "30")];
/// `ssh` asks nobody anything, and hands on nothing that is the user's, whatever the user's own settings are. No other connection is used or left.
const SSH: &str = "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -o ForwardAgent=no -o ForwardX11=no -o ClearAllForwardings=yes \
                   -o GSSAPIDelegateCredentials=no -o PermitLocalCommand=no -o ControlMaster=no -o ControlPath=none \
                   -o ConnectTimeout=30 -o ServerAliveInterval=15 -o ServerAliveCountMax=4";
/// How long a server may take to list its names, in seconds, before git and what it has started get SIGTERM; SIGKILL follows.
const TO_LIST: u32 = 60;
/// How long it may take to send one commit, and how long git may report no progress meanwhile. (`git://` has no limit of its own, nor has `ssh` of a
/// server that lives and sends nothing.)
const TO_FETCH: u32 = 1800;
/// How long git may take to write the files of a commit, in seconds.
const TO_CHECK_OUT: u32 = 1800;
/// How often to look whether there is still room for what git writes.
const ROOM_CHECK: Duration = Duration::from_millis(100);
const SILENT: SilenceLimit = SilenceLimit {
    searching: Duration::from_secs(600),
    silent: Duration::from_secs(120),
    to_end: Duration::from_secs(10),
};
/// How git's progress begins once files come. Before, a server may search long for what belongs to a commit: it says all the time that it is still
/// there, but git does not show that.
const RECEIVING: [&[u8]; 2] = [b"Receiving objects:", b"Unpacking objects:"];
/// What `timeout` returns if the time is over, and if there is no git.
const TOO_LATE: i32 = 124;
const NO_GIT: i32 = 127;
/// Settings against those of the host: nothing is run but git, no password is looked up, nothing of other repositories is fetched, and what is fetched
/// stays in one file.
const SETTINGS: [&str; 12] = [
    "safe.bareRepository=explicit",
    "http.cookieFile=",
    "http.saveCookies=false",
    "http.sslVerify=true",
    "credential.helper=",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "fetch.unpackLimit=1",
    "maintenance.auto=false",
];
/// More than this a server does not list, in bytes; and more of its complaints is not read.
const MOST: usize = 16 << 20;
const MOST_ERRORS: usize = 64 << 10;

/// How long git may say nothing.
#[derive(Clone, Copy)]
struct SilenceLimit {
    /// After so long it is told to end, as long as no files come.
    searching: Duration,
    /// The same, once files come.
    silent: Duration,
    /// A program that has been told to end, and has not after this time, is killed.
    to_end: Duration,
}

/// What ends a call of git before it ends by itself.
#[derive(Clone, Copy, Default)]
struct CallLimits<'a> {
    silence: Option<SilenceLimit>,
    room: Option<&'a RoomLimit>,
}

impl Git {
    /// Looks up which of these names the server has, with their commits.
    pub(super) fn list(&self, repository: &GitSource, names: &[String]) -> Result<BTreeMap<String, String>> {
        let mut timeout = git_within(TO_LIST);
        // No repository that lies in the current directory or above it has a say: its settings could name programs and files.
        timeout.current_dir("/");
        let mut command = self.for_server(with_settings(timeout, "/dev/null"), repository)?;
        command.args(["ls-remote", "-q", "--", &repository.address]).args(names);
        let listed = run(command, repository, CallLimits::default())?;
        let line =
            |line: &str| line.split_once('\t').map(|(commit, name)| (name.to_owned(), commit.to_owned()));
        Ok(listed.lines().filter_map(line).filter(|(_, commit)| GitSource::is_commit(commit)).collect())
    }

    /// Fetches a commit, and writes its files.
    pub(super) fn fetch(
        &self,
        repository: &GitSource,
        commit: &str,
        (place, room): (&Path, &RoomLimit),
    ) -> Result<()> {
        let limits = CallLimits { silence: Some(SILENT), room: Some(room) };
        self.fetch_within((TO_FETCH, limits), repository, commit, place)?;
        let limits = CallLimits { room: Some(room), ..CallLimits::default() };
        check_out((TO_CHECK_OUT, limits), repository, commit, place)
    }

    fn fetch_within(
        &self,
        (seconds, limits): (u32, CallLimits<'_>),
        repository: &GitSource,
        commit: &str,
        place: &Path,
    ) -> Result<()> {
        let mut init = in_place(Command::new("git"), place);
        init.args(["init", "-q", "--template=", "--object-format"]);
        init.args([if commit.len() == 40 { "sha1" } else { "sha256" }, "."]);
        run(init, repository, CallLimits::default())?;
        let mut fetch = self.for_server(in_place(git_within(seconds), place), repository)?;
        fetch.args(["fetch", "--progress", "--depth=1", "--no-tags", "--no-write-fetch-head", "--"]);
        fetch.args([&*repository.address, commit]);
        run(fetch, repository, limits)?;
        let mut origin = in_place(Command::new("git"), place);
        origin.args(["config", "remote.origin.url", &repository.shown()]);
        run(origin, repository, CallLimits::default()).map(drop)
    }

    /// A call that reaches the server, by the address's own transport only.
    fn for_server(&self, mut command: Command, repository: &GitSource) -> Result<Command> {
        command.env("GIT_ALLOW_PROTOCOL", repository.transport().name());
        if repository.transport() == Transport::Ssh {
            let agent = self.agent.as_deref().ok_or_else(|| {
                Fault::new(format!("{}: no ssh agent is given", repository.shown())).hint(
                    "skiff build --ssh default lets the Dockerfile use yours; or clone the repository, and COPY it",
                )
            })?;
            command.env("SSH_AUTH_SOCK", agent).env("GIT_SSH_COMMAND", SSH);
        }
        Ok(command)
    }
}

/// Writes the files of a commit that was fetched.
fn check_out(
    (seconds, limits): (u32, CallLimits<'_>),
    repository: &GitSource,
    commit: &str,
    place: &Path,
) -> Result<()> {
    let mut checkout = in_place(git_within(seconds), place);
    checkout.args(["-c", "advice.detachedHead=false", "checkout", "-q", "--detach", commit]);
    run(checkout, repository, limits).map(drop)
}

/// Prepares a call of git in the repository that lies in this directory.
fn in_place(mut command: Command, place: &Path) -> Command {
    command.current_dir(place);
    with_settings(command, ".git")
}

/// A call of git that is ended when it takes longer.
fn git_within(seconds: u32) -> Command {
    let mut timeout = Command::new("timeout");
    timeout.args(["-k", "5", &seconds.to_string(), "git"]);
    timeout
}

/// Prepares a call of git that reaches no server, in this repository. Settings of the host and the user do not count: they may name programs.
fn with_settings(mut command: Command, repository: &str) -> Command {
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in PASSED {
        // Not those of whoever calls inside an environment: what is run here is the host's.
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // Passwords are kept in the user's home, too.
    command.env("HOME", "/nonexistent").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command.env("GIT_DIR", repository).env("GIT_CEILING_DIRECTORIES", "/").env("LC_ALL", "C");
    // A proxy's program of any settings would count for more than one on the command line, but not for more than this.
    command.env("GIT_PROXY_COMMAND", "").env("GIT_ALLOW_PROTOCOL", "");
    // Nobody is asked for a password.
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ASKPASS", "").envs(SLOWEST);
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    // `timeout` hands SIGTERM on to git and all that git has started.
    end_with_caller(&mut command);
    command
}

/// What it says on its standard output; ended where it says nothing at all for too long, or leaves no room.
fn run(mut command: Command, repository: &GitSource, limits: CallLimits<'_>) -> Result<String> {
    let about = || format!("{}: git", repository.shown());
    let missing = |what: &str| {
        Fault::new(format!("{}: {what} is not on this host", repository.shown()))
            .hint("clone the repository elsewhere, and COPY it")
    };
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|e| match e.kind() {
        ErrorKind::NotFound => missing(&program),
        _ => Fault::new(format!("{}: {e}", about())),
    })?;
    let heard = hear(&mut child, limits).context(about)?;
    let status = child.wait().context(about)?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&heard.said).into_owned());
    }
    if let Some(reason) = heard.ended {
        return Err(heard.fault(reason, limits, &about()));
    }
    match status.code() {
        Some(NO_GIT) => return Err(missing("git")),
        Some(TOO_LATE) => return Err(Fault::new(format!("{}: not done in time", about()))),
        _ => {}
    }
    let complained = String::from_utf8_lossy(&heard.complained);
    // Progress is written over itself.
    let mut lines = complained.rsplit(['\n', '\r']);
    let why = lines.find(|line| !line.trim().is_empty()).unwrap_or("it failed");
    let fault = Fault::new(format!("{}: {}", about(), why.chars().take(300).collect::<String>()));
    Err(match repository.transport() {
        Transport::Ssh => fault.hint("see whether ssh reaches the host without asking anything"),
        Transport::Https | Transport::Git => {
            fault.hint("no password of yours is used for it: what needs one can be cloned and copied")
        }
    })
}

/// Why a program was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    Silent,
    NoRoom,
}

/// What git has said.
#[derive(Default)]
struct Heard {
    /// On standard output: the beginning.
    said: Vec<u8>,
    /// On standard error: the end.
    complained: Vec<u8>,
    /// Whether files come.
    is_receiving: bool,
    /// Why it was told to end.
    ended: Option<EndReason>,
    /// Whether it did not end then.
    was_killed: bool,
}

impl Heard {
    fn add(&mut self, is_said: bool, bytes: &[u8]) {
        if is_said {
            let room = MOST.saturating_sub(self.said.len());
            self.said.extend(&bytes[..bytes.len().min(room)]);
        } else {
            self.complained.extend(bytes);
            let has = |begin: &&[u8]| self.complained.windows(begin.len()).any(|part| part == *begin);
            self.is_receiving = self.is_receiving || RECEIVING.iter().any(has);
            let excess = self.complained.len().saturating_sub(MOST_ERRORS);
            self.complained.drain(..excess);
        }
    }

    /// How long it may say nothing now, or go on if it was told to end; nothing if there is no limit.
    fn patience(&self, limits: CallLimits<'_>) -> Option<Duration> {
        match self.ended {
            Some(_) => Some(limits.silence.unwrap_or(SILENT).to_end),
            None => limits.silence.map(|limit| self.silence_limit(limit)),
        }
    }

    fn silence_limit(&self, limit: SilenceLimit) -> Duration {
        if self.is_receiving { limit.silent } else { limit.searching }
    }

    /// What to say of a program that was told to end.
    fn fault(&self, reason: EndReason, limits: CallLimits<'_>, about: &str) -> Fault {
        match reason {
            EndReason::NoRoom => Fault::new(format!("{about}: no room for the repository's files")).hint(
                "git gets half of what is free where Skiff keeps your builds; free some, or clone the repository elsewhere",
            ),
            EndReason::Silent => {
                let seconds = self.silence_limit(limits.silence.unwrap_or(SILENT)).as_secs();
                let killed = if self.was_killed { ", and had to be killed" } else { "" };
                Fault::new(format!("{about} reported no progress for {seconds} s{killed}"))
            }
        }
    }
}

/// Reads what git says until it closes both. What nobody reads any more it could not write.
fn hear(child: &mut Child, limits: CallLimits<'_>) -> std::io::Result<Heard> {
    let mut heard = Heard::default();
    let said = child.stdout.take().map(OwnedFd::from).map(|pipe| (true, pipe));
    let mut pipes: Vec<_> = said.into_iter().collect();
    pipes.extend(child.stderr.take().map(OwnedFd::from).map(|pipe| (false, pipe)));
    // When git last said something, or was told to end.
    let mut since = Instant::now();
    while !pipes.is_empty() {
        let left = heard.patience(limits).map(|patience| patience.saturating_sub(since.elapsed()));
        let room = limits.room.filter(|_| heard.ended.is_none());
        let ready = ready_pipes(&pipes, left.into_iter().chain(room.map(|_| ROOM_CHECK)).min())?;
        if ready.contains(&true) {
            read_ready(&mut pipes, &ready, &mut heard)?;
            since = if heard.ended.is_none() { Instant::now() } else { since };
        }
        let is_silent = heard.patience(limits).is_some_and(|patience| since.elapsed() >= patience);
        let has_no_room = room.map_or(Ok(false), RoomLimit::is_passed)?;
        if heard.ended.is_some() && is_silent {
            heard.was_killed = true;
            return child.kill().map(|()| heard);
        }
        if has_no_room || is_silent {
            heard.ended = Some(if has_no_room { EndReason::NoRoom } else { EndReason::Silent });
            since = Instant::now();
            end(child);
        }
    }
    Ok(heard)
}

/// Waits, so long at most, until one of these can be read; says which can.
fn ready_pipes(pipes: &[(bool, OwnedFd)], wait: Option<Duration>) -> std::io::Result<Vec<bool>> {
    let mut polled: Vec<_> = pipes.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)).collect();
    let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
    match poll(&mut polled, wait.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(polled.iter().map(|one| !one.revents().is_empty()).collect())
}

/// Reads of each pipe that can be read, and drops those that are closed.
fn read_ready(pipes: &mut Vec<(bool, OwnedFd)>, ready: &[bool], heard: &mut Heard) -> std::io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    let (mut ready, mut failed) = (ready.iter(), Ok(()));
    pipes.retain(|(is_said, pipe)| {
        if ready.next() != Some(&true) {
            return true;
        }
        match retry_on_intr(|| read(pipe, &mut piece[..])) {
            Ok(count) => {
                heard.add(*is_said, &piece[..count]);
                count > 0
            }
            Err(e) => {
                failed = Err(e.into());
                false
            }
        }
    });
    failed
}

/// Has `timeout` end git and all that git has started.
fn end(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        kill_process(pid, Signal::TERM).ignore_error("it may have ended at this moment");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_says_nothing_holds_nobody() {
        let place = tempfile::tempdir().expect("a directory");
        let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("git://{}/repository", server.local_addr().expect("bound"));
        let repository = GitSource::parse(&address).expect("one").expect("an address");
        let fetch = |seconds, silence| {
            let limits = CallLimits { silence: Some(silence), room: None };
            let fetched =
                Git::default().fetch_within((seconds, limits), &repository, &"a1".repeat(20), place.path());
            fetched.expect_err("nothing came").message
        };
        let why = fetch(1, SILENT);
        assert!(why.ends_with("git: not done in time"), "{why}");
        // That it was told to end is enough, however long that takes on a machine that is busy.
        let (searching, to_end) = (Duration::from_secs(1), Duration::from_secs(120));
        let why = fetch(TO_FETCH, SilenceLimit { searching, to_end, ..SILENT });
        assert!(why.ends_with("git reported no progress for 1 s"), "{why}");
    }

    #[test]
    fn a_server_has_longer_until_files_come() {
        let was_silent = |script: &str, limits: (u64, u64)| {
            let (searching, silent) = (Duration::from_secs(limits.0), Duration::from_secs(limits.1));
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = shell.spawn().expect("begun");
            let silence = Some(SilenceLimit { searching, silent, ..SILENT });
            let heard = hear(&mut child, CallLimits { silence, room: None }).expect("heard");
            child.wait().expect("ended");
            heard.ended == Some(EndReason::Silent)
        };
        assert!(!was_silent("echo 'remote: Enumerating objects: 9' >&2; sleep 2", (300, 1)));
        // In two pieces, as a pipe may bring it.
        let receives = r"printf Recei >&2; sleep 1; printf 'ving objects:   1%%\r' >&2; exec sleep 300";
        assert!(was_silent(receives, (200, 1)));
        assert!(was_silent("exec sleep 300", (1, 200)));
    }

    /// A repository with a commit whose only file takes five minutes to write, and that commit.
    fn slow_repository() -> (tempfile::TempDir, String) {
        let place = tempfile::tempdir().expect("a directory");
        let call = |arguments: &[&str]| {
            let mut git = in_place(Command::new("git"), place.path());
            git.args(["-c", "user.name=x", "-c", "user.email=x@example.org"]).args(arguments);
            let done = git.output().expect("begun");
            assert!(done.status.success(), "{arguments:?}: {done:?}");
            String::from_utf8(done.stdout).expect("text").trim().to_owned()
        };
        for (name, text) in [(".gitattributes", "slow filter=slow"), ("slow", "x")] {
            std::fs::write(place.path().join(name), text).expect("a file");
        }
        call(&["init", "-q"]);
        call(&["add", "."]);
        call(&["commit", "-qm", "x"]);
        let commit = call(&["rev-parse", "HEAD"]);
        call(&["rm", "-q", "-r", "."]);
        call(&["update-ref", "-d", "HEAD"]);
        call(&["config", "filter.slow.smudge", "sleep 300"]);
        (place, commit)
    }

    #[test]
    fn files_that_take_long_or_too_much_room_end_the_build() {
        let repository = GitSource::parse("git://example.org/x").expect("one").expect("an address");
        let why = |seconds, limits| {
            let (place, commit) = slow_repository();
            check_out((seconds, limits), &repository, &commit, place.path()).expect_err("slow").message
        };
        let late = why(1, CallLimits::default());
        assert!(late.ends_with("git: not done in time"), "{late}");
        let room = RoomLimit::of_nothing();
        let full = why(TO_CHECK_OUT, CallLimits { room: Some(&room), ..CallLimits::default() });
        assert!(full.ends_with("git: no room for the repository's files"), "{full}");
    }
}
