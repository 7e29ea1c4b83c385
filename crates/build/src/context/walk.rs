//! Reads the files that were found.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::positional::read_at;
use skiff_tar::{EntryKind, LONGEST_PATH, TarEntry};

use super::sink::{EntrySink, PIECE};
use super::{Found, SourceTree, joined};

/// Nothing waits for whoever would write to a pipe, and no link is followed.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

impl SourceTree<'_> {
    /// Emits a file, called `name`; or all that is in a directory, below `name`.
    ///
    /// # Errors
    /// Something cannot be read, or is neither a file nor a directory nor a link.
    pub fn emit(&self, found: &Found, name: &[u8], sink: &mut dyn EntrySink) -> Result<()> {
        if found.is_directory {
            return self.contents(&found.path, name, sink);
        }
        if self.is_excluded(name)? {
            return Ok(());
        }
        let file = self.open(&found.path, READ).context(|| self.shown(&found.path))?;
        self.file(&file, &found.path, name, sink)
    }

    /// Emits all that is in a directory, below `name`.
    pub(super) fn contents(&self, path: &[u8], name: &[u8], sink: &mut dyn EntrySink) -> Result<()> {
        let mut pending = vec![(path.to_vec(), name.to_vec(), true)];
        while let Some((path, name, is_top)) = pending.pop() {
            let dir = self.open(&path, READ | OFlags::DIRECTORY).context(|| self.shown(&path))?;
            if !is_top && !self.is_left_out(&path)? && !self.is_excluded(&name)? {
                sink.entry(&self.directory_entry(&dir, &path, &name)?)?;
            }
            // The last is taken first.
            let mut directories = vec![];
            for child in self.names_in(&dir, &path)? {
                let child_path = joined(&path, &child);
                let child_name = joined(&name, &child);
                if self.child(&dir, &child, &child_path, &child_name, sink)? {
                    directories.push((child_path, child_name, false));
                }
            }
            pending.extend(directories.into_iter().rev());
        }
        Ok(())
    }

    pub(super) fn directory_entry(&self, dir: &OwnedFd, path: &[u8], name: &[u8]) -> Result<TarEntry> {
        let stat = fstat(dir).context(|| self.shown(path))?;
        self.entry(name, &stat, EntryKind::Directory)
    }

    /// Emits what a directory has under a name, unless that is a directory itself, which is to be read.
    pub(super) fn child(
        &self,
        dir: &OwnedFd,
        child: &[u8],
        path: &[u8],
        name: &[u8],
        sink: &mut dyn EntrySink,
    ) -> Result<bool> {
        let is_out = self.is_left_out(path)? || self.is_excluded(name)?;
        let stat = statat(dir, child, AtFlags::SYMLINK_NOFOLLOW).context(|| self.shown(path))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return Ok(!self.is_skipped(path, name)?),
            _ if is_out => {}
            FileType::RegularFile => {
                let file = openat(dir, child, READ, Mode::empty()).context(|| self.shown(path));
                self.file(&file.map_err(|e| self.unreadable(e))?, path, name, sink)?;
            }
            FileType::Symlink => {
                let target = readlinkat(dir, child, vec![]).context(|| self.shown(path))?;
                sink.entry(&self.entry(name, &stat, EntryKind::Symlink(target.into_bytes()))?)?;
            }
            _ => return Err(self.special(path)),
        }
        Ok(false)
    }

    fn file(&self, file: &OwnedFd, path: &[u8], name: &[u8], sink: &mut dyn EntrySink) -> Result<()> {
        let shown = || self.shown(path);
        let stat = fstat(file).context(shown)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.special(path));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        sink.entry(&self.entry(name, &stat, EntryKind::File(size))?)?;
        let mut buffer = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
        let mut at = 0;
        while at < size {
            let wanted = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
            let count = read_at(file.as_fd(), &mut buffer[..wanted], at).context(shown)?;
            if count == 0 {
                return Err(Fault::new(format!("{} was truncated while it was copied", shown()))
                    .hint("build again when nobody writes to it"));
            }
            sink.data(&buffer[..count])?;
            at += count as u64;
        }
        Ok(())
    }

    fn entry(&self, name: &[u8], stat: &Stat, kind: EntryKind) -> Result<TarEntry> {
        if name.len() >= LONGEST_PATH {
            return Err(Fault::new(format!(
                "{}: a path of {} bytes is too long",
                self.shown(&name[..80]),
                name.len()
            )));
        }
        let own = (stat.st_mode & 0o7777) as u16;
        let mode = match (&kind, self.copy.mode) {
            (EntryKind::Symlink(_), _) => 0o777,
            (_, Some(change)) => change.apply(own, kind == EntryKind::Directory),
            _ => own,
        };
        let [uid, gid] = if self.is_roots { [0, 0] } else { [stat.st_uid, stat.st_gid] };
        let (mtime, mtime_nsec) = (stat.st_mtime, stat.st_mtime_nsec as u32);
        Ok(TarEntry { path: name.to_vec(), kind, mode, uid, gid, mtime, mtime_nsec, xattrs: vec![] })
    }

    fn special(&self, path: &[u8]) -> Fault {
        let fault = Fault::new(format!("{}: a device, pipe or socket cannot be copied", self.shown(path)));
        if self.rules.is_some() {
            fault.hint("a line for it in `.dockerignore` leaves it out")
        } else {
            fault
        }
    }

    fn unreadable(&self, fault: Fault) -> Fault {
        match self.rules.is_some() && fault.hint.is_empty() {
            true => fault.hint("a line for it in `.dockerignore` leaves it out"),
            false => fault,
        }
    }
}
