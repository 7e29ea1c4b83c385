//! `skiff instance logs`: what is kept of an instance's output.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{SeekFrom, seek};
use skiff_output as output;
use skiff_runtime::record::{InstanceDir, State};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_sys::small_file;
use skiff_user::context::UserContext;

/// Prints it, and what follows if that is asked for, until the instance ends.
pub fn show(context: &UserContext, name: &EnvName, follow: bool) -> Result<()> {
    let record = InstanceDir::existing(context, name)?;
    if follow {
        return Follow::begin(&record, 0)?.until(None).map(drop);
    }
    let path = record.output();
    small_file::open(&path).and_then(|mut file| copy(&mut file)).context(|| path.display().to_string())
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
