//! What is too much, whatever file system it is of.

use std::fs::File;
use std::os::fd::AsFd;

use super::*;

/// So many symbolic links in a root directory, each to 4,000 bytes.
struct Links(u64);

fn file(number: u64, kind: ForeignFileType) -> ForeignFile<u64> {
    let attributes = Attributes { mode: 0o755, uid: 0, gid: 0, mtime: 0, mtime_nsec: 0, xattrs: XattrsId(0) };
    ForeignFile { file: number, number, links: 1, attributes, xattrs: vec![], kind }
}

impl Foreign for Links {
    type File = u64;

    fn root(&self) -> Result<ForeignFile<u64>> {
        Ok(file(0, ForeignFileType::Directory))
    }

    fn children(&self, _directory: &u64) -> Result<Children<u64>> {
        let link = |number| file(number, ForeignFileType::Symlink(vec![b't'; 4000].into()));
        Ok((1..=self.0).map(|number| (format!("{number:03}").into_bytes().into(), link(number))).collect())
    }

    fn pieces(&self, _file: &u64, _each: &mut dyn FnMut(FilePiece<'_>) -> Result<()>) -> Result<()> {
        unreachable!("there are links only")
    }
}

fn converted(links: u64, entries: u64, texts: u64) -> Result<WrittenImage> {
    let dir = tempfile::tempdir().expect("a directory");
    let (image, room) =
        (tempfile::tempfile_in(dir.path()).expect("a file"), File::open(dir.path()).expect("open"));
    let job = ConversionJob {
        image: image.as_fd(),
        name: "image",
        source: "links",
        scratch: room.as_fd(),
        scratch_name: "room",
        limits: ImageLimits { bytes: 1 << 20, entries, texts },
        watch: &mut |_| true,
        room: &|_| true,
    };
    convert(&Links(links), job)
}

#[test]
fn what_is_kept_in_memory_is_bounded() {
    assert_eq!(converted(20, 100, 100_000).expect("not too much").summary.inodes, 21);
    for (outcome, why) in [
        (converted(20, 100, 50_000), "more than 50000 bytes of names, links and attributes"),
        (converted(20, 10, 100_000), "more than 10 files"),
    ] {
        let error = outcome.expect_err("too much");
        assert!(matches!(error, Error::TooLarge { .. }) && error.to_string().contains(why), "{error}");
    }
}
