//! Takes the pages that CRIU sends instead of writing them to a file, cuts them into chunks, and writes those that the store has not.
//!
//! A process of its own does so: it has threads, and who saves forks. Where there is memory for the pages, and the processes that are saved are to
//! go on, pages are only copied until they do ([`PageQueue`]); then they are cut, hashed, compressed and written.

use std::fs::File;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use skiff_criu::page_protocol::{self, PAGE, PRESENT, PROCESS, PageServerCommand, SHARED};
use skiff_criu::pagemap::{PageEntry, Pagemap};
use skiff_env::snapshot_fault::{self, ours};
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_snapshot::{ChunkStore, StoreWriter, StoredList, StreamPart};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::CloneFlags;

use crate::criu::fault;
use crate::expected_pages::expected;
use crate::page_queue::{PageQueue, chunks_in};
use crate::page_scan::LeftOutPages;
use crate::previous_pages::{ChunkRun, PreviousPages};
use crate::record::{CHUNKS, IMAGES, StoredImage};

/// The oldest CRIU that talks so: before, the number of pages had 32 bits.
pub const OLDEST: (i32, i32) = (4, 2);

/// What was taken.
#[derive(Debug, Serialize, Deserialize)]
pub struct TakenPages {
    /// Images that are in the store, in their order.
    pub stored: Vec<StoredImage>,
    /// Bytes that were new there, compressed.
    pub new: u64,
    /// Bytes of memory that were read; of all others it is known that they are as they were.
    pub read: u64,
}

/// Pages that may wait until they are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitingPages {
    /// Bytes that may wait at most.
    pub limit: u64,
    /// Process 1 of those that they come from, which soon go on; nothing if they do not.
    pub init: Option<Pid>,
}

/// A process that takes pages.
pub struct PageIntake {
    process: ReportingChild<Option<TakenPages>>,
    /// Has something in it when it is ready.
    ready: PipeReader,
    /// To say that the processes go on.
    go_on: PipeWriter,
    /// No chunk goes from the store before this is dropped.
    _store: ChunkStore,
}

impl PageIntake {
    /// Starts it. What of the pages is in none of the `known` lists is written to the store, the list of their chunks and the images that say
    /// where they belong to the directory `dir` of a new checkpoint. Until then so many may wait in memory. What CRIU leaves out is as it was in
    /// `previous`. The descriptor is for CRIU.
    ///
    /// # Errors
    /// When there are no processes or descriptors to be had, or the store cannot be written to.
    pub fn begin(
        store: ChunkStore,
        known: Vec<StoredList>,
        dir: BorrowedFd<'_>,
        waiting: WaitingPages,
        previous: Option<(&PreviousPages, &LeftOutPages)>,
    ) -> Result<(Self, OwnedFd)> {
        let about = || "connection for pages";
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).context(about)?;
        let (ready, is_ready) = std::io::pipe().context(about)?;
        let (goes_on, go_on) = std::io::pipe().context(about)?;
        let left_out = previous.map(|(_, left_out)| left_out.as_fd());
        let kept = [ours.as_fd(), dir, is_ready.as_fd(), goes_on.as_fd()].into_iter();
        let kept = kept.chain(left_out).chain(store.descriptors());
        let kept: Vec<BorrowedFd<'_>> = kept.collect();
        let name = "process that takes memory";
        let process = ReportingChild::begin(name, CloneFlags::NONE, Descriptors::Only(&kept), || {
            set_parent_process_death_signal(Some(Signal::KILL)).context(|| "signal at the caller's end")?;
            // If memory runs out nevertheless, this is to end, and nothing else.
            std::fs::write("/proc/self/oom_score_adj", "1000").ignore_error("it is one of many then");
            let writer = store.writer(known).map_err(snapshot_fault::ours)?;
            let mut queue = PageQueue::new(waiting.limit);
            if let Some(init) = waiting.init {
                queue.prepare(|| expected(init, previous.map(|(previous, _)| previous)))?;
            }
            (&is_ready).write_all(b"r").context(about)?;
            Taker {
                criu: File::from(ours.as_fd().try_clone_to_owned().context(about)?),
                dir,
                writer,
                queue,
                images: vec![],
                previous,
            }
            .take(|| (&goes_on).read(&mut [0]).map(|bytes| bytes > 0).context(about))
        })?;
        drop((ours, is_ready, goes_on));
        Ok((Self { process, ready, go_on, _store: store }, theirs))
    }

    /// Waits until it can take pages: nothing is to stand still before. If it cannot, it says why at its end.
    ///
    /// # Errors
    /// The system's.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.ready.read(&mut [0]).map(drop).context(|| "connection for pages")
    }

    /// Has what waits written: the processes go on, or stand still until this is done. Gives what was taken when all is on the disk; nothing if
    /// CRIU has not said that these were all pages. The store stays open, so that nothing goes from it until the checkpoint is there.
    ///
    /// # Errors
    /// Why pages could not be written.
    pub fn end(self) -> Result<Option<(TakenPages, ChunkStore)>> {
        let Self { process, mut go_on, _store: store, .. } = self;
        go_on.write_all(b"g").ignore_error("it has ended, and says why");
        Ok(process.end()?.map(|taken| (taken, store)))
    }
}

