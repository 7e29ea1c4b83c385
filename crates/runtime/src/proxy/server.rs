//! The outer side: a process of the supervisor's for each command, which ends with it.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, ioctl_tiocsctty, kill_process_group, setsid, waitid};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use skiff_output as output;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::{Failed, SpawnAttr, as_me, as_we_are};
use skiff_sandbox::terminal;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::names;
use skiff_spec::plan::Base;
use skiff_spec::plan::inside::HOST;
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;
use skiff_sys::process::Child;
use skiff_sys::signal::{SignalMask, Signals};
use skiff_user::context::UserContext;
use skiff_user::own_place;

use crate::proxy::own;
use crate::proxy::words::{CommandRequest, CommandState, DirectoryId, LATER, OURSELVES, SHIM_DIRS, SIGNAL};

/// In what a client is.
#[derive(Clone, Copy)]
pub struct Served<'a> {
    /// The environment that jobs run in which are submitted from there; empty if none can be.
    pub environment: &'a str,
    /// Whether that is where the client is: an instance or a job is made of one, but is another.
    pub is_environment: bool,
    /// What it is over.
    pub base: Base,
}

/// Serves one client to its command's end.
pub fn serve(context: &UserContext, served: Served<'_>, init: &Child, connection: OwnedFd) -> i32 {
    match run(context, served, init, &connection) {
        Ok(()) => 0,
        Err(why) => {
            // By now our standard error is the client's.
            let code = output::failed(why);
            tell(&connection, CommandState::Exited(code));
            code
        }
    }
}

fn run(
    context: &UserContext,
    served: Served<'_>,
    init: &Child,
    connection: &OwnedFd,
) -> std::result::Result<(), Failed> {
    // The three descriptors come with the first byte.
    let (_, fds) = fdpass::receive(connection.as_fd(), 1).context(|| "request from inside")?;
    let fds = <[OwnedFd; 3]>::try_from(fds)
        .map_err(|_| Error::new("request from inside: without its descriptors"))?;
    let request = CommandRequest::read(&mut FileOf(connection)).context(|| "request from inside")?;
    let master = stand_at(&request, fds)?;
    let signals = Signals::block(&[]).context(|| "signals")?;
    let is_own = request.argv[0] == OURSELVES.as_bytes();
    let attr = SpawnAttr {
        own_group: true,
        own_session: false,
        foreground: master.is_some(),
        death_signal: Signal::KILL.as_raw(),
    };
    let child = match is_own {
        true => own::start(context, served.is_environment.then_some(served.environment), &request, attr)?,
        false => start_host_command(context, (served, init), &request, attr)?,
    };
    let started: Vec<_> = master.iter().map(AsFd::as_fd).collect();
    fdpass::send(connection.as_fd(), &CommandState::Started.encode(), &started)
        .context(|| "answer to inside")?;
    drop(master);
    let passed_on = |signal: &Signal| own::passes(&request, signal);
    let grace = (is_own && !own::goes_on(&request)).then_some(GRACE);
    Ok(accompany(&child, &signals, (connection, grace), passed_on)?)
}

/// Starts one of the host's commands: over the host's root inside, where its files are the environment's.
fn start_host_command(
    context: &UserContext,
    (served, init): (Served<'_>, &Child),
    request: &CommandRequest,
    attr: SpawnAttr,
) -> std::result::Result<Child, Failed> {
    let mut command = command(context, served.environment, request)?;
    // The helper keeps it for the command.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(u32::from(request.umask) & 0o777));
    let mask = SignalMask::none();
    // Over an image, what is of the environment's own files is nowhere outside.
    let is_images = served.base != Base::Host && request.directory.is_none();
    let is_elsewhere = is_images || own::is_open(&command.cwd, request.directory).is_err();
    // Over the host's root Slurm itself says what it cannot do in a directory that nobody has outside.
    if is_elsewhere && (is_images || request.directory.is_some()) {
        keep_from_namesake(&mut command, request.directory, &context.home);
    }
    if served.base != Base::Host {
        refuse_namesakes(context, &command)?;
        stay_outside(&mut command, is_elsewhere, context.own_variables());
        return as_we_are(&command, attr, mask);
    }
    let helper = context.helper.as_deref().ok_or_else(|| {
        Error::new(format!("{}: not without the helper", command.argv[0].display()))
            .hint("have the helper installed, or run it outside the environment")
    })?;
    let real = PathBuf::from(&command.argv[0]);
    command.argv[0] = Path::new(HOST).join(real.strip_prefix("/").unwrap_or(&real)).into();
    as_me(helper, (init.pid, false), &command, attr, mask)
}

/// Tells the client; that it is gone shows when it is waited for.
fn tell(connection: &OwnedFd, state: CommandState) {
    fdpass::send(connection.as_fd(), &state.encode(), &[])
        .ignore_error("that the client has gone shows when it is waited for");
}

/// Puts the client's descriptors in place of ours; a new terminal for those that are one. Gives that terminal's other end.
fn stand_at(request: &CommandRequest, fds: [OwnedFd; 3]) -> Result<Option<OwnedFd>> {
    let theirs = fds.iter().zip(request.terminals).find(|(_, terminal)| *terminal).map(|(fd, _)| fd);
    let pair = theirs.map(|like| new_terminal(like, request.size)).transpose().context(|| "new terminal")?;
    let dups = [rustix::stdio::dup2_stdin, rustix::stdio::dup2_stdout, rustix::stdio::dup2_stderr];
    for ((fd, terminal), dup) in fds.iter().zip(request.terminals).zip(dups) {
        let fd = if terminal { pair.as_ref().map_or(fd, |(_, slave)| slave) } else { fd };
        dup(fd).context(|| "standard descriptors")?;
    }
    Ok(pair.map(|(master, _)| master))
}

/// A terminal (master and slave) that behaves like the user's and rules our session: we lead it as a shell would, because a
/// command that led it itself could not be stopped by a key.
fn new_terminal(like: &OwnedFd, size: [u16; 2]) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (master, slave) = terminal::new_pair(size)?;
    tcsetattr(&slave, OptionalActions::Now, &tcgetattr(like)?)?;
    setsid()?;
    ioctl_tiocsctty(&slave)?;
    Ok((master, slave))
}

