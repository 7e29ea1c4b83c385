//! Files outside an instance made as they were. What is there now is kept beside them before anything is changed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FileType, OFlags, fstat};
use skiff_cli::GrownFiles;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::{IgnoreError, lease};

use super::aside::{AFTER, BEFORE, KeptAside, WRITTEN_TO, make_again};
use super::change::{FileChange, Was, change, look};
use super::{FileRules, open};

/// So many files that are read only are named in a line.
const MOST_NAMED: usize = 5;
/// Why a file is neither cut nor replaced.
const OPEN_ELSEWHERE: &str = "another process has it open to write to it";
const END_WRITERS: &str = "end what has them open first: `fuser -v FILE` names it; an instance that still runs is ended by `skiff instance stop`";
const FORMER_CONTENTS: &str = "restore these files to their former contents, or start the instance anew";

/// A change that can be carried out: all that may be refused has been asked.
struct PreparedChange<'a> {
    path: &'a str,
    was: &'a Was,
    file: File,
    copy: Option<&'a OwnedFd>,
    /// What was there, beside it.
    aside: Option<KeptAside>,
    /// How long it is; nothing of one that was missing.
    is: Option<u64>,
}

/// What all files come to.
#[derive(Default)]
struct FileChanges<'a> {
    said: Vec<String>,
    /// Paths of those that are read only and have been written to.
    read: Vec<&'a str>,
    prepared: Vec<PreparedChange<'a>>,
    /// Numbers in the file system of those that are open to be written.
    numbers: BTreeMap<String, u64>,
    /// What is in the way.
    wrong: Vec<String>,
    /// What can be done about that.
    hints: Vec<&'static str>,
}

/// Inside: changes those that are not as they were, if that is wanted and none is in the way; what was done, in words, and the numbers in the file
/// system of those that are open to be written.
pub(super) fn fit(
    wanted: &BTreeMap<String, Was>,
    copies: &BTreeMap<&str, OwnedFd>,
    rules: &FileRules,
) -> Result<(Vec<String>, BTreeMap<String, u64>)> {
    let mut all = FileChanges::default();
    for (path, was) in wanted {
        all.prepare(path, was, copies.get(path.as_str()), rules.way(path));
    }
    all.carry_out()
}

impl<'a> FileChanges<'a> {
    fn prepare(&mut self, path: &'a str, was: &'a Was, copy: Option<&'a OwnedFd>, way: GrownFiles) {
        let now = look(path, was);
        let is = now.as_ref().ok().and_then(|now| now.map(|now| now.size));
        if let Ok(Some(now)) = &now
            && was.noted.is_some()
        {
            self.numbers.insert(path.to_owned(), now.number);
        }
        let change = match now {
            Ok(now) => change(path, was, (now.as_ref(), copy), way),
            Err(obstacle) => Ok(FileChange::InTheWay(obstacle)),
        };
        let prepared = match change {
            Ok(FileChange::None) => return,
            Ok(FileChange::Read) => return self.read.push(path),
            Ok(FileChange::Told(what)) => return self.said.push(format!("{path}: {what}")),
            Ok(FileChange::GoOn(more)) => {
                let said =
                    format!("{path}: it has {more} bytes that were written since, and goes on behind them");
                return self.said.push(said);
            }
            Ok(FileChange::InTheWay(obstacle)) => {
                self.hints.extend(obstacle.hint(was, copy.is_some(), way));
                return self.wrong.push(obstacle.message(path, is, was.size));
            }
            Ok(change) => PreparedChange::of(path, was, copy, change),
            Err(e) => Err(e),
        };
        match prepared {
            Ok(prepared) => self.prepared.push(prepared),
            Err(e) => {
                self.hints.extend(Some(END_WRITERS).filter(|_| e.message == OPEN_ELSEWHERE));
                self.wrong.push(format!("{path} cannot be changed: {e}"));
            }
        }
    }

    fn carry_out(mut self) -> Result<(Vec<String>, BTreeMap<String, u64>)> {
        for one in &mut self.prepared {
            if let Err(e) = one.catch_up() {
                self.hints.extend(Some(END_WRITERS).filter(|_| e.message == WRITTEN_TO));
                self.wrong.push(format!("{} cannot be changed: {e}", one.path));
            }
        }
        if self.wrong.is_empty() {
            for one in &mut self.prepared {
                self.said.push(one.carry_out()?);
                // One that has been made again has a new one.
                self.numbers
                    .insert(one.path.into(), fstat(&one.file).context(|| one.path.to_owned())?.st_ino);
            }
            self.said.extend(of_read(&self.read));
            return Ok((self.said, self.numbers));
        }
        self.prepared.iter().for_each(PreparedChange::forget);
        if self.hints.is_empty() {
            self.hints.push(FORMER_CONTENTS);
        }
        self.hints.sort_unstable();
        self.hints.dedup();
        let hint = self.hints.join("; ");
        Err(Fault::new(format!("files have changed since: {}", self.wrong.join("; "))).hint(hint))
    }
}

