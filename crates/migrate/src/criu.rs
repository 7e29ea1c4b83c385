//! CRIU as a program: where it is, and a conversation with one that runs inside an environment.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use prost::Message;
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, memfd_create, openat};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::Pid;
use skiff_sandbox::join::NetSpace;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::process::{Child, exec, keep_on_exec};

use crate::enter::{self, Inside};
use crate::rpc::{Cgroups, Features, Kind, NetworkLock, Options, Request, Response, Version};

/// The oldest that is good enough: before, it does not run on new kernels, or not without privilege.
pub const OLDEST: (i32, i32) = (4, 1);
/// Open files without a name are kept in the images up to this size, in bytes.
const GHOST_LIMIT: u32 = 1 << 30;
/// What it complains of in its log when it has no privilege on the host, though it goes on.
const HARMLESS: [&str; 2] =
    ["Can't setup RLIMIT_NOFILE for self", "net: Unexpected error: -1(Operation not permitted)"];
/// The longest message of CRIU's.
const LONGEST: usize = 64 << 10;

/// The folder that `packaging/get-criu` makes: the program with its loader and its libraries, so that it runs in any root.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
}

impl Folder {
    /// The one beside the installed program `exe` (`PREFIX/bin/skiff`), if it is there.
    #[must_use]
    pub fn beside(exe: &Path) -> Option<Self> {
        let path = exe.parent()?.parent()?.join("libexec/skiff/criu");
        path.join("criu").exists().then_some(Self { path })
    }

    fn open(&self) -> Result<OwnedFd> {
        openat(CWD, &self.path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .context(|| format!("CRIU in {}", self.path.display()))
    }
}

impl Options {
    /// What holds for every dump and restore in an environment with this network.
    #[must_use]
    pub fn usual(net: NetSpace) -> Self {
        let lock = match net {
            NetSpace::Its | NetSpace::Machine => NetworkLock::Nftables,
            // It is the host's, where no rule of ours may be made.
            NetSpace::Ours | NetSpace::MachineInOurs => NetworkLock::Skip,
        };
        Self {
            notify: Some(true),
            unprivileged: Some(true),
            tcp_established: Some(true),
            file_locks: Some(true),
            ghost_limit: Some(GHOST_LIMIT),
            cgroups: Some(Cgroups::Ignore.into()),
            network_lock: Some(lock.into()),
            ..Self::default()
        }
    }
}

/// A CRIU that waits for one request (or a few questions), as root of an environment. It ends with the conversation.
pub struct Criu {
    socket: OwnedFd,
    process: Child,
    /// Where it reads and writes images, as a path that means it wherever CRIU is: its own descriptor.
    images: Option<String>,
    /// What it says, in memory: a checkpoint holds nothing that is not of use.
    log: File,
}

/// What comes of a request.
pub enum Told {
    /// CRIU has got so far and waits: the stage's name.
    Stage(String),
    /// CRIU has done what was asked.
    Done(Response),
}

impl Criu {
    /// Starts it inside, to work with images in the directory `images` of the host.
    ///
    /// # Errors
    /// When the environment is gone or the folder is not whole.
    pub fn start(folder: &Folder, inside: Inside<'_>, images: Option<BorrowedFd<'_>>) -> Result<Self> {
        Self::start_with(folder, inside, images, &[])
    }

    /// The same, with more descriptors of ours that it has under the same numbers.
    ///
    /// # Errors
    /// As above.
    pub fn start_with(
        folder: &Folder,
        inside: Inside<'_>,
        images: Option<BorrowedFd<'_>>,
        also: &[BorrowedFd<'_>],
    ) -> Result<Self> {
        let about = || "CRIU";
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context(about)?;
        let program = folder.open()?;
        let log = memfd_create("criu.log", MemfdFlags::CLOEXEC).context(about)?;
        let kept: Vec<BorrowedFd<'_>> = [theirs.as_fd(), program.as_fd(), log.as_fd()]
            .into_iter()
            .chain(images)
            .chain(also.iter().copied())
            .collect();
        let process = enter::start(inside, &kept, || become_criu(&kept, &theirs, &program, &log))?;
        let images = images.map(|dir| format!("/proc/self/fd/{}", dir.as_raw_fd()));
        Ok(Self { socket, process, images, log: log.into() })
    }

    /// Which one it is.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn version(&self) -> Result<Version> {
        self.say(&Request { kind: Kind::Version.into(), keep_open: Some(true), ..Request::default() })?;
        self.hear()?.version.ok_or_else(|| Fault::new("CRIU: it does not say which one it is"))
    }

