//! CRIU's images of a checkpoint, made whole again of what is in the store, each chunk checked. A process of its own does that, as it has threads, and the
//! instance is started meanwhile.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Signal, kill_process, set_parent_process_death_signal};
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;
use skiff_sys::positional::write_all_at;
use skiff_sys::process::CloneFlags;
use skiff_sys::signal::is_end_wanted;
use skiff_user::dirs::{make_private, new_in};

use crate::record::{self, Checkpoint, FileDigest, IMAGES, StoredImage};
use crate::tries::{CheckpointAction, refuse_interrupted};
use crate::{memory, stored};

/// In messages.
const NAME: &str = "process that reads memory from the store";
/// How often it is looked whether the user has asked for the end.
const STEP: Duration = Duration::from_millis(100);
/// Of memory so many bytes at most are there twice, in an image and in a process, before CRIU gives them back.
const TWICE: u64 = 128 << 20;
/// Bytes that all else may take.
const SLACK: u64 = 64 << 20;

/// The images of a checkpoint, as CRIU reads them. What was made for that goes when this is dropped.
pub struct WholeImages {
    path: PathBuf,
    /// What holds it, if it is in memory.
    memory: Option<OwnedFd>,
    /// What is to be removed, if it is on the disk.
    on_disk: Option<PathBuf>,
}

impl WholeImages {
    /// Makes room for those that are in the store: in memory, where there is enough, else beside the checkpoints. They are yet to be [filled](FillingImages).
    ///
    /// # Errors
    /// The checkpoint in `dir`, of this name, is damaged, or there is no room.
    pub fn of(dir: &Path, name: &EnvName, checkpoint: &Checkpoint) -> Result<Self> {
        if checkpoint.stored.is_empty() {
            return Ok(Self { path: dir.join(IMAGES), memory: None, on_disk: None });
        }
        let wanted = checkpoint.size().saturating_add(SLACK);
        let twice = checkpoint.stored_size().min(TWICE);
        let images = if wanted.saturating_add(twice) <= memory::available()? {
            let memory = memory::make(wanted)?;
            Self { path: images_in(&memory), memory: Some(memory), on_disk: None }
        } else {
            let place = record::place_of(dir);
            let new = new_in(place.parent().unwrap_or(&place), name);
            let images = Self { path: new.join(IMAGES), memory: None, on_disk: Some(new.clone()) };
            make_private(&new)?;
            make_private(&images.path)?;
            images
        };
        for file in checkpoint.files.iter().filter(|file| Path::new(&file.path).starts_with(IMAGES)) {
            let mut from = record::open(dir, &file.path)?;
            let copied = FileDigest::of_copy(&file.path, &mut from, &mut create(&images.path, &file.path)?);
            if copied.context(|| file.path.clone())? != *file {
                let place = record::place_of(dir);
                return Err(Fault::new(format!("checkpoint {}: {} is damaged", place.display(), file.path)));
            }
        }
        Ok(images)
    }

    /// Where they are, and what has to stay open as long as that is to lead there.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn kept(&self) -> Result<(PathBuf, Vec<OwnedFd>)> {
        let Some(memory) = &self.memory else { return Ok((self.path.clone(), vec![])) };
        let memory = memory.try_clone().context(|| "directory in memory")?;
        Ok((images_in(&memory), vec![memory]))
    }

    /// Whether what has been read of them may go: they are there for this once.
    #[must_use]
    pub fn used_up(&self) -> bool {
        self.memory.is_some() || self.on_disk.is_some()
    }
}

fn images_in(memory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd())).join(IMAGES)
}

impl Drop for WholeImages {
    fn drop(&mut self) {
        if let Some(dir) = &self.on_disk {
            fs::remove_dir_all(dir).ignore_error("`skiff sweep` removes what stays of it");
        }
        // Who serves the instance has it open as long as that runs.
        if self.memory.is_some() {
            let left = fs::read_dir(&self.path).into_iter().flatten().flatten();
            left.for_each(|image| {
                fs::remove_file(image.path()).ignore_error("it is gone when the instance has ended");
            });
        }
    }
}

/// Makes the file in `images` that has this path in the checkpoint.
fn create(images: &Path, path: &str) -> Result<File> {
    let path = images.join(Path::new(path).file_name().unwrap_or_default());
    File::options().write(true).create_new(true).open(&path).context(|| path.display().to_string())
}

/// Images on their way out of the store.
pub struct FillingImages(ReportingChild<()>);

impl FillingImages {
    /// Begins to write to `images` what the checkpoint in `dir` has in the store.
    ///
    /// # Errors
    /// When there can be no such process.
    pub fn begin(images: &Path, dir: &Path, checkpoint: &Checkpoint) -> Result<Self> {
        let fill = || {
            set_parent_process_death_signal(Some(Signal::KILL)).context(|| "signal at the caller's end")?;
            let mut stream = ImageStream::default();
            for image in &checkpoint.stored {
                stream.add(create(images, &image.path)?, image);
            }
            stored::all(dir, checkpoint, |at, bytes| stream.write(at, bytes))
        };
        ReportingChild::begin(NAME, CloneFlags::NONE, Descriptors::All, fill).map(Self)
    }

    /// Waits until all is there.
    ///
    /// # Errors
    /// The checkpoint is damaged, there is no room, or the user has asked for the end of this.
    pub fn end(self) -> Result<()> {
        let Self(process) = self;
        let pid = process.pid();
        let ended = process.end_watched(STEP, || {
            if is_end_wanted() {
                kill_process(pid, Signal::KILL).ignore_error("it has ended by itself");
            }
        });
        refuse_interrupted(CheckpointAction::Restore).and(ended)
    }
}

/// Images one behind the other, as their chunks are in the store.
#[derive(Default)]
struct ImageStream {
    /// With their paths in the checkpoint, in order.
    images: Vec<(File, String)>,
    /// Where each of them ends.
    ends: Vec<u64>,
}

impl ImageStream {
    fn add(&mut self, file: File, image: &StoredImage) {
        self.images.push((file, image.path.clone()));
        self.ends.push(self.ends.last().unwrap_or(&0) + image.size);
    }

    fn write(&self, mut at: u64, mut bytes: &[u8]) -> Result<()> {
        let mut number = self.ends.partition_point(|end| *end <= at);
        while !bytes.is_empty() {
            let ((file, path), end) = (&self.images[number], self.ends[number]);
            let begin = number.checked_sub(1).map_or(0, |before| self.ends[before]);
            let (now, rest) = bytes.split_at(bytes.len().min((end - at) as usize));
            write_all_at(file.as_fd(), now, at - begin).context(|| path.clone())?;
            (at, bytes, number) = (end, rest, number + 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_any_order_become_images() {
        let temp = tempfile::tempdir().expect("a directory");
        let (mut stream, sizes) = (ImageStream::default(), [3, 0, 5, 1]);
        for (number, size) in sizes.into_iter().enumerate() {
            let path = number.to_string();
            let file = File::create(temp.path().join(&path)).expect("made");
            stream.add(file, &StoredImage { path, size });
        }
        for (at, bytes) in [(7, "hi"), (1, "bcdef"), (0, "a"), (6, "g")] {
            stream.write(at, bytes.as_bytes()).expect("written");
        }
        let images = [0, 1, 2, 3]
            .map(|number: i32| fs::read_to_string(temp.path().join(number.to_string())).expect("there"));
        assert_eq!(images, ["abc", "", "defgh", "i"]);
    }
}
