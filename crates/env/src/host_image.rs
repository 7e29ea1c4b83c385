//! Images of environments over the host's root: of the changes alone, with the root recorded that they are to; or of all that is shown
//! ([`full`]).

pub mod full;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{fstat, stat};
use serde::{Deserialize, Serialize};
use skiff_image::changes::ChangesLabels;
use skiff_image::export::changes::{CommittedUpper, UpperMarks, WrittenChanges, of_changes, survey};
use skiff_output as output;
use skiff_plan::data::UnreadData;
use skiff_runtime::environments::Environment;
use skiff_sandbox::adopt::is_marked;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::marks;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::Base;
use skiff_store::ours;
use skiff_sys::error::show;
use skiff_user::context::UserContext;

use crate::base_view::{open_dir, own_view, view_of_base};
use crate::changes::{is_place, places_of};
use crate::export::about_host;

/// What an image has, or would have.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ImageContents {
    /// Files, directories and what else has a name.
    pub files: u64,
    /// Bytes of files, roughly.
    pub bytes: u64,
    /// Paths of sockets and devices that it does not have.
    pub skipped: Vec<String>,
    /// How many files and directories of the host's it lacks, or has empty, since others may not read them.
    pub unreadable: u64,
    /// Places of other file systems, which are not part of it, and their types.
    pub file_systems: Vec<(String, String)>,
}

/// Where an image file is written: an empty file, and a directory for what is needed only meanwhile, with its name.
#[derive(Clone, Copy)]
pub struct ImageTarget<'a> {
    /// The file.
    pub image: BorrowedFd<'a>,
    /// The directory, and its name.
    pub room: (BorrowedFd<'a>, &'a str),
}

/// Who is told how far the reading of files is. It is used in the process that reads them, which is another one than its maker's.
pub trait ReadProgress {
    /// So many bytes have been read.
    fn read(&mut self, bytes: u64);
    /// All has been read.
    fn end(&mut self);
}

/// Tells of each piece that is read, and of the end.
///
/// # Errors
/// Those of `act`.
pub fn watched<T>(
    progress: &mut dyn ReadProgress,
    act: impl FnOnce(&mut dyn FnMut(u64) -> bool) -> Result<T>,
) -> Result<T> {
    let done = act(&mut |bytes| {
        progress.read(bytes);
        true
    });
    progress.end();
    done
}

/// The changes of an environment, which may be in use.
pub struct HostChanges<'a> {
    context: &'a UserContext,
    env: &'a Environment,
    texts: BTreeMap<String, String>,
    /// What the image says of itself.
    pub labels: ChangesLabels,
}

impl<'a> HostChanges<'a> {
    /// Reads what the host's root is that the environment stands on.
    ///
    /// # Errors
    /// What the host's packages are cannot be read.
    pub fn of(context: &'a UserContext, env: &'a Environment) -> Result<Self> {
        let (base, texts) = about_host(context, env)?;
        let labels = ChangesLabels { environment: env.name.to_string(), base };
        Ok(Self { context, env, texts, labels })
    }

    /// What an image of them would have.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn survey(&self) -> Result<ImageContents> {
        self.with_input(|input| survey(input).map_err(ours))
    }

    /// Writes them as an image file.
    ///
    /// # Errors
    /// They cannot be read, or the image not be written.
    pub fn write(&self, target: ImageTarget<'_>, progress: &mut dyn ReadProgress) -> Result<()> {
        self.with_input(|input| {
            watched(progress, |watch| of_changes(input, target.image, target.room, watch).map_err(ours))
        })
        .map(drop)
    }

    fn with_input(
        &self,
        act: impl FnOnce(&CommittedUpper<'_>) -> Result<WrittenChanges>,
    ) -> Result<ImageContents> {
        let place = self.env.dir.join("upper");
        let is_nobody_root = self.context.helper.is_none() || is_marked(&self.env.dir);
        let own = own_view(self.context, Base::Host)?;
        // Of one that cannot run now the places are not known, and are in the image.
        let plan = match crate::root::plan_with(self.context, self.env, UnreadData::Place) {
            Ok(plan) => Some(plan),
            Err(e) => {
                output::note(&format!(
                    "empty directories at which something is mounted are in the image: {}",
                    e.message
                ));
                None
            }
        };
        let places = plan.as_ref().map_or_else(Vec::new, places_of);
        let is_mount_point = |path: &[u8]| is_place(&places, Path::new(OsStr::from_bytes(path)));
        as_root_of_ids(self.context.helper.as_deref(), Base::Host, |view| {
            let (upper, base) = (open_dir(&place)?, view_of_base(view, &own)?);
            let marks = UpperMarks { is_opaque: &marks::is_opaque, names: &marks::FUSE_MARKS };
            let name = self.env.name.as_str();
            let input = CommittedUpper {
                upper: upper.as_fd(),
                name,
                base: base.as_fd(),
                marks,
                is_nobody_root,
                is_mount_point: &is_mount_point,
                texts: &self.texts,
            };
            let WrittenChanges { files, bytes, skipped } = act(&input)?;
            // What is removed or rolled back has another place, or none, before its files go.
            let read = fstat(&upper).context(|| "upper")?;
            if !stat(&place).is_ok_and(|now| (now.st_dev, now.st_ino) == (read.st_dev, read.st_ino)) {
                return Err(Fault::new(format!(
                    "environment {name}: it was removed or rolled back meanwhile"
                ))
                .hint("nothing was made of it; try again"));
            }
            let skipped = skipped.iter().map(|path| show(path)).collect();
            Ok(ImageContents { files, bytes, skipped, ..ImageContents::default() })
        })
    }
}