    /// What the kernel lets it do.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn features(&self) -> Result<Features> {
        let all = Features { mem_track: Some(true), lazy_pages: Some(true) };
        self.say(&Request {
            kind: Kind::FeatureCheck.into(),
            features: Some(all),
            keep_open: Some(true),
            ..Request::default()
        })?;
        Ok(self.hear()?.features.unwrap_or_default())
    }

    /// Asks for a dump, restore or check; [`Criu::follow`] tells how it fares.
    ///
    /// # Errors
    /// When it is gone.
    pub fn ask(&self, kind: Kind, options: Options) -> Result<()> {
        let options = Options {
            images_dir_fd: -1,
            images_dir: self.images.clone(),
            log_level: Some(2),
            log_to_stderr: Some(true),
            ..options
        };
        self.say(&Request { kind: kind.into(), options: Some(options), ..Request::default() })
    }

    /// Waits for the next word. After a stage it wants to hear [`Criu::go_on`].
    ///
    /// # Errors
    /// Why it failed, in its own words.
    pub fn follow(&self) -> Result<Told> {
        let answer = self.hear()?;
        if answer.kind() == Kind::Notify {
            return Ok(Told::Stage(answer.notify.and_then(|n| n.stage).unwrap_or_default()));
        }
        if answer.success { Ok(Told::Done(answer)) } else { Err(self.why(&answer)) }
    }

    /// The word that it waits for. Told not to go on it takes back what it did, and says that it failed.
    ///
    /// # Errors
    /// When it is gone.
    pub fn go_on(&self, well: bool) -> Result<()> {
        self.say(&Request { kind: Kind::Notify.into(), go_on: Some(well), ..Request::default() })
    }

    /// Has it done all of something. `at` is called at each stage, while the processes are stopped; if it fails, CRIU takes everything back,
    /// and its error is the one that is given.
    ///
    /// # Errors
    /// That, or CRIU's own.
    pub fn carry_out(
        &self,
        kind: Kind,
        options: Options,
        mut at: impl FnMut(&str) -> Result<()>,
    ) -> Result<Response> {
        self.ask(kind, options)?;
        let mut refused = None;
        loop {
            match self.follow() {
                Ok(Told::Done(answer)) => return refused.map_or(Ok(answer), Err),
                Ok(Told::Stage(stage)) => {
                    let went = at(&stage);
                    self.go_on(went.is_ok())?;
                    refused = refused.or(went.err());
                }
                Err(why) => return Err(refused.unwrap_or(why)),
            }
        }
    }

    /// Has it take back what it did, and waits until that is done; it may be waiting for a word.
    pub fn take_back(&self) {
        // It does so in any case, also if it does not hear that.
        self.go_on(false).unwrap_or_default();
        while let Ok(Told::Stage(_)) = self.follow() {
            // As above.
            self.go_on(false).unwrap_or_default();
        }
    }

