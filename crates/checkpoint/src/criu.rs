//! CRIU in a running environment: as root of its user namespace, from a folder that runs in any root.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use skiff_criu::rpc::{CgroupMode, CriuResponse, NetworkLock, Options, RequestType};
pub use skiff_criu::{CriuEvent, Installation};
use skiff_criu::{see_through, take_back};
use skiff_ipc::ReportingChild;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_sandbox::idle::{INTERVAL, IdleTime};
use skiff_sandbox::join::NetSpace;
use skiff_spec::fault::{Context as _, Fault, NO_ROOM, Result};
use skiff_spec::plan::Plan;
use skiff_sys::IgnoreError;
use skiff_sys::intercept::Scans;
use skiff_sys::process::{Child, positive_pid};
use skiff_sys::{fdpass, intercept};

use crate::mappings::{self, Placeholders};
use crate::page_scan::{LeftOutPages, ScanAnswers};
use crate::previous_pages::PreviousPages;

/// The oldest that is good enough: before, it does not run on new kernels, or not without privilege.
pub const OLDEST: (i32, i32) = (4, 1);
/// Open files without a name are kept in the images up to this size, in bytes.
pub(crate) const GHOST_LIMIT: u32 = 1 << 30;
/// What CRIU says of a message that no process that it restores has sent, and of a name that only one of these should have: where their sockets could
/// not be moved (`transport_sockets.rs`).
const STRANGERS: [&str; 2] = ["Unexpected fle", "Can't bind transport socket"];
/// How CRIU says that a file system or a quota is full.
const FULL: [&str; 2] = ["No space left on device", "Disk quota exceeded"];
/// How long CRIU may do nothing at all while processes stand still and it is waited for.
const LONGEST_STALL: Duration = Duration::from_secs(60);

/// The folder that `packaging/get-criu` makes, beside the installed program `exe` (`PREFIX/bin/skiff`), if it is there.
#[must_use]
pub fn beside(exe: &Path) -> Option<Installation> {
    let path = exe.parent()?.parent()?.join("libexec/skiff/criu");
    path.join("criu").exists().then_some(Installation::Folder(path))
}

/// The options of every dump and restore in an environment with this network.
#[must_use]
pub fn options(net: NetSpace) -> Options {
    let lock = match net {
        NetSpace::Its | NetSpace::Machine => NetworkLock::Nftables,
        // The network is the host's, where no rule of ours may be made.
        NetSpace::Ours | NetSpace::MachineInOurs => NetworkLock::Skip,
    };
    Options {
        notify_scripts: Some(true),
        unprivileged: Some(true),
        tcp_established: Some(true),
        file_locks: Some(true),
        ghost_limit: Some(GHOST_LIMIT),
        cgroup_mode: Some(CgroupMode::Ignore.into()),
        network_lock: Some(lock.into()),
        ..Options::default()
    }
}

/// An error of CRIU's, with how to mend it here.
pub fn fault(error: skiff_criu::Error) -> Fault {
    if let skiff_criu::Error::Failed { why, .. } = &error
        && let Some(explained) = explain(why)
    {
        return explained;
    }
    let hint = match error {
        skiff_criu::Error::UnknownCommand(_) => "CRIU must be of the same version on both hosts",
        skiff_criu::Error::Io { what: "open" | "run", .. } => "make its folder anew: packaging/get-criu",
        skiff_criu::Error::Failed { ref why, .. } if STRANGERS.iter().any(|said| why.contains(said)) => {
            "another user of this host used a socket of CRIU's, or its name: restore it again. An instance with a network of its own (--net) is out of their reach"
        }
        _ => "",
    };
    Fault::new(error.to_string()).hint(hint)
}

/// The same of a CRIU that writes to a directory of this path, or to memory.
fn fault_of_images(error: skiff_criu::Error, dir: Option<&Path>) -> Fault {
    match &error {
        skiff_criu::Error::Failed { why, .. } if FULL.iter().any(|said| why.contains(said)) => match dir {
            Some(dir) => {
                Fault::new(format!("{}: no room for what CRIU writes: {why}", dir.display())).hint(NO_ROOM)
            }
            None => Fault::new(format!("no room in memory for what CRIU writes: {why}")).hint(
                "`free -h` shows how much there is; a move by the disk (--mode disk) takes less at a time",
            ),
        },
        _ => fault(error),
    }
}

