//! What makes a process that is in the container the one that the configuration describes; the last steps before its program.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fchown, fstat, openat, statat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    Gid, Uid, set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::caps::effective_all;
use skiff_sys::process::{close_on_exec_from, exec, inherited_fd, keep_on_exec};

use crate::capabilities::KeptCapabilities;
use crate::config::{self, ProcessConfig, Rlimit as Limit};
use crate::log::Log;
use crate::seccomp::SeccompFilter;

/// Where programs are looked for if the configuration says nothing.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// More than this no password file holds.
const MOST: u64 = 16 << 20;

const LIMITS: [(&str, Resource); 16] = [
    ("AS", Resource::As),
    ("CORE", Resource::Core),
    ("CPU", Resource::Cpu),
    ("DATA", Resource::Data),
    ("FSIZE", Resource::Fsize),
    ("LOCKS", Resource::Locks),
    ("MEMLOCK", Resource::Memlock),
    ("MSGQUEUE", Resource::Msgqueue),
    ("NICE", Resource::Nice),
    ("NOFILE", Resource::Nofile),
    ("NPROC", Resource::Nproc),
    ("RSS", Resource::Rss),
    ("RTPRIO", Resource::Rtprio),
    ("RTTIME", Resource::Rttime),
    ("SIGPENDING", Resource::Sigpending),
    ("STACK", Resource::Stack),
];

/// How a process begins.
pub struct ProcessSetup<'a> {
    process: &'a ProcessConfig,
    /// The variables, each once.
    variables: Vec<&'a str>,
    sets: KeptCapabilities,
    filter: Option<&'a SeccompFilter>,
    /// Descriptors of whoever has called this runtime, which the program gets.
    kept: Vec<i32>,
    /// Whether there is nobody else in the container.
    is_single: bool,
}

impl<'a> ProcessSetup<'a> {
    /// Understands a process. `kept`: so many descriptors from 3 on does the program get.
    ///
    /// # Errors
    /// When this process's descriptors cannot be listed.
    pub fn new(
        process: &'a ProcessConfig,
        filter: Option<&'a SeccompFilter>,
        kept: u32,
        is_single: bool,
        log: &Log,
    ) -> Result<Self> {
        let sets = KeptCapabilities::of(process.capabilities.as_ref(), log);
        let kept = if kept == 0 { vec![] } else { inherited(kept).context(|| "descriptors")? };
        Ok(Self { process, variables: last_values(&process.env), sets, filter, kept, is_single })
    }

    /// Sets what is set while this process still has all rights in the container.
    ///
    /// # Errors
    /// What cannot be had.
    pub fn limit(&self) -> Result<()> {
        self.process.rlimits.iter().try_for_each(set_limit)
    }

