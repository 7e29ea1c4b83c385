//! What is to be done with a file outside an instance, by what it was, what it is now and what the user wants.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FileType, OFlags, fstat, stat};
use rustix::io::Errno;
use skiff_cli::GrownFiles;
use skiff_spec::fault::{Context as _, Result};

use super::{FileTimes, PIECE, WrittenFile, digest, open};

/// A file that the processes want as it was.
pub(super) struct Was {
    pub(super) size: u64,
    /// What the record tells of one that is open to be written.
    pub(super) noted: Option<WrittenFile>,
    /// When the content of one outside that is open to be read only was changed last.
    pub(super) read: Option<(i64, i64)>,
    /// Whether all who had it open to be written write only behind what was its end.
    pub(super) appended: bool,
    /// Whether CRIU takes it only with this length: not one that is opened to be appended to.
    pub(super) compared: bool,
}

/// What is to be done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileChange {
    /// Nothing: the file is as it was, or nobody minds.
    None,
    /// Nothing but to say this of it.
    Told(&'static str),
    /// Nothing but to say that it is read only and has been written to.
    Read,
    /// The process goes on behind so many bytes that were written since.
    GoOn(u64),
    /// The file is cut; whether what was written since is kept beside it.
    Cut { kept: bool },
    /// The copy takes its place.
    Replace,
    /// The file is missing, and made of the copy.
    Make,
    /// The file is in the way.
    InTheWay(FileObstacle),
}

/// Why a file is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileObstacle {
    /// Another length than it had; whether the file may be cut.
    Length { may_be_cut: bool },
    /// Other content.
    Content,
    /// Another time, and nothing tells of the content.
    Times,
    /// Not the file that had this name.
    Another,
    /// A symbolic link is on the way to it.
    Link,
    /// A FIFO, a directory or the like, on which CRIU could wait for ever.
    Kind,
}

/// A file as it is found.
#[derive(Clone, Copy)]
pub(super) struct FileNow {
    pub(super) size: u64,
    pub(super) number: u64,
    has_one_name: bool,
    times: FileTimes,
}

/// How the content of a file is by now.
enum ContentNow {
    /// As it was, or nothing tells that it is not.
    Same,
    /// The beginning is as it was.
    Longer,
    Other,
    /// Nothing tells but its time, by which it has been changed.
    Unknown,
}

/// What is said of a file that was not compared.
const KEPT: &str =
    "written to since, as its time says, and kept as it is: the processes go on with what it has now";
const APPENDED: &str = "another file now: the processes append to that";

impl Was {
    /// Whether nothing but its times tells whether it has been written to.
    pub(super) fn is_dated(&self) -> bool {
        let is_dated = |of: &WrittenFile| of.times.is_some() && of.copy.is_none() && of.digest.is_none();
        self.compared && self.noted.as_ref().is_some_and(is_dated)
    }
}

/// Looks at a file; nothing if it is not there.
pub(super) fn look(path: &str, was: &Was) -> std::result::Result<Option<FileNow>, FileObstacle> {
    let found = if was.noted.is_some() {
        match open(path, OFlags::PATH) {
            Err(Errno::LOOP) => return Err(FileObstacle::Link),
            opened => opened.and_then(fstat),
        }
    } else {
        stat(path)
    };
    // One that is missing CRIU names.
    let Ok(of) = found else { return Ok(None) };
    if FileType::from_raw_mode(of.st_mode) != FileType::RegularFile {
        return Err(FileObstacle::Kind);
    }
    let (size, number, has_one_name) = (of.st_size.cast_unsigned(), of.st_ino, of.st_nlink == 1);
    Ok(Some(FileNow { size, number, has_one_name, times: FileTimes::of(&of) }))
}

/// What is to be done with one that is so now.
pub(super) fn change(
    path: &str,
    was: &Was,
    (now, copy): (Option<&FileNow>, Option<&OwnedFd>),
    way: GrownFiles,
) -> Result<FileChange> {
    let Some(now) = now else {
        // Without a copy CRIU names it, unless it was the name of another file.
        let is_made = copy.is_some() && way == GrownFiles::Restore;
        return Ok(if is_made { FileChange::Make } else { FileChange::None });
    };
    let content = content(path, was, now, copy)?;
    if is_another(was, now) {
        return Ok(of_another(was, now, (&content, copy), way));
    }
    let is_changed_input = was.read.is_some_and(|modified| modified != now.times.modified);
    // Without its number nobody wrote to it.
    let longer = matches!(content, ContentNow::Longer) && was.appended && was.noted.is_some();
    Ok(match (content, way) {
        (ContentNow::Same, GrownFiles::Refuse) if is_changed_input => {
            FileChange::InTheWay(FileObstacle::Times)
        }
        (ContentNow::Same, _) if is_changed_input => FileChange::Read,
        (ContentNow::Same, _) => FileChange::None,
        (ContentNow::Unknown, GrownFiles::Keep) => FileChange::Told(KEPT),
        // An earlier restore may have cut it to this length.
        (ContentNow::Unknown, GrownFiles::Restore | GrownFiles::Truncate) if was.appended => {
            FileChange::Told(KEPT)
        }
        (ContentNow::Unknown, _) => FileChange::InTheWay(FileObstacle::Times),
        (_, GrownFiles::Restore) if copy.is_some() => FileChange::Replace,
        (_, GrownFiles::Truncate) if longer => FileChange::Cut { kept: false },
        (_, GrownFiles::Restore) if longer && was.compared => FileChange::Cut { kept: true },
        (_, GrownFiles::Keep | GrownFiles::Restore) if longer && !was.compared => {
            FileChange::GoOn(now.size - was.size)
        }
        (_, GrownFiles::Refuse) => in_the_way(was, now, longer),
        _ if was.compared => in_the_way(was, now, longer),
        _ => FileChange::None,
    })
}

