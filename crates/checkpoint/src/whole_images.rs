//! CRIU's images of a checkpoint, put together again from the store, with each chunk checked.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;
use skiff_sys::positional::write_all_at;
use skiff_user::dirs::{make_private, new_in};

use crate::record::{self, Checkpoint, FileDigest, IMAGES, StoredImage};
use crate::{memory, stored};

/// So many images are open at once: there is one for each process.
const MOST_OPEN: usize = 32;
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
    /// Puts those together that are in the store: in memory, where there is enough, else beside the checkpoints.
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
        let mut stream = ImageStream::new(&images.path);
        for image in &checkpoint.stored {
            create(&images.path, &image.path)?;
            stream.add(image);
        }
        stored::read_in_any_order(dir, checkpoint, |at, bytes| stream.write(at, bytes))?;
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
    let path = place(images, path);
    File::options().write(true).create_new(true).open(&path).context(|| path.display().to_string())
}

fn place(images: &Path, path: &str) -> PathBuf {
    images.join(Path::new(path).file_name().unwrap_or_default())
}

/// Images one behind the other, as their chunks are in the store. Any thread may write to any place.
struct ImageStream<'a> {
    /// Where the images are.
    dir: &'a Path,
    /// Paths in the checkpoint, and where each image ends.
    images: Vec<(&'a str, u64)>,
    /// Images that were opened last, by their places in the stream.
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
}

impl<'a> ImageStream<'a> {
    fn new(dir: &'a Path) -> Self {
        Self { dir, images: vec![], open: Mutex::default() }
    }

    /// Appends an image, which is there and empty.
    fn add(&mut self, image: &'a StoredImage) {
        let begin = self.images.last().map_or(0, |(_, end)| *end);
        self.images.push((&image.path, begin.saturating_add(image.size)));
    }

    fn write(&self, mut at: u64, mut bytes: &[u8]) -> Result<()> {
        let mut number = self.images.partition_point(|(_, end)| *end <= at);
        while !bytes.is_empty() {
            let beyond = || Fault::new("chunks lie beyond the images");
            let (path, end) = *self.images.get(number).ok_or_else(beyond)?;
            let begin = number.checked_sub(1).map_or(0, |before| self.images[before].1);
            let (now, rest) = bytes.split_at(bytes.len().min((end - at) as usize));
            let file = self.file(number, path)?;
            write_all_at(file.as_fd(), now, at - begin).context(|| path.to_owned())?;
            (at, bytes, number) = (end, rest, number + 1);
        }
        Ok(())
    }

    fn file(&self, number: usize, path: &str) -> Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, file)) = open.iter().find(|(of, _)| *of == number) {
            return Ok(file.clone());
        }
        let place = place(self.dir, path);
        let file = File::options().write(true).open(&place).context(|| place.display().to_string())?;
        let file = Arc::new(file);
        open.truncate(MOST_OPEN - 1);
        open.push_front((number, file.clone()));
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_any_order_become_images() {
        let temp = tempfile::tempdir().expect("a directory");
        let sizes: Vec<u64> = [3, 0, 5, 1].into_iter().chain([1; 2 * MOST_OPEN]).collect();
        let images: Vec<StoredImage> = (0..)
            .zip(&sizes)
            .map(|(number, size): (i32, &u64)| StoredImage { path: number.to_string(), size: *size })
            .collect();
        let mut stream = ImageStream::new(temp.path());
        for image in &images {
            create(temp.path(), &image.path).expect("made");
            stream.add(image);
        }
        let many = "x".repeat(2 * MOST_OPEN);
        for (at, bytes) in [(7, "hi"), (1, "bcdef"), (9, &*many), (0, "a"), (6, "g")] {
            stream.write(at, bytes.as_bytes()).expect("written");
        }
        let text = |image: &StoredImage| fs::read_to_string(temp.path().join(&image.path)).expect("there");
        let texts: Vec<String> = images.iter().map(text).collect();
        assert_eq!(texts[..4], ["abc", "", "defgh", "i"]);
        assert!(texts[4..].iter().all(|text| text == "x"));
        stream.write(9 + many.len() as u64, b"y").expect_err("beyond");
    }
}
