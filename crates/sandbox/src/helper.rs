//! Talking to the privileged helper.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::image::ImageId;
use skiff_spec::network::Reservation;
use skiff_spec::plan::Base;
use skiff_spec::wire::{MOST_BYTES, Reply, Request};
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;
use skiff_sys::process::{self, Child};

use crate::child::{read_all, reap};
use crate::command::{CommandSpec, NotStarted};
use crate::exec_request::ExecRequest;
use crate::failed::Failed;

/// The helper started, not yet asked anything. Starting it early lets it load while we do other things.
pub struct Helper {
    program: PathBuf,
    socket: OwnedFd,
    child: std::process::Child,
    prepared: bool,
    /// The layers of the store that come with its answer.
    stored_layers: Vec<ImageId>,
    begun: Instant,
}

/// How long after its start the helper may be asked; it waits somewhat longer.
const ASKED_WITHIN: Duration = Duration::from_secs(5);

/// What the helper gives to build a root from.
pub struct Layers {
    /// A snapshot's layers, the topmost first.
    pub stored: Vec<OwnedFd>,
    /// Stand-ins and whiteouts for what `other` may not read of the host's root.
    pub mask: Option<OwnedFd>,
    /// The host's root, as far as `other` may read it, or an image's.
    pub view: OwnedFd,
    /// How many ids there are inside.
    pub ids: u32,
    /// `/sys` as it is in the helper's network namespace, where that belongs to the host and is not the host's own.
    pub devices: Option<OwnedFd>,
}

/// Whether a mount is of sysfs.
fn is_sys(mount: &OwnedFd) -> bool {
    const SYSFS: i64 = 0x6265_6572;
    rustix::fs::fstatfs(mount).is_ok_and(|found| found.f_type == SYSFS)
}

impl Helper {
    /// Starts the helper.
    ///
    /// # Errors
    /// When it cannot be started; whether it is any good shows in its answer.
    pub fn spawn(program: &Path) -> Result<Self> {
        Self::spawn_with(program, &[])
    }

    /// Starts the helper and has it make ready for [`Helper::ask_for`], which is going to be about `base`.
    ///
    /// # Errors
    /// As [`Helper::spawn`].
    pub fn spawn_for(program: &Path, base: Base) -> Result<Self> {
        let mut helper = Self::spawn(program)?;
        helper.prepare(base, &[])?;
        Ok(helper)
    }

    /// Has it make ready for [`Helper::ask_for`], unless that was done. `layers`: those of a snapshot that it is to mount, too.
    ///
    /// # Errors
    /// As [`Helper::ask`].
    pub fn prepare(&mut self, base: Base, layers: &[ImageId]) -> Result<()> {
        if std::mem::replace(&mut self.prepared, true) {
            return Ok(());
        }
        self.stored_layers = layers.to_vec();
        layers.iter().try_for_each(|id| self.ask(&Request::Layer { id: *id }, &[]))?;
        match base {
            Base::Host => self.ask(&Request::Prepare { image: None }, &[]),
            Base::Image(id) => self.ask(&Request::Prepare { image: Some(id) }, &[]),
            // Only the ids are wanted, which take no time.
            Base::Directory => Ok(()),
        }
    }

    /// This one; or another, where so much time has gone by that it waits no longer to be asked (to pull an image takes long), or where it
    /// has been made ready without the layers that are wanted.
    ///
    /// # Errors
    /// As [`Helper::spawn`].
    pub(crate) fn or_fresh(self, layers: &[ImageId]) -> Result<Self> {
        let lacks_layers = self.prepared && self.stored_layers != layers;
        if self.begun.elapsed() < ASKED_WITHIN && !lacks_layers {
            return Ok(self);
        }
        let program = self.program.clone();
        self.finish();
        Self::spawn(&program)
    }

    /// Starts the helper with variables, for the programs of ours that some requests have it start. (It looks at none itself.)
    ///
    /// # Errors
    /// As [`Helper::spawn`].
    pub fn spawn_with(program: &Path, env: &[(OsString, OsString)]) -> Result<Self> {
        refuse_if_writable(program)?;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context(|| "socket to the helper")?;
        process::keep_on_exec(theirs.as_fd()).context(|| "socket to the helper")?;
        let begun = Instant::now();
        // By `vfork`: to copy our page tables would take longer than to wait until the new program is loaded.
        let child = std::process::Command::new(program)
            .arg(theirs.as_raw_fd().to_string())
            .env_clear()
            .envs(env.iter().map(|(n, v)| (n, v)))
            .spawn()
            .context(|| format!("helper {}", program.display()))
            .map_err(|e| e.hint("`skiff doctor` says what the helper needs"))?;
        Ok(Self {
            program: program.into(),
            socket: ours,
            child,
            prepared: false,
            stored_layers: vec![],
            begun,
        })
    }