/// The real command, with what it needs to know of the environment it is called from.
fn command(context: &UserContext, environment: &str, request: &CommandRequest) -> Result<CommandSpec> {
    let os = |bytes: &Vec<u8>| OsString::from_vec(bytes.clone());
    let name = os(&request.argv[0]);
    let name = Path::new(&name).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let real = real_command(context, &name)?;
    let mut command = CommandSpec {
        argv: std::iter::once(real.into_os_string()).chain(request.argv[1..].iter().map(os)).collect(),
        argv0: Some(name.clone().into()),
        env: request.variables(),
        cwd: PathBuf::from(os(&request.cwd)),
        ..CommandSpec::default()
    };
    let user = context.user();
    command.set("USER", user.clone());
    command.set("LOGNAME", user);
    // Whoever named another one inside, or none, has meant it.
    if command.var(names::ENVIRONMENT).is_none() {
        command.set(names::ENVIRONMENT, environment);
    }
    Ok(command)
}

/// Variables by which a program loads code or finds its configuration, or a shell runs something first, whatever program it is.
const STEERING: [&str; 15] = [
    "BASHOPTS",
    "BASH_ENV",
    "ENV",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "LOCPATH",
    "MALLOC_TRACE",
    "NLSPATH",
    "PS4",
    "RESOLV_HOST_CONF",
    "SHELLOPTS",
    SLURM_CONF,
    "TCLLIBPATH",
];

/// Where Slurm's configuration is, and in it which plug-ins are loaded.
const SLURM_CONF: &str = "SLURM_CONF";

/// How the names of further ones begin.
const STEERING_GROUPS: [&str; 6] = ["BASH_FUNC_", "LD_", "LUA_", "PERL", "PYTHON", "RUBY"];

fn is_steering(name: &OsStr) -> bool {
    STEERING.iter().any(|known| name == *known)
        || STEERING_GROUPS.iter().any(|begin| name.as_bytes().starts_with(begin.as_bytes()))
}

/// Over an image the host's programs find nothing of what they need inside. They run on the host then; what they are given there are
/// the environment's directory and variables all the same, for jobs. Those that steer the program itself are kept from it: the site may have
/// listed only commands that run nothing of their caller's (`squeue`). `own` are the supervisor's.
fn stay_outside(command: &mut CommandSpec, is_elsewhere: bool, own: Vec<(OsString, OsString)>) {
    command.set("PWD", command.cwd.clone());
    if is_elsewhere {
        // Nobody but root has files there.
        command.cwd = "/".into();
    }
    for (name, _) in &mut command.env {
        if is_steering(name) {
            *name = [OsStr::new(LATER), name].into_iter().collect();
        }
    }
    command.env.extend(own.into_iter().filter(|(name, _)| name == SLURM_CONF));
}

/// Commands that are given files, which over an image they open on the host.
const READING: [&str; 2] = ["sbatch", "sbcast"];

/// Refuses another user's files that have the name of the caller's, such as a script in `/tmp`.
fn refuse_namesakes(context: &UserContext, command: &CommandSpec) -> Result<()> {
    let name = command.argv0.clone().unwrap_or_default();
    if !READING.iter().any(|known| name == *known) {
        return Ok(());
    }
    let is_anothers = |path: &Path| {
        let owner = path.symlink_metadata().map(|found| found.uid());
        owner.is_ok_and(|uid| uid != context.uid) && own_place::of(&context.config, path).is_some()
    };
    match command.argv[1..].iter().map(Path::new).find(|path| path.is_absolute() && is_anothers(path)) {
        None => Ok(()),
        Some(path) => Err(Error::new(format!("{}: on the host this is another user's file", path.display()))
            .hint("the environment has a /tmp of its own: copy the file to your home first")),
    }
}

