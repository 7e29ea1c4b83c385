//! What is there now, kept beside a file outside an instance before that is changed; and files that are made in place of a missing one.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::PathBuf;

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use super::{COPIES, WrittenFile, stamp};

/// Behind a file's name: what was written since it was saved, and what it was before it was put back.
pub(super) const AFTER: &str = "after-checkpoint";
pub(super) const BEFORE: &str = "before-restore";
/// A file's access control list (`acl(5)`).
pub(super) const ACL: &str = "system.posix_acl_access";
/// Why a file is neither cut nor replaced.
pub(super) const WRITTEN_TO: &str = "another process writes to it";
/// So many files of a name are numbered beside one. Who may write to the directory can take all these names: the next have numbers by chance.
const MOST_NUMBERED: u32 = 1000;
/// So many numbers by chance are tried.
const CHANCES: usize = 16;

/// Content of a file from a place on, in a new file beside it.
pub(super) struct KeptAside {
    pub(super) path: PathBuf,
    into: File,
    from: u64,
    /// Length of the file when it was copied, and when it had been written to last, in seconds and nanoseconds.
    of: (u64, i64, i64),
}

impl KeptAside {
    /// Copies a file from a place on into a new one beside it, on the disk.
    pub(super) fn of(path: &str, file: &File, suffix: &str, from: u64) -> Result<Self> {
        let about = || "what is there now cannot be kept beside it";
        let of = file.metadata().context(about)?;
        for name in names(path, suffix) {
            let into = match create_new(&name) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                new => new.context(about)?,
            };
            // Rights of a group are those of the list's mask if there is one, and another owner or group are other users.
            let is_plain = matches!(fgetxattr(file, ACL, &mut [0; 0]), Err(Errno::NODATA | Errno::NOTSUP));
            if is_plain && belongs_to(&into, (of.uid(), of.gid())).context(about)? {
                into.set_permissions(fs::Permissions::from_mode(of.mode() & 0o777)).context(about)?;
            }
            let mut aside = Self { path: name.clone().into(), into, from, of: (0, 0, 0) };
            return match aside.copy(file).context(about) {
                Ok(()) => Ok(aside),
                Err(e) => {
                    fs::remove_file(&name).ignore_error("the first error is the one to tell");
                    Err(e)
                }
            };
        }
        Err(Fault::new(format!("there is no free name {path}.{suffix}.N beside it")))
    }

    fn copy(&mut self, mut file: &File) -> io::Result<()> {
        let Self { into, from, of, .. } = self;
        // Before it is copied: what is written meanwhile shows afterwards.
        *of = stamp(file)?;
        into.set_len(0)?;
        into.rewind()?;
        file.seek(SeekFrom::Start(*from))?;
        io::copy(&mut file.take(u64::MAX), into)?;
        into.sync_all()
    }

    /// Copies it again if it has been written to since; its length. (Of a process of another host the lease does not tell.)
    pub(super) fn catch_up(&mut self, file: &File) -> Result<u64> {
        let about = || "what was written since cannot be kept beside it";
        for _ in 0..COPIES {
            let now = stamp(file).context(about)?;
            if now.0 < self.from {
                return Err(Fault::new("it has been cut meanwhile"));
            }
            if now == self.of {
                return Ok(now.0);
            }
            self.copy(file).context(about)?;
        }
        Err(Fault::new(WRITTEN_TO))
    }
}

/// Names for what is kept beside a file, one after the other.
fn names(path: &str, suffix: &str) -> impl Iterator<Item = String> {
    let numbered = (1..=MOST_NUMBERED).map(Some);
    numbered.chain(std::iter::repeat_n(None, CHANCES)).map(move |number| match number {
        Some(1) => format!("{path}.{suffix}"),
        Some(number) => format!("{path}.{suffix}.{number}"),
        None => {
            let mut random = [0; 4];
            getrandom(&mut random, GetRandomFlags::empty()).ignore_error("then this name is tried");
            format!("{path}.{suffix}.{}", u32::from_ne_bytes(random))
        }
    })
}

/// Makes a missing file as it was recorded, still empty.
pub(super) fn make_again(path: &str, noted: &WrittenFile) -> Result<File> {
    let about = || "it is missing, and cannot be made";
    let file = create_new(path).context(about)?;
    let made = give_rights(&file, noted).map_err(|e| e.about(about()));
    if made.is_err() {
        fs::remove_file(path).ignore_error("the first error is the one to tell");
    }
    made.map(|()| file)
}

fn give_rights(file: &File, noted: &WrittenFile) -> Result<()> {
    let about = || "owner and rights that it had";
    let Some((uid, gid, mode)) = noted.owner else { return Ok(()) };
    if !belongs_to(file, (uid, gid)).context(about)? && mode & 0o077 != 0 {
        return Err(Fault::new("it cannot have the owner and group that it had"));
    }
    file.set_permissions(fs::Permissions::from_mode(mode)).context(about)?;
    if noted.acl.is_empty() {
        return Ok(());
    }
    fsetxattr(file, ACL, &noted.acl, XattrFlags::empty()).context(about)
}

/// Gives a file to this user and group; whether it is theirs then.
fn belongs_to(file: &File, (uid, gid): (u32, u32)) -> io::Result<bool> {
    let is = || file.metadata().map(|of| (of.uid(), of.gid()) == (uid, gid));
    if !is()? {
        fchown(file, Some(uid), Some(gid)).ignore_error("it is looked at again");
    }
    is()
}

/// A new file for the user alone, whatever list of rights its directory would give it.
fn create_new(path: &str) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    match fremovexattr(&file, ACL) {
        Ok(()) => file.set_permissions(fs::Permissions::from_mode(0o600))?,
        Err(Errno::NODATA | Errno::NOTSUP) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(file)
}
