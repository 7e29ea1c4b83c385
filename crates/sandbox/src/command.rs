//! A command to run inside, and how it is found there.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::thread::CapabilitySet;
use skiff_spec::caller::{FOR_CALLER, OF_CALLER};
use skiff_spec::limit::ResourceLimit;
use skiff_sys::{IgnoreError, caps, process, seccomp};

use crate::limits;
use crate::module_variables;
use crate::mounts::{open_dir, resolve};
use crate::user::Account;

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandSpec {
    /// The program as typed (searched for in the `PATH` of `env` unless it has a slash) and its arguments.
    pub argv: Vec<OsString>,
    /// If set, what the program gets to see as its own name (`-bash` for a login shell).
    pub argv0: Option<OsString>,
    /// All its environment variables.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts.
    pub cwd: PathBuf,
    /// Whether it fails if that is not there inside. Otherwise it starts in the home or `/`, and the user is told.
    pub only_there: bool,
    /// Whom root inside becomes first, as `USER[:GROUP]`: someone whom the root itself knows.
    pub user: Option<String>,
    /// Whether it gets no descriptor of its maker's but the standard ones.
    pub close_descriptors: bool,
    /// Whether it gets no system call filter, which costs each of its calls something. Where a program runs as the user, that only.
    pub unfiltered: bool,
    /// Whether nobody trusts the program: it keeps no capability, and fewer system calls. Such a one is only run as root inside: who runs
    /// as the user has power over the environment's namespaces, since the user has made them.
    pub untrusted: bool,
    /// The user and group ids by which root inside knows itself, without any capability, in a user namespace of its own.
    pub seen_as: Option<[u32; 2]>,
    /// The resource limits that it gets, each of a kind of its own; those of its maker where there is none.
    pub limits: Vec<ResourceLimit>,
}

/// Why a command was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// The user that it was to run as is not known, or has no id inside.
    User(io::Error),
    /// The directory that it was to start in cannot be entered.
    Directory(io::Error),
    /// The program cannot be executed.
    Program(io::Error),
    /// The program cannot be kept from its maker's descriptors, or confined as untrusted.
    Untrusted(io::Error),
    /// The program cannot have the resource limits that it was to get.
    Limits(io::Error),
}

/// Where programs are where nobody says so.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The loader of dynamic programs, its list, and the C library where Debian and where Red Hat have it.
#[cfg(target_arch = "x86_64")]
const LOADED: [&str; 4] =
    ["lib64/ld-linux-x86-64.so.2", "etc/ld.so.cache", "lib/x86_64-linux-gnu/libc.so.6", "lib64/libc.so.6"];
#[cfg(not(target_arch = "x86_64"))]
const LOADED: [&str; 2] = ["etc/ld.so.cache", "lib64/libc.so.6"];

impl NotStarted {
    /// For whoever waits outside.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 5] {
        let (kind, e) = match self {
            Self::User(e) => (b'u', e),
            Self::Directory(e) => (b'd', e),
            Self::Program(e) => (b'p', e),
            Self::Untrusted(e) => (b'c', e),
            Self::Limits(e) => (b'l', e),
        };
        let [a, b, c, d] = e.raw_os_error().unwrap_or(0).to_le_bytes();
        [kind, a, b, c, d]
    }

    /// From these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, errno) = bytes.split_first()?;
        let e = io::Error::from_raw_os_error(i32::from_le_bytes(errno.try_into().ok()?));
        match kind {
            b'u' => Some(Self::User(e)),
            b'd' => Some(Self::Directory(e)),
            b'p' => Some(Self::Program(e)),
            b'c' => Some(Self::Untrusted(e)),
            b'l' => Some(Self::Limits(e)),
            _ => None,
        }
    }

    /// The exit code for it: as shells give it for the program, our own for the rest.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::User(_) | Self::Directory(_) | Self::Untrusted(_) | Self::Limits(_) => 125,
            Self::Program(e) => exit_code(e),
        }
    }
}

