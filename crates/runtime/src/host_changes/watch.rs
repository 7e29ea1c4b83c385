//! The directories of the quick look and of the package database, watched by inotify: as long as the kernel tells of no change, no session
//! has to look.
//!
//! The watch belongs to the supervisor. A child of the supervisor, which looks in the background, adds the directories and then looks at them once more,
//! so that what changed before they were watched is not missed. What it has confirmed counts until the next event.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::fs::statfs;
use rustix::io::Errno;

use super::state::HostState;
use crate::package_database::DATABASES;

/// File systems that only this host changes, by their numbers. Of what another host changes on a file server inotify does not tell.
const LOCAL: [u32; 11] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xca45_1a4e, // bcachefs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlay
    0xe0f5_e1e2, // EROFS
    0x7371_7368, // SquashFS
];

/// Each of these sets the directory's change time.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ATTRIB);

/// Whether the kernel has told of a change since somebody looked.
pub(super) struct HostWatch {
    inotify: OwnedFd,
    /// Somebody has looked, and nothing has changed since.
    is_confirmed: bool,
    /// Something has changed since the look began that is going on.
    is_void: bool,
}

impl HostWatch {
    /// Of nothing yet; nothing if the kernel cannot be relied on to tell, or the user has as many as one may have.
    pub(super) fn new() -> Option<Self> {
        let is_local = |path: &str| {
            let number = statfs(path).ok().and_then(|file_system| u32::try_from(file_system.f_type).ok());
            number.is_some_and(|number| LOCAL.contains(&number))
        };
        // A package database may be on a file system of its own.
        if !is_local("/") || DATABASES.iter().any(|path| Path::new(path).exists() && !is_local(path)) {
            return None;
        }
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        Some(Self { inotify, is_confirmed: false, is_void: false })
    }

    /// A look begins.
    pub(super) fn begin(&mut self) {
        self.hear();
        self.is_void = false;
    }

    /// The look that began last has ended; whether it has found nothing that the environment does not see.
    pub(super) fn end(&mut self, sees_all: bool) {
        self.is_confirmed = sees_all && !self.is_void;
    }

    /// Whether nothing has changed since the last look.
    pub(super) fn is_unchanged(&mut self) -> bool {
        self.hear();
        self.is_confirmed
    }

    fn hear(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        let mut has_changed = false;
        loop {
            match events.next() {
                // What is said with a name is said of a file there: one whose attributes change shows by itself.
                Ok(event) => {
                    has_changed |= !event.events().contains(ReadFlags::ATTRIB) || event.file_name().is_none();
                }
                Err(Errno::INTR) => {}
                Err(e) => {
                    has_changed |= e != Errno::AGAIN;
                    break;
                }
            }
        }
        self.is_confirmed &= !has_changed;
        self.is_void |= has_changed;
    }
}

impl AsFd for HostWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Has a watch tell of the package database and of the directories in the state of the environment in `dir`; whether all directories are as
/// they are there.
pub(super) fn watch_all(inotify: BorrowedFd<'_>, dir: &Path) -> bool {
    let Some(state) = HostState::read(dir) else { return false };
    let flags = CHANGES | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
    let are_watched = state.dirs.iter().all(|(path, _)| add_watch(inotify, path, flags).is_ok());
    // Last, as they may be among them: RPM writes into its database, and whoever edits dpkg's by hand may write into that.
    let are_databases_watched = DATABASES.iter().all(|database| {
        let watched = add_watch(inotify, *database, (flags | WatchFlags::MODIFY) - WatchFlags::DONT_FOLLOW);
        !matches!(watched, Err(e) if e != Errno::NOENT)
    });
    are_watched && are_databases_watched && state.changed().is_empty()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::SystemTime;

    use super::super::walk::stamp;
    use super::*;

    /// A directory that the state of an environment names.
    fn watched() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        fs::create_dir(&host).unwrap();
        fs::write(host.join("file"), "").unwrap();
        note(dir.path(), &host);
        (dir, host)
    }

    fn note(dir: &Path, host: &Path) {
        let stat = rustix::fs::stat(host).unwrap();
        HostState { dirs: vec![(host.to_owned(), stamp(&stat))], full: None }.write(dir).unwrap();
    }

    fn watch() -> HostWatch {
        HostWatch {
            inotify: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap(),
            is_confirmed: false,
            is_void: false,
        }
    }

    /// A look, with what happens while it goes on.
    fn look(watch: &mut HostWatch, dir: &Path, meanwhile: impl FnOnce(&mut HostWatch)) {
        watch.begin();
        let finds_nothing = watch_all(watch.as_fd(), dir);
        meanwhile(watch);
        watch.end(finds_nothing);
    }

    #[test]
    fn what_was_confirmed_counts_until_something_changes() {
        type Change = (&'static str, fn(&Path));
        let changes: [Change; 6] = [
            ("created", |host| fs::write(host.join("new"), "").unwrap()),
            ("removed", |host| fs::remove_file(host.join("file")).unwrap()),
            ("renamed", |host| fs::rename(host.join("file"), host.join("other")).unwrap()),
            ("its mode", |host| {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
                fs::set_permissions(host, mode).unwrap();
            }),
            ("moved away", |host| fs::rename(host, host.with_extension("old")).unwrap()),
            ("removed itself", |host| fs::remove_dir_all(host).unwrap()),
        ];
        for (name, change) in changes {
            let (dir, host) = watched();
            let mut watch = watch();
            assert!(!watch.is_unchanged(), "nobody has looked");
            look(&mut watch, dir.path(), |_| ());
            assert!(watch.is_unchanged() && watch.is_unchanged(), "{name}");
            change(&host);
            assert!(!watch.is_unchanged() && !watch.is_unchanged(), "{name}");
        }
    }

    #[test]
    fn what_shows_by_itself_is_no_change() {
        let (dir, host) = watched();
        let mut watch = watch();
        look(&mut watch, dir.path(), |_| ());
        let file = fs::File::options().write(true).open(host.join("file")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        fs::write(host.join("file"), "in place").unwrap();
        assert!(watch.is_unchanged());
    }

    #[test]
    fn what_changes_around_the_beginning_of_a_look_is_not_missed() {
        let (dir, host) = watched();
        let mut watch = watch();
        fs::write(host.join("before it is watched"), "").unwrap();
        look(&mut watch, dir.path(), |_| ());
        assert!(!watch.is_unchanged(), "it is not as in the state");

        note(dir.path(), &host);
        look(&mut watch, dir.path(), |_| fs::write(host.join("during the look"), "").unwrap());
        assert!(!watch.is_unchanged());

        note(dir.path(), &host);
        look(&mut watch, dir.path(), |watch| {
            fs::write(host.join("and a session asks"), "").unwrap();
            assert!(!watch.is_unchanged());
        });
        assert!(!watch.is_unchanged(), "what the session heard is not forgotten at the end of the look");

        note(dir.path(), &host);
        look(&mut watch, dir.path(), |_| ());
        assert!(watch.is_unchanged());
    }

    #[test]
    fn a_directory_that_cannot_be_watched_leaves_it_open() {
        let (dir, host) = watched();
        let gone = host.with_extension("gone");
        HostState { dirs: vec![(gone, super::super::walk::DirStamp::default())], full: None }
            .write(dir.path())
            .unwrap();
        let mut watch = watch();
        look(&mut watch, dir.path(), |_| ());
        assert!(!watch.is_unchanged());
    }
}
