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

use super::journal::{Head, JournalPhase, QueueJournal};
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
        let about = || self.about(FILE);
        let mut journal = QueueJournal::begin(self.create(FILE)?, name, longest).context(about)?;
        let room = mqueue::attributes(queue).and_then(|said| journal.reserve(said.messages, queue));
        if let Err(why) = room {
            journal.end().context(about)?;
            return Err(why).context(about);
        }
        let is_empty = match take_all(queue, &mut journal) {
            Ok(is_empty) => is_empty,
            Err(why) => return Err(self.put_without_it(queue, journal, &why)),
        };
        if let Err(why) = journal.begin_putting() {
            return Err(self.put_without_it(queue, journal, &why));
        }
        let messages = self.put_all(queue, journal)?;
        if is_empty { Ok(messages) } else { Err(is_filled(name)) }
    }

    /// Puts back what is missing. The queue `is_unused` if all programs have stood still since it was taken.
    pub(super) fn put_back(&self, is_unused: bool) -> Result<()> {
        let Some(file) = self.find()? else { return Ok(()) };
        let Some(mut journal) = QueueJournal::read(file).map_err(|why| self.unreadable(&why))? else {
            // Nothing had been taken yet.
            return self.create(FILE)?.set_len(0).context(|| self.about(FILE));
        };
        let name = journal.head.name.clone();
        let about = || self.about(FILE);
        let queue = match mqueue::open(&c_name(&name)?) {
            // With the queue its messages have gone.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return journal.end().context(about),
            queue => queue.context(|| named(&name))?,
        };
        let queue = queue.as_fd();
        if journal.is_all_back() {
            return journal.end().context(about);
        }
        journal.look_again().context(about)?;
        journal.finish_slot(queue, is_unused).context(about)?;
        let there = mqueue::attributes(queue).context(|| named(&name))?.messages;
        journal.reserve(there, queue).context(about)?;
        let is_empty = match take_all(queue, &mut journal) {
            Ok(is_empty) => is_empty,
            Err(why) => return Err(self.put_without_it(queue, journal, &why)),
        };
        let begun = match journal.head.phase {
            JournalPhase::TakingAgain => self.replace(&journal).map(|new| journal = new),
            JournalPhase::Taking | JournalPhase::Putting => journal.begin_putting(),
        };
        if let Err(why) = begun {
            return Err(self.put_without_it(queue, journal, &why));
        }
        self.put_all(queue, journal)?;
        if is_empty { Ok(()) } else { Err(is_filled(&name)) }
    }

    /// Puts back all that the journal has, each of which it notes; gives them.
    fn put_all(&self, queue: BorrowedFd<'_>, mut journal: QueueJournal) -> Result<Vec<PriorityMessage>> {
        while let Some(message) = journal.next() {
            put_back(queue, message).context(|| named(&journal.head.name))?;
            point("put");
            if let Err(why) = journal.note_put() {
                return Err(self.put_without_it(queue, journal, &why));
            }
        }
        journal.end().context(|| self.about(FILE))?;
        Ok(journal.messages)
    }

    /// Puts a journal that has all messages in order in the place of this one.
    fn replace(&self, journal: &QueueJournal) -> io::Result<QueueJournal> {
        let mut new = self.new_journal(&journal.head, &in_order_of(journal))?;
        new.begin_putting()?;
        point("new journal");
        self.rename_new()?;
        point("rename");
        Ok(new)
    }

    /// Makes a journal of messages that are out of the same queue, which has no name yet.
    fn new_journal(&self, head: &Head, messages: &[PriorityMessage]) -> io::Result<QueueJournal> {
        let mut new = QueueJournal::begin(self.create_file(NEW)?, &head.name, head.longest as usize)?;
        messages.iter().try_for_each(|message| new.add(message))?;
        Ok(new)
    }

    fn rename_new(&self) -> io::Result<()> {
        Ok(renameat(&self.dir, NEW, &self.dir, FILE)?)
    }

    /// Where the journal cannot be written any more: all else is taken out, as those that stay would be in front of those that go back, and all goes back.
    fn put_without_it(&self, queue: BorrowedFd<'_>, mut journal: QueueJournal, why: &io::Error) -> Fault {
        let why = self.fault(why);
        if journal.head.phase != JournalPhase::Putting {
            match journal.left_in_slot(queue, true) {
                Ok(left) => journal.messages.extend(left),
                Err(e) => return both(why, Err(self.fault(&e))),
            }
            let most = mqueue::attributes(queue).map_or(0, |said| said.most);
            for _ in 0..most {
                let Ok(Some(message)) = mqueue::take(queue, journal.head.longest as usize) else { break };
                journal.messages.push(message);
            }
        }
        let all = in_order_of(&journal);
        // Where one finds no room, the others go in nevertheless.
        let (mut missing, mut put) = (vec![], Ok(()));
        for message in &all[journal.head.back()..] {
            if let Err(e) = put_back(queue, message) {
                missing.push(message.clone());
                put = put.and(Err(e));
            }
        }
        both(why, self.end_without_it(&journal, &missing, put.context(|| named(&journal.head.name))))
    }

    /// Ends a journal that cannot be written, and says of messages that are back that they are out: these are the `missing` ones.
    fn end_without_it(
        &self,
        journal: &QueueJournal,
        missing: &[PriorityMessage],
        put: Result<()>,
    ) -> Result<()> {
        if !missing.is_empty()
            && self.new_journal(&journal.head, missing).and_then(|_| self.rename_new()).is_ok()
        {
            return put;
        }
        let ended = journal.end().or_else(|_| Ok(unlinkat(&self.dir, FILE, AtFlags::empty())?));
        ended.map_err(|why: io::Error| {
            self.fault(&why).hint(format!("its messages are back: rm {}", self.about(FILE)))
        })?;
        put.map_err(|why| {
            let lost =
                format!("of its messages {} are lost, as there is room neither in it nor for", missing.len());
            Fault::new(format!("{why}; {lost} {}", self.about(FILE)))
                .hint("make room on that file system, and end the session that puts messages in")
        })
    }

    fn fault(&self, why: &io::Error) -> Fault {
        Fault::new(format!("{}: {why}", self.about(FILE)))
    }

    /// The path of a file in the directory.
    fn about(&self, name: &str) -> String {
        self.path.with_file_name(name).display().to_string()
    }

    fn unreadable(&self, why: &io::Error) -> Fault {
        let path = self.about(FILE);
        self.fault(why).hint(format!(
            "it holds messages of a queue of the instance: `mv {path} {path}.damaged` gives them up, and the instance can be saved again"
        ))
    }

    fn find(&self) -> Result<Option<File>> {
        match openat(&self.dir, FILE, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            file => file.map(|file| Some(file.into())).context(|| self.about(FILE)),
        }
    }

    fn create(&self, name: &str) -> Result<File> {
        self.create_file(name).context(|| self.about(name))
    }

    fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.dir, name, flags, Mode::from_raw_mode(0o600))?.into())
    }
}