impl CommandSpec {
    /// The value of a variable of its environment.
    #[must_use]
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.as_os_str())
    }

    /// Sets a variable of its environment.
    pub fn set(&mut self, name: impl AsRef<OsStr>, value: impl Into<OsString>) {
        let name = name.as_ref();
        self.env.retain(|(n, _)| n != name);
        self.env.push((name.into(), value.into()));
    }

    /// Goes to its directory and becomes the program. Returns only if that fails: the errno, as `execve` or the search
    /// gave it. To be called in the environment, all privilege gone.
    pub fn exec(&self) -> NotStarted {
        if let Some(env) = module_variables::settled(&self.env) {
            return Self { env, ..self.clone() }.exec();
        }
        if let Some(user) = &self.user {
            return match Account::find(user).and_then(|account| account.enter().map(|()| account)) {
                Ok(account) => self.of(&account).exec(),
                Err(e) => NotStarted::User(e),
            };
        }
        if let Err(e) = self.enter_directory() {
            return NotStarted::Directory(e.into());
        }
        if let Err(e) = self.confine() {
            return NotStarted::Untrusted(e);
        }
        // Last: what was needed until here might have been beyond them.
        match limits::apply(&self.limits) {
            Ok(()) => NotStarted::Program(self.become_program()),
            Err(e) => NotStarted::Limits(e),
        }
    }

    /// Takes from this process what its program is not to have, or no program that nobody trusts. What it loses here no exec brings back: it has
    /// `no_new_privs`, as all programs inside.
    fn confine(&self) -> io::Result<()> {
        if self.close_descriptors {
            process::close_on_exec_from(3)?;
        }
        match self.seen_as {
            Some([uid, gid]) => unshare_user(uid, gid)?,
            None if self.untrusted => {}
            None => return Ok(()),
        }
        caps::set_to(CapabilitySet::empty())?;
        if self.untrusted { seccomp::load_untrusted() } else { Ok(()) }
    }

    /// The same for one who is that by now, with what is so often asked for in variables.
    fn of(&self, account: &Account) -> Self {
        let mut command = Self { user: None, ..self.clone() };
        for (name, value) in [("HOME", &account.home), ("USER", &account.name), ("LOGNAME", &account.name)] {
            if self.var(name).is_none() {
                command.set(name, value);
            }
        }
        command
    }

    fn enter_directory(&self) -> rustix::io::Result<()> {
        use rustix::process::chdir;
        match chdir(&self.cwd) {
            Err(e) if !self.only_there => {
                let home = self.var("HOME").map_or(Path::new("/"), Path::new);
                let place = chdir(home).map(|()| home).or_else(|_| chdir("/").map(|()| Path::new("/")))?;
                self.tell_directory(e, place);
                Ok(())
            }
            entered => entered,
        }
    }

    /// Says that it starts elsewhere. One task of a step speaks for all on its node.
    fn tell_directory(&self, why: rustix::io::Errno, place: &Path) {
        if self.var("SLURM_LOCALID").is_none_or(|id| id == "0") {
            let (cwd, place) = (self.cwd.display(), place.display());
            let text = format!("skiff: working directory {cwd}: {why}; starting in {place}\n");
            rustix::io::write(rustix::stdio::stderr(), text.as_bytes())
                .ignore_error("without standard error there is nobody to tell");
        }
    }

    fn become_program(&self) -> io::Error {
        let Some(name) = self.argv.first() else { return rustix::io::Errno::INVAL.into() };
        let c = |s: &OsStr| CString::new(s.as_bytes()).ok();
        let shown = self.argv0.as_ref().unwrap_or(name);
        let argv: Vec<_> = std::iter::once(shown).chain(&self.argv[1..]).filter_map(|a| c(a)).collect();
        let envp: Vec<_> = self
            .env
            .iter()
            .filter_map(|(n, v)| CString::new([n.as_bytes(), b"=", v.as_bytes()].concat()).ok())
            .collect();
        let mut last: io::Error = rustix::io::Errno::NOENT.into();
        for path in self.candidates(name) {
            let e = process::exec(path.as_os_str(), &argv, &envp);
            // What sh does with a script that has no `#!` line.
            if e.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) {
                // It has just been executed, so there is no zero byte in it.
                let script = [c"sh".to_owned(), c(path.as_os_str()).unwrap_or_default()];
                let argv: Vec<_> = script.into_iter().chain(argv.iter().skip(1).cloned()).collect();
                return process::exec(OsStr::new("/bin/sh"), &argv, &envp);
            }
            // A name found but not allowed is the more telling answer than one not found further along.
            if e.kind() != io::ErrorKind::NotFound && e.kind() != io::ErrorKind::NotADirectory {
                last = e;
            }
        }
        last
    }

    /// Looks up, in a root that is to be `/`, what the kernel and the loader will: the program, and what most are loaded with. Nothing
    /// depends on it, nor on anything being there.
    pub(crate) fn look_ahead(&self, root: &Path) {
        let Ok(root) = open_dir(CWD, root) else { return };
        let found = |path: &Path| resolve(root.as_fd(), path.strip_prefix("/").unwrap_or(path)).is_ok();
        if let Some(name) = self.argv.first() {
            self.candidates(name).iter().any(|path| found(path));
        }
        for path in LOADED {
            found(Path::new(path));
        }
    }

    fn candidates(&self, name: &OsStr) -> Vec<PathBuf> {
        if name.as_bytes().contains(&b'/') {
            return vec![PathBuf::from(name)];
        }
        let path = self.var("PATH").unwrap_or(OsStr::new(DEFAULT_PATH));
        std::env::split_paths(path)
            .map(|dir| if dir.as_os_str().is_empty() { ".".into() } else { dir }.join(name))
            .collect()
    }
}

