//! A command of Skiff's own that was called inside. It runs outside as if it had been called there: what steers it is the user's login, and
//! not what somebody inside has set.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Mode, access, stat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, getuid, setrlimit, umask};
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::{Failed, SpawnAttr, as_we_are};
use skiff_spec::caller::{CALLED_FROM, CALLED_INSIDE, FOR_CALLER, OF_CALLER, ONLY_INSIDE};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::process::Child;
use skiff_sys::signal::SignalMask;
use skiff_user::context::UserContext;

use crate::proxy::words::{CommandRequest, DirectoryId, OURSELVES};

/// This very program, whatever has come into the place of its file since.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// What srun and sbatch need of Skiff, and so is answered wherever these are: what a job carries.
const SUBMIT: [&[u8]; 3] = [OURSELVES.as_bytes(), b"slurm", b"submit"];

/// The commands that do so.
const SUBMITTERS: [&str; 3] = ["srun", "sbatch", "salloc"];

/// What a client can send to that: one that was stopped would keep its locks.
const ENDING: [Signal; 3] = [Signal::HUP, Signal::INT, Signal::TERM];

/// Whether a client has a signal passed on.
pub fn passes(request: &CommandRequest, signal: &Signal) -> bool {
    !is_submission(request) || ENDING.contains(signal)
}

/// Whether it goes on though its caller has gone, however long it takes: it ends or removes something, which is not to be done by half.
pub fn goes_on(request: &CommandRequest) -> bool {
    let of_words = request.argv.iter().skip(1).take(2);
    of_words.into_iter().any(|word| [&b"rm"[..], b"stop", b"kill"].contains(&&word[..]))
}

/// Starts it. What it writes is open to nobody to whom the supervisor's umask or the caller's closes it, and its memory, with passwords of registries, becomes no core file.
pub fn start(
    context: &UserContext,
    environment: Option<&str>,
    request: &CommandRequest,
    attr: SpawnAttr,
) -> std::result::Result<Child, Failed> {
    let command = command(context, environment, request)?;
    let closed = umask(Mode::from_bits_truncate(u32::from(request.umask)));
    umask(closed | Mode::from_bits_truncate(u32::from(request.umask)));
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    setrlimit(Resource::Core, limit).context(|| "limit of core files")?;
    as_we_are(&command, attr, SignalMask::none())
}

fn is_submission(request: &CommandRequest) -> bool {
    request.argv.len() >= SUBMIT.len() && request.argv.iter().zip(SUBMIT).all(|(word, known)| word == known)
}

fn command(
    context: &UserContext,
    environment: Option<&str>,
    request: &CommandRequest,
) -> Result<CommandSpec> {
    let words = || request.argv.iter().map(|word| OsString::from_vec(word.clone()));
    let name = words().nth(1).unwrap_or_default();
    let env = if is_submission(request) {
        refuse_without_submitters(context)?;
        context.own_variables()
    } else {
        refuse_unlisted(context, &name)?;
        outside_variables(context, environment, request)
    };
    let cwd = PathBuf::from(OsString::from_vec(request.cwd.clone()));
    let there = is_open(&cwd, request.directory);
    if let Err(e) = there
        && is_naming_files(&name, words())
    {
        return Err(Error::new(format!("working directory {}, outside of the environment: {e}", cwd.display()))
            .hint("skiff runs outside, also when it is called inside: change to a directory that both have, as your home"));
    }
    let mut command = CommandSpec {
        argv: std::iter::once(OWN_PROGRAM.into()).chain(words().skip(1)).collect(),
        argv0: Some(if is_submission(request) { OURSELVES } else { CALLED_INSIDE }.into()),
        env,
        cwd: if there.is_ok() { cwd.clone() } else { "/".into() },
        ..CommandSpec::default()
    };
    if there.is_err() {
        command.set(ONLY_INSIDE, cwd);
    }
    Ok(command)
}

/// Whether the directory in which the caller is has this name outside, too, and is open to the user. The environment has a `/tmp` of its own,
/// and may show any directory under any name: what has the name outside may be somebody else's.
pub fn is_open(dir: &Path, inside: Option<DirectoryId>) -> rustix::io::Result<()> {
    if !dir.is_absolute() {
        return Err(Errno::NOENT);
    }
    let there = stat(dir)?;
    let is_same = match inside {
        Some(id) => id == (DirectoryId { device: there.st_dev, inode: there.st_ino }),
        // It is the environment's view of it, if it is not the environment's alone. In root's nobody else may have put anything.
        None if there.st_uid == 0 => there.st_mode & 0o022 == 0,
        None => there.st_uid == getuid().as_raw(),
    };
    match is_same {
        true => access(dir.join("."), Access::EXEC_OK),
        false => Err(Errno::NOENT),
    }
}

/// Commands that look for files from where they are called, or begin something there.
const NAMING_FILES: [&str; 12] =
    ["run", "shell", "instance", "import", "export", "app", "cluster", "cp", "build", "module", "cdi", "edf"];

/// Options that name a file, of commands that otherwise name none.
const NAMING_FILE: [&str; 2] = ["--env-file", "--password-file"];

fn is_naming_files(name: &OsStr, words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<OsString> = words.take_while(|word| word != "--").collect();
    let is_option = |word: &OsString| NAMING_FILE.iter().any(|o| word.as_bytes().starts_with(o.as_bytes()));
    NAMING_FILES.iter().any(|known| name == *known)
        || (name == "env" && words.get(2).is_some_and(|word| word == "create"))
        || words.iter().any(is_option)
}