/// Takes all messages out of a queue into the journal; whether it is empty then. Programs stand still, but sessions do not, and may put more in.
fn take_all(queue: BorrowedFd<'_>, journal: &mut QueueJournal) -> io::Result<bool> {
    let most = mqueue::attributes(queue)?.most;
    for _ in 0..=most.max(0) {
        if !journal.take(queue)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_filled(name: &str) -> Fault {
    Fault::new(format!("{}: somebody puts messages in while they are read", named(name)))
        .hint("end the session that does (`skiff instance exec`), and save again")
}

/// All messages of a journal in the order in which they go back.
fn in_order_of(journal: &QueueJournal) -> Vec<PriorityMessage> {
    let (head, all) = (&journal.head, &journal.messages);
    if head.phase != JournalPhase::TakingAgain {
        return all.clone();
    }
    let [first, seam] = [head.first, head.seam].map(|at| at as usize);
    in_order(&Seen {
        back: &all[..first],
        doubtful: &all[first],
        missing: &all[first + 1..seam],
        there: &all[seam..],
    })
}

/// A fault of one who takes, and that of who has put back what was missing then.
pub(super) fn both(why: Fault, put_back: Result<()>) -> Fault {
    match put_back {
        Ok(()) => why,
        Err(e) => {
            let said = Fault::new(format!("{why}; {e}"));
            let next = "the next `skiff checkpoint save` puts its messages back";
            if e.hint.is_empty() { said.hint(next) } else { said.hint(e.hint) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use skiff_sys::mqueue::QueueAttributes;

    use super::super::killed::{between_points, full_after, killed_after};
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
        // The last ends as an empty slot does. Where programs have stood still since, its length is known exactly.
        for (is_unused, end) in [(false, 1), (true, 20)] {
            let last = PriorityMessage { priority: 0, text: [&b"c"[..], &vec![0xf7; end]].concat() };
            let all = [message(9, ""), message(2, "a"), message(2, "a"), last];
            let killed_at = |first: usize, second: usize| {
                all.iter().for_each(|message| mqueue::put(queue, message).expect("put"));
                let save = || drop(taken.take_and_put(queue, ("one", 100)).expect("taken and put"));
                let killed = killed_after(first, save);
                let put_back = || taken.put_back(is_unused).expect("put back");
                let again = killed.and_then(|_| killed_after(second, put_back));
                put_back();
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
        }
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
            let again = killed_after(second, || taken.put_back(false).expect("put back"));
            programs.use_it(queue, times);
            taken.put_back(false).expect("put back");
            let mut there = [programs.taken, emptied(queue)].concat();
            let wanted = [&all[..], &[message(2, "new 1"), message(2, "new 2")]].concat();
            let missing = wanted.iter().filter(|one| match there.iter().position(|other| other == *one) {
                Some(at) => there.remove(at) != **one,
                None => true,
            });
            assert_eq!(missing.count(), 0, "{first} {killed:?} {second} {again:?} {times}");
            // The window that remains: the message that was just put in, which programs have taken out.
            let windows = [killed, again].into_iter().filter(|killed| *killed == Some("put")).count();
            assert!(there.len() <= windows, "{there:?} {first} {killed:?} {second} {again:?} {times}");
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
                taken.put_back(false).expect("put back");
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
    fn messages_are_there_once_also_when_no_file_can_be_written_any_more() {
        if !is_apart(
            "posix_queues::taken::tests::messages_are_there_once_also_when_no_file_can_be_written_any_more",
        ) {
            return;
        }
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (queue, taken) = queue_in(dir.path());
        let queue = queue.as_fd();
        let all = [message(9, "u"), message(2, "v"), message(2, "w"), message(1, "x")];
        let fill = || all.iter().for_each(|message| mqueue::put(queue, message).expect("put"));
        let there_once = |what: &str| {
            taken.put_back(false).expect("put back");
            assert!(!taken.is_some().expect("asked"), "{what}");
            assert_eq!(emptied(queue), all, "{what}");
        };
        let mut full = 0;
        loop {
            fill();
            let (is_full, done) = full_after(full, || taken.take_and_put(queue, ("one", 100)));
            assert!(done.is_ok() || is_full);
            let there = mqueue::attributes(queue).expect("asked").messages;
            assert_eq!(there, 4, "{full}: they are back at once");
            there_once(&format!("save {full}"));
            full += 1;
            if !is_full {
                break;
            }
        }
        let saved = full;
        for first in 0..saved {
            for full in 0.. {
                fill();
                killed_after(first, || drop(taken.take_and_put(queue, ("one", 100)).expect("taken and put")));
                let (is_full, _) = full_after(full, || taken.put_back(false));
                there_once(&format!("killed {first}, back {full}"));
                if !is_full {
                    break;
                }
            }
        }
    }

    #[test]
    fn messages_that_a_session_puts_in_meanwhile_are_kept_until_there_is_room() {
        if !is_apart(
            "posix_queues::taken::tests::messages_that_a_session_puts_in_meanwhile_are_kept_until_there_is_room",
        ) {
            return;
        }
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let queue = mqueue::create(c"one", QueueAttributes::new(2, 100)).expect("made");
        let (queue, taken) = (queue.as_fd(), TakenMessages::open(dir.path()).expect("opened"));
        let texts = ["a", "b", "c", "d"];
        texts[..2].iter().for_each(|text| mqueue::put(queue, &message(1, text)).expect("put"));
        // As one who waits for room does: it is there as soon as one has been taken.
        let (sender, mut more) = (mqueue::open(c"one").expect("opened"), 2);
        let put_more = move || {
            while more < texts.len() && mqueue::put(sender.as_fd(), &message(1, texts[more])).is_ok() {
                more += 1;
            }
        };
        let why = between_points(put_more, || taken.take_and_put(queue, ("one", 100)).expect_err("too many"));
        assert!(why.message.contains("queue /one: "), "{}", why.message);
        let mut seen = emptied(queue);
        taken.put_back(true).expect("there is room");
        seen.extend(emptied(queue));
        seen.sort_by(|one, other| one.text.cmp(&other.text));
        assert_eq!(seen, texts.map(|text| message(1, text)));
        taken.close().expect("nothing is missing");
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
        taken.put_back(false).expect("there is no queue of this name");
        assert!(!taken.is_some().expect("asked"));
        fs::write(dir.path().join(FILE), [0; 100]).expect("written");
        taken.put_back(false).expect("nothing");
        assert!(!taken.is_some().expect("asked"));
        fs::write(dir.path().join(FILE), [b'x'; 999]).expect("written");
        taken.put_back(false).expect_err("of another version");
    }
}