    /// Readable once it has something to say.
    #[must_use]
    pub fn news(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// PID of CRIU on the host.
    ///
    /// # Errors
    /// When it has ended.
    pub fn number(&self) -> Result<Pid> {
        // The process that we know waits for it, and is outside.
        let between = self.process.pid.as_raw_nonzero();
        let children = std::fs::read_to_string(format!("/proc/{between}/task/{between}/children"));
        // Where there is no such list any more, CRIU is not there either.
        let number = children.unwrap_or_default().split_whitespace().next().and_then(|pid| pid.parse().ok());
        number.and_then(Pid::from_raw).ok_or_else(|| self.with_log(Fault::new("CRIU has ended")))
    }

    /// Waits until it has ended. (How, says nothing: what counts is its answer.)
    pub fn end(self) {
        let Self { socket, process, .. } = self;
        drop(socket);
        enter::wait_for(&process);
    }

    fn say(&self, request: &Request) -> Result<()> {
        let sent = send(&self.socket, &request.encode_to_vec(), SendFlags::NOSIGNAL);
        sent.map(drop).context(|| "CRIU").map_err(|e| self.with_log(e))
    }

    fn hear(&self) -> Result<Response> {
        let mut bytes = vec![0; LONGEST];
        let n = loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other.context(|| "CRIU")?.0,
            }
        };
        if n == 0 {
            return Err(self.with_log(Fault::new("CRIU has ended without a word")));
        }
        Response::decode(&bytes[..n]).map_err(|e| Fault::new(format!("CRIU answers nonsense: {e}")))
    }

    fn why(&self, answer: &Response) -> Fault {
        let said = answer.why.as_deref().map(str::trim).filter(|why| !why.is_empty());
        let errno = answer.errno.map(|e| std::io::Error::from_raw_os_error(e).to_string());
        let why = self.errors().or(said.map(tidy)).or(errno).unwrap_or_else(|| "it does not say why".into());
        Fault::new(format!("CRIU: {why}"))
    }

    fn with_log(&self, e: Fault) -> Fault {
        match self.errors() {
            Some(said) => Fault::new(format!("{}; it said: {said}", e.message)),
            None => e,
        }
    }

    /// The first errors in its log: what goes wrong after them follows from them.
    fn errors(&self) -> Option<String> {
        const MOST: usize = 2;
        // Its place in the file is CRIU's, too.
        let mut text = vec![0; 1 << 16];
        let length = self.log.read_at(&mut text, 0).ok()?;
        text.truncate(length);
        let text = String::from_utf8_lossy(&text);
        let errors: Vec<String> = text
            .lines()
            .filter(|line| {
                line.contains("Error (") && !HARMLESS.iter().any(|harmless| line.contains(harmless))
            })
            .take(MOST)
            .map(tidy)
            .collect();
        (!errors.is_empty()).then(|| errors.join("; "))
    }
}

/// A line of its log without the time and the place in its source.
fn tidy(line: &str) -> String {
    let line = line.rsplit_once("Error (").map_or(line, |(_, rest)| rest);
    line.split_once("): ").map_or(line, |(_, rest)| rest).trim().to_owned()
}

/// Inside: becomes the program, which finds its loader and libraries by the folder's descriptor, whatever the root is.
fn become_criu(kept: &[BorrowedFd<'_>], socket: &OwnedFd, program: &OwnedFd, log: &OwnedFd) -> Fault {
    if let Err(e) = rustix::stdio::dup2_stderr(log) {
        return Fault::new(format!("CRIU: {e}"));
    }
    for fd in kept {
        if let Err(e) = keep_on_exec(*fd) {
            return Fault::new(format!("CRIU: {e}"));
        }
    }
    let folder = format!("/proc/self/fd/{}", program.as_raw_fd());
    let words = [
        format!("{folder}/ld.so"),
        "--library-path".into(),
        format!("{folder}/lib"),
        format!("{folder}/criu"),
        "--no-default-config".into(),
        "swrk".into(),
        socket.as_raw_fd().to_string(),
    ];
    // None of these words has a zero byte.
    let c = |text: &str| CString::new(text).unwrap_or_default();
    let argv: Vec<CString> = words.iter().map(|word| c(word)).collect();
    // No plug-ins of whatever the root has.
    let env = [c(&format!("CRIU_LIBS_DIR={folder}/plugins")), c("PATH=/usr/sbin:/usr/bin:/sbin:/bin")];
    let e = exec(OsStr::new(&words[0]), &argv, &env);
    Fault::new(format!("CRIU: {e}")).hint("make its folder anew: packaging/get-criu")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_is_shown_without_its_place() {
        for (line, shown) in [
            ("(00.012) Error (criu/mount.c:1): mnt: No such", "mnt: No such"),
            ("Error (criu/a.c:22): x: (y): z", "x: (y): z"),
            ("plain", "plain"),
        ] {
            assert_eq!(tidy(line), shown);
        }
    }
}