fn refuse_unlisted(context: &UserContext, name: &OsStr) -> Result<()> {
    match context.config.inside.commands.iter().any(|listed| name == listed.as_str()) {
        true => Ok(()),
        false => Err(Error::new(format!(
            "skiff {}: not among the commands that can be called inside an environment",
            name.display()
        ))
        .hint("call it outside; the site lists the others as `inside.commands` in its configuration")),
    }
}

/// A submission takes a snapshot and may pull an image, for commands that the site may not have listed.
fn refuse_without_submitters(context: &UserContext) -> Result<()> {
    let is_one = |command: &String| {
        Path::new(command).file_name().is_some_and(|name| SUBMITTERS.iter().any(|known| name == *known))
    };
    match context.config.slurm.commands.iter().any(is_one) {
        true => Ok(()),
        false => Err(Error::new(
            "skiff slurm submit: no command of Slurm's that submits jobs can be called inside an environment",
        )
        .hint(
            "submit outside; the site lists srun, sbatch and salloc as `slurm.commands` in its configuration",
        )),
    }
}

/// What a command gets to hear of its caller's variables: what the caller's terminal and language are, which job it is in, and how the network
/// and registries are reached. None of them names a program that the command starts.
const HEARD: [&str; 38] = [
    "ALL_PROXY",
    "COLORTERM",
    "DOCKER_CONFIG",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "JOB_ID",
    "LANG",
    "LANGUAGE",
    "LSB_DJOB_HOSTFILE",
    "LSB_HOSTS",
    "LSB_JOBID",
    "LSB_MCPU_HOSTS",
    "NO_COLOR",
    "NO_PROXY",
    "PBS_JOBID",
    "PBS_NODEFILE",
    "PBS_O_HOST",
    "PE_HOSTFILE",
    "REGISTRY_AUTH_FILE",
    "SGE_O_HOST",
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOBID",
    "SLURM_NNODES",
    "SLURM_NODELIST",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_STEP_ID",
    "SLURM_SUBMIT_DIR",
    "SLURM_SUBMIT_HOST",
    "SLURM_TASKS_PER_NODE",
    "SSH_AUTH_SOCK",
    "TERM",
    "TZ",
    "all_proxy",
    "ftp_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// How the names of further ones begin.
const HEARD_GROUPS: [&[u8]; 2] = [b"LC_", b"SLURM_JOB_"];

/// What sshd has told the supervisor of the session that it was started in.
const OF_LOGIN: [&str; 4] = ["SSH_CLIENT", "SSH_CONNECTION", "SSH_ORIGINAL_COMMAND", "SSH_TTY"];

/// A language that is a path is a file of the caller's, and no language.
const LANGUAGES: [&[u8]; 2] = [b"LANG", b"LC_"];

fn is_heard(name: &OsStr, value: &OsStr) -> bool {
    let is_group = |begins: &[&[u8]]| begins.iter().any(|begin| name.as_bytes().starts_with(begin));
    let is_path = is_group(&LANGUAGES) && value.as_bytes().contains(&b'/');
    !is_path && (HEARD.iter().any(|heard| name == *heard) || is_group(&HEARD_GROUPS))
}

/// The variables of a command that is called inside: the supervisor's, but for what is heard of the caller. All of the caller's go along
/// under other names, for what the command starts.
fn outside_variables(
    context: &UserContext,
    environment: Option<&str>,
    request: &CommandRequest,
) -> Vec<(OsString, OsString)> {
    let is_login = |name: &OsStr| OF_LOGIN.iter().any(|known| name == *known);
    let nothing = OsStr::new("");
    let ours =
        context.own_variables().into_iter().filter(|(name, _)| !is_heard(name, nothing) && !is_login(name));
    let theirs = request.variables();
    let heard = theirs.clone().into_iter().filter(|(name, value)| is_heard(name, value));
    let mut command = CommandSpec { env: ours.chain(heard).collect(), ..CommandSpec::default() };
    let user = context.user();
    let of_user = [("USER", user.clone()), ("LOGNAME", user), ("HOME", context.home.display().to_string())];
    let as_user = of_user.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let is_users = |name: &OsStr| of_user.iter().any(|(known, _)| name == *known);
    let kept = theirs.into_iter().filter(|(name, _)| !is_users(name) && !name.is_empty());
    for (name, value) in kept.chain(as_user) {
        command.env.push(([OsStr::new(OF_CALLER), &name].into_iter().collect(), value));
    }
    command.set(FOR_CALLER, "1");
    environment.into_iter().for_each(|name| command.set(CALLED_FROM, name));
    command.env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_programs_outside_is_not_heard_of_a_caller() {
        let steering = "PATH HOME USER SHELL TMPDIR LD_PRELOAD LD_LIBRARY_PATH BASH_ENV ENV EDITOR SLURM_CONF SLURM_EPILOG SLURM_PROLOG \
                        SSH_ASKPASS SKIFF_HELPER SKIFF_STATE SKIFF_CALLED_FROM SLURM_SKIFF_X XDG_CONFIG_HOME XDG_RUNTIME_DIR PYTHONPATH \
                        CONTAINERS_REGISTRIES_CONF GCONV_PATH IFS SSL_CERT_FILE";
        for name in steering.split_whitespace() {
            assert!(!is_heard(OsStr::new(name), OsStr::new("x")), "{name}");
        }
        for name in ["TERM", "LC_ALL", "SLURM_JOB_ID", "HTTPS_PROXY", "https_proxy"] {
            assert!(is_heard(OsStr::new(name), OsStr::new("en_GB")), "{name}");
        }
        assert!(!is_heard(OsStr::new("LANGUAGE"), OsStr::new("../../home/alice/evil")));
        assert!(!is_heard(OsStr::new("LC_ALL"), OsStr::new("/home/alice/evil")));
    }
}