/// One of CRIU's images with pages, and that which says where they belong.
struct PagesImage {
    of: u64,
    name: String,
    /// What CRIU has said, in its order.
    runs: Vec<PageEntry>,
}

struct Taker<'a> {
    criu: File,
    dir: BorrowedFd<'a>,
    writer: StoreWriter<'a>,
    queue: PageQueue,
    images: Vec<PagesImage>,
    previous: Option<(&'a PreviousPages, &'a LeftOutPages)>,
}

impl Taker<'_> {
    /// Takes all pages. What waits is written once `goes_on` says so: until then CRIU, which has yet to let the processes go on, needs the processors.
    fn take(mut self, goes_on: impl FnOnce() -> Result<bool>) -> Result<Option<TakenPages>> {
        loop {
            let command = match PageServerCommand::read(&mut self.criu) {
                // It has failed, which it says elsewhere.
                Err(skiff_criu::Error::Io { source, .. })
                    if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&source.kind()) =>
                {
                    return Ok(None);
                }
                read => read.map_err(fault)?,
            };
            match command {
                PageServerCommand::Open(of) => {
                    self.open(of)?;
                    // There are no pages from before.
                    self.answer(&[0])?;
                }
                PageServerCommand::Add { of, address, pages, flags } => {
                    if !self.add(of, address, pages, flags)? {
                        return Ok(None);
                    }
                }
                PageServerCommand::Close => {
                    self.answer(&0_i32.to_ne_bytes())?;
                    return goes_on()?.then(|| self.finish()).transpose();
                }
            }
        }
    }

    fn answer(&mut self, bytes: &[u8]) -> Result<()> {
        self.criu.write_all(bytes).context(|| "connection for pages")
    }

    fn open(&mut self, of: u64) -> Result<()> {
        let number = of >> 8;
        let name = match of as u8 {
            PROCESS => format!("pagemap-{number}.img"),
            SHARED => format!("pagemap-shmem-{number}.img"),
            other => return Err(Fault::new(format!("CRIU: pages of kind {other}, which is not known"))),
        };
        self.images.push(PagesImage { of, name, runs: vec![] });
        Ok(())
    }

    /// Takes a run of pages; whether CRIU has sent all of it.
    fn add(&mut self, of: u64, address: u64, pages: u64, flags: u16) -> Result<bool> {
        let image = self.images.last_mut().filter(|image| image.of == of);
        let image = image.ok_or_else(|| Fault::new("CRIU: pages of a process that was not named"))?;
        image.runs.push(PageEntry { address, pages, flags });
        if flags & PRESENT == 0 {
            return Ok(true);
        }
        let length = page_protocol::bytes(pages).map_err(fault)?;
        let Self { criu, writer, queue, .. } = self;
        match queue.read(criu, (address, length), |chunk| writer.chunk(chunk).map_err(ours))? {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            read => read.context(|| "connection for pages")?,
        }
        Ok(true)
    }

    fn finish(self) -> Result<TakenPages> {
        let Self { dir, mut writer, queue, images, previous, .. } = self;
        queue.drain(|chunk| writer.chunk(chunk).map_err(ours))?;
        let merged = merge(&images, previous)?;
        let written = match previous {
            Some((previous, _)) => {
                let parts: Vec<StreamPart> = merged.iter().flat_map(|image| &image.parts).cloned().collect();
                writer.finish_with(&previous.list, &parts)
            }
            None => writer.finish(),
        };
        let written = written.map_err(ours)?;
        if merged.iter().map(|image| image.size).sum::<u64>() != written.length {
            return Err(Fault::new("pages of the processes: not all of them were written"));
        }
        create(dir, CHUNKS, &written.list)?;
        let mut stored = vec![];
        for (number, (image, merged)) in (1..).zip(images.iter().zip(&merged)) {
            let mut pagemap = Pagemap::new(number);
            merged.runs.iter().for_each(|run| pagemap.add(run.address, run.pages, run.flags));
            create(dir, &format!("{IMAGES}/{}", image.name), pagemap.bytes())?;
            stored.push(StoredImage { path: format!("{IMAGES}/pages-{number}.img"), size: merged.size });
        }
        Ok(TakenPages { stored, new: written.new, read: merged.iter().map(|image| image.read).sum() })
    }
}

