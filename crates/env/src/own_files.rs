//! What a root over an image has of Skiff's own: the user's account in the lists of accounts, and empty files at which the host's are mounted.
//! The user has made none of it, so it is neither among the changes nor in an image that is made of the root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use skiff_plan::HOST_FILES;
use skiff_sandbox::accounts::without_added;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{Change, ChangeKind};
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::plan::{Accounts, Base};
use skiff_user::context::UserContext;

use crate::base_view::{own_view, view_of_base};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// A longer list of accounts is left as it is, in bytes.
const LONGEST: u64 = 4 << 20;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Found {
    Nothing,
    /// A file with a text.
    Text {
        text: String,
        mode: u32,
        owner: (u32, u32),
        mtime: (i64, u32),
    },
    /// Something else, of which nothing is told.
    Other,
}

/// What the base has where Skiff may put something. By default that is not known, and then nothing counts as Skiff's.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BaseFiles(BTreeMap<String, Found>);

/// A list of accounts without what is Skiff's.
#[derive(Debug, PartialEq, Eq)]
pub struct CleanedList {
    /// The text.
    pub text: String,
    /// When the base's was changed last, in seconds and nanoseconds, if it is that one again.
    pub mtime: Option<(i64, u32)>,
}

/// What is Skiff's in a root. Paths begin with a slash.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OwnFiles {
    /// Files that are Skiff's altogether.
    pub left_out: BTreeSet<Vec<u8>>,
    /// Files that have lines of Skiff's among others.
    pub cleaned: BTreeMap<Vec<u8>, CleanedList>,
}

impl BaseFiles {
    /// Looks into a base.
    ///
    /// # Errors
    /// The base cannot be seen.
    pub fn of(context: &UserContext, base: Base) -> Result<Self> {
        let own = own_view(context, base)?;
        as_root_of_ids(context.helper.as_deref(), base, |view| Self::read(view_of_base(view, &own)?.as_fd()))
    }

    fn read(base: BorrowedFd<'_>) -> Result<Self> {
        let paths = [PASSWD, GROUP].into_iter().chain(HOST_FILES);
        Ok(Self(paths.map(|path| Ok((path.to_owned(), look(base, path)?))).collect::<Result<_>>()?))
    }

    fn at(&self, path: &str) -> &Found {
        self.0.get(path).unwrap_or(&Found::Other)
    }

    /// What is Skiff's in a root over this base, in which these accounts are known.
    ///
    /// # Errors
    /// The root cannot be read.
    pub fn own_files(&self, root: BorrowedFd<'_>, accounts: &Accounts) -> Result<OwnFiles> {
        let mut own = OwnFiles::default();
        for (path, lines) in lists(accounts) {
            own.add_list(path, self.at(path), &look(root, path)?, lines);
        }
        for path in HOST_FILES {
            let is_empty = matches!(look(root, path)?, Found::Text { text, .. } if text.is_empty());
            if is_empty && *self.at(path) == Found::Nothing {
                own.left_out.insert(path.into());
            }
        }
        Ok(own)
    }
}

impl OwnFiles {
    fn add_list(&mut self, path: &str, base: &Found, now: &Found, lines: &[String]) {
        let Found::Text { text: now, .. } = now else { return };
        let (before, mtime) = match base {
            Found::Nothing => ("", None),
            Found::Text { text, mtime, .. } => (&**text, Some(*mtime)),
            Found::Other => return,
        };
        let text = without_added(before, now, lines);
        if text == *now {
            return;
        }
        if text.is_empty() && mtime.is_none() {
            self.left_out.insert(path.into());
            return;
        }
        let mtime = mtime.filter(|_| text == before);
        self.cleaned.insert(path.into(), CleanedList { text, mtime });
    }
}

/// Leaves out lists of accounts that differ from the base in nothing but Skiff's lines.
///
/// # Errors
/// The files cannot be read.
pub fn leave_out_lists(
    changes: &mut Vec<Change>,
    upper: BorrowedFd<'_>,
    base: BorrowedFd<'_>,
    accounts: &Accounts,
) -> Result<()> {
    for (path, lines) in lists(accounts) {
        let is_this =
            |change: &&Change| change.path == path.as_bytes()[1..] && change.kind != ChangeKind::Deleted;
        if changes.iter().any(|change| is_this(&change))
            && is_unchanged(&look(base, path)?, &look(upper, path)?, lines)
        {
            changes.retain(|change| !is_this(&change));
        }
    }
    Ok(())
}

fn is_unchanged(base: &Found, now: &Found, lines: &[String]) -> bool {
    let Found::Text { text, mode, owner, .. } = now else { return false };
    match base {
        Found::Nothing => without_added("", text, lines).is_empty() && !text.is_empty(),
        Found::Text { text: before, mode: base_mode, owner: base_owner, .. } => {
            (mode, owner) == (base_mode, base_owner) && without_added(before, text, lines) == *before
        }
        Found::Other => false,
    }
}