/// Of a file outside: the instance's own are other files each time, and an older Skiff did not record which are its own.
fn is_another(was: &Was, now: &FileNow) -> bool {
    was.noted.as_ref().is_some_and(|noted| noted.times.is_some() && noted.number != now.number)
}

/// Only one with the same content may stand for another. With `keep` one that is appended to may be a new log; who can write to the directory
/// could have made it a hard link to any file, so it must have no other name.
fn of_another(
    was: &Was,
    now: &FileNow,
    (content, copy): (&ContentNow, Option<&OwnedFd>),
    way: GrownFiles,
) -> FileChange {
    let is_known = copy.is_some() || was.noted.as_ref().is_some_and(|noted| noted.digest.is_some());
    match content {
        ContentNow::Same if is_known => FileChange::None,
        _ if way == GrownFiles::Keep && !was.compared && now.has_one_name => FileChange::Told(APPENDED),
        _ => FileChange::InTheWay(FileObstacle::Another),
    }
}

fn in_the_way(was: &Was, now: &FileNow, may_be_cut: bool) -> FileChange {
    let is_content = now.size == was.size || was.appended && now.size > was.size && !may_be_cut;
    FileChange::InTheWay(match is_content && was.noted.is_some() {
        true => FileObstacle::Content,
        false => FileObstacle::Length { may_be_cut },
    })
}

fn content(path: &str, was: &Was, now: &FileNow, copy: Option<&OwnedFd>) -> Result<ContentNow> {
    if let Some(copy) = copy {
        let same = now.size == was.size && is_same(path, copy)?;
        return Ok(if same { ContentNow::Same } else { ContentNow::Other });
    }
    let same = if now.size == was.size { ContentNow::Same } else { ContentNow::Longer };
    if now.size < was.size {
        return Ok(ContentNow::Other);
    }
    let Some(noted) = &was.noted else { return Ok(same) };
    if let Some(wanted) = &noted.digest {
        let is = digest(&reader(path)?, was.size).context(|| path.to_owned())?;
        return Ok(if is.as_ref() == Some(wanted) { same } else { ContentNow::Other });
    }
    let is_dated = was.is_dated() && noted.times != Some(now.times);
    Ok(if is_dated && now.size == was.size { ContentNow::Unknown } else { same })
}

fn reader(path: &str) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(File::from(open(path, flags).context(|| path.to_owned())?))
}

/// Whether a file holds what its copy does.
fn is_same(path: &str, copy: &OwnedFd) -> Result<bool> {
    let file = reader(path)?;
    let copy = File::from(copy.try_clone().context(|| path.to_owned())?);
    let (mut one, mut other, mut at) = (vec![0; PIECE], vec![0; PIECE], 0);
    loop {
        let read = file.read_at(&mut one, at).context(|| path.to_owned())?;
        if read == 0 {
            return Ok(copy.read_at(&mut other, at).context(|| path.to_owned())? == 0);
        }
        let there = copy.read_exact_at(&mut other[..read], at);
        if there.is_err() || one[..read] != other[..read] {
            return Ok(false);
        }
        at += read as u64;
    }
}

impl FileObstacle {
    /// What is wrong with a file, in words.
    pub(super) fn message(self, path: &str, is: Option<u64>, was: u64) -> String {
        let is = is.map_or_else(|| "none".into(), |is| is.to_string());
        match self {
            Self::Length { .. } => format!("{path} has {is} bytes, and had {was}"),
            Self::Content => format!("{path} has other content than it had"),
            Self::Times => format!("{path} has been written to since, as its time says"),
            Self::Another => format!("{path} is another file now"),
            Self::Link => format!("{path} is reached by a symbolic link now"),
            Self::Kind => format!("{path} is not a regular file now"),
        }
    }

    /// What can be done about it. `has_copy`: the checkpoint has a copy of the file.
    pub(super) fn hint(self, was: &Was, has_copy: bool, way: GrownFiles) -> Option<&'static str> {
        match self {
            Self::Length { may_be_cut: true } => Some(RESTORE),
            Self::Length { .. } | Self::Content if has_copy && way != GrownFiles::Restore => Some(RESTORE),
            Self::Length { .. } | Self::Content => None,
            Self::Times => {
                Some("--files keep goes on with a file as it is if only its time tells of a change")
            }
            Self::Another | Self::Link | Self::Kind if has_copy => Some(
                "move away a file that has taken the name of another: with --files restore the former one is made again from its copy",
            ),
            Self::Another if !was.compared => Some(
                "give the former file its name again, or append to the one that is there now by --files keep, if it has no other names",
            ),
            Self::Another | Self::Link | Self::Kind => Some("give the former file its name again"),
        }
    }
}

const RESTORE: &str = "--files restore cuts those that are only written at their end, puts others back from the checkpoint's copies, and keeps what is there now beside them";