/// What has the name of the caller's directory on the host or on a node may be a neighbour's: a script that is named without a path would be
/// theirs, and the job's output would go where a link of theirs leads. So Slurm gets the home in its place. A directory that is in the
/// environment's own files is where the job's tasks go on to; its `/tmp` does not come along.
fn keep_from_namesake(command: &mut CommandSpec, directory: Option<DirectoryId>, home: &Path) {
    let cwd = command.cwd.clone();
    if directory.is_none() {
        command.set(names::INNER_DIR, cwd.clone());
    }
    if command.argv0.as_deref() == Some(OsStr::new("sbatch")) {
        // The first one: what the caller says counts more.
        if !says_where_output_goes(&command.argv) {
            output::note(&format!(
                "working directory {} is only in the environment: the job's output goes to {}",
                cwd.display(),
                home.display()
            ));
        }
        command.argv.insert(1, [OsStr::new("--chdir="), home.as_os_str()].into_iter().collect());
    } else if command.var(names::WORKING_DIR).is_none() {
        command.set(names::WORKING_DIR, home);
    }
}

/// Whether sbatch is told of a place for the output that does not depend on the working directory, or of such a directory.
fn says_where_output_goes(words: &[OsString]) -> bool {
    const BEGINNINGS: [&[u8]; 4] = [b"-o", b"--output", b"-D", b"--chdir"];
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    words.iter().enumerate().any(|(at, word)| {
        let value = BEGINNINGS.iter().find_map(|option| word.strip_prefix(*option));
        match value {
            Some([]) => words.get(at + 1).is_some_and(|next| next.starts_with(b"/")),
            Some(value) => value.strip_prefix(b"=").unwrap_or(value).starts_with(b"/"),
            None => false,
        }
    })
}

/// The host's own program.
fn real_command(context: &UserContext, name: &str) -> Result<PathBuf> {
    let refused = || {
        Error::new(format!("{name}: not among the host's commands"))
            .hint("`slurm.commands` in the configuration lists them")
    };
    let listed =
        context.config.slurm.commands.iter().find(|c| Path::new(c).file_name().is_some_and(|f| f == name));
    let listed = Path::new(listed.ok_or_else(refused)?);
    let places = SHIM_DIRS.iter().map(|dir| Path::new(dir).join(name));
    let path = if listed.is_absolute() {
        Some(listed.to_path_buf())
    } else {
        places.into_iter().find(|p| p.exists())
    };
    path.ok_or_else(|| Error::new(format!("{name}: not installed on the host")))
}

/// How long a command of Skiff's may take to end when its client is gone: what runs by it may heed no signal. One of the host's may take as
/// long as it needs: an `srun` that was killed would leave its job running.
const GRACE: Duration = Duration::from_secs(10);

/// Waits with the command: passes on the client's signals, tells it of stops and of the end. If the client is gone, so shall
/// the command be: also one that heeds no signal, after that time of grace if there is one.
fn accompany(
    child: &Child,
    signals: &Signals,
    (connection, grace): (&OwnedFd, Option<Duration>),
    passed_on: impl Fn(&Signal) -> bool,
) -> Result<()> {
    let mut client = true;
    let mut gone_since = None;
    loop {
        let flags = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::PidFd(child.pidfd.as_fd()), flags) {
            let state = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => CommandState::Exited(code),
                (_, Some(signal)) => CommandState::Killed(signal),
                _ => CommandState::Stopped,
            };
            tell(connection, state);
            if state != CommandState::Stopped {
                return Ok(());
            }
        }
        let mut fds = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(&child.pidfd, PollFlags::IN)];
        if client {
            fds.push(PollFd::new(connection, PollFlags::IN));
        }
        let left =
            gone_since.zip(grace).map(|(since, grace): (Instant, _)| grace.saturating_sub(since.elapsed()));
        if left == Some(Duration::ZERO) {
            kill_process_group(child.pid, Signal::KILL).ignore_error("it may have ended this moment");
        }
        let limit = left.filter(|left| !left.is_zero()).and_then(|left| Timespec::try_from(left).ok());
        poll(&mut fds, limit.as_ref()).ignore_error("interrupted, all is looked at, and waited for again");
        let spoke = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
        while let Ok(Some(_)) = signals.next() {}
        if spoke {
            let mut word = [0; 2];
            let asked = match FileOf(connection).read_exact(&mut word) {
                Ok(()) if word[0] == SIGNAL => Signal::from_named_raw(i32::from(word[1])),
                _ => {
                    client = false;
                    gone_since = Some(Instant::now());
                    Some(Signal::TERM)
                }
            };
            if let Some(signal) = asked.filter(&passed_on) {
                kill_process_group(child.pid, signal).ignore_error("it may have ended this moment");
            }
            if !client {
                kill_process_group(child.pid, Signal::CONT).ignore_error("it may have ended this moment");
            }
        }
    }
}

/// A socket as a stream of bytes.
pub struct FileOf<'a>(pub &'a OwnedFd);

impl Read for FileOf<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::io::read(self.0, buffer)?)
    }
}

impl std::io::Write for FileOf<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::net::send(self.0, bytes, rustix::net::SendFlags::NOSIGNAL)?)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