fn lists(accounts: &Accounts) -> [(&'static str, &[String]); 2] {
    [(PASSWD, &accounts.users), (GROUP, &accounts.groups)]
}

/// Whoever made the root chose what is in it: nothing is followed, and nothing waited for.
fn look(root: BorrowedFd<'_>, path: &str) -> Result<Found> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(root, path.trim_start_matches('/'), flags, Mode::empty(), how) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Found::Nothing),
        Err(Errno::LOOP | Errno::XDEV | Errno::ACCESS | Errno::PERM | Errno::NXIO) => {
            return Ok(Found::Other);
        }
        file => file.context(|| path)?,
    };
    let stat = fstat(&file).context(|| path)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size as u64 > LONGEST {
        return Ok(Found::Other);
    }
    let mut bytes = vec![];
    File::from(file).take(LONGEST).read_to_end(&mut bytes).context(|| path)?;
    // Of other bytes the program that adds the lines saw something else, too.
    Ok(String::from_utf8(bytes).map_or(Found::Other, |text| Found::Text {
        text,
        mode: stat.st_mode,
        owner: (stat.st_uid, stat.st_gid),
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const ROOT: &str = "root:x:0:0::/root:/bin/sh\n";
    const ALICE: &str = "alice:x:1001:1001::/home/alice:/bin/sh\n";

    fn accounts() -> Accounts {
        Accounts { users: vec![ALICE.trim_end().into()], groups: vec!["alice:x:1001:".into()] }
    }

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("made");
        fs::create_dir(dir.path().join("etc")).expect("made");
        for (name, text) in files {
            fs::write(dir.path().join("etc").join(name), text).expect("written");
        }
        dir
    }

    fn opened(dir: &Path) -> File {
        File::open(dir).expect("opened")
    }

    #[test]
    fn an_image_has_nothing_of_skiffs() {
        let base = tree(&[("passwd", ROOT), ("hosts", "")]);
        let now = tree(&[
            ("passwd", &format!("{ROOT}{ALICE}app:x:5:5::/:/bin/sh\n")),
            ("group", "alice:x:1001:\n"),
            ("hosts", ""),
            ("localtime", ""),
            ("resolv.conf", "nameserver 10.0.0.1\n"),
        ]);
        let own = |base: &Path, now: &Path| {
            let base = BaseFiles::read(opened(base).as_fd()).expect("read");
            base.own_files(opened(now).as_fd(), &accounts()).expect("read")
        };
        let found = own(base.path(), now.path());
        assert_eq!(found.left_out, [b"/etc/group".to_vec(), b"/etc/localtime".to_vec()].into());
        let text = format!("{ROOT}app:x:5:5::/:/bin/sh\n");
        assert_eq!(found.cleaned, [(b"/etc/passwd".to_vec(), CleanedList { text, mtime: None })].into());
        // One that is as in the base is as old, too.
        fs::write(now.path().join("etc/passwd"), format!("{ROOT}{ALICE}")).expect("written");
        let found = own(base.path(), now.path());
        let old = std::os::unix::fs::MetadataExt::mtime(
            &fs::metadata(base.path().join("etc/passwd")).expect("there"),
        );
        let cleaned = &found.cleaned[&b"/etc/passwd"[..]];
        assert_eq!(cleaned.text, ROOT);
        assert_eq!(cleaned.mtime.map(|(seconds, _)| seconds), Some(old));
        assert_eq!(own(base.path(), base.path()), OwnFiles::default());
    }

    #[test]
    fn lists_with_skiffs_lines_alone_are_no_changes() {
        let base = tree(&[("passwd", ROOT)]);
        let changes = |passwd: &str, mode: u32| {
            let upper = tree(&[("passwd", passwd), ("group", "alice:x:1001:\n")]);
            let path = upper.path().join("etc/passwd");
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("set");
            let change = |path: &str, kind| Change { path: path.into(), kind, base_changed: false };
            let mut changes = vec![
                change("etc/group", ChangeKind::Added),
                change("etc/motd", ChangeKind::Changed),
                change("etc/passwd", ChangeKind::Changed),
            ];
            leave_out_lists(
                &mut changes,
                opened(upper.path()).as_fd(),
                opened(base.path()).as_fd(),
                &accounts(),
            )
            .expect("read");
            changes
                .into_iter()
                .map(|change| String::from_utf8_lossy(&change.path).into_owned())
                .collect::<Vec<_>>()
        };
        let mode = std::os::unix::fs::MetadataExt::mode(
            &fs::metadata(base.path().join("etc/passwd")).expect("there"),
        ) & 0o7777;
        assert_eq!(changes(&format!("{ROOT}{ALICE}"), mode), ["etc/motd"]);
        assert_eq!(
            changes(&format!("{ROOT}{ALICE}app:x:5:5::/:/bin/sh\n"), mode),
            ["etc/motd", "etc/passwd"]
        );
        assert_eq!(changes(&format!("{ROOT}{ALICE}"), mode ^ 0o040), ["etc/motd", "etc/passwd"]);
    }
}
