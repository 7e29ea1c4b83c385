//! `skiff instance logs`: what is kept of an instance's output.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{SeekFrom, seek};
use skiff_cli::{Lines, LogsArgs};
use skiff_output as output;
use skiff_runtime::record::{InstanceDir, State};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::positional::read_exact_at;
use skiff_sys::small_file;
use skiff_user::context::UserContext;

/// Prints it, and what follows if that is asked for, until the instance ends.
pub fn show(context: &UserContext, asked: &LogsArgs) -> Result<()> {
    let LogsArgs { follow, tail, instance } = asked;
    let record = InstanceDir::existing(context, instance)?;
    let path = record.output();
    let about = || path.display().to_string();
    let mut file = small_file::open(&path).context(about)?;
    let skipped = match tail {
        None | Some(Lines::All) => 0,
        Some(Lines::Last(lines)) => last_lines(&file, *lines).context(about)?,
    };
    if *follow {
        return Follow::begin(&record, skipped)?.until(None).map(drop);
    }
    seek(&file, SeekFrom::Start(skipped)).context(about)?;
    copy(&mut file).context(about)
}

/// Where the last so many lines begin; at the beginning if no more are kept.
fn last_lines(file: &File, mut lines: u64) -> std::io::Result<u64> {
    let size = file.metadata()?.size();
    // Before that nothing is kept.
    let Ok(kept) = seek(file, SeekFrom::Data(0)) else { return Ok(0) };
    let mut buffer = vec![0; 1 << 16];
    let mut end = size;
    while end > kept && lines > 0 {
        let begin = end.saturating_sub(buffer.len() as u64).max(kept);
        let piece = &mut buffer[..(end - begin) as usize];
        read_exact_at(file.as_fd(), piece, begin)?;
        for (at, byte) in piece.iter().enumerate().rev() {
            // The last line's own end begins no other.
            let next = begin + at as u64 + 1;
            if *byte == b'\n' && next < size {
                lines -= 1;
                if lines == 0 {
                    return Ok(next);
                }
            }
        }
        end = begin;
    }
    Ok(if lines == 0 { size } else { 0 })
}

/// Somebody who reads along.
pub struct Follow<'a> {
    record: &'a InstanceDir,
    file: File,
    news: OwnedFd,
}

impl<'a> Follow<'a> {
    /// Begins to, behind so many bytes.
    pub fn begin(record: &'a InstanceDir, skipped: u64) -> Result<Self> {
        let path = record.output();
        let about = || path.display().to_string();
        let file = small_file::open(&path).context(about)?;
        seek(&file, SeekFrom::Start(skipped)).context(about)?;
        let news = inotify::init(CreateFlags::CLOEXEC).context(about)?;
        inotify::add_watch(&news, &path, WatchFlags::MODIFY).context(about).map_err(|e: Error| {
            e.hint("fs.inotify.max_user_watches may be used up; without -f it is not needed")
        })?;
        Ok(Self { record, file, news })
    }

    /// Prints what comes until the instance ends, or until there is something to be read from `other`; whether it has ended.
    pub fn until(&mut self, other: Option<BorrowedFd<'_>>) -> Result<bool> {
        let about = || self.record.output().display().to_string();
        // Asked before the output is read: what was written before its end is not missed.
        while let State::Running(live) = self.record.state()? {
            copy(&mut self.file).context(about)?;
            let mut fds =
                vec![PollFd::new(&self.news, PollFlags::IN), PollFd::new(&live.init, PollFlags::IN)];
            fds.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            poll(&mut fds, None).context(about)?;
            if !fds[1].revents().is_empty() {
                break;
            }
            if fds.get(2).is_some_and(|fd| !fd.revents().is_empty()) {
                return Ok(false);
            }
            rustix::io::read(&self.news, &mut [0; 4096]).context(about)?;
        }
        self.rest().map(|()| true)
    }

    /// Prints what has come by now.
    pub fn rest(&mut self) -> Result<()> {
        copy(&mut self.file).context(|| self.record.output().display().to_string())
    }
}

/// From where the file stands to its end. What is no longer kept is skipped, with the rest of the line that it ends in.
fn copy(file: &mut File) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let at = seek(file.as_fd(), SeekFrom::Current(0))?;
        if at >= file.metadata()?.size() {
            return Ok(());
        }
        // Behind the last byte that is kept there is none to be found.
        let Ok(kept) = seek(file.as_fd(), SeekFrom::Data(at)) else { return Ok(()) };
        let n = file.read(&mut buffer)?;
        let skip = match kept > at {
            true => buffer[..n].iter().position(|b| *b == b'\n').map_or(n, |end| end + 1),
            false => 0,
        };
        output::bytes(&buffer[skip..n]).map_err(|e| std::io::Error::other(e.message))?;
        std::io::stdout().flush()?;
    }
}

#[cfg(test)]
mod tests {
    use skiff_sys::positional::write_all_at;
    use tempfile::tempfile;

    use super::*;

    #[test]
    fn the_last_lines_begin_behind_the_end_of_the_one_before() {
        for (text, lines, want) in [
            ("", 3, ""),
            ("a\nb\nc\n", 0, ""),
            ("a\nb\nc\n", 1, "c\n"),
            ("a\nb\nc", 1, "c"),
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc\n", 3, "a\nb\nc\n"),
            ("a\nb\nc\n", 9, "a\nb\nc\n"),
            ("\n\n\n", 2, "\n\n"),
        ] {
            let file = tempfile().unwrap();
            write_all_at(file.as_fd(), text.as_bytes(), 0).unwrap();
            let begin = last_lines(&file, lines).unwrap() as usize;
            assert_eq!(&text[begin..], want, "{lines} of {text:?}");
        }
    }

    #[test]
    fn lines_that_are_no_longer_kept_are_not_looked_for() {
        let file = tempfile().unwrap();
        let long = 300 << 10;
        write_all_at(file.as_fd(), &vec![b'x'; long], 1 << 40).unwrap();
        write_all_at(file.as_fd(), b"\nlast\n", (1 << 40) + long as u64).unwrap();
        assert_eq!(last_lines(&file, 1).unwrap(), (1 << 40) + long as u64 + 1);
        assert_eq!(last_lines(&file, 3).unwrap(), 0);
    }
}