/// What CRIU has said of each image, and what it has left out, in the order of addresses.
fn merge(
    images: &[PagesImage],
    previous: Option<(&PreviousPages, &LeftOutPages)>,
) -> Result<Vec<MergedImage>> {
    let left_out = previous.map(|(_, left_out)| left_out.another()?.all()).transpose()?;
    let mut left_out = left_out.unwrap_or_default();
    let mut merged = vec![];
    for image in images {
        let pid = page_protocol::process(image.of);
        let ranges = pid.and_then(|pid| left_out.remove(&pid)).unwrap_or_default();
        let runs = pid.zip(previous).map(|(pid, (previous, _))| previous.runs(pid, &ranges));
        let known = match runs {
            Some(Some(runs)) => runs,
            None => vec![],
            Some(None) => return Err(unknown(image)),
        };
        merged.push(MergedImage::of(image, &known)?);
    }
    match left_out.is_empty() {
        true => Ok(merged),
        false => Err(Fault::new("CRIU: pages were left out of a process that it has not named")),
    }
}

fn unknown(image: &PagesImage) -> Fault {
    Fault::new(format!("{}: pages are left out that the checkpoint before has not", image.name))
}

/// An image as it becomes.
#[derive(Default)]
struct MergedImage {
    runs: Vec<PageEntry>,
    parts: Vec<StreamPart>,
    size: u64,
    /// Bytes that CRIU has read.
    read: u64,
    has_known: bool,
}

impl MergedImage {
    fn of(image: &PagesImage, known: &[ChunkRun]) -> Result<Self> {
        let mut merged = Self::default();
        let mut known = known.iter().peekable();
        for run in &image.runs {
            while let Some(earlier) = known.next_if(|one| one.address < run.address) {
                merged.add_known(earlier).ok_or_else(|| unknown(image))?;
            }
            merged.add(*run).ok_or_else(|| unknown(image))?;
        }
        known.try_for_each(|run| merged.add_known(run)).ok_or_else(|| unknown(image))?;
        Ok(merged)
    }

    fn add_known(&mut self, run: &ChunkRun) -> Option<()> {
        self.append(PageEntry { address: run.address, pages: run.length / PAGE, flags: run.flags }, true)?;
        self.size += run.length;
        self.parts.push(StreamPart::Other(run.places.clone()));
        Some(())
    }

    fn add(&mut self, run: PageEntry) -> Option<()> {
        self.append(run, false)?;
        if run.flags & PRESENT != 0 {
            let length = run.pages.checked_mul(PAGE)?;
            self.size = self.size.checked_add(length)?;
            self.read += length;
            self.parts.push(StreamPart::Appended(chunks_in(run.address, length)));
        }
        Some(())
    }

    /// Nothing if there is something there already. (What CRIU says by itself is as it says it.)
    fn append(&mut self, run: PageEntry, is_known: bool) -> Option<()> {
        let end =
            |run: &PageEntry| run.pages.checked_mul(PAGE).and_then(|length| run.address.checked_add(length));
        let overlaps = self.runs.last().is_some_and(|last| end(last).is_none_or(|end| end > run.address));
        self.has_known |= is_known;
        if overlaps && self.has_known {
            return None;
        }
        self.runs.push(run);
        Some(())
    }
}