/// The path of a directory; nothing if it has none here, as one in memory.
fn path_of(dir: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()?;
    let (here, open) = (std::fs::metadata(&path).ok()?, rustix::fs::fstat(dir).ok()?);
    ((here.dev(), here.ino()) == (open.st_dev, open.st_ino)).then_some(path)
}

/// What CRIU's words about a file mean to a user; nothing of others. CRIU leaves out the slash at the beginning of a path.
fn explain(why: &str) -> Option<Fault> {
    let first = why.split("; ").next()?;
    if let Some((path, reason)) =
        first.strip_prefix("Can't open file ").and_then(|rest| rest.split_once(" on restore: "))
    {
        let hint = match reason {
            "Permission denied" => {
                "an instance is restored by a user who may open the files and directories that its processes had open: ask their owner"
            }
            _ => "the processes had this file or directory open: bring it back, or start the instance anew",
        };
        return Some(Fault::new(format!("/{path}: cannot be opened again: {reason}")).hint(hint));
    }
    let (path, _) = first.strip_prefix("File ")?.split_once(" has bad build-ID")?;
    let what =
        format!("/{path}: this program or library is not the one that was saved: its build ID differs");
    Some(Fault::new(what).hint("bring the former one back, or start the instance anew"))
}

/// A CRIU that runs inside an environment as its root. When this is dropped, CRIU takes back what it has not finished, and exits.
pub struct CriuProcess {
    talk: skiff_criu::Criu,
    /// As long as this is open CRIU is in use.
    owner: Option<OwnedFd>,
    /// Where images are, if that has a path here.
    images: Option<PathBuf>,
    /// The process outside that waits for CRIU, and ends as it does.
    process: Child,
    /// The process inside that opens for CRIU what only the host's root may.
    opener: Option<ReportingChild<()>>,
}

impl CriuProcess {
    /// Starts CRIU inside, to work with images in the directory `images` of the host.
    ///
    /// # Errors
    /// When the environment is gone or the folder is not whole.
    pub fn start(
        installation: &Installation,
        inside: EnterTarget<'_>,
        images: Option<BorrowedFd<'_>>,
    ) -> Result<Self> {
        Self::start_with(installation, inside, images, &[])
    }

