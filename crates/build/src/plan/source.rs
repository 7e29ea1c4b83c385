//! What COPY and ADD name as sources.

use skiff_spec::fault::{Fault, Result};

use super::PlannedSource;
use super::stage::StagePlanner;
use crate::dockerfile::words::expand_text;
use crate::dockerfile::{CopyInstruction, CopySource};
use crate::remote::{checksum, name_of};

/// What begins an address of something that is no file.
const REPOSITORIES: [&str; 3] = ["git://", "git@", "ssh://"];

impl StagePlanner<'_, '_> {
    pub(super) fn source(
        &mut self,
        source: &CopySource,
        transfer: &CopyInstruction,
    ) -> Result<PlannedSource> {
        match source {
            CopySource::Path(word) => self.path(self.word(word)?, transfer),
            CopySource::Text(doc) => {
                let content = match doc.is_expanded {
                    true => expand_text(&doc.content, self.planner.file.escape, &|name| self.value(name))
                        .map_err(|e| Fault::new(e.to_string()))?,
                    false => doc.content.clone(),
                };
                Ok(PlannedSource::Text { name: doc.name.clone(), content })
            }
        }
    }

    fn path(&mut self, path: String, transfer: &CopyInstruction) -> Result<PlannedSource> {
        let begins = |begin: &&str| path.starts_with(*begin);
        let is_file = ["https://", "http://"].iter().any(begins);
        let refused = |what: &str, hint: &str| Err(Fault::new(format!("{path}: {what}")).hint(hint));
        if REPOSITORIES.iter().any(begins) || is_file && path.ends_with(".git") {
            return refused("repositories are not supported", "clone it, and put the files into the context");
        }
        match (&transfer.checksum, is_file) {
            (None, false) => return Ok(PlannedSource::Path(path)),
            (Some(_), false) => {
                return refused("--checksum is for files of other servers", "leave it out");
            }
            (_, true) if !transfer.unpacks => {
                return refused("files from other hosts are not supported", "ADD fetches them");
            }
            (None, true) if !path.starts_with("https://") => {
                return refused(
                    "by http anybody on the way could change it",
                    "ADD --checksum=sha256:... says what it is to be",
                );
            }
            (Some(_), true) if transfer.sources.len() > 1 => {
                return refused("--checksum is for one file", "one ADD for each file");
            }
            _ => {}
        }
        let digest = match &transfer.checksum {
            Some(word) => checksum(&self.word(word)?)?.to_string(),
            None => self.planner.surroundings.remote(&path)?,
        };
        let name = name_of(&path);
        Ok(PlannedSource::Remote { address: path, name, digest })
    }

    /// The sum of what is of the context. Other servers' files have theirs already.
    pub(super) fn sum(&mut self, sources: &[PlannedSource], mode: Option<u16>) -> Result<String> {
        let local: Vec<PlannedSource> =
            sources.iter().filter(|source| !source.is_remote()).cloned().collect();
        if local.is_empty() { Ok(String::new()) } else { self.planner.surroundings.sum(&local, mode) }
    }
}