    /// Becomes the helper, with a request of those that have no answer, and these words behind the socket's number.
    ///
    /// # Errors
    /// Why that is not possible; otherwise this does not return.
    pub fn become_it(
        program: &Path,
        request: &Request,
        words: &[OsString],
    ) -> Result<std::convert::Infallible> {
        use std::os::unix::process::CommandExt;
        refuse_if_writable(program)?;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context(|| "socket to the helper")?;
        fdpass::send(ours.as_fd(), &request.encode(), &[]).context(|| "socket to the helper")?;
        process::keep_on_exec(theirs.as_fd()).context(|| "socket to the helper")?;
        let error =
            std::process::Command::new(program).arg(theirs.as_raw_fd().to_string()).args(words).exec();
        Err(error).context(|| format!("helper {}", program.display()))
    }

    /// Sends the question.
    ///
    /// # Errors
    /// When it cannot be sent. (To one that has ended already, it can: why it has is its answer.)
    pub fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<()> {
        match fdpass::send(self.socket.as_fd(), &request.encode(), fds) {
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
            sent => sent.context(|| format!("request to helper {}", self.program.display())),
        }
    }

    /// Takes the answer to a request that has nothing but an end; another process may do so than the one that asked.
    ///
    /// # Errors
    /// The helper's own words, or that it ended without any.
    pub fn done(&self) -> Result<()> {
        match self.answer()? {
            (Reply::Done, _) => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    /// Takes the answer to [`Request::Connect`].
    ///
    /// # Errors
    /// As [`Helper::done`].
    pub(crate) fn connected(&self) -> Result<(Ipv4Addr, OwnedFd)> {
        match self.answer()? {
            (Reply::Address(address), mut fds) if fds.len() == 1 => Ok((address, fds.remove(0))),
            _ => Err(self.unexpected()),
        }
    }

    /// Orders a command for the environment whose process 1 is `init`: a process is made for it, which waits for [`Helper::go`].
    ///
    /// # Errors
    /// As [`Helper::ask`], and that no program could be given such words.
    pub(crate) fn ask_to_run(&self, command: &ExecRequest<'_>, init: Pid) -> Result<()> {
        for request in Request::orders(&command.encode()?) {
            self.ask(&request, &[])?;
        }
        self.ask(&Request::Join { pid: init.as_raw_nonzero().get().unsigned_abs() }, &[])
    }

    /// Lets the command start that was ordered.
    ///
    /// # Errors
    /// As [`Helper::ask`].
    pub(crate) fn go(&self) -> Result<()> {
        self.ask(&Request::Go, &[])
    }

    /// Takes the answer to [`Helper::ask_to_run`], and waits until the command runs.
    pub(crate) fn joined(&self, command: &CommandSpec) -> std::result::Result<Child, Failed> {
        let (reply, fds) = self.answer()?;
        let mut fds = fds.into_iter();
        let number = match reply {
            Reply::Process(number) => i32::try_from(number).ok().and_then(Pid::from_raw),
            _ => None,
        };
        let (Some(pid), Some(pidfd), Some(report)) = (number, fds.next(), fds.next()) else {
            return Err(self.unexpected().into());
        };
        match NotStarted::from_bytes(&read_all(report.as_fd())) {
            None => Ok(Child { pid, pidfd }),
            Some(why) => {
                reap(pid);
                Err(Failed::to_start(command, &why))
            }
        }
    }

    /// Has nothing started any more, and waits for its end. A process that it has made for a command is a child of ours: until somebody takes
    /// its exit status the PID namespace that it is in cannot end.
    pub(crate) fn abandon(self) {
        rustix::net::shutdown(&self.socket, Shutdown::Write)
            .ignore_error("it may have gone already, and then there is nobody to tell");
        while let Ok((bytes, fds)) = self.receive()
            && !bytes.is_empty()
        {
            // What is no handle of a child of ours is not waited for.
            let ended = |fd: &OwnedFd| waitid(WaitId::PidFd(fd.as_fd()), WaitIdOptions::EXITED).err();
            while fds.first().is_some_and(|fd| ended(fd) == Some(Errno::INTR)) {}
        }
        self.finish();
    }

    fn receive(&self) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let receive = || fdpass::receive(self.socket.as_fd(), MOST_BYTES);
        let received = match receive() {
            // One that refuses us unasked ends with our question unread. The kernel reports that before its answer.
            Err(e) if e.kind() == ErrorKind::ConnectionReset => receive(),
            other => other,
        };
        received.context(|| format!("answer of helper {}", self.program.display()))
    }

    /// Takes the answer to [`Request::Leave`].
    ///
    /// # Errors
    /// As [`Helper::done`].
    pub fn reservation(&self) -> Result<Reservation> {
        match self.answer()? {
            (Reply::Kept(reservation), _) => Ok(reservation),
            _ => Err(self.unexpected()),
        }
    }

    /// Takes the answer to [`Request::Store`]: whether there was room for one more.
    ///
    /// # Errors
    /// As [`Helper::done`].
    pub fn started(&self) -> Result<bool> {
        match self.answer()? {
            (Reply::Done, _) => Ok(true),
            (Reply::Busy, _) => Ok(false),
            _ => Err(self.unexpected()),
        }
    }

    /// The answer, if it is not a refusal, and what came along.
    fn answer(&self) -> Result<(Reply, Vec<OwnedFd>)> {
        let (bytes, fds) = self.receive()?;
        match Reply::decode(&bytes) {
            Some(Reply::Refused { message, hint }) => Err(Fault::new(message).hint(hint)),
            Some(reply) => Ok((reply, fds)),
            None => Err(Fault::new(format!("helper {}: ended without an answer", self.program.display()))
                .hint("it must belong to root and be setuid, and fit this version: `skiff doctor`")),
        }
    }

    fn unexpected(&self) -> Fault {
        Fault::new(format!("helper {}: another answer than was asked for", self.program.display()))
            .hint("install skiff and its helper together")
    }

    /// Asks for ids for the user namespace of `pid` and the layers of `base`.
    ///
    /// # Errors
    /// As [`Helper::ask`].
    pub fn ask_for(&self, base: Base, pid: Pid) -> Result<()> {
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        self.ask(
            &match base {
                // Of a directory only the ids are wanted.
                Base::Host | Base::Directory => Request::Base { pid },
                Base::Image(id) => Request::Image { pid, id },
            },
            &[],
        )
    }

    /// Takes the answer to [`Helper::ask_for`].
    ///
    /// # Errors
    /// As [`Helper::done`].
    pub fn layers(&self) -> Result<Layers> {
        let (reply, fds) = self.answer()?;
        let (mut devices, mut mounts): (Vec<_>, Vec<_>) = fds.into_iter().partition(is_sys);
        let below = mounts.split_off(self.stored_layers.len().min(mounts.len()));
        let mut below = below.into_iter().rev();
        match (reply, below.next(), below.next(), below.next()) {
            (Reply::Ids(ids), Some(view), mask, None) => {
                Ok(Layers { stored: mounts, mask, view, ids, devices: devices.pop() })
            }
            _ => Err(self.unexpected()),
        }
    }

    /// The socket, for a process that must not close it.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Tells it that nothing more is wanted of it.
    pub(crate) fn dismiss(&self) {
        rustix::net::shutdown(&self.socket, Shutdown::Both)
            .ignore_error("it may have gone already, and then there is nobody to tell");
    }

    /// Takes its exit status if it has ended, so that no zombie stays.
    pub fn bury(&mut self) {
        self.child.try_wait().ignore_error("nobody else waits for it, so this cannot fail");
    }

    /// Waits for its end, so that no zombie stays.
    pub fn finish(mut self) {
        self.dismiss();
        self.child.wait().ignore_error("nobody else waits for it, so this cannot fail");
    }
}

/// A program of root's that others can write to says nothing about what it does.
fn refuse_if_writable(program: &Path) -> Result<()> {
    let meta = program
        .metadata()
        .context(|| format!("helper {}", program.display()))
        .map_err(|e| e.hint("`skiff doctor` says what the helper needs"))?;
    if meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Fault::new(format!(
        "helper {}: writable by others (mode {:o})",
        program.display(),
        meta.mode() & 0o7777
    ))
    .hint("administrator: install it again, as somebody may have changed it"))
}
