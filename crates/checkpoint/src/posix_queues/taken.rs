//! Messages that have been taken out of a queue and are not back in it yet. A journal in the instance's directory has them, so that whoever takes
//! them may be killed: the next one who reads the queues puts back what is missing, and may be killed as well.
//!
//! Each message is in the journal or in the queue, and what the journal says tells which:
//!
//! - *Taking.* The kernel writes a message into the journal by the call that takes it out of the queue ([`MessageSlot`](mqueue::MessageSlot)). So none is lost in between.
//! - *Putting.* The journal notes each message that is back, after it is. Of one at most, the next, it does not say whether it is: it is looked for in
//!   the queue.
//! - *Taking again.* Whoever finds the journal takes out what is in the queue by then, as messages that are missing belong in front of those that
//!   programs have put in since. Then a new journal, with all in order, takes the place of this one by one rename.
//!
//! Whoever takes messages has a connection to CRIU, so the programs stand still until it has ended, unless CRIU is killed. Root inside does not see
//! it.
//!
//! One window remains. It and `save`, or it and CRIU, are killed between the kernel's putting one message in and the note of that, and programs have
//! taken out this very message before the next save. Then that message comes twice. To tell whether it was put in, a note would have to be made by
//! the call that puts it in. But `mq_timedsend` writes nothing that outlasts what programs do with the queue, and a queue cannot be renamed. If such a
//! message were taken for put in, it would be lost in as many cases.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::mqueue::{self, PriorityMessage};

use super::journal::{JournalPhase, QueueJournal};
use super::killed::point;
use super::order::{Seen, in_order};
use super::{c_name, named, put_back};

/// Name of the journal in the instance's directory, and of one that is to take its place.
const FILE: &str = "queues.taken";
const NEW: &str = "queues.taken.new";

/// The directory of the journal, which is empty or missing when nothing is missing in a queue.
pub(super) struct TakenMessages {
    pub(super) dir: OwnedFd,
    path: PathBuf,
}

impl TakenMessages {
    /// Opens an instance's directory.
    pub(super) fn open(instance: &Path) -> Result<Self> {
        let dir = File::open(instance).context(|| instance.display().to_string())?;
        Ok(Self { dir: dir.into(), path: instance.join(FILE) })
    }

    /// Whether messages are missing in a queue.
    pub(super) fn is_some(&self) -> Result<bool> {
        match self.path.symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            found => Ok(found.context(|| self.path.display().to_string())?.len() > 0),
        }
    }

    /// Removes the journal, if nothing is missing.
    pub(super) fn close(self) -> Result<()> {
        if self.is_some()? {
            return Ok(());
        }
        [FILE, NEW].into_iter().try_for_each(|name| match unlinkat(&self.dir, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            done => done.context(|| self.path.display().to_string()),
        })
    }

    /// Takes all messages out of a queue, with nothing missing before, and puts them in again; gives them.
    pub(super) fn take_and_put(
        &self,
        queue: BorrowedFd<'_>,
        (name, longest): (&str, usize),
    ) -> Result<Vec<PriorityMessage>> {
        let about = || named(name);
        let mut journal = QueueJournal::begin(self.create(FILE)?, name, longest).context(|| FILE)?;
        let room = mqueue::attributes(queue).and_then(|said| journal.reserve(said.messages, queue));
        if let Err(why) = room {
            journal.end().context(|| FILE)?;
            return Err(why).context(|| FILE);
        }
        if let Err(why) = take_all(queue, &mut journal) {
            return Err(put_without_it(queue, journal, why).about(&about()));
        }
        journal.begin_putting().context(|| FILE)?;
        put_all(queue, &mut journal).context(about)?;
        journal.end().context(|| FILE)?;
        Ok(journal.messages)
    }

    /// Puts back what is missing.
    pub(super) fn put_back(&self) -> Result<()> {
        let Some(file) = self.find()? else { return Ok(()) };
        let Some(mut journal) = QueueJournal::read(file).context(|| FILE)? else {
            // Nothing had been taken yet.
            return self.create(FILE)?.set_len(0).context(|| FILE);
        };
        let name = journal.head.name.clone();
        let about = || named(&name);
        let queue = match mqueue::open(&c_name(&name)?) {
            // With the queue its messages have gone.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return journal.end().context(|| FILE),
            queue => queue.context(about)?,
        };
        if journal.is_all_back() {
            return journal.end().context(|| FILE);
        }
        journal.look_again().context(|| FILE)?;
        journal.finish_slot(queue.as_fd()).context(about)?;
        let there = mqueue::attributes(queue.as_fd()).context(about)?.messages;
        journal.reserve(there, queue.as_fd()).context(|| FILE)?;
        take_all(queue.as_fd(), &mut journal).context(about)?;
        if journal.head.phase == JournalPhase::TakingAgain {
            journal = self.replace(&journal)?;
        } else {
            journal.begin_putting().context(|| FILE)?;
        }
        put_all(queue.as_fd(), &mut journal).context(about)?;
        journal.end().context(|| FILE)
    }

    /// Puts a journal that has all messages in order in the place of this one.
    fn replace(&self, journal: &QueueJournal) -> Result<QueueJournal> {
        let (head, all) = (&journal.head, &journal.messages);
        let [first, seam] = [head.first, head.seam].map(|at| at as usize);
        let seen = Seen {
            back: &all[..first],
            doubtful: &all[first],
            missing: &all[first + 1..seam],
            there: &all[seam..],
        };
        let mut new =
            QueueJournal::begin(self.create(NEW)?, &head.name, head.longest as usize).context(|| NEW)?;
        in_order(&seen).iter().try_for_each(|message| new.add(message)).context(|| NEW)?;
        new.begin_putting().context(|| NEW)?;
        point("new journal");
        renameat(&self.dir, NEW, &self.dir, FILE).context(|| FILE)?;
        point("rename");
        Ok(new)
    }

    fn find(&self) -> Result<Option<File>> {
        match openat(&self.dir, FILE, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            file => file.map(|file| Some(file.into())).context(|| FILE),
        }
    }

    fn create(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.dir, name, flags, Mode::from_raw_mode(0o600)).map(File::from).context(|| name)
    }
}

