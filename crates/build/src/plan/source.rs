//! What COPY and ADD name as sources.

use skiff_spec::fault::{Fault, Result};

use super::stage::StagePlanner;
use super::{PlannedSource, Planner};
use crate::dockerfile::{CopyInstruction, CopySource};
use crate::git::GitSource;
use crate::remote::{checksum, name_of};

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
                    true => {
                        let Planner { budget, file, .. } = &*self.planner;
                        budget.expand_text(&doc.content, file.escape, &|name| self.value(name))?
                    }
                    false => doc.content.clone(),
                };
                Ok(PlannedSource::Text { name: doc.name.clone(), content })
            }
        }
    }

    fn path(&mut self, path: String, transfer: &CopyInstruction) -> Result<PlannedSource> {
        let refused = |what: &str, hint: &str| Err(Fault::new(format!("{path}: {what}")).hint(hint));
        let repository = GitSource::parse(&path).transpose()?;
        let is_file = ["https://", "http://"].iter().any(|begin| path.starts_with(begin));
        match (&repository, is_file, &transfer.checksum) {
            (None, false, None) => Ok(PlannedSource::Path(path)),
            (None, false, Some(_)) => {
                refused("--checksum is for files of other servers and repositories", "leave it out")
            }
            (Some(_), ..) | (_, true, _) if !transfer.is_add => {
                refused("files from other hosts are not supported", "ADD fetches them")
            }
            (Some(_), ..) | (_, true, _) if transfer.checksum.is_some() && transfer.sources.len() > 1 => {
                refused("--checksum is for one source", "one ADD for each")
            }
            (Some(repository), ..) => self.repository(repository, transfer),
            (None, true, _) => self.file(path, transfer),
        }
    }

    fn file(&mut self, path: String, transfer: &CopyInstruction) -> Result<PlannedSource> {
        let digest = match &transfer.checksum {
            Some(word) => checksum(&self.word(word)?)?.to_string(),
            None if !path.starts_with("https://") => {
                return Err(Fault::new(format!("{path}: by http anybody on the way could change it"))
                    .hint("ADD --checksum=sha256:... says what it is to be"));
            }
            None => self.planner.lookup.remote(&path)?,
        };
        let name = name_of(&path);
        Ok(PlannedSource::Remote { address: path, name, digest, unpacks: transfer.unpack == Some(true) })
    }

    fn repository(&mut self, repository: &GitSource, transfer: &CopyInstruction) -> Result<PlannedSource> {
        let checksum = transfer.checksum.as_deref().map(|word| self.word(word)).transpose()?;
        if let Some(checksum) = &checksum
            && !is_hex(checksum)
        {
            return Err(Fault::new(format!("--checksum={checksum}: not a commit"))
                .hint("git rev-parse REFERENCE says it, in hexadecimal digits"));
        }
        let whole = checksum.as_deref().filter(|checksum| GitSource::is_commit(checksum));
        if !repository.is_private_on_the_way() && whole.or(repository.commit()).is_none() {
            return Err(Fault::new(format!(
                "{}: by git:// anybody on the way could change it",
                repository.shown()
            ))
            .hint("name the whole commit: ADD --checksum=COMMIT, or #COMMIT behind the address"));
        }
        let commit = match repository.commit().or(whole) {
            Some(commit) => commit.to_owned(),
            None => self.planner.lookup.commit(repository)?,
        };
        if let Some(checksum) =
            checksum.filter(|checksum| !commit.is_empty() && !commit.starts_with(&**checksum))
        {
            return Err(Fault::new(format!("{}: it is at {commit}, not at {checksum}", repository.shown())));
        }
        let keeps_git = transfer.keeps_git;
        Ok(PlannedSource::Repository { repository: repository.clone(), commit, keeps_git })
    }
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