    /// Finds the program, to tell that it is missing as long as somebody listens. In the container's root.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self) -> Result<CString> {
        let name = self.process.args.first().map_or("", String::as_str);
        let path = self.variable("PATH").unwrap_or(PATH);
        let missing = |why: Errno| Fault::new(format!("process.args: {name}: {}", std::io::Error::from(why)));
        let beyond = Path::new("/").join(&self.process.cwd);
        let c_string =
            |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| missing(Errno::INVAL));
        if name.contains('/') {
            is_program(&beyond.join(name)).map_err(missing)?;
            return c_string(Path::new(name));
        }
        let mut worst = Errno::NOENT;
        for dir in path.split(':').filter(|dir| !name.is_empty() && !dir.is_empty()) {
            let at = beyond.join(dir).join(name);
            match is_program(&at) {
                Ok(()) => return c_string(&at),
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(other) => worst = other,
            }
        }
        Err(missing(worst).hint(format!("PATH is {path}")))
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find_map(|variable| variable.strip_prefix(name)?.strip_prefix('='))
    }

    /// Becomes the process's user with its rights, and then the program.
    ///
    /// # Errors
    /// Whatever keeps it from that: it returns only then.
    pub fn exec_program(&self, program: &CString, log: &Log) -> Result<Infallible> {
        let (argv, variables) = (self.arguments()?, self.environment()?);
        self.prepare(log)?;
        self.confine(log)?;
        let e = exec(OsStr::from_bytes(program.as_bytes()), &argv, &variables);
        Err(e).context(|| format!("process.args: {}", program.to_string_lossy()))
    }

    fn prepare(&self, log: &Log) -> Result<()> {
        let process = self.process;
        self.own_standard_descriptors();
        self.sets.bound()?;
        set_keep_capabilities(true).context(|| "process.capabilities")?;
        self.become_user(log)?;
        let cwd = || format!("process.cwd {}", process.cwd);
        rustix::process::chdir(&*process.cwd).context(cwd)?;
        // A link of /proc's to a descriptor of ours would lead out of the container (CVE-2024-21626 of runc).
        let real = rustix::process::getcwd(vec![]).context(cwd)?;
        if !real.to_bytes().starts_with(b"/") {
            return Err(Fault::new(format!("{}: outside of the container", cwd())));
        }
        if let Some(umask) = process.user.umask {
            rustix::process::umask(Mode::from_raw_mode(u32::from(umask & 0o777)));
        }
        skiff_sys::signal::default_action(rustix::process::Signal::PIPE.as_raw());
        close_on_exec_from(3).and_then(|()| self.keep_descriptors()).context(|| "descriptors")
    }

    fn keep_descriptors(&self) -> std::io::Result<()> {
        self.kept.iter().try_for_each(|number| {
            let fd = inherited_fd(*number)?;
            keep_on_exec(fd.as_fd())?;
            // It stays open under its number for the program.
            let _number = fd.into_raw_fd();
            Ok(())
        })
    }

    /// The filter comes as late as it can: it may refuse what this process still has to do.
    fn confine(&self, log: &Log) -> Result<()> {
        let load = || self.filter.map_or(Ok(()), SeccompFilter::load);
        if !self.process.no_new_privileges {
            // Then only whoever may administer the system can load a filter, and that is now.
            effective_all().context(|| "process.capabilities")?;
            load()?;
            return self.sets.take(log);
        }
        self.sets.take(log)?;
        set_no_new_privs(true).context(|| "process.noNewPrivileges")?;
        load()
    }

    fn become_user(&self, log: &Log) -> Result<()> {
        let config::ProcessUser { uid, gid, additional_gids, .. } = &self.process.user;
        let about = || format!("process.user {uid}:{gid}");
        let unmapped = |fault: Fault| {
            fault.hint("linux.uidMappings and gidMappings must have them, and /etc/subuid and /etc/subgid ids for you")
        };
        let groups: Vec<Gid> = additional_gids.iter().map(|gid| Gid::from_raw(*gid)).collect();
        match set_thread_groups(&groups) {
            // With one id the kernel lets nobody choose groups: the user's own stay.
            Err(Errno::PERM) if groups.is_empty() || self.is_single => {
                if !groups.is_empty() {
                    log.warn("process.user.additionalGids: with a single id there are no further groups");
                }
            }
            set => set.context(|| "process.user.additionalGids").map_err(unmapped)?,
        }
        let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
        set_thread_res_gid(gid, gid, gid).context(about).map_err(unmapped)?;
        set_thread_res_uid(uid, uid, uid).context(about).map_err(unmapped)
    }

    /// The user must be able to open `/dev/stdout` again, where it is a pipe or a terminal.
    fn own_standard_descriptors(&self) {
        let uid = Uid::from_raw(self.process.user.uid);
        for fd in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
            let is_pipe = fstat(fd).is_ok_and(|stat| {
                let is_other = stat.st_uid != uid.as_raw();
                let is_fifo = FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
                is_other && (is_fifo || rustix::termios::isatty(fd))
            });
            if is_pipe {
                fchown(fd, Some(uid), None)
                    .ignore_error("it is somebody else's, who has opened it for the container");
            }
        }
    }

    fn arguments(&self) -> Result<Vec<CString>> {
        self.process.args.iter().map(|text| c_string(text)).collect()
    }

    /// The variables as the program gets them. An empty HOME counts as none, as with runc.
    fn environment(&self) -> Result<Vec<CString>> {
        let given = self.variables.iter().filter(|variable| **variable != "HOME=");
        let mut all = given.map(|text| c_string(text)).collect::<Result<Vec<_>>>()?;
        if self.variable("HOME").is_none_or(str::is_empty) {
            all.push(c_string(&format!("HOME={}", home(self.process.user.uid)))?);
        }
        Ok(all)
    }
}

/// Of variables that are set more than once, the last setting: `exec --env` puts its own behind the container's, and programs differ in
/// which of several they take.
fn last_values(variables: &[String]) -> Vec<&str> {
    let name = |variable: &str| variable.split('=').next().map(str::to_owned);
    let mut seen = BTreeSet::new();
    let mut kept: Vec<&str> =
        variables.iter().rev().map(String::as_str).filter(|variable| seen.insert(name(variable))).collect();
    kept.reverse();
    kept
}