    /// Starts CRIU inside with more descriptors of ours, which it has under the same numbers.
    ///
    /// # Errors
    /// As [`CriuProcess::start`].
    pub fn start_with(
        installation: &Installation,
        inside: EnterTarget<'_>,
        images: Option<BorrowedFd<'_>>,
        also: &[BorrowedFd<'_>],
    ) -> Result<Self> {
        let (talk, launch) = skiff_criu::Criu::prepare(installation, images, also).map_err(fault)?;
        let process = enter::start(inside, &launch.descriptors(), || fault(launch.exec()))?;
        Ok(Self { talk, owner: None, images: images.and_then(path_of), process, opener: None })
    }

    /// Starts CRIU inside an instance with this plan to dump processes, with descriptors as [`CriuProcess::start_with`] takes them. It may open what they have mapped.
    ///
    /// # Errors
    /// As [`CriuProcess::start`].
    pub fn start_to_dump(
        installation: &Installation,
        inside: (EnterTarget<'_>, &Plan),
        images: Option<BorrowedFd<'_>>,
        also: &[BorrowedFd<'_>],
    ) -> Result<Self> {
        Self::start_to_dump_changes(installation, inside, images, also, None)
    }

    /// The same; of pages that are unchanged since the checkpoint before it is not told, and these are noted. (They are read where the kernel
    /// offers no way to do so.)
    ///
    /// # Errors
    /// As [`CriuProcess::start`].
    pub(crate) fn start_to_dump_changes(
        installation: &Installation,
        (inside, plan): (EnterTarget<'_>, &Plan),
        images: Option<BorrowedFd<'_>>,
        also: &[BorrowedFd<'_>],
        previous: Option<(&PreviousPages, &LeftOutPages)>,
    ) -> Result<Self> {
        let about = || "CRIU";
        let (talk, launch) = skiff_criu::Criu::prepare(installation, images, also).map_err(fault)?;
        let (owned, owner) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        let owner = Some(owner);
        if !intercept::is_available() {
            let become_it = || Err(fault(launch.exec()));
            let begun = enter::begin_owned::<()>(inside, &launch.descriptors(), owned.as_fd(), become_it)?;
            return Ok(Self {
                talk,
                owner,
                images: images.and_then(path_of),
                process: begun.started()?,
                opener: None,
            });
        }
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context(about)?;
        let kept = [launch.descriptors(), vec![theirs.as_fd()]].concat();
        let begun = enter::begin_owned::<()>(inside, &kept, owned.as_fd(), || {
            let scans = if previous.is_some() { Scans::Heard } else { Scans::Unheard };
            let listener = intercept::listen_to_self(scans).context(about)?;
            fdpass::send(theirs.as_fd(), b"l", &[listener.as_fd()]).context(about)?;
            drop(listener);
            Err(fault(launch.exec()))
        })?;
        drop(theirs);
        // None comes where it has failed, which it says then. Before it is CRIU it waits for the one who opens.
        let (_, mut listener) = fdpass::receive(ours.as_fd(), 1).context(about)?;
        let open = |listener: OwnedFd| {
            let left_out = previous.map(|(_, left_out)| left_out.as_fd());
            let placeholders = Placeholders::of(plan);
            let kept: Vec<BorrowedFd<'_>> = [listener.as_fd()].into_iter().chain(left_out).collect();
            enter::begin_continued(EnterTarget { number: None, ..inside }, &kept, || {
                let another = |(pages, left_out): (_, &LeftOutPages)| {
                    left_out.another().map(|left_out| ScanAnswers::new(pages, left_out))
                };
                let listener = listener.try_clone().context(about)?;
                mappings::serve(listener, &placeholders, previous.map(another).transpose()?)
            })
        };
        let opener = listener.pop().map(open).transpose()?;
        Ok(Self { talk, owner, images: images.and_then(path_of), process: begun.started()?, opener })
    }

    /// Questions that CRIU answers before it is asked for anything.
    pub(crate) fn talk(&self) -> &skiff_criu::Criu {
        &self.talk
    }

    /// Asks for a dump or restore; [`CriuProcess::next_event`] tells how it goes.
    ///
    /// # Errors
    /// When CRIU has exited.
    pub fn ask(&self, kind: RequestType, options: Options) -> Result<()> {
        self.talk.ask(kind, options).map_err(fault)
    }

    /// Waits for the next event. At a stage CRIU waits for [`CriuProcess::proceed`].
    ///
    /// # Errors
    /// Why it failed, in CRIU's own words; that a dump does not get on.
    pub fn next_event(&self) -> Result<CriuEvent> {
        let mut stall = self.stall();
        let interval = Timespec { tv_sec: INTERVAL.as_secs().cast_signed(), tv_nsec: 0 };
        while stall.is_some() {
            match poll(&mut [PollFd::from_borrowed_fd(self.news(), PollFlags::IN)], Some(&interval)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => self.end_if_stalled(&mut stall)?,
                _ => break,
            }
        }
        self.talk.next_event().map_err(|e| fault_of_images(e, self.images.as_deref()))
    }

    /// Begins to measure how long CRIU does nothing; not of one that has ended, nor of one that does not dump: nothing stands still then that would go on
    /// without it.
    #[must_use]
    pub fn stall(&self) -> Option<IdleTime> {
        let owned = self.owner.as_ref().map(|_| self.number().map(IdleTime::of));
        owned.transpose().default_on_error("it has ended, and what it said waits")
    }

    /// Kills a CRIU that dumps and does nothing while it is waited for: the processes go on then. To be called every second or so.
    ///
    /// # Errors
    /// CRIU has been killed.
    pub fn end_if_stalled(&self, stall: &mut Option<IdleTime>) -> Result<()> {
        let is_stalled = stall.as_mut().is_some_and(|stall| stall.look() >= LONGEST_STALL);
        let Some(owner) = self.owner.as_ref().filter(|_| is_stalled) else { return Ok(()) };
        rustix::io::write(owner, b"k").ignore_error("it has ended");
        Err(Fault::new(format!("CRIU did nothing for {} s and has been killed", LONGEST_STALL.as_secs()))
            .hint("the instance goes on: save it again. A file system that does not answer stops CRIU, too"))
    }

    /// Has CRIU proceed from a stage, or take back what it did.
    ///
    /// # Errors
    /// When CRIU has exited.
    pub fn proceed(&self, well: bool) -> Result<()> {
        self.talk.proceed(well).map_err(fault)
    }

    /// Sees a dump or restore through. `at` is called at each stage, while the processes are stopped; if it fails, CRIU takes everything back.
    ///
    /// # Errors
    /// The error of `at`, or why CRIU failed.
    pub fn carry_out(
        &self,
        kind: RequestType,
        options: Options,
        at: impl FnMut(&str) -> Result<()>,
    ) -> Result<CriuResponse> {
        self.ask(kind, options)?;
        see_through(|| self.next_event(), |well| self.proceed(well), at)
    }

    /// Has CRIU take back what it did, and waits until that is done. It may be waiting at a stage.
    pub fn take_back(&self) {
        take_back(|| self.next_event(), |well| self.proceed(well));
    }

    /// Readable once CRIU has something to say.
    #[must_use]
    pub fn news(&self) -> BorrowedFd<'_> {
        self.talk.news()
    }

    /// PID of CRIU on the host.
    ///
    /// # Errors
    /// When it has ended.
    pub fn number(&self) -> Result<Pid> {
        // The process that we know waits for it, and is outside.
        let between = self.process.pid.as_raw_nonzero();
        let children = std::fs::read_to_string(format!("/proc/{between}/task/{between}/children"));
        let number = children
            .default_on_error("the process has ended, and CRIU with it")
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok());
        let exited = || fault(skiff_criu::Error::Exited { log: self.talk.log_errors() });
        number.and_then(positive_pid).ok_or_else(exited)
    }

    /// Waits until CRIU has ended. (How, says nothing: what counts is its answer.)
    pub fn end(self) {
        self.wait().ignore_error("CRIU has said what it could not open");
    }

    /// Waits until CRIU, which has failed for this reason, has taken all back and ended; the reason, which is another if it was refused something
    /// to open.
    #[must_use]
    pub fn end_failed(self, why: Fault) -> Fault {
        self.wait().err().unwrap_or(why)
    }

    /// Waits until CRIU has ended, and says what it could not be given.
    fn wait(self) -> Result<()> {
        let Self { talk, owner, process, opener, images: _ } = self;
        drop((talk, owner));
        enter::wait_for(&process);
        opener.map_or(Ok(()), ReportingChild::end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_criu_has_no_room_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let open = std::fs::File::open(dir.path()).unwrap();
        let path = path_of(open.as_fd());
        assert_eq!(path.as_deref(), Some(dir.path()));
        let said = |why: &str, dir| {
            let error = skiff_criu::Error::Failed { why: why.into(), errno: None };
            let Fault { message, hint, .. } = fault_of_images(error, dir);
            (message, hint)
        };
        let why = "page-xfer: Unable to spice data: No space left on device";
        let (message, hint) = said(why, path.as_deref());
        assert_eq!(message, format!("{}: no room for what CRIU writes: {why}", dir.path().display()));
        assert_eq!(hint, NO_ROOM);
        assert!(said(why, None).0.starts_with("no room in memory"));
        assert_eq!(said("x", path.as_deref()), ("CRIU: x".into(), String::new()));
        std::fs::remove_dir(dir.path()).unwrap();
        assert_eq!(path_of(open.as_fd()), None);
    }

    #[test]
    fn what_criu_says_of_a_file_is_said_with_its_path_and_how_to_mend_it() {
        for (why, message, hint) in [
            (
                "Can't open file home/alice/wd on restore: No such file or directory; 2 exited",
                "/home/alice/wd: cannot be opened again: No such file or directory",
                "bring it back",
            ),
            (
                "Can't open file home/alice on restore: Permission denied",
                "/home/alice: cannot be opened again: Permission denied",
                "ask their owner",
            ),
            (
                "File home/alice/bin/sim has bad build-ID; 2 exited",
                "/home/alice/bin/sim: this program or library is not the one that was saved: its build ID differs",
                "bring the former one back",
            ),
        ] {
            let said = fault(skiff_criu::Error::Failed { why: why.into(), errno: None });
            assert_eq!(said.message, message);
            assert!(said.hint.contains(hint), "{}", said.hint);
        }
        assert_eq!(explain("Can't restore 0x7f mapping"), None);
    }
}
