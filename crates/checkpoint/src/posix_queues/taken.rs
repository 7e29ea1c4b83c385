//! Messages that have been taken out of a queue and are not back in it yet, in a file of the instance's directory. Whoever takes them may be
//! killed in that moment, and nobody else has them: the next one who reads the queues puts them back first.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::mqueue::{self, PriorityMessage};

use super::{LONGEST, c_name, message, named, put_back, write};

/// Name of the file in the instance's directory.
const FILE: &str = "queues.taken";
/// First byte of the file as long as messages are taken out, and from when on they go back; then the queue's name with its length, and messages.
const TAKING: u8 = b't';
const GOING_BACK: u8 = b'p';
/// No name of a queue is longer (`NAME_MAX`).
const LONGEST_NAME: u32 = 255;

/// The file, which is empty when nothing is missing in a queue.
pub(super) struct TakenMessages {
    pub(super) file: File,
    path: PathBuf,
}

impl TakenMessages {
    /// Opens the file in an instance's directory, and makes it where it is missing.
    pub(super) fn open(instance: &Path) -> Result<Self> {
        let path = instance.join(FILE);
        let mut options = File::options();
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
        let file = options.open(&path);
        Ok(Self { file: file.context(|| path.display().to_string())?, path })
    }

    /// Whether messages are missing in a queue.
    pub(super) fn is_some(&self) -> Result<bool> {
        Ok(self.file.metadata().context(|| self.path.display().to_string())?.len() > 0)
    }

    /// Inside: puts back what is missing.
    pub(super) fn put_back(&self) -> Result<()> {
        let Some(left) = Left::read(&self.file).context(|| FILE)? else { return self.done() };
        let name = left.name.clone();
        let about = || named(&name);
        let queue = match mqueue::open(&c_name(&name)?) {
            // With the queue its messages have gone.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return self.done(),
            queue => queue.context(about)?,
        };
        let longest = mqueue::attributes(queue.as_fd()).context(about)?.longest;
        let (there, why) = take_all(queue.as_fd(), usize::try_from(longest).unwrap_or(LONGEST), |_| Ok(()));
        why.context(about)?;
        put_all(queue.as_fd(), &left.together_with(there)).context(about)?;
        self.done()
    }

    /// Begins with a queue.
    pub(super) fn begin(&self, name: &str) -> Result<()> {
        let mut file = &self.file;
        let head = [&[TAKING][..], &(name.len() as u32).to_le_bytes(), name.as_bytes()].concat();
        file.rewind().and_then(|()| file.write_all(&head)).context(|| FILE)
    }

    /// Adds a message that has been taken out.
    pub(super) fn add(&self, message: &PriorityMessage) -> io::Result<()> {
        let mut bytes = vec![];
        write(message, &mut bytes)?;
        (&self.file).write_all(&bytes)
    }

    /// Says that all have been taken out: from here on they go back.
    pub(super) fn all_taken(&self) -> io::Result<()> {
        self.file.write_all_at(&[GOING_BACK], 0)
    }

    /// Says that all are back.
    pub(super) fn done(&self) -> Result<()> {
        self.file.set_len(0).and_then(|()| (&self.file).rewind()).context(|| FILE)
    }
}

impl Drop for TakenMessages {
    fn drop(&mut self) {
        if self.is_some().is_ok_and(|is_some| !is_some) {
            std::fs::remove_file(&self.path).ignore_error("an empty one says nothing");
        }
    }
}

/// The file's content after whoever wrote it was killed.
struct Left {
    phase: u8,
    name: String,
    messages: Vec<PriorityMessage>,
}

impl Left {
    /// Nothing of a file that is cut before its first message.
    fn read(mut file: &File) -> io::Result<Option<Self>> {
        file.rewind()?;
        let mut from = BufReader::new(file);
        let mut head = [0; 5];
        if cut(from.read_exact(&mut head))?.is_none() {
            return Ok(None);
        }
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]).min(LONGEST_NAME);
        let mut name = vec![0; length as usize];
        if cut(from.read_exact(&mut name))?.is_none() {
            return Ok(None);
        }
        let name = String::from_utf8(name).map_err(io::Error::other)?;
        let mut messages = vec![];
        while let Some(message) = cut(message(&mut from))? {
            messages.push(message);
        }
        Ok(Some(Self { phase: head[0], name, messages }))
    }

    /// All messages of the queue in their order, given what is in it now.
    fn together_with(self, mut there: Vec<PriorityMessage>) -> Vec<PriorityMessage> {
        let mut all = self.messages;
        if self.phase == GOING_BACK {
            for message in &all {
                let back = there.iter().position(|one| one == message);
                back.into_iter().for_each(|at| drop(there.remove(at)));
            }
        }
        all.append(&mut there);
        all
    }
}

/// Nothing of what ends too early.
fn cut<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        read => read.map(Some),
    }
}

/// Takes all messages out, each of which is given to `taken` at once; the first that failed. An error of `taken` does not end it: those that stay would be
/// in front of those that go back.
pub(super) fn take_all(
    queue: BorrowedFd<'_>,
    longest: usize,
    taken: impl Fn(&PriorityMessage) -> io::Result<()>,
) -> (Vec<PriorityMessage>, io::Result<()>) {
    let (mut all, mut why) = (vec![], Ok(()));
    loop {
        match mqueue::take(queue, longest.min(LONGEST)) {
            Ok(Some(message)) => {
                why = why.and(taken(&message));
                all.push(message);
            }
            Ok(None) => return (all, why),
            Err(e) => return (all, why.and(Err(e))),
        }
    }
}

/// Puts messages in. Where one finds no room, the others go in nevertheless.
pub(super) fn put_all(queue: BorrowedFd<'_>, messages: &[PriorityMessage]) -> io::Result<()> {
    messages.iter().map(|message| put_back(queue, message)).fold(Ok(()), io::Result::and)
}

/// A fault of one who takes, and that of who has put back what was missing then.
pub(super) fn both(why: Fault, put_back: Result<()>) -> Fault {
    match put_back {
        Ok(()) => why,
        Err(e) => {
            Fault::new(format!("{why}; {e}")).hint("the next `skiff checkpoint save` puts its messages back")
        }
    }
}
