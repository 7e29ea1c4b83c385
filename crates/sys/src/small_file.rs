//! Small files that are read whole, and that a program of the user's may have exchanged for anything: a named pipe or a device that lets
//! whoever opens it wait, a file without end, a link that leads elsewhere.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::path::Arg;

/// No record is longer, in bytes.
pub const LONGEST: u64 = 64 << 20;

/// What is in the regular file at `path`, whose last part is no link. Waits for nobody.
///
/// # Errors
/// Of `open(2)` and `read(2)`; when it is no regular file, or longer than [`LONGEST`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_below(CWD, path, LONGEST)
}

/// The same as text.
///
/// # Errors
/// As [`read`], and when it is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    to_text(read(path)?)
}

/// What is in such a file below `dir`, if that is at most `longest` bytes.
///
/// # Errors
/// As [`read`].
pub fn read_below(dir: impl AsFd, path: impl Arg, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    open_below(dir, path)?.take(longest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {longest} bytes")));
    }
    Ok(bytes)
}

/// Opens such a file to be read.
///
/// # Errors
/// Of `open(2)`; when it is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    open_below(CWD, path)
}

/// Writes a file that its owner and whom the umask lets can read, in place of whatever is there.
///
/// # Errors
/// Of `unlink(2)`, `open(2)` and `write(2)`.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Makes such a file, to be written.
///
/// # Errors
/// Of `unlink(2)` and `open(2)`.
pub fn create(path: &Path) -> io::Result<File> {
    // To open what is there could wait for a reader, or write elsewhere.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => File::create_new(path),
    }
}

fn open_below(dir: impl AsFd, path: impl Arg) -> io::Result<File> {
    // Also what somebody has a lease on is not waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(dir, path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

fn to_text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.utf8_error().to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_small_regular_file_is_read_and_nothing_is_waited_for() {
        let dir = std::env::temp_dir().join(format!("skiff-small-file.{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        let at = |name: &str| dir.join(name);
        std::fs::write(at("text"), "four").expect("written");
        std::fs::write(at("bytes"), b"\xff").expect("written");
        rustix::fs::mkfifoat(CWD, at("pipe"), Mode::RUSR | Mode::WUSR).expect("a pipe");
        symlink("text", at("link")).expect("a link");
        symlink("/dev/zero", at("zero")).expect("a link");
        let said = |name: &str| read_to_string(&at(name)).map_err(|e| e.to_string());
        assert_eq!(said("text").as_deref(), Ok("four"));
        assert_eq!(said("pipe"), Err("not a regular file".into()));
        assert_eq!(said("."), Err("not a regular file".into()));
        for name in ["link", "zero", "bytes", "none"] {
            assert!(said(name).is_err(), "{name}");
        }
        let opened = std::fs::File::open(&dir).expect("opened");
        assert_eq!(read_below(&opened, "text", 4).expect("short enough"), b"four");
        assert_eq!(read_below(&opened, "text", 3).expect_err("too long").kind(), io::ErrorKind::FileTooLarge);
        write(&at("pipe"), b"new").expect("written");
        write(&at("link"), b"other").expect("written");
        assert_eq!((said("pipe").as_deref(), said("link").as_deref()), (Ok("new"), Ok("other")));
        assert_eq!(said("text").as_deref(), Ok("four"), "what the link led to");
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
