//! COPY and ADD: where files come from and go to.

use skiff_spec::fault::{Fault, Result};

use super::stage::StagePlanner;
use super::{CopyAction, CopyFrom, PlannedSource, find_stage};
use crate::context::mode::ModeChange;
use crate::dockerfile::CopyInstruction;

impl StagePlanner<'_, '_> {
    pub(super) fn copy(&mut self, transfer: &CopyInstruction) -> Result<CopyAction> {
        let from = match &transfer.from {
            None => CopyFrom::Context,
            Some(name) => self.copy_from(name)?,
        };
        let mode = transfer.chmod.as_deref().map(|word| self.mode(word)).transpose()?;
        let chown = transfer.chown.as_deref().map(|word| self.word(word)).transpose()?;
        let excludes = self.words(&transfer.excludes)?;
        let destination = self.word(&transfer.destination)?;
        let is_directory = matches!(destination.rsplit('/').next().unwrap_or_default(), "" | ".");
        let sources = transfer
            .sources
            .iter()
            .map(|source| self.source(source, transfer))
            .collect::<Result<Vec<_>>>()?;
        check(&sources, (&destination, is_directory), from)?;
        let mut action = CopyAction {
            unpacks: transfer.unpack.unwrap_or(transfer.is_add),
            from,
            directories: transfer.directories,
            sources,
            excludes,
            sum: String::new(),
            destination: self.absolute(&destination),
            is_directory,
            chown,
            mode,
        };
        // Other servers' files have theirs already, and stages and images their keys.
        if from == CopyFrom::Context && !action.sources.iter().all(PlannedSource::is_remote) {
            action.sum = self.planner.lookup.sum(&action)?;
        }
        Ok(action)
    }

    fn copy_from(&mut self, name: &str) -> Result<CopyFrom> {
        if let Some(earlier) = find_stage(self.planner.file, name, self.number) {
            return self.planner.stage(earlier).map(CopyFrom::Stage);
        }
        if find_stage(self.planner.file, name, self.planner.file.stages.len()).is_some() {
            return Err(Fault::new(format!("--from={name}: the stage is not before this one")));
        }
        let image = self.planner.lookup.image(name);
        image.map(|image| CopyFrom::Image(image.id)).map_err(|fault| self.no_stage(name, fault))
    }

    /// Why there is no image, and that there is no such stage either: who types a plain word means one.
    fn no_stage(&self, name: &str, fault: Fault) -> Fault {
        let earlier = &self.planner.file.stages[..self.number];
        let stages: Vec<&str> = earlier.iter().filter_map(|stage| stage.name.as_deref()).collect();
        match name.contains(['/', ':', '.', '@']) || stages.is_empty() {
            true => fault,
            false => fault
                .about(&format!("--from={name}: no stage of this name, and no image"))
                .hint(format!("stages before this one: {}", stages.join(", "))),
        }
    }

    fn mode(&self, word: &str) -> Result<ModeChange> {
        let text = self.word(word)?;
        ModeChange::parse(&text).ok_or_else(|| {
            Fault::new(format!(
                "--chmod={text}: not an octal number up to 07777, nor a change of permissions"
            ))
            .hint("--chmod=644, or --chmod=u=rwX,go=rX")
        })
    }
}

/// Refuses sources that cannot go to such a destination together.
fn check(sources: &[PlannedSource], (destination, is_directory): (&str, bool), from: CopyFrom) -> Result<()> {
    if sources.len() > 1 && !is_directory {
        return Err(Fault::new(format!("{destination}: several files need a directory"))
            .hint(format!("{destination}/")));
    }
    for source in sources {
        match source {
            PlannedSource::Remote { address, name, unpacks: false, .. }
                if name.is_empty() && is_directory =>
            {
                return Err(Fault::new(format!("{address}: the address has no name for the file"))
                    .hint(format!("name the file: {destination}NAME")));
            }
            PlannedSource::Text { .. } if from != CopyFrom::Context => {
                return Err(Fault::new("--from: a here-document comes from no stage"));
            }
            _ => {}
        }
    }
    Ok(())
}
