//! Pages that come from another host into the images that CRIU makes the processes of, with the files for them made before the processes
//! stop. (Most do not come this way: see [`crate::direct`].)

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ftruncate, openat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use skiff_criu::page_protocol::{PRESENT, PROCESS, PageServerCommand, SHARED};
use skiff_criu::pagemap::Pagemap;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use crate::page_io::{self, OTHER_SIDE};
use crate::populate::{Populating, Reserve};

/// The oldest CRIU that talks so: before, the number of pages had 32 bits.
pub const OLDEST: &str = "4.2";
/// More than the kernel lets a user's pipe have is not asked for.
pub(crate) const PIPE: usize = 1 << 20;
/// How often it is told how many bytes have come.
const STEP: u64 = 16 << 20;

/// The images of one process's pages.
struct Image {
    pages: Arc<File>,
    /// Bytes written to that.
    length: u64,
    /// The other image: where they were.
    runs: Pagemap,
    name: String,
}

/// A directory in which pages arrive.
pub struct Arrival {
    dir: OwnedFd,
    /// The files that wait for the pages of processes, by these.
    waiting: HashMap<i32, Arc<File>>,
    /// Whoever finds memory for these.
    populating: Populating,
    /// How many files for pages there are.
    files: u32,
    images: HashMap<u64, Image>,
    pipe: (OwnedFd, OwnedFd),
}

impl Arrival {
    /// Makes room for so many bytes of each of these processes, and for what `reserve` is to have: where pages arrive nobody has to look for
    /// memory any more. It is given when there is a good part of it.
    ///
    /// # Errors
    /// When there is no room for them.
    pub fn prepare(dir: OwnedFd, processes: &[(i32, u64)], reserve: &Reserve) -> Result<Self> {
        let pipe = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
        fcntl_setpipe_size(&pipe.0, PIPE).ignore_error("smaller ones do, too");
        let (mut waiting, mut files) = (HashMap::new(), vec![]);
        for (pid, bytes) in processes {
            let file = create(dir.as_fd(), &format!("ready-{pid}"))?;
            ftruncate(&file, *bytes).context(|| format!("memory for process {pid}"))?;
            let file = Arc::new(file);
            files.push((file.clone(), *bytes));
            waiting.insert(*pid, file);
        }
        files.push(reserve.file()?);
        let populating = Populating::begin(&files)?;
        Ok(Self { dir, waiting, populating, files: 0, images: HashMap::new(), pipe })
    }

    /// Takes all that is sent on the socket; how many bytes of pages that were. `tell` hears so from time to time.
    ///
    /// # Errors
    /// When it ends before it is all there, or there is no room.
    pub fn receive(mut self, socket: BorrowedFd<'_>, mut tell: impl FnMut(u64)) -> Result<u64> {
        let mut talk = File::from(socket.try_clone_to_owned().context(|| "connection for pages")?);
        let (mut total, mut told) = (0, 0);
        loop {
            match page_io::read(&mut talk)? {
                PageServerCommand::Open(of) => self.open(of)?,
                PageServerCommand::Add { of, address, pages, flags } => {
                    total += self.add(socket, of, (address, pages, flags))?;
                }
                PageServerCommand::Close => {
                    self.close()?;
                    tell(total);
                    return Ok(total);
                }
            }
            if total - told >= STEP {
                told = total;
                tell(total);
            }
        }
    }

    fn open(&mut self, of: u64) -> Result<()> {
        let number = of >> 8;
        let (name, ready) = match of as u8 {
            PROCESS => (format!("pagemap-{number}.img"), i32::try_from(number).ok()),
            SHARED => (format!("pagemap-shmem-{number}.img"), None),
            other => {
                return Err(Fault::new(format!("{OTHER_SIDE}: of kind {other}, which is not known")));
            }
        };
        self.files += 1;
        let pages = format!("pages-{}.img", self.files);
        let file = match ready.and_then(|pid| Some((pid, self.waiting.remove(&pid)?))) {
            Some((pid, file)) => {
                rustix::fs::renameat(&self.dir, format!("ready-{pid}"), &self.dir, &pages)
                    .context(|| pages.clone())?;
                file
            }
            None => Arc::new(create(self.dir.as_fd(), &pages)?),
        };
        let runs = Pagemap::new(self.files);
        self.images.insert(of, Image { pages: file, length: 0, runs, name });
        Ok(())
    }

    fn add(
        &mut self,
        socket: BorrowedFd<'_>,
        of: u64,
        (address, pages, flags): (u64, u64, u16),
    ) -> Result<u64> {
        let image = self.images.get_mut(&of);
        let image =
            image.ok_or_else(|| Fault::new("pages from the other side: of a process that was not named"))?;
        image.runs.add(address, pages, flags);
        if flags & PRESENT == 0 {
            return Ok(0);
        }
        let bytes = page_io::bytes(pages)?;
        move_bytes(socket, &self.pipe, image.pages.as_fd(), bytes)?;
        image.length += bytes;
        Ok(bytes)
    }

