//! POSIX message queues of an instance that no process of it has open. (CRIU knows no descriptor of one.) Their messages can only be taken out:
//! so they are put in again at once, while all processes stand still. Until then a file has them (`taken.rs`).

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Dir, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::mqueue::{self, PriorityMessage, QueueAttributes};

mod journal;
mod killed;
mod order;
mod taken;

use taken::{TakenMessages, both};

/// These queues, in messages.
const ALL: &str = "POSIX message queues";
/// The kernel's limits of a namespace, below `/proc/sys/fs/mqueue`, and what may be had of each at most. Source: `HARD_*` of
/// `linux/ipc_namespace.h`.
const LIMITS: [(&str, u64); 5] = [
    ("queues_max", 1024),
    ("msg_max", 65_536),
    ("msgsize_max", 16 << 20),
    ("msg_default", 65_536),
    ("msgsize_default", 16 << 20),
];
/// No message of a sane queue is longer, in bytes.
const LONGEST: usize = 16 << 20;
/// How often a message is put back while there is no memory for it, and how long after each try.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// All of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PosixQueues {
    /// Limits of the namespace, and what they say.
    limits: Vec<(String, String)>,
    queues: Vec<PosixQueue>,
}

/// A queue, and how many messages it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PosixQueue {
    /// Without the slash.
    name: String,
    /// Owner, group and rights.
    owner: (u32, u32, u32),
    /// The most messages that it may hold.
    most: i64,
    /// The longest message that it takes, in bytes.
    longest: i64,
    /// How many it holds.
    messages: u64,
}

/// Inside: whether there are any.
///
/// # Errors
/// When the kernel does not show them.
pub(crate) fn are_there() -> Result<bool> {
    let Some(root) = root()? else { return Ok(false) };
    names(&root).map(|names| !names.is_empty())
}

/// Reads all of them in an instance whose processes stand still, and writes their messages into a new file; nothing if there are none. First
/// those are put back that somebody has taken out who was killed; `instance` is the instance's directory, which has a journal of them. The processes stand
/// still as long as somebody has `criu`, the connection to CRIU. Nobody enters where there are none (`are_there`) and no message is out of one.
///
/// # Errors
/// When one cannot be read.
pub(crate) fn keep(
    (inside, criu): (EnterTarget<'_>, BorrowedFd<'_>),
    path: &Path,
    instance: &Path,
    are_there: bool,
) -> Result<Option<PosixQueues>> {
    let taken = TakenMessages::open(instance)?;
    let put_back = |is_unused| {
        enter::run_unseen_to_its_end(inside.init, &[taken.dir.as_fd(), criu], || taken.put_back(is_unused))
    };
    let is_some = taken.is_some()?;
    if !is_some && !are_there {
        return taken.close().map(|()| None);
    }
    if is_some {
        put_back(false)?;
    }
    let about = || path.display().to_string();
    let file = File::options().write(true).create_new(true).mode(0o600).open(path).context(about)?;
    let kept = [file.as_fd(), taken.dir.as_fd(), criu];
    let found = enter::run_unseen_to_its_end(inside.init, &kept, || {
        let mut into = BufWriter::new(file.try_clone().context(about)?);
        let found = PosixQueues::read(&mut into, &taken)?;
        into.flush().context(about)?;
        Ok(found)
    });
    let found = match (found, taken.is_some()?) {
        // Whoever took them was killed, or found no room for one.
        (Err(why), true) => Err(both(why, put_back(true))),
        (found, _) => found,
    };
    taken.close()?;
    let found = found?;
    if found.is_some() {
        return Ok(found);
    }
    fs::remove_file(path).context(about).map(|()| None)
}

/// The names of the namespace's queues that somebody waits to be notified of, which ends with the message that is taken out.
///
/// # Errors
/// When the kernel does not show them.
pub(crate) fn notified() -> Result<Vec<String>> {
    let Some(root) = root()? else { return Ok(vec![]) };
    let mut found = vec![];
    for name in names(&root)? {
        if is_notified(&root, &name)? {
            found.push(name);
        }
    }
    Ok(found)
}

impl PosixQueues {
    /// What there is, in words.
    #[must_use]
    pub fn summary(&self) -> String {
        let messages: u64 = self.queues.iter().map(|queue| queue.messages).fold(0, u64::saturating_add);
        format!("message queues {}, messages in them {messages}", self.queues.len())
    }

