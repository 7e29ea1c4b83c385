//! Images put together from tar streams made by hand.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

use skiff_erofs::{Reader, Summary, verify};
use skiff_image::assemble::{AssemblyJob, AssemblyProgress, ImageLimits, assemble};
use skiff_image::blob::{Blob, FileBlob};

use super::seen::{Seen, of_image};

pub use skiff_tar::build;

/// An image from layers that are there.
pub struct Assembled {
    pub path: PathBuf,
    pub summary: Summary,
    _dir: tempfile::TempDir,
}

impl Assembled {
    pub fn seen(&self) -> Seen {
        let reader = Reader::open(File::open(&self.path).unwrap(), "image.erofs").unwrap();
        verify(&reader).unwrap();
        of_image(&self.path)
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }
}

/// A blob that is a file with these bytes.
pub fn blob(bytes: &[u8], name: &str) -> FileBlob {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    FileBlob::new(file, name, None).unwrap()
}

/// Puts blobs together.
pub fn from_blobs(
    blobs: &[&dyn Blob],
    limits: ImageLimits,
    threads: usize,
) -> skiff_image::Result<Assembled> {
    with_progress(blobs, limits, threads, &AssemblyProgress::new(blobs.len()))
}

/// The same, where someone else watches.
pub fn with_progress(
    blobs: &[&dyn Blob],
    limits: ImageLimits,
    threads: usize,
    progress: &AssemblyProgress,
) -> skiff_image::Result<Assembled> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.erofs");
    let image = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let scratch = File::open(dir.path()).unwrap();
    let job = AssemblyJob {
        blobs,
        image: image.as_fd(),
        name: "image.erofs",
        scratch: scratch.as_fd(),
        scratch_name: "scratch",
        limits,
        threads,
        room: &|_| true,
        keeps_whiteouts: false,
    };
    let outcome = assemble(&job, progress);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was left beside the image");
    Ok(Assembled { path, summary: outcome?.summary, _dir: dir })
}

/// Puts whole blobs together, whatever they hold.
pub fn from_bytes(blobs: &[Vec<u8>]) -> skiff_image::Result<Assembled> {
    let blobs: Vec<FileBlob> =
        blobs.iter().enumerate().map(|(n, bytes)| blob(bytes, &format!("layer {n}"))).collect();
    let blobs: Vec<&dyn Blob> = blobs.iter().map(|blob| blob as &dyn Blob).collect();
    from_blobs(&blobs, ImageLimits::default(), 2)
}

/// Puts layers of entries together.
pub fn from_entries(layers: &[Vec<build::RawEntry>]) -> skiff_image::Result<Assembled> {
    from_bytes(&layers.iter().map(|entries| build::archive(entries)).collect::<Vec<_>>())
}

/// Compresses with a program of the system.
pub fn piped(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    use std::process::{Command, Stdio};
    let command = Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = command.unwrap_or_else(|error| panic!("{program}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{program} failed");
    output.stdout
}