fn create(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::from_raw_mode(0o600)).map(File::from);
    file.context(|| name.to_owned())?.write_all(bytes).context(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    use rustix::fs::CWD;

    use crate::record::{Checkpoint, TREES, sums};
    use crate::saved_pages;
    use crate::stored;

    const OF_2: u64 = 2 << 8 | PROCESS as u64;
    const OF_9: u64 = 9 << 8 | SHARED as u64;

    fn page(byte: u8) -> Vec<u8> {
        vec![byte; 4096]
    }

    fn add(pages: u64, address: u64, of: u64, flags: u16) -> Vec<u8> {
        PageServerCommand::Add { of, address, pages, flags }.bytes().into()
    }

    fn open(of: u64) -> Vec<u8> {
        PageServerCommand::Open(of).bytes().into()
    }

    /// What CRIU says, and what has been taken of it into a checkpoint in `home`; the answers.
    fn take(home: &Path, name: &str, said: &[u8]) -> (Result<Option<TakenPages>>, Vec<u8>) {
        take_changes(home, name, said, None)
    }

    /// The same, of what has changed since the checkpoint before.
    fn take_changes(
        home: &Path,
        name: &str,
        said: &[u8],
        previous: Option<(&PreviousPages, &LeftOutPages)>,
    ) -> (Result<Option<TakenPages>>, Vec<u8>) {
        let dir = home.join(name);
        fs::create_dir_all(dir.join(IMAGES)).expect("made");
        let store = stored::open(home).expect("a store");
        let known = stored::known(home, &"one".parse().expect("a name")).expect("known");
        let dir = openat(CWD, &dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("open");
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("sockets");
        let (said, mut theirs) = (said.to_vec(), File::from(theirs));
        let speaker = std::thread::spawn(move || {
            theirs.write_all(&said).ignore_error("nobody listens any more where it is not understood");
            rustix::net::shutdown(&theirs, rustix::net::Shutdown::Write).ignore_error("nobody listens");
            let mut answers = vec![];
            theirs.read_to_end(&mut answers).ignore_error("nobody answers where it is not understood");
            answers
        });
        let writer = store.writer(known).expect("a writer");
        let queue = PageQueue::new(1 << 30);
        let taker = Taker { criu: ours.into(), dir: dir.as_fd(), writer, queue, images: vec![], previous };
        let taken = taker.take(|| {
            assert!(!home.join(name).join(CHUNKS).exists(), "it is only written when the processes go on");
            Ok(true)
        });
        (taken, speaker.join().expect("it ends"))
    }

    #[test]
    fn pages_are_cut_at_their_addresses_and_only_new_ones_are_written() {
        let temp = tempfile::tempdir().expect("a directory");
        let said = |runs: &[(u64, u8, u64)]| {
            let mut said = open(OF_2);
            for (address, byte, pages) in runs {
                said.extend(add(*pages, *address, OF_2, PRESENT));
                (0..*pages).for_each(|n| said.extend(page(byte + n as u8)));
            }
            said.extend(
                [add(7, 0x9_0000, OF_2, 2), open(OF_9), add(1, 0, OF_9, PRESENT), page(200)].concat(),
            );
            [said, PageServerCommand::Close.bytes().into()].concat()
        };
        let (taken, answers) = take(temp.path(), "one", &said(&[(0x10_0000, 1, 40)]));
        let taken = taken.expect("taken").expect("all");
        assert_eq!(answers, [0, 0, 0, 0, 0, 0], "a byte for each opened, four at the end");
        let sizes: Vec<(&str, u64)> = taken.stored.iter().map(|file| (&*file.path, file.size)).collect();
        assert_eq!(sizes, [("images/pages-1.img", 40 * 4096), ("images/pages-2.img", 4096)]);
        assert!(taken.new > 0);
        let mut runs = Pagemap::new(1);
        runs.add(0x10_0000, 40, PRESENT);
        runs.add(0x9_0000, 7, 2);
        assert_eq!(fs::read(temp.path().join("one/images/pagemap-2.img")).expect("there"), runs.bytes());
        assert!(temp.path().join("one/images/pagemap-shmem-9.img").exists());
        // Two pages before them move all that follows in the image, and make no other chunk a new one.
        let (taken, _) = take(temp.path(), "two", &said(&[(0xf_0000, 240, 2), (0x10_0000, 1, 40)]));
        let taken = taken.expect("taken").expect("all");
        assert_eq!(taken.stored[0].size, 42 * 4096);
        assert!(taken.new < 8192, "{}", taken.new);
    }

    /// A checkpoint's record, as far as its pages need one.
    fn record_of(dir: &Path, taken: TakenPages) -> Checkpoint {
        fs::create_dir(dir.join(TREES)).expect("made");
        let files = sums(dir).expect("summed");
        Checkpoint { files, stored: taken.stored, ..crate::record::tests::example() }
    }

    /// All bytes of a checkpoint's images.
    fn images(home: &Path, name: &str, record: &Checkpoint) -> Vec<Vec<u8>> {
        let mut images = vec![];
        stored::each(&home.join(name), record, |_, bytes| {
            let mut image = vec![];
            bytes.write_to(&mut image)?;
            images.push(image);
            Ok(())
        })
        .expect("whole");
        images
    }

    #[test]
    fn what_is_left_out_is_as_it_was_before() {
        let temp = tempfile::tempdir().expect("a directory");
        let home = temp.path();
        let run = |address: u64, bytes: &[u8]| {
            let pages = bytes.iter().flat_map(|byte| page(*byte));
            [add(bytes.len() as u64, address, OF_2, PRESENT), pages.collect()].concat()
        };
        let close = || Vec::from(PageServerCommand::Close.bytes());
        // Chunks of 4, 4 and 1 pages, then of 1 page.
        let first: Vec<u8> = (1..=9).collect();
        let said = [open(OF_2), run(0x10_0000, &first), run(0x20_0000, &[10]), close()].concat();
        let taken = take(home, "one", &said).0.expect("taken").expect("all");
        assert_eq!(taken.read, 10 * 4096);
        let record = record_of(&home.join("one"), taken);
        let store = stored::open(home).expect("a store");
        let collector = File::open(home.join(".chunks/turn")).expect("there");
        rustix::fs::flock(&collector, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("locked");
        stored::verify_saved(&store, &home.join("one"), &record).expect("whole, and nobody waits for us");
        drop(collector);
        let previous = || saved_pages::pages_of(&home.join("one"), &record, &store).expect("whole");
        let left_out = |ranges: &[(u64, u64)]| {
            let mut pages = LeftOutPages::new().expect("memory");
            pages.note(2, ranges).expect("noted");
            pages
        };
        let pages = |from: u64, count: u64| (0x10_0000 + from * 4096, 0x10_0000 + (from + count) * 4096);
        // The second chunk is another one; there is one page before all, and one behind. It is left out in pieces and twice, in any order.
        let out = left_out(&[(0x20_0000, 0x20_1000), pages(8, 1), pages(1, 3), pages(0, 2)]);
        let changes = [run(0xf_f000, &[70]), run(0x10_4000, &[5, 60, 7, 8]), run(0x30_0000, &[71, 72])];
        let said =
            [open(OF_2), changes.concat(), open(OF_9), add(1, 0, OF_9, PRESENT), page(9), close()].concat();
        let taken =
            take_changes(home, "two", &said, Some((&previous(), &out))).0.expect("taken").expect("all");
        assert_eq!(taken.read, 8 * 4096);
        let second = record_of(&home.join("two"), taken);
        let whole: Vec<u8> =
            [70, 1, 2, 3, 4, 5, 60, 7, 8, 9, 10, 71, 72].into_iter().flat_map(page).collect();
        assert!(images(home, "two", &second) == [whole, page(9)]);
        let image = fs::read(home.join("two/images/pagemap-2.img")).expect("there");
        let (number, entries) = Pagemap::parse(&image).expect("an image");
        let entries: Vec<(u64, u64)> = entries.iter().map(|entry| (entry.address, entry.pages)).collect();
        let wanted =
            [(0xf_f000, 1), (0x10_0000, 4), (0x10_4000, 4), (0x10_8000, 1), (0x20_0000, 1), (0x30_0000, 2)];
        assert_eq!((number, &entries[..]), (1, &wanted[..]));
        // And so on, of that.
        let again = saved_pages::pages_of(&home.join("two"), &second, &store).expect("whole");
        assert_eq!(again.bounds(2), Some((0xf_f000, 0x30_2000)));
        let said = [open(OF_2), open(OF_9), close()].concat();
        let out = left_out(&[(0xf_f000, 0x10_9000), (0x20_0000, 0x20_1000), (0x30_0000, 0x30_2000)]);
        let taken = take_changes(home, "three", &said, Some((&again, &out))).0.expect("taken").expect("all");
        assert_eq!(taken.read, 0);
        let third = record_of(&home.join("three"), taken);
        assert_eq!(images(home, "three", &third)[0], images(home, "two", &second)[0]);

        // What was left out and is not in there, or was not left out after all, makes no checkpoint.
        let open_2 = |more: Vec<u8>| [open(OF_2), more, close()].concat();
        for (what, ranges, said) in [
            ("half a chunk", pages(0, 2), open_2(vec![])),
            ("a page beside it", pages(8, 2), open_2(vec![])),
            ("twice", pages(0, 4), open_2(run(0x10_0000, &[1]))),
            ("twice, behind", pages(0, 4), open_2(run(0x10_3000, &[4, 5, 6, 7, 8]))),
            ("another process", pages(0, 4), [open(3 << 8 | u64::from(PROCESS)), close()].concat()),
        ] {
            let out = left_out(&[ranges]);
            let taken = take_changes(home, what, &said, Some((&previous(), &out))).0;
            let why = taken.err().unwrap_or_else(|| panic!("{what}"));
            assert!(why.message.contains("left out"), "{what}: {}", why.message);
            assert!(!home.join(what).join(CHUNKS).exists(), "{what}");
        }
    }

    #[test]
    fn of_a_damaged_checkpoint_nothing_is_taken() {
        let temp = tempfile::tempdir().expect("a directory");
        let home = temp.path();
        let pages: Vec<u8> = (0..8).flat_map(|number| noise(number, 4096)).collect();
        let said =
            [open(OF_2), add(8, 0x10_0000, OF_2, PRESENT), pages, PageServerCommand::Close.bytes().into()];
        let taken = take(home, "one", &said.concat()).0.expect("taken").expect("all");
        let record = record_of(&home.join("one"), taken);
        let store = stored::open(home).expect("a store");
        let read = |record: &Checkpoint| saved_pages::pages_of(&home.join("one"), record, &store);
        assert_eq!(read(&record).expect("whole").within(2, &[(0, 1 << 40)]).count(), 2);
        assert_eq!(read(&record).expect("whole").within(2, &[(0, 0x10_7000)]).count(), 1);
        let mut other = record.clone();
        other.stored[0].size += 4096;
        read(&other).expect_err("of another length");
        for file in ["images/pagemap-2.img", CHUNKS] {
            let path = home.join("one").join(file);
            let whole = fs::read(&path).expect("there");
            let mut damaged = whole.clone();
            let middle = damaged.len() / 2;
            damaged[middle..].iter_mut().take(8).for_each(|byte| *byte ^= 0x55);
            fs::write(&path, damaged).expect("written");
            read(&record).expect_err(file);
            fs::write(&path, whole).expect("written");
        }
        read(&record).expect("as it was");
        // Chunks of a pack that is gone or cut off are read and written again.
        for pack in fs::read_dir(home.join(".chunks/packs")).expect("there").flatten() {
            File::options().write(true).open(pack.path()).and_then(|pack| pack.set_len(100)).expect("cut");
        }
        assert_eq!(read(&record).expect("its list is whole").within(2, &[(0, 1 << 40)]).count(), 0);
    }

    fn noise(seed: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn what_is_cut_is_not_all_and_what_is_strange_is_an_error() {
        let begun = [open(OF_2), add(2, 0, OF_2, PRESENT), page(1)].concat();
        for (what, said) in
            [("nothing", vec![]), ("half a command", open(OF_2)[..9].to_vec()), ("half of the pages", begun)]
        {
            let temp = tempfile::tempdir().expect("a directory");
            assert!(take(temp.path(), "one", &said).0.expect(what).is_none(), "{what}");
            assert!(!temp.path().join("one").join(CHUNKS).exists(), "{what}");
        }
        for (said, reason) in [
            (add(1, 0, OF_2, PRESENT), "of a process that was not named"),
            ([open(OF_9), add(1, 0, OF_2, PRESENT)].concat(), "of a process that was not named"),
            ([open(OF_2), add(u64::MAX, 0, OF_2, PRESENT)].concat(), "more than there can be"),
            (vec![7; 32], "unknown page command"),
            (open(2 << 8 | 7), "of kind 7"),
        ] {
            let temp = tempfile::tempdir().expect("a directory");
            let refused = take(temp.path(), "one", &said).0.expect_err(reason);
            assert!(refused.message.contains(reason), "{}", refused.message);
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn no_bytes_take_the_receiver_down(said in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let temp = tempfile::tempdir().expect("a directory");
            let taken = take(temp.path(), "one", &said).0;
            assert!(!taken.is_ok_and(|taken| taken.is_some_and(|taken| taken.new > 0)));
        }
    }
}
