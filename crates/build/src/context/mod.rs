//! The files that COPY and ADD bring: found below a directory that nothing leads out of, and emitted one by one to whoever packs or sums them.

pub mod ignore;
pub mod mode;
mod parents;
mod pattern;
pub mod sink;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat2, readlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::error::show;

use crate::dockerfile::DirectoryCopy;
use ignore::IgnoreRules;
use mode::ModeChange;
use pattern::{Pattern, is_pattern};

/// So many links are followed on a path, as in Linux.
pub const MOST_LINKS: usize = 40;

/// A directory with the files that are copied: the context, or the root of a stage or image.
#[derive(Clone, Copy)]
pub struct SourceTree<'a> {
    /// The directory. Paths and links count from it as from `/`.
    pub root: BorrowedFd<'a>,
    /// What it is called, in messages: `context: `.
    pub of: &'a str,
    /// Which files are not seen.
    pub rules: Option<&'a IgnoreRules>,
    /// Whether all files are root's, as whoever copies them cannot know another owner.
    pub is_roots: bool,
    /// What is asked of this copy alone.
    pub copy: CopyOptions<'a>,
}

/// What is asked of a copy.
#[derive(Clone, Copy, Default)]
pub struct CopyOptions<'a> {
    /// Permission bits that each file gets.
    pub mode: Option<&'a ModeChange>,
    /// Rules for files that are left out, by their paths below the source.
    pub excluded: Option<&'a IgnoreRules>,
    /// What becomes of directories.
    pub directories: DirectoryCopy,
}

/// A file or directory to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Where it is, links followed, without a slash at its beginning.
    pub path: Vec<u8>,
    /// What it is called where it is asked for; or its path there, which is the end of `path`.
    pub name: Vec<u8>,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether it keeps the path that is its name.
    pub keeps_path: bool,
}

impl Found {
    /// All that is in a tree.
    #[must_use]
    pub fn whole_tree() -> Self {
        Self { path: vec![], name: vec![], is_directory: true, keeps_path: false }
    }
}

/// A source as it was found.
pub enum ChosenSource<'a> {
    /// A file or directory.
    Path(Found),
    /// A here-document.
    Text {
        /// Name of the file.
        name: &'a str,
        /// What is in it.
        content: &'a str,
    },
}