    /// Gives back the room that was not needed.
    fn close(&mut self) -> Result<()> {
        self.populating.end()?;
        for (pid, _) in self.waiting.drain() {
            let name = format!("ready-{pid}");
            rustix::fs::unlinkat(&self.dir, &name, rustix::fs::AtFlags::empty()).context(|| name)?;
        }
        for (_, image) in self.images.drain() {
            ftruncate(&image.pages, image.length).context(|| image.name.clone())?;
            create(self.dir.as_fd(), &image.name)?
                .write_all(image.runs.bytes())
                .context(|| image.name.clone())?;
        }
        Ok(())
    }
}

fn create(dir: BorrowedFd<'_>, name: &str) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::from_raw_mode(0o600)).map(File::from).context(|| name.to_owned())
}

/// From the socket to the end of what is written of a file, without a stay in our own memory.
pub(crate) fn move_bytes(
    from: BorrowedFd<'_>,
    (out, into): &(OwnedFd, OwnedFd),
    to: BorrowedFd<'_>,
    bytes: u64,
) -> Result<()> {
    let mut left = bytes;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(PIPE);
        let mut here = match splice(from, None, into, None, wanted, SpliceFlags::MOVE) {
            Ok(0) => return Err(Fault::new("pages from the other side: it has closed the connection")),
            Ok(n) => n,
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e).context(|| OTHER_SIDE),
        };
        left -= here as u64;
        while here > 0 {
            match splice(out, None, to, None, here, SpliceFlags::MOVE) {
                Ok(n) => here -= n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e).context(|| "memory for pages"),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    const CLOSE: PageServerCommand = PageServerCommand::Close;

    fn open(of: u64) -> Vec<u8> {
        PageServerCommand::Open(of).bytes().into()
    }

    fn add(flags: u16, pages: u64, address: u64, of: u64) -> Vec<u8> {
        PageServerCommand::Add { of, address, pages, flags }.bytes().into()
    }

    /// What is said; the images then.
    fn arrive(said: &[u8], ready: &[(i32, u64)]) -> (Result<u64>, Vec<(String, Vec<u8>)>) {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = openat(CWD, temp.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("open");
        let arrival = Arrival::prepare(dir, ready, &Reserve::new(8192).expect("a file")).expect("room");
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("sockets");
        let mut theirs = File::from(theirs);
        let said = said.to_vec();
        let speaker = std::thread::spawn(move || {
            theirs.write_all(&said).ignore_error("nobody listens any more where it is not understood");
        });
        let done = arrival.receive(ours.as_fd(), |_| ());
        drop(ours);
        speaker.join().expect("it ends");
        let mut files: Vec<_> = std::fs::read_dir(temp.path())
            .expect("read")
            .flatten()
            .map(|file| {
                (file.file_name().to_string_lossy().into_owned(), std::fs::read(file.path()).expect("read"))
            })
            .collect();
        files.sort();
        (done, files)
    }

    #[test]
    fn pages_come_to_lie_as_criu_would_have_written_them() {
        let page = |byte: u8| vec![byte; 4096];
        let said = [
            open(2 << 8 | 1),
            add(PRESENT, 2, 0x1000, 2 << 8 | 1),
            page(b'a'),
            page(b'b'),
            open(9 << 8 | 2),
            add(PRESENT, 1, 0, 9 << 8 | 2),
            page(b'c'),
            add(2, 5, 0x9000, 2 << 8 | 1),
            CLOSE.bytes().into(),
        ]
        .concat();
        let (done, files) = arrive(&said, &[(2, 1 << 20), (3, 4096)]);
        assert_eq!(done.expect("all there"), 3 * 4096);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["pagemap-2.img", "pagemap-shmem-9.img", "pages-1.img", "pages-2.img"]);
        assert_eq!(files[2].1, [page(b'a'), page(b'b')].concat());
        assert_eq!(files[3].1, page(b'c'));
        let runs = [
            &[0x19, 0x43, 0x56, 0x54, 0x25, 0x40, 0x08, 0x56, 2, 0, 0, 0, 8, 1][..],
            &[9, 0, 0, 0, 8, 0x80, 0x20, 0x10, 0, 0x20, 4, 0x28, 2],
            &[10, 0, 0, 0, 8, 0x80, 0xa0, 2, 0x10, 0, 0x20, 2, 0x28, 5],
        ];
        assert_eq!(files[0].1, runs.concat());
    }

    #[test]
    fn what_is_cut_or_strange_is_an_error() {
        let begun = open(2 << 8 | 1);
        let add = |pages| add(PRESENT, pages, 0, 2 << 8 | 1);
        let ends = "failed to fill whole buffer";
        for (what, said, reason) in [
            ("nothing", vec![], ends),
            ("half a command", begun[..9].to_vec(), ends),
            ("no end", begun.clone(), ends),
            ("pages", [begun.clone(), add(2), vec![0; 4096]].concat(), "it has closed the connection"),
            ("of nobody", add(1), "of a process that was not named"),
            (
                "too many",
                [begun.clone(), add(u64::MAX)].concat(),
                "18446744073709551615 pages are more than there can be",
            ),
            ("a command", [begun.clone(), vec![7; 32]].concat(), "unknown page command 0x707"),
            ("a kind", open(2 << 8 | 7), "of kind 7, which is not known"),
        ] {
            let refused = arrive(&said, &[]).0.expect_err(what);
            assert_eq!(refused.message, format!("pages from the other side: {reason}"), "{what}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_take_the_receiver_down(said in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            assert!(!arrive(&said, &[]).0.is_ok_and(|total| total > 0));
        }
    }
}