    fn read(into: &mut impl Write, taken: &TakenMessages) -> Result<Option<Self>> {
        let Some(root) = root()? else { return Ok(None) };
        let mut found = Self::default();
        for name in names(&root)? {
            if is_notified(&root, &name)? {
                return Err(Fault::new(format!("{}: a process waits to be notified of it", named(&name))));
            }
            found.queues.push(PosixQueue::read(&root, name, (into, taken))?);
        }
        if found.queues.is_empty() {
            return Ok(None);
        }
        for (name, _) in LIMITS {
            let text = fs::read_to_string(limit(name));
            found.limits.extend(text.ok().map(|text| (name.to_owned(), text.trim().to_owned())));
        }
        Ok(Some(found))
    }

    /// Makes all of them in a new instance, with the messages of the file.
    ///
    /// # Errors
    /// When one cannot be made as it was.
    pub fn make_again(&self, inside: EnterTarget<'_>, file: &File) -> Result<()> {
        enter::run(EnterTarget { number: None, ..inside }, &[file.as_fd()], || {
            let copy = file.try_clone().context(|| ALL)?;
            self.make(&mut BufReader::new(copy))
        })
    }

    fn make(&self, from: &mut impl Read) -> Result<()> {
        let root = root()?.ok_or_else(|| Fault::new(format!("{ALL}: this kernel has none")))?;
        for (name, most) in LIMITS {
            fs::write(limit(name), most.to_string())
                .ignore_error("it is as wide as the kernel lets us have it");
        }
        let most = getrlimit(Resource::Msgqueue).maximum;
        setrlimit(Resource::Msgqueue, Rlimit { current: most, maximum: most })
            .ignore_error("then the limit is what it was");
        self.queues.iter().try_for_each(|queue| queue.make(&root, from))?;
        for (name, text) in &self.limits {
            if LIMITS.iter().any(|(known, _)| known == name) {
                let is_it = fs::read_to_string(limit(name)).is_ok_and(|now| now.trim() == text);
                if !is_it {
                    fs::write(limit(name), text).context(|| limit(name))?;
                }
            }
        }
        Ok(())
    }
}

