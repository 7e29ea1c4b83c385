//! COPY and ADD: their flags, sources and destination.

use super::DockerfileError;
use super::command::{Flag, flags, list_or_words};
use super::instruction::{CopyInstruction, CopySource, DirectoryCopy, Parser};
use super::lines::{heredoc_name, heredoc_words};

impl Parser<'_> {
    pub(super) fn transfer(&self, is_add: bool) -> Result<CopyInstruction, DockerfileError> {
        let (flags, rest) = flags(&self.line.rest, self.escape);
        let mut read = CopyInstruction { is_add, ..CopyInstruction::default() };
        for flag in flags {
            self.transfer_flag(&mut read, flag)?;
        }
        if read.from.as_ref().is_some_and(|from| from.contains('$')) {
            return Err(self
                .bad("--from: variables are not replaced there")
                .hint("FROM $IMAGE AS NAME makes a stage, and --from=NAME names it"));
        }
        let (sources, destination) = self.sources(&rest)?;
        Ok(CopyInstruction { sources, destination, ..read })
    }

    fn transfer_flag(&self, read: &mut CopyInstruction, flag: Flag) -> Result<(), DockerfileError> {
        match (&*flag.name, read.is_add) {
            ("from", false) => read.from = Some(self.value(flag)?),
            ("parents", false) => {
                read.directories = match self.switch(flag)? {
                    true => DirectoryCopy::WithParents,
                    false => DirectoryCopy::Contents,
                };
            }
            ("checksum", true) => read.checksum = Some(self.value(flag)?),
            ("unpack", true) => read.unpack = Some(self.switch(flag)?),
            ("keep-git-dir", true) => read.keeps_git = self.switch(flag)?,
            ("chown", _) => read.chown = Some(self.value(flag)?),
            ("chmod", _) => read.chmod = Some(self.value(flag)?),
            ("exclude", _) => read.excludes.push(self.value(flag)?),
            // Each step is a layer of its own already: that is what the flag is for.
            ("link", _) => self.switch(flag).map(drop)?,
            (_, true) => {
                return Err(self.no_such_flag(
                    &flag,
                    "--checksum, --chmod, --chown, --exclude, --keep-git-dir, --link and --unpack are supported",
                ));
            }
            (_, false) => {
                return Err(self.no_such_flag(
                    &flag,
                    "--chmod, --chown, --exclude, --from, --link and --parents are supported",
                ));
            }
        }
        Ok(())
    }

    /// A flag that is on or off.
    fn switch(&self, flag: Flag) -> Result<bool, DockerfileError> {
        match flag.value.as_deref().map(str::to_ascii_lowercase).as_deref() {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => {
                Err(self.bad(format!("--{}={other}: not a boolean", flag.name)).hint("true or false"))
            }
        }
    }

    fn sources(&self, rest: &str) -> Result<(Vec<CopySource>, String), DockerfileError> {
        let mut words = heredoc_words(list_or_words(rest), self.escape);
        let destination = words
            .pop()
            .filter(|_| !words.is_empty())
            .ok_or_else(|| self.bad("write SOURCE ... DESTINATION"))?;
        if heredoc_name(&destination, self.escape).is_some() {
            return Err(self
                .bad(format!("{destination}: a here-document is no destination"))
                .hint("COPY <<NAME FILE"));
        }
        let mut docs = self.line.heredocs.iter();
        let source = |word: String| match heredoc_name(&word, self.escape).and_then(|_| docs.next()) {
            Some(doc) => CopySource::Text(doc.clone()),
            None => CopySource::Path(word),
        };
        let sources: Vec<CopySource> = words.into_iter().map(source).collect();
        let is_directory = destination.is_empty()
            || destination.ends_with('/')
            || destination.split('/').next_back() == Some(".")
            || destination.contains('$');
        if sources.len() > 1 && !is_directory {
            return Err(self
                .bad(format!("{destination}: several files need a directory"))
                .hint(format!("{destination}/")));
        }
        Ok((sources, destination))
    }
}