/// The descriptors from 3 on, so many at most, that this process was started with: those that it has opened itself are closed by an exec.
fn inherited(count: u32) -> std::io::Result<Vec<i32>> {
    let end = i32::try_from(count).unwrap_or(i32::MAX).saturating_add(3);
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc/self/fdinfo")? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(number) = number.filter(|number| (3..end).contains(number)) else { continue };
        match std::fs::read_to_string(entry.path()) {
            Ok(info) if outlives_exec(&info) => found.push(number),
            Ok(_) => {}
            // Another thread has closed it meanwhile.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// Whether an exec leaves a descriptor open, by what the kernel says of it.
fn outlives_exec(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| Fault::new(format!("process: {text:?}: has a zero in it")))
}

fn is_program(path: &Path) -> rustix::io::Result<()> {
    let stat = statat(CWD, path, AtFlags::empty())?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS),
        _ => Err(Errno::ACCESS),
    }
}

fn set_limit(limit: &Limit) -> Result<()> {
    let Limit { kind, soft, hard } = limit;
    let about = || format!("process.rlimits: {kind}");
    let name = kind.strip_prefix("RLIMIT_").unwrap_or(kind);
    let found = LIMITS.iter().find(|(known, _)| *known == name);
    let (_, resource) = found.ok_or_else(|| Fault::new(format!("{}: no such limit", about())))?;
    let bound = |limit: u64| Some(limit).filter(|limit| *limit != u64::MAX);
    setrlimit(*resource, Rlimit { current: bound(*soft), maximum: bound(*hard) }).context(about).map_err(
        |e| {
            let most = getrlimit(*resource).maximum.map_or("none".into(), |most| most.to_string());
            e.hint(format!(
                "{hard} is asked for, your hard limit is {most}: nobody without privilege can raise it"
            ))
        },
    )
}

/// The home of a user, as the container's own file says. Whatever the container has there, it is not waited for.
fn home(uid: u32) -> String {
    let mut bytes = vec![];
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(CWD, "/etc/passwd", flags, Mode::empty()).map(File::from);
    let read = file.map_err(Into::into).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    read.map(drop).ignore_error("then it is the root");
    home_in(&bytes, uid)
}

/// The home of a user in a password file. Names in it may be of any encoding.
fn home_in(passwords: &[u8], uid: u32) -> String {
    let uid = uid.to_string();
    let text = String::from_utf8_lossy(passwords);
    let line = text
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&&*uid));
    line.and_then(|fields| fields.get(5).map(|home| (*home).to_owned()))
        .filter(|home| home.starts_with('/'))
        .unwrap_or_else(|| "/".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_variables_that_are_set_twice_the_last_setting_is_used() {
        let process = |env: &[&str]| ProcessConfig {
            env: env.iter().map(|text| (*text).to_owned()).collect(),
            ..ProcessConfig::default()
        };
        let log = Log::open(None, false, false).expect("no log");
        let variables = |process: &ProcessConfig| {
            let setup = ProcessSetup::new(process, None, 0, true, &log).expect("understood");
            let all = setup.environment().expect("variables");
            let text: Vec<String> = all.iter().map(|one| one.to_string_lossy().into_owned()).collect();
            (text.join(" "), setup.variable("PATH").map(str::to_owned))
        };
        let twice = process(&["A=1", "PATH=/a", "HOME=/h", "A", "A=", "PATH=/b=c", "A=2"]);
        assert_eq!(variables(&twice), ("HOME=/h PATH=/b=c A=2".into(), Some("/b=c".into())));
        let home = format!("HOME={}", home(0));
        assert_eq!(variables(&process(&["HOME=/h", "HOME="])).0, home);
        assert_eq!(variables(&process(&["HOME=", "HOME=/h"])).0, "HOME=/h");
        assert_eq!(variables(&process(&[])).0, home);
    }

    #[test]
    fn homes_are_found_beside_names_of_other_encodings() {
        let file = b"root:x:0:0:M\xfcller:/root:/bin/sh\na:x:7:7::home:\nb:x:8:8\n";
        for (uid, home) in [(0, "/root"), (7, "/"), (8, "/"), (9, "/")] {
            assert_eq!(home_in(file, uid), home, "{uid}");
        }
    }

    #[test]
    fn descriptors_of_the_caller_are_told_from_own_ones() {
        assert!(outlives_exec("pos:\t0\nflags:\t0100002\nmnt_id:\t15\n"));
        assert!(!outlives_exec("pos:\t0\nflags:\t02100000\nmnt_id:\t15\n"));
        assert!(!outlives_exec("pos:\t0\n"));
        assert!(!inherited(1000).expect("listed").contains(&2), "a standard one");
    }
}