/// A line for all files that are read only and have been written to.
fn of_read(paths: &[&str]) -> Option<String> {
    let (named, more) = paths.split_at(paths.len().min(MOST_NAMED));
    let more = Some(more.len()).filter(|more| *more > 0).map(|more| format!(" and {more} more"));
    let named = Some(named.join(", ")).filter(|named| !named.is_empty())?;
    Some(format!(
        "{named}{}: open to be read only, and written to since, as the time says: the processes go on with what is there now",
        more.unwrap_or_default()
    ))
}

impl<'a> PreparedChange<'a> {
    fn of(path: &'a str, was: &'a Was, copy: Option<&'a OwnedFd>, change: FileChange) -> Result<Self> {
        if change == FileChange::Make {
            let Some(noted) = &was.noted else { return Err(Fault::new("it is missing")) };
            let file = make_again(path, noted)?;
            return Ok(Self { path, was, file, copy, aside: None, is: None });
        }
        let keeps = change != FileChange::Cut { kept: false };
        let file = open_same(path, was.noted.as_ref().map(|noted| noted.number), keeps)?;
        let is = Some(file.metadata().context(|| "its length")?.len());
        let aside = match change {
            FileChange::Cut { kept: true } => Some(KeptAside::of(path, &file, AFTER, was.size)?),
            FileChange::Replace => Some(KeptAside::of(path, &file, BEFORE, 0)?),
            _ => None,
        };
        let copy = copy.filter(|_| change == FileChange::Replace);
        Ok(Self { path, was, file, copy, aside, is })
    }

    /// Keeps what another process has written to it since it was copied.
    fn catch_up(&mut self) -> Result<()> {
        let Some(aside) = &mut self.aside else { return Ok(()) };
        self.is = Some(aside.catch_up(&self.file)?);
        Ok(())
    }

    /// Does it; what was done.
    fn carry_out(&mut self) -> Result<String> {
        self.catch_up().map_err(|e| e.about(self.path))?;
        let Self { path, was, file, copy, aside, is } = self;
        let about = || (*path).to_owned();
        let beside = aside.iter().map(|aside| aside.path.display().to_string()).collect::<String>();
        let Some(copy) = copy else {
            let (was, is_dated) = (was.size, was.is_dated());
            let more = is.map_or(0, |is| is.saturating_sub(was));
            file.set_len(was).context(about)?;
            let unknown = if is_dated { "; whether these are as they were is not known" } else { "" };
            let gone = if beside.is_empty() { "gone".into() } else { format!("in {beside}") };
            return Ok(format!(
                "{path}: cut to the {was} bytes that it had; {more} written since are {gone}{unknown}"
            ));
        };
        let mut from = File::from(copy.try_clone().context(about)?);
        let mut into = &*file;
        from.seek(SeekFrom::Start(0)).and_then(|_| file.set_len(0)).context(about)?;
        into.seek(SeekFrom::Start(0)).and_then(|_| io::copy(&mut from, &mut into)).context(about)?;
        file.sync_all().context(about)?;
        Ok(match beside.is_empty() {
            true => format!("{path}: it was missing, and is as it was"),
            false => format!("{path}: it is as it was; what was there is in {beside}"),
        })
    }

    /// Takes away what was made beside it, or in its place.
    fn forget(&self) {
        let made = match self.is {
            None => Some(PathBuf::from(self.path)),
            Some(_) => self.aside.as_ref().map(|aside| aside.path.clone()),
        };
        made.into_iter().for_each(|made| fs::remove_file(made).ignore_error("it stays as a copy"));
    }
}

/// Opens a file to be changed, if it is the one that it was. If it is not cut by the user's own word, nobody else may have it open to write to
/// it. Who reads it does not count: anybody may who can read it.
fn open_same(path: &str, number: Option<u64>, alone: bool) -> Result<File> {
    if !alone {
        return open_numbered(path, number, OFlags::WRONLY);
    }
    let file = open_numbered(path, number, OFlags::RDWR)?;
    // Where there are no leases nobody knows. What is cut or replaced is kept in any case.
    if lease::is_alone(file.as_fd()).unwrap_or(true) {
        return Ok(file);
    }
    // This descriptor would count as a writer.
    drop(file);
    let reader = open_numbered(path, number, OFlags::RDONLY)?;
    match lease::is_unwritten(reader.as_fd()).unwrap_or(true) {
        true => open_numbered(path, number, OFlags::RDWR),
        false => Err(Fault::new(OPEN_ELSEWHERE)),
    }
}

fn open_numbered(path: &str, number: Option<u64>, access: OFlags) -> Result<File> {
    let file = open(path, access | OFlags::NONBLOCK | OFlags::NOCTTY).context(|| path.to_owned())?;
    let found = fstat(&file).context(|| path.to_owned())?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    match is_file && Some(found.st_ino) == number {
        true => Ok(file.into()),
        false => Err(Fault::new("it is another file now")),
    }
}

#[cfg(test)]
mod tests;