/// Moves this process into a new user namespace, in which its ids are these.
fn unshare_user(uid: u32, gid: u32) -> io::Result<()> {
    let (own_uid, own_gid) = (rustix::process::geteuid(), rustix::process::getegid());
    process::unshare_user()?;
    let write = |file: &str, text: String| std::fs::write(format!("/proc/self/{file}"), text);
    // Without that nobody may map a group: user_namespaces(7).
    write("setgroups", "deny".into())?;
    write("gid_map", format!("{gid} {own_gid} 1"))?;
    write("uid_map", format!("{uid} {own_uid} 1"))
}

/// The exit code for a command that could not be started, as shells give it.
#[must_use]
pub fn exit_code(e: &io::Error) -> i32 {
    match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => 127,
        _ => 126,
    }
}

/// This process's own arguments from the `n`th on, whatever bytes they are.
#[must_use]
pub fn own_args(n: usize) -> Vec<OsString> {
    std::env::args_os().skip(n).collect()
}

/// The variables of whoever has called this process: its own, or those of the caller inside for whom it runs.
#[must_use]
pub fn own_env() -> Vec<(OsString, OsString)> {
    if std::env::var_os(FOR_CALLER).is_none() {
        return std::env::vars_os().collect();
    }
    let of_caller = |(name, value): (OsString, OsString)| {
        let name = name.as_bytes().strip_prefix(OF_CALLER.as_bytes())?;
        Some((OsStr::from_bytes(name).to_owned(), value))
    };
    std::env::vars_os().filter_map(of_caller).collect()
}

/// The caller's variable of this name.
#[must_use]
pub fn own_variable(name: &OsStr) -> Option<OsString> {
    match std::env::var_os(FOR_CALLER) {
        Some(_) => std::env::var_os([OsStr::new(OF_CALLER), name].into_iter().collect::<OsString>()),
        None => std::env::var_os(name),
    }
}

/// Bytes as a string of the system.
#[must_use]
pub fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_come_back_as_they_went() {
        for (why, code) in [
            (NotStarted::User(io::Error::from_raw_os_error(22)), 125),
            (NotStarted::Directory(io::Error::from_raw_os_error(2)), 125),
            (NotStarted::Program(io::Error::from_raw_os_error(2)), 127),
            (NotStarted::Program(io::Error::from_raw_os_error(13)), 126),
            (NotStarted::Untrusted(io::Error::from_raw_os_error(1)), 125),
            (NotStarted::Limits(io::Error::from_raw_os_error(1)), 125),
        ] {
            let back = NotStarted::from_bytes(&why.to_bytes()).expect("as encoded");
            assert_eq!((back.to_bytes(), back.exit_code()), (why.to_bytes(), code));
        }
        for bad in [&b""[..], b"p", b"d\0\0\0", b"p\0\0\0\0\0", b"x\0\0\0\0"] {
            assert!(NotStarted::from_bytes(bad).is_none(), "{bad:?}");
        }
    }
}
