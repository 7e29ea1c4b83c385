//! Instances, made and removed: nothing half-made is seen under a name, and an image that nothing else is over goes with the last one.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use skiff_output as output;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::instance::Started;
use skiff_spec::plan::Upper;
use skiff_store::index::ImageName;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;
use skiff_user::dirs::{self, delete, make_private, new_in, set_aside, with_umask};

use crate::record::{IMAGE, InstanceDir, OUTPUT, STARTED, State, home, write};
use crate::{lock, naming};

impl InstanceDir {
    /// Makes it, in place of one that has ended; gives the lock that is held as long as it runs. Nothing half-made is ever seen under
    /// its name.
    pub fn make(
        &self,
        context: &UserContext,
        started: &Started,
        image: Option<&ImageName>,
    ) -> Result<OwnedFd> {
        let all = home(context)?;
        let new = new_in(&all, &self.name);
        let made = with_umask(|| {
            make_private(&all)?;
            self.fill(&new, started, image)
        })
        .and_then(|lock| {
            self.remove_ended(context)?;
            match fs::rename(&new, &self.dir) {
                // Somebody else was faster.
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                    Err(self.taken())
                }
                other => other.context(|| self.dir.display().to_string()).map(|()| lock),
            }
        });
        if made.is_err() {
            fs::remove_dir_all(&new)
                .ignore_error("the first error is the one to tell; what stays `skiff sweep` removes");
        }
        made
    }

    fn fill(&self, new: &Path, started: &Started, image: Option<&ImageName>) -> Result<OwnedFd> {
        let made = make_private(new)?;
        if !matches!(started.plan.upper, Upper::Memory { .. }) {
            dirs::check_file_system(new)?;
            dirs::make_parts(&made)?;
        }
        write(&new.join(STARTED), started)?;
        if let Some(entry) = image {
            entry.write(&new.join(IMAGE))?;
        }
        let output = new.join(OUTPUT);
        // Nobody else comes here; inside, whoever it is may append to it.
        File::create(&output)
            .and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o666)))
            .context(|| output.display().to_string())?;
        lock::try_lock(new)?.ok_or_else(|| Error::new(format!("{}: locked", new.display())))
    }

    /// Removes it if it is there and has ended.
    fn remove_ended(&self, context: &UserContext) -> Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        let lock = self.lock_ended()?.ok_or_else(|| self.taken())?;
        self.remove(context, lock)
    }

    /// Removes it; whoever has the lock may.
    pub fn remove(&self, context: &UserContext, lock: OwnedFd) -> Result<()> {
        let started = self.started().ok();
        let on_disk = started.as_ref().is_none_or(|s| !matches!(s.plan.upper, Upper::Memory { .. }));
        let images = started.iter().flat_map(|s| s.image.into_iter().chain(s.plan.data()));
        let images: Vec<ImageId> = images.collect();
        let aside = set_aside(&self.dir, &self.name)?;
        drop(lock);
        for id in images {
            naming::give_up(context, id)?;
        }
        // Only an upper on the disk holds files of the user's other ids.
        match on_disk {
            true => delete(context, aside),
            false => fs::remove_dir_all(&aside).context(|| format!("removing {}", aside.display())),
        }
    }
}

/// What was killed while it was made or removed, and instances that were.
pub fn leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    let mut left = dirs::leftovers(&home(context)?);
    left.extend(lost(context)?.into_iter().map(|record| record.dir));
    Ok(left)
}

/// Removes those.
pub fn delete_leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    let left = leftovers(context)?;
    for record in lost(context)? {
        if let Some(lock) = lock::try_lock(&record.dir)? {
            record.remove(context, lock)?;
        }
    }
    output::each(&dirs::leftovers(&home(context)?), |dir| delete(context, dir.clone()))?;
    Ok(left)
}

fn lost(context: &UserContext) -> Result<Vec<InstanceDir>> {
    let mut lost = vec![];
    for record in InstanceDir::all(context)? {
        // One that is just starting has no socket yet, but its lock is held.
        if matches!(record.state()?, State::Lost) && lock::try_lock(&record.dir)?.is_some() {
            lost.push(record);
        }
    }
    Ok(lost)
}
