//! Files of a checkpoint on their way, one behind the other on one connection: what they are called and how long they are has been said
//! before, elsewhere.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2, sendfile};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};
use skiff_checkpoint::record;
use skiff_spec::fault::{Context as _, Fault, Result};

use crate::pages::move_bytes;

/// The most that is sent at once.
const CHUNK: usize = 1 << 30;

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferFile {
    /// Path in the checkpoint's directory.
    pub path: String,
    /// Length in bytes.
    pub size: u64,
}

/// All files in a checkpoint's directory.
///
/// # Errors
/// What reading says.
pub fn contents(dir: &std::path::Path) -> Result<Vec<TransferFile>> {
    let piece = |path: String| {
        let size = record::open(dir, &path)?.metadata().context(|| path.clone())?.len();
        Ok(TransferFile { path, size })
    };
    record::files(dir)?.into_iter().map(piece).collect()
}

/// Sends them.
///
/// # Errors
/// When the connection is lost.
pub fn send(dir: &std::path::Path, pieces: &[TransferFile], socket: BorrowedFd<'_>) -> Result<()> {
    for piece in pieces {
        let about = || format!("{} on its way", piece.path);
        let file = record::open(dir, &piece.path)?;
        let mut left = piece.size;
        while left > 0 {
            match sendfile(socket, &file, None, usize::try_from(left).unwrap_or(CHUNK).min(CHUNK)) {
                Ok(0) => return Err(Fault::new(format!("{}: it has become shorter", about()))),
                Ok(n) => left -= n as u64,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e).context(about),
            }
        }
    }
    Ok(())
}

/// Takes them into an empty directory.
///
/// # Errors
/// When the connection is lost, there is no room, or one is not to lie in that directory.
pub fn receive(dir: BorrowedFd<'_>, pieces: &[TransferFile], socket: BorrowedFd<'_>) -> Result<()> {
    let pipe = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    for piece in pieces {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let file = openat2(dir, &*piece.path, flags, Mode::from_raw_mode(0o600), resolve);
        let file = File::from(file.context(|| piece.path.clone())?);
        move_bytes(socket, &pipe, file.as_fd(), piece.size).map_err(|e| e.about(&piece.path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::fs;

    fn made() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for part in [record::IMAGES, record::TREES] {
            fs::create_dir(dir.path().join(part)).expect("made");
        }
        dir
    }

    #[test]
    fn what_is_sent_arrives_and_nowhere_else() {
        let (from, to) = (made(), made());
        for (path, bytes) in
            [("images/core-2.img", vec![1; 70_000]), ("trees/upper", vec![]), ("image.json", vec![2; 9])]
        {
            fs::write(from.path().join(path), bytes).expect("written");
        }
        fs::write(from.path().join("images/stats-dump"), "none of it").expect("written");
        let pieces = contents(from.path()).expect("read");
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("sockets");
        let target = File::open(to.path()).expect("open");
        std::thread::scope(|scope| {
            scope.spawn(|| send(from.path(), &pieces, ours.as_fd()).expect("sent"));
            receive(target.as_fd(), &pieces, theirs.as_fd()).expect("received");
        });
        assert_eq!(contents(to.path()).expect("read"), pieces);
        assert_eq!(fs::read(to.path().join("images/core-2.img")).expect("read"), vec![1; 70_000]);
        // Again, outside, and cut short.
        drop(ours);
        for (path, reason) in [
            ("trees/upper", "File exists (os error 17)"),
            ("../outside", "Invalid cross-device link (os error 18)"),
            ("/tmp/outside", "Invalid cross-device link (os error 18)"),
            ("images/new", "pages from the other side: it has closed the connection"),
        ] {
            let piece = TransferFile { path: path.into(), size: 5 };
            let refused = receive(target.as_fd(), &[piece], theirs.as_fd()).expect_err(path);
            assert_eq!(refused.message, format!("{path}: {reason}"));
        }
    }
}
