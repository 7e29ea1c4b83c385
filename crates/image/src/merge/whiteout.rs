//! Files that are not meant: they say what of the layers below is gone, or are AUFS's own.

use std::collections::HashSet;

use skiff_erofs::tree::{InodeId, Tree};

use super::path::{components, display};
use super::{Astray, Merger};
use crate::changes::{self, OPAQUE, WHITEOUT};
use crate::layer_entries::{LayerEntries, LayerEntryKind};

/// What begins so is AUFS's, but for one name.
const AUFS: &[u8] = b".wh..wh.";
/// Where AUFS kept files with several names; other entries are hard links to those.
const AUFS_LINK_TARGETS: &[u8] = b".wh..wh.plnk";

/// What the name of an entry makes of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Special<'a> {
    /// A file as any.
    None,
    /// All that lower layers have in its directory is gone.
    Opaque,
    /// What lower layers have of this name in its directory is gone.
    Whiteout(&'a [u8]),
    /// A name that means nothing here.
    Ignored,
}

impl<'a> Special<'a> {
    pub fn of(components: &[&'a [u8]]) -> Result<Special<'a>, String> {
        let Some((name, parents)) = components.split_last() else { return Ok(Special::None) };
        // Kept until the layer is through, since links may lead there.
        if components.len() > 1 && components[0] == AUFS_LINK_TARGETS {
            return Ok(Special::None);
        }
        if parents.iter().any(|parent| parent.starts_with(AUFS)) {
            return Ok(Special::Ignored);
        }
        match name.strip_prefix(WHITEOUT) {
            _ if *name == OPAQUE => Ok(Special::Opaque),
            _ if name.starts_with(AUFS) => Ok(Special::Ignored),
            Some(b"" | b"." | b"..") => Err("a whiteout without a name".into()),
            Some(hidden) => Ok(Special::Whiteout(hidden)),
            None => Ok(Special::None),
        }
    }
}

/// Whether the path's last name makes it a whiteout, or something of AUFS: then it is no file, and is kept apart.
pub(crate) fn is_mark(path: &[u8]) -> bool {
    super::path::split(path).next_back().is_some_and(changes::is_mark)
}

impl Merger {
    /// Removes what the layer says is gone, before anything of it is added.
    pub(super) fn apply_whiteouts(&mut self, records: &LayerEntries) -> Result<(), String> {
        if records.marks().is_empty() {
            return Ok(());
        }
        self.replaced = self.replaced_by_directories(records);
        for path in records.marks() {
            self.apply_whiteout(path).map_err(|why| format!("{}: {why}", display(path)))?;
        }
        self.replaced.clear();
        Ok(())
    }

    fn apply_whiteout(&mut self, path: &[u8]) -> Result<(), String> {
        let components = components(path)?;
        let special = Special::of(&components)?;
        let parents = &components[..components.len() - 1];
        let directory = match self.lookup(parents) {
            Ok(Some(directory)) => directory,
            // Below a file there is nothing to hide: the layer will replace it, or fail.
            Ok(None) | Err(Astray::NotADirectory(_)) => return Ok(()),
            Err(why) => return Err(why.to_string()),
        };
        match special {
            Special::Opaque => self.clear(directory),
            Special::Whiteout(name) => {
                if let Some(file) = self.child(directory, name).filter(|id| !self.is_directory(*id)) {
                    self.hidden.insert((directory, name.into()), file);
                }
                self.unlink(directory, name);
            }
            Special::None | Special::Ignored => {}
        }
        Ok(())
    }

    /// Where this layer puts a directory in the place of something else, mostly a symbolic link: a whiteout on that way is about the
    /// new directory, in which lower layers have nothing, and not about what the link leads to.
    fn replaced_by_directories(&mut self, records: &LayerEntries) -> HashSet<(InodeId, Box<[u8]>)> {
        let mut replaced = HashSet::new();
        for record in records.iter().filter(|record| matches!(record.kind, LayerEntryKind::Directory)) {
            // What is wrong with a path is said when its entry is added.
            let Ok(components) = components(&record.path) else { continue };
            let Some((name, parents)) = components.split_last() else { continue };
            let Ok(Some(directory)) = self.lookup(parents) else { continue };
            if self.child(directory, name).is_some_and(|id| !self.is_directory(id)) {
                replaced.insert((directory, (*name).into()));
            }
        }
        replaced
    }

    /// What AUFS kept for hard links has all its names now.
    pub(super) fn drop_link_targets_of_aufs(&mut self) {
        if self.child(Tree::ROOT, AUFS_LINK_TARGETS).is_some() {
            self.unlink(Tree::ROOT, AUFS_LINK_TARGETS);
        }
    }
}