/// Takes all messages out of a queue into the journal.
fn take_all(queue: BorrowedFd<'_>, journal: &mut QueueJournal) -> io::Result<()> {
    let most = mqueue::attributes(queue)?.most;
    // Nobody else puts any in: the programs stand still.
    for _ in 0..=most.max(0) {
        if !journal.take(queue)? {
            return Ok(());
        }
    }
    Err(io::Error::other("somebody puts messages in"))
}

/// Puts back all that the journal has, each of which it notes.
fn put_all(queue: BorrowedFd<'_>, journal: &mut QueueJournal) -> io::Result<()> {
    while let Some(message) = journal.next() {
        put_back(queue, message)?;
        point("put");
        journal.note_put()?;
    }
    Ok(())
}

/// Where the journal cannot be written any more: all else is taken out, as those that stay would be in front of those that go back, and all goes back.
fn put_without_it(queue: BorrowedFd<'_>, journal: QueueJournal, why: io::Error) -> Fault {
    let left = match journal.left_in_slot(queue) {
        Ok(left) => left,
        Err(e) => return Fault::new(format!("{FILE}: {why}; {e}")),
    };
    let mut all = [&journal.messages[..], left.as_slice()].concat();
    while let Ok(Some(message)) = mqueue::take(queue, journal.head.longest as usize) {
        all.push(message);
    }
    // Where one finds no room, the others go in nevertheless.
    let put = all.iter().map(|message| put_back(queue, message)).fold(Ok(()), io::Result::and);
    match put.and_then(|()| journal.end()) {
        Ok(()) => Fault::new(format!("{FILE}: {why}")),
        Err(e) => Fault::new(format!("{FILE}: {why}; {e}")),
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use skiff_sys::mqueue::QueueAttributes;

    use super::super::killed::killed_after;
    use super::*;
    use crate::apart::is_apart;

    /// Messages that programs have taken out, and put in.
    #[derive(Default)]
    struct Programs {
        taken: Vec<PriorityMessage>,
        number: u32,
    }

    impl Programs {
        /// Takes so many out, and puts one in.
        fn use_it(&mut self, queue: BorrowedFd<'_>, times: usize) {
            for _ in 0..times {
                self.taken.extend(mqueue::take(queue, 100).expect("taken"));
            }
            self.number += 1;
            mqueue::put(queue, &message(2, &format!("new {}", self.number))).expect("put");
        }
    }

    fn message(priority: u32, text: &str) -> PriorityMessage {
        PriorityMessage { priority, text: text.into() }
    }

    fn emptied(queue: BorrowedFd<'_>) -> Vec<PriorityMessage> {
        std::iter::from_fn(|| mqueue::take(queue, 100).expect("taken")).collect()
    }

    fn queue_in(dir: &Path) -> (OwnedFd, TakenMessages) {
        let queue = mqueue::create(c"one", QueueAttributes::new(9, 100)).expect("made");
        (queue, TakenMessages::open(dir).expect("opened"))
    }

    #[test]
    fn messages_are_there_once_whoever_is_killed_when() {
        if !is_apart("posix_queues::taken::tests::messages_are_there_once_whoever_is_killed_when") {
            return;
        }
        // In memory: there are thousands of tries.
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (queue, taken) = queue_in(dir.path());
        let queue = queue.as_fd();
        // The last ends as an empty slot does.
        let last = PriorityMessage { priority: 0, text: vec![b'c', 0xf7] };
        let all = [message(9, ""), message(2, "a"), message(2, "a"), last];
        let killed_at = |first: usize, second: usize| {
            all.iter().for_each(|message| mqueue::put(queue, message).expect("put"));
            let save = || drop(taken.take_and_put(queue, ("one", 100)).expect("taken and put"));
            let killed = killed_after(first, save);
            let again = killed.and_then(|_| killed_after(second, || taken.put_back().expect("put back")));
            taken.put_back().expect("put back");
            assert!(!taken.is_some().expect("asked"));
            assert_eq!(emptied(queue), all, "{first} {killed:?} {second} {again:?}");
            (killed, again)
        };
        let (mut first, mut tried) = (0, 0);
        while killed_at(first, 0).0.is_some() {
            let mut second = 1;
            while killed_at(first, second).1.is_some() {
                second += 1;
            }
            tried += second;
            first += 1;
        }
        assert!(tried > 500, "{tried}");
        taken.close().expect("closed");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
    }

    #[test]
    fn messages_are_there_once_also_when_programs_go_on() {
        if !is_apart("posix_queues::taken::tests::messages_are_there_once_also_when_programs_go_on") {
            return;
        }
        // In memory: there are thousands of tries.
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (queue, taken) = queue_in(dir.path());
        let queue = queue.as_fd();
        let all = [message(9, "u"), message(2, "v"), message(2, "w"), message(1, "x")];
        let used_at = |first: usize, second: usize, times: usize| {
            let mut programs = Programs::default();
            all.iter().for_each(|message| mqueue::put(queue, message).expect("put"));
            let save = || drop(taken.take_and_put(queue, ("one", 100)).expect("taken and put"));
            let killed = killed_after(first, save);
            programs.use_it(queue, times);
            let again = killed_after(second, || taken.put_back().expect("put back"));
            programs.use_it(queue, times);
            taken.put_back().expect("put back");
            let mut there = [programs.taken, emptied(queue)].concat();
            let mut wanted = [&all[..], &[message(2, "new 1"), message(2, "new 2")]].concat();
            let by = |one: &PriorityMessage| (one.priority, one.text.clone());
            there.sort_by_key(by);
            wanted.sort_by_key(by);
            if killed == Some("put") || again == Some("put") {
                // The window that remains: the message that was just put in, which programs have taken out.
                there.dedup();
            }
            assert_eq!(there, wanted, "{first} {killed:?} {second} {again:?} {times}");
            (killed, again)
        };
        for times in 0..3 {
            let mut first = 0;
            while used_at(first, 0, times).0.is_some() {
                let mut second = 1;
                while used_at(first, second, times).1.is_some() {
                    second += 1;
                }
                first += 1;
            }
        }
    }

    /// Each size of a file system, from one in which nothing has room to one in which all has.
    #[test]
    fn messages_stay_in_their_queue_where_the_disk_is_full() {
        if !is_apart("posix_queues::taken::tests::messages_stay_in_their_queue_where_the_disk_is_full") {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let queue = mqueue::create(c"full", QueueAttributes::new(9, 8192)).expect("made");
        let all: Vec<_> = (0..8).map(|n| message(9 - n, &"text".repeat(1000 + n as usize))).collect();
        all.iter().for_each(|message| mqueue::put(queue.as_fd(), message).expect("put"));
        for (failed, kibibytes) in (4..400).step_by(4).enumerate() {
            run("mount", &["-t", "tmpfs", "-o", &format!("size={kibibytes}k"), "full"], dir.path());
            let taken = TakenMessages::open(dir.path()).expect("opened");
            let done = taken.take_and_put(queue.as_fd(), ("full", 8192));
            if taken.is_some().expect("asked") {
                taken.put_back().expect("put back");
            }
            taken.close().expect("closed");
            assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
            run("umount", &[], dir.path());
            let there: Vec<_> =
                std::iter::from_fn(|| mqueue::take(queue.as_fd(), 8192).expect("taken")).collect();
            assert!(there == all, "{kibibytes} KiB: {} messages, {done:?}", there.len());
            if done.is_ok() {
                assert!(failed > 3, "{failed}");
                return;
            }
            all.iter().for_each(|message| mqueue::put(queue.as_fd(), message).expect("put"));
        }
        panic!("there is never room");
    }

    fn run(program: &str, words: &[&str], dir: &Path) {
        let status = std::process::Command::new(program).args(words).arg(dir).status().expect(program);
        assert!(status.success(), "{program} {words:?}: {status}");
    }

    #[test]
    fn with_a_queue_its_messages_go_and_a_journal_that_was_cut_has_none() {
        if !is_apart(
            "posix_queues::taken::tests::with_a_queue_its_messages_go_and_a_journal_that_was_cut_has_none",
        ) {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (queue, taken) = queue_in(dir.path());
        mqueue::put(queue.as_fd(), &message(1, "a")).expect("put");
        let save = || drop(taken.take_and_put(queue.as_fd(), ("other", 100)).expect("taken and put"));
        assert_eq!(killed_after(6, save), Some("add"));
        assert!(taken.is_some().expect("asked"));
        taken.put_back().expect("there is no queue of this name");
        assert!(!taken.is_some().expect("asked"));
        fs::write(dir.path().join(FILE), [0; 100]).expect("written");
        taken.put_back().expect("nothing");
        assert!(!taken.is_some().expect("asked"));
        fs::write(dir.path().join(FILE), [b'x'; 999]).expect("written");
        taken.put_back().expect_err("of another version");
    }
}
