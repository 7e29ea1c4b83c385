//! How `git` is called: with a clean environment, so that neither the user's settings nor a stranger's files have a say.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use super::{Git, GitSource, Transport};

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
const SLOWEST: [(&str, &str); 2] = [("GIT_HTTP_LOW_SPEED_LIMIT", "1"), ("GIT_HTTP_LOW_SPEED_TIME", "60")];
/// `ssh` asks nobody anything, and hands on nothing that is the user's, whatever the user's own settings are.
const SSH: &str = "ssh -o BatchMode=yes -o ForwardAgent=no -o ClearAllForwardings=yes -o PermitLocalCommand=no -o ConnectTimeout=30";
/// Settings against those of the host: nothing is run but git, no password is looked up, nothing of other repositories is fetched.
const SETTINGS: [&str; 7] = [
    "credential.helper=",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
];
/// More than this a server does not list, in bytes; and more of its complaints is not read.
const MOST: u64 = 16 << 20;
const MOST_ERRORS: u64 = 64 << 10;

impl Git {
    /// Which of these names the server has, with their commits.
    pub(super) fn list(&self, repository: &GitSource, names: &[String]) -> Result<BTreeMap<String, String>> {
        let mut command = self.for_server(repository)?;
        command.args(["ls-remote", "-q", "--", &repository.address]).args(names);
        let listed = run(command, repository)?;
        let line =
            |line: &str| line.split_once('\t').map(|(commit, name)| (name.to_owned(), commit.to_owned()));
        Ok(listed.lines().filter_map(line).filter(|(_, commit)| GitSource::is_commit(commit)).collect())
    }

    /// Fetches a commit, and writes its files.
    pub(super) fn fetch(&self, repository: &GitSource, commit: &str, place: &Path) -> Result<()> {
        let in_place = |mut command: Command| {
            command.arg("-C").arg(place);
            command
        };
        let mut init = in_place(alone());
        init.args(["init", "-q", "--template=", "--object-format"]);
        init.args([if commit.len() == 40 { "sha1" } else { "sha256" }, "."]);
        run(init, repository)?;
        let mut fetch = in_place(self.for_server(repository)?);
        fetch.args(["fetch", "-q", "--depth=1", "--no-tags", "--no-write-fetch-head", "--"]);
        fetch.args([&*repository.address, commit]);
        run(fetch, repository)?;
        let mut origin = in_place(alone());
        origin.args(["config", "remote.origin.url", &repository.shown()]);
        run(origin, repository)?;
        let mut checkout = in_place(alone());
        checkout.args(["-c", "advice.detachedHead=false", "checkout", "-q", "--detach", commit]);
        run(checkout, repository).map(drop)
    }

    /// A call that reaches the server, by the address's own transport only.
    fn for_server(&self, repository: &GitSource) -> Result<Command> {
        let mut command = bare();
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

/// A call that reaches no server. The host's settings may name programs that files are passed through, so they do not count.
fn alone() -> Command {
    let mut command = bare();
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_ALLOW_PROTOCOL", "");
    command
}

fn bare() -> Command {
    let mut command = Command::new("git");
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in PASSED {
        // Not those of whoever calls inside an environment: what is run here is the host's.
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // Passwords are kept in the user's home, too.
    command.env("HOME", "/nonexistent").env("GIT_CONFIG_GLOBAL", "/dev/null").env("LC_ALL", "C");
    // Nobody is asked for a password.
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ASKPASS", "").envs(SLOWEST);
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    command
}

/// What it says on its standard output.
fn run(mut command: Command, repository: &GitSource) -> Result<String> {
    let about = || format!("{}: git", repository.shown());
    let mut child = command.spawn().map_err(|e| match e.kind() {
        ErrorKind::NotFound => Fault::new(format!("{}: git is not on this host", repository.shown()))
            .hint("clone the repository elsewhere, and COPY it"),
        _ => Fault::new(format!("{}: {e}", about())),
    })?;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let (said, complained) = std::thread::scope(|scope| {
        let complained = scope.spawn(|| read(errors, MOST_ERRORS));
        let said = read(out, MOST);
        (said, complained.join().unwrap_or_else(|_| String::new()))
    });
    let status = child.wait().context(about)?;
    if status.success() {
        return Ok(said);
    }
    let why = complained.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
    let fault = Fault::new(format!("{}: {}", about(), why.chars().take(300).collect::<String>()));
    Err(match repository.transport() {
        Transport::Ssh => fault.hint("see whether ssh reaches the host without asking anything"),
        Transport::Https | Transport::Git => {
            fault.hint("no password of yours is used for it: what needs one can be cloned and copied")
        }
    })
}

fn read(from: Option<impl Read>, most: u64) -> String {
    let mut bytes = vec![];
    if let Some(from) = from {
        from.take(most).read_to_end(&mut bytes).ignore_error("its exit status says whether it failed");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