impl PosixQueue {
    fn read(root: &OwnedFd, name: String, (into, kept): (&mut impl Write, &TakenMessages)) -> Result<Self> {
        let about = || named(&name);
        let queue = mqueue::open(&c_name(&name)?).context(about)?;
        let QueueAttributes { most, longest, .. } = mqueue::attributes(queue.as_fd()).context(about)?;
        let file = openat(root, &*name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let of = fstat(file.context(about)?).context(about)?;
        let length = usize::try_from(longest).unwrap_or(LONGEST).min(LONGEST);
        let taken = kept.take_and_put(queue.as_fd(), (&name, length))?;
        taken.iter().try_for_each(|message| write(message, into)).context(about)?;
        let owner = (of.st_uid, of.st_gid, of.st_mode & 0o777);
        Ok(Self { owner, most, longest, messages: taken.len() as u64, name })
    }

    fn make(&self, root: &OwnedFd, from: &mut impl Read) -> Result<()> {
        let about = || named(&self.name);
        let attributes = QueueAttributes::new(self.most, self.longest);
        let queue = mqueue::create(&c_name(&self.name)?, attributes).context(about)?;
        for _ in 0..self.messages {
            let message = message(from).context(about)?;
            mqueue::put(queue.as_fd(), &message).context(about)?;
        }
        let (uid, gid, mode) = self.owner;
        let file =
            openat(root, &*self.name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let file = file.context(about)?;
        fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).context(about)?;
        fchmod(&file, Mode::from_bits_truncate(mode)).context(about)
    }
}

/// Puts a message back that was taken out; memory for it may be short for a moment.
fn put_back(queue: BorrowedFd<'_>, message: &PriorityMessage) -> io::Result<()> {
    for _ in 1..TRIES {
        match mqueue::put(queue, message) {
            Err(e) if e.kind() == io::ErrorKind::OutOfMemory => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    mqueue::put(queue, message)
}

fn write(PriorityMessage { priority, text }: &PriorityMessage, into: &mut impl Write) -> io::Result<()> {
    into.write_all(&priority.to_le_bytes())?;
    into.write_all(&(text.len() as u64).to_le_bytes())?;
    into.write_all(text)
}

fn message(from: &mut impl Read) -> io::Result<PriorityMessage> {
    let (mut priority, mut length) = ([0; 4], [0; 8]);
    from.read_exact(&mut priority)?;
    from.read_exact(&mut length)?;
    let length = usize::try_from(u64::from_le_bytes(length)).ok().filter(|length| *length <= LONGEST);
    let mut text = vec![0; length.ok_or_else(|| io::Error::other("a message is too long"))?];
    from.read_exact(&mut text)?;
    Ok(PriorityMessage { priority: u32::from_le_bytes(priority), text })
}

fn named(name: &str) -> String {
    format!("POSIX message queue /{name}")
}

fn limit(name: &str) -> String {
    format!("/proc/sys/fs/mqueue/{name}")
}

fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Fault::new(format!("{name:?}: not the name of a message queue")))
}

/// The root of the namespace's queues, whether or not anybody has mounted them; nothing of a kernel without them.
fn root() -> Result<Option<OwnedFd>> {
    let about = || ALL;
    let context = match fsopen("mqueue", FsOpenFlags::FSOPEN_CLOEXEC) {
        Err(Errno::NODEV) => return Ok(None),
        context => context.context(about)?,
    };
    fsconfig_create(&context).context(about)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).context(about)?;
    let root = openat(&mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    root.context(about).map(Some)
}

fn names(root: &OwnedFd) -> Result<Vec<String>> {
    let mut names = vec![];
    for entry in Dir::read_from(root).context(|| ALL)? {
        let name = entry.context(|| ALL)?.file_name().to_bytes().to_owned();
        if name != b"." && name != b".." {
            let name = OsString::from_vec(name).into_string();
            names.push(name.map_err(|name| Fault::new(format!("{ALL}: {}: not UTF-8", name.display())))?);
        }
    }
    names.sort();
    Ok(names)
}

/// Whether somebody waits to be notified, as its file says (`mq_overview(7)`).
fn is_notified(root: &OwnedFd, name: &str) -> Result<bool> {
    let file = openat(root, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let mut said = String::new();
    File::from(file.context(|| named(name))?).read_to_string(&mut said).context(|| named(name))?;
    let pid = said.split_whitespace().find_map(|word| word.strip_prefix("NOTIFY_PID:"));
    Ok(pid.is_some_and(|pid| pid != "0"))
}

#[cfg(test)]
mod tests {
    use skiff_sandbox::join::NetSpace;

    use super::*;
    use crate::apart::is_apart;

    #[test]
    fn queues_stay_as_they_are_and_are_made_again() {
        if !is_apart("posix_queues::tests::queues_stay_as_they_are_and_are_made_again") {
            return;
        }
        let queue = mqueue::create(c"one", QueueAttributes::new(4, 100)).expect("made");
        let other = mqueue::create(c"other", QueueAttributes::new(1, 1)).expect("made");
        for (priority, text) in [(2, &b"second"[..]), (9, b""), (2, b"last")] {
            mqueue::put(queue.as_fd(), &PriorityMessage { priority, text: text.into() }).expect("put");
        }
        drop((queue, other));
        let dir = tempfile::tempdir().expect("a directory");
        let kept = TakenMessages::open(dir.path()).expect("made");
        let mut held = vec![];
        let found = PosixQueues::read(&mut held, &kept).expect("read").expect("some");
        let mut again = vec![];
        assert_eq!(PosixQueues::read(&mut again, &kept).expect("read").as_ref(), Some(&found));
        assert_eq!((found.queues.len(), found.queues[0].messages, &again), (2, 3, &held));
        found.make(&mut &held[..]).expect_err("they are there");
        #[expect(deprecated, reason = "what makes it unsafe is CLONE_FILES, which is not asked for")]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWIPC).expect("another namespace");
        assert_eq!(PosixQueues::read(&mut again, &kept).expect("read"), None);
        found.make(&mut &held[..]).expect("made again");
        let mut held_again = vec![];
        assert_eq!(PosixQueues::read(&mut held_again, &kept).expect("read"), Some(found));
        assert_eq!(held_again, held);
        assert_eq!(notified().expect("said"), Vec::<String>::new());
    }

    #[test]
    fn nobody_enters_where_there_is_no_queue() {
        let dir = tempfile::tempdir().expect("a directory");
        let messages = dir.path().join("messages");
        // Nobody can enter what is no process.
        let nothing = File::open("/dev/null").expect("open");
        let inside = EnterTarget { init: nothing.as_fd(), net: NetSpace::Its, number: None };
        let keep = |are_there| super::keep((inside, nothing.as_fd()), &messages, dir.path(), are_there);
        assert_eq!(keep(false).expect("nothing is asked"), None);
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
        keep(true).expect_err("somebody is to enter");
        fs::remove_file(&messages).expect("made");
        // Where a message may be out of a queue, one enters as well.
        fs::write(dir.path().join("queues.taken"), "x").expect("written");
        keep(false).expect_err("somebody is to enter");
    }
}