impl SourceTree<'_> {
    /// What a source names: itself, or all that its wildcards mean, which may be nothing.
    ///
    /// # Errors
    /// There is no such file, or it leads out of the tree.
    pub fn select(&self, source: &str) -> Result<Vec<Found>> {
        match self.copy.directories {
            DirectoryCopy::WithParents => self.select_with_paths(source),
            DirectoryCopy::Contents | DirectoryCopy::LikeCp => self.select_places(source),
        }
    }

    fn select_places(&self, source: &str) -> Result<Vec<Found>> {
        let names = self.names(source)?;
        if !names.iter().any(|name| is_pattern(name)) {
            let found = self.found(names.clone())?.ok_or_else(|| self.missing(source, &names))?;
            return Ok(vec![found]);
        }
        let mut places: Vec<Vec<Vec<u8>>> = vec![vec![]];
        for name in names {
            let mut next = vec![];
            for place in places {
                if is_pattern(&name) {
                    for child in self.children_like(&place, &Pattern::of_name(&name))? {
                        next.push([&place[..], &[child]].concat());
                    }
                } else {
                    next.push([&place[..], std::slice::from_ref(&name)].concat());
                }
            }
            places = next;
        }
        places.into_iter().filter_map(|place| self.found(place).transpose()).collect()
    }

    /// The names of a source's path, which counts from the tree's root.
    fn names(&self, source: &str) -> Result<Vec<Vec<u8>>> {
        let mut names: Vec<Vec<u8>> = vec![];
        for name in source.split('/') {
            match name {
                "" | "." => {}
                ".." if names.pop().is_none() => {
                    return Err(self.outside(source));
                }
                ".." => {}
                name => names.push(name.as_bytes().to_vec()),
            }
        }
        Ok(names)
    }

    fn outside(&self, source: &str) -> Fault {
        match self.rules {
            Some(_) => Fault::new(format!("{}{source}: outside the context", self.of))
                .hint("only what is in the context can be copied: name a directory above as the context"),
            None => Fault::new(format!("{}{source}: outside the tree", self.of))
                .hint("paths count from the root of the stage or image"),
        }
    }

    fn missing(&self, source: &str, names: &[Vec<u8>]) -> Fault {
        let fault = Fault::new(format!("{}{source}: no such file", self.of));
        match self.rules {
            Some(rules) if rules.are_left_out(&names.join(&b'/')).is_ok_and(|is_out| is_out) => {
                fault.hint("`.dockerignore` leaves it out")
            }
            Some(_) => fault
                .hint("paths count from the context, and so do links in it: nothing outside of it is copied"),
            None => fault,
        }
    }

    /// What is at a path, if it is there and may be seen.
    fn found(&self, names: Vec<Vec<u8>>) -> Result<Option<Found>> {
        let name = names.last().cloned().unwrap_or_default();
        let Some(path) = self.resolve(names)? else { return Ok(None) };
        if self.is_left_out(&path)? && !self.rules.is_some_and(IgnoreRules::have_exceptions) {
            return Ok(None);
        }
        let opened = match self.open(&path, OFlags::PATH) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            opened => opened.context(|| self.shown(&path))?,
        };
        let kind = FileType::from_raw_mode(fstat(&opened).context(|| self.shown(&path))?.st_mode);
        let is_directory = kind == FileType::Directory;
        if self.is_left_out(&path)? && !is_directory {
            return Ok(None);
        }
        Ok(Some(Found { path, name, is_directory, keeps_path: false }))
    }

    fn is_left_out(&self, path: &[u8]) -> Result<bool> {
        is_out(self.rules, path)
    }

    /// Whether a copy leaves out what has this path below its source.
    pub(crate) fn is_excluded(&self, name: &[u8]) -> Result<bool> {
        is_out(self.copy.excluded, name)
    }

    /// Whether nothing of a directory is copied.
    fn is_skipped(&self, path: &[u8], name: &[u8]) -> Result<bool> {
        let all_of =
            |is_out, rules: Option<&IgnoreRules>| is_out && !rules.is_some_and(IgnoreRules::have_exceptions);
        Ok(all_of(self.is_left_out(path)?, self.rules) || all_of(self.is_excluded(name)?, self.copy.excluded))
    }

    /// The path with all links followed; nothing if something on it is missing. The tree's root is what `/` and its own parent mean.
    fn resolve(&self, names: Vec<Vec<u8>>) -> Result<Option<Vec<u8>>> {
        let mut pending: VecDeque<Vec<u8>> = names.into();
        let (mut done, mut links): (Vec<Vec<u8>>, usize) = (vec![], 0);
        while let Some(name) = pending.pop_front() {
            match &name[..] {
                b"" | b"." => continue,
                b".." => {
                    done.pop();
                    continue;
                }
                _ => done.push(name),
            }
            let path = done.join(&b'/');
            let opened = match self.open(&path, OFlags::PATH) {
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                opened => opened.context(|| self.shown(&path))?,
            };
            let stat = fstat(&opened).context(|| self.shown(&path))?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Fault::new(format!(
                        "{}: more than {MOST_LINKS} links on the way",
                        self.shown(&path)
                    )));
                }
                let target = readlinkat(&opened, "", vec![]).context(|| self.shown(&path))?.into_bytes();
                done.pop();
                if target.starts_with(b"/") {
                    done.clear();
                }
                for name in target.split(|byte| *byte == b'/').rev() {
                    pending.push_front(name.to_vec());
                }
            }
        }
        Ok(Some(done.join(&b'/')))
    }

    /// The names in a directory that a pattern means, in order.
    fn children_like(&self, place: &[Vec<u8>], pattern: &Pattern) -> Result<Vec<Vec<u8>>> {
        let Some(path) = self.resolve(place.to_vec())? else { return Ok(vec![]) };
        let Some(dir) = self.directory(&path)? else { return Ok(vec![]) };
        let mut names = self.names_in(&dir, &path)?;
        names.retain(|name| pattern.matches(name));
        Ok(names)
    }

    /// All names in a directory, in order: the same files give the same sum.
    fn names_in(&self, dir: &OwnedFd, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut names = vec![];
        for entry in Dir::read_from(dir).context(|| self.shown(path))? {
            let name = entry.context(|| self.shown(path))?.file_name().to_bytes().to_vec();
            if !matches!(&name[..], b"." | b"..") {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens what is at a path without links.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // Of a path that is a link itself the link is opened; of one on the way there is none, but for whoever exchanges it meanwhile.
        let how = if flags.contains(OFlags::PATH) { how } else { how | ResolveFlags::NO_SYMLINKS };
        openat2(self.root, if path.is_empty() { &b"."[..] } else { path }, flags, Mode::empty(), how)
    }

    /// The directory at a path without links, if there is one.
    fn directory(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOTDIR | Errno::NOENT | Errno::LOOP) => Ok(None),
            dir => dir.context(|| self.shown(path)).map(Some),
        }
    }

    pub(crate) fn shown(&self, path: &[u8]) -> String {
        format!("{}{}", self.of, if path.is_empty() { ".".into() } else { show(path) })
    }
}

fn is_out(rules: Option<&IgnoreRules>, path: &[u8]) -> Result<bool> {
    rules.filter(|_| !path.is_empty()).map_or(Ok(false), |rules| rules.are_left_out(path))
}

/// A path below a directory.
fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match (directory, name) {
        (b"", below) => below.to_vec(),
        (above, b"") => above.to_vec(),
        (above, below) => [above, b"/", below].concat(),
    }
}
