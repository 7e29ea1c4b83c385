//! Reads what a user names on the command line: a file, or a pipe such as the shell's `<(...)`. Called inside, Skiff reads it outside, where nobody
//! sees a process that waits for ever or fills the memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};

/// No variables are longer: the kernel takes no more of a program's, in bytes.
const LONGEST: u64 = 6 << 20;
/// How long the program may take that writes into a pipe.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to do about a path that the shell has left as it was typed.
#[must_use]
pub fn not_expanded(word: &str) -> Option<String> {
    let rest = word.strip_prefix("~/")?;
    Some(format!("the shell leaves a ~ behind = as it is: write $HOME/{rest}"))
}

/// All that is there.
///
/// # Errors
/// As [`read_at_most`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(path, LONGEST)
}

/// The same, if it is at most so many bytes.
///
/// # Errors
/// Of `open(2)` and `read(2)`; when it is longer, or a pipe of which nothing comes in time.
pub fn read_at_most(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    read_by(path, longest, Instant::now() + PATIENCE)
}

fn read_by(path: &Path, longest: u64, end: Instant) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    let (mut all, mut file) = (vec![], file.take(longest + 1));
    loop {
        // A pipe that nobody writes to ends at once when it is read, but is not ready.
        if !is_ready(file.get_ref(), end)? {
            return Err(io::Error::new(ErrorKind::TimedOut, "nothing has come of it in time"));
        }
        match file.read_to_end(&mut all) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Ok(_) if all.len() as u64 > longest => {
                return Err(io::Error::new(ErrorKind::FileTooLarge, format!("longer than {longest} bytes")));
            }
            read => return read.map(|_| all),
        }
    }
}

fn is_ready(file: &File, end: Instant) -> io::Result<bool> {
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(file, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_has_an_end_is_read() {
        let dir = std::env::temp_dir().join(format!("skiff-named-file.{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        let soon = || Instant::now() + Duration::from_millis(50);
        let said = |path: &Path| read_by(path, LONGEST, soon()).map_err(|e| e.kind());
        std::fs::write(dir.join("file"), "A=1").expect("written");
        assert_eq!(said(&dir.join("file")).as_deref(), Ok(&b"A=1"[..]));
        let why = read_at_most(&dir.join("file"), 2).expect_err("too long").to_string();
        assert_eq!(why, "longer than 2 bytes");
        assert_eq!(said(Path::new("/dev/null")).as_deref(), Ok(&b""[..]));
        assert_eq!(said(Path::new("/dev/zero")), Err(ErrorKind::FileTooLarge));
        assert_eq!(said(&dir.join("none")), Err(ErrorKind::NotFound));
        let pipe = dir.join("pipe");
        rustix::fs::mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).expect("a pipe");
        assert_eq!(said(&pipe), Err(ErrorKind::TimedOut), "nobody writes");
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let (ours, mut theirs) = io::pipe().expect("a pipe");
        let path = format!("/proc/self/fd/{}", ours.as_raw_fd());
        let writer = std::thread::spawn(move || {
            for piece in ["A=1\n", "B=2\n"] {
                std::thread::sleep(Duration::from_millis(20));
                theirs.write_all(piece.as_bytes()).expect("written");
            }
        });
        let read = read_by(path.as_ref(), LONGEST, Instant::now() + Duration::from_secs(30)).expect("read");
        writer.join().expect("ended");
        assert_eq!(read, b"A=1\nB=2\n");
    }
}
