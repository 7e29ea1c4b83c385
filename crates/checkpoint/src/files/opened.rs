//! Whether the processes that CRIU has made have the files open that were looked at before. CRIU opens files by their paths, and whoever may write
//! to a directory can put a link or another file in a file's place meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, fstat, openat, statx};
use skiff_criu::files_image::OpenFile;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_sandbox::mountinfo;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError as _;

use super::copies::{has_lasting_content, mount_of};
use super::open;
use crate::mappings::{Mapping, of_process};

/// What the processes are to have open.
pub struct ExpectedFiles {
    /// Paths of all files and directories that the images name.
    pub(super) paths: BTreeSet<String>,
    /// Numbers in the file system of those that were looked at.
    pub(super) numbers: BTreeMap<String, u64>,
}

/// What the kernel shows of a file that is open.
struct ShownFile {
    path: String,
    number: u64,
    mount: u64,
}

/// The mounts of the container: those of what is the instance's own, and all.
struct Mounts {
    own: BTreeSet<u64>,
    all: BTreeSet<u64>,
}

impl ExpectedFiles {
    /// Checks that these processes, which stand still, have no other files outside the instance open to be written, and no other current
    /// directory. A process that may not be looked into is left out.
    ///
    /// # Errors
    /// A process has another file open.
    pub fn check(&self, inside: EnterTarget<'_>, pids: &[i32], own_places: &[PathBuf]) -> Result<()> {
        enter::run(inside, &[], || {
            let mounts = Mounts::of(own_places)?;
            for pid in pids {
                for shown in descriptors(*pid).into_iter().chain(mapped(*pid)) {
                    if mounts.are_outside(shown.mount) {
                        self.check_one(&shown)?;
                    }
                }
            }
            Ok(())
        })
    }

    fn check_one(&self, shown: &ShownFile) -> Result<()> {
        let ShownFile { path, number, .. } = shown;
        let is_expected = self.paths.contains(path);
        if is_expected && self.numbers.get(path).is_none_or(|expected| expected == number) {
            return Ok(());
        }
        Err(Fault::new(format!("{path}: it has taken the place of another file or directory during the restore"))
            .hint("look who may write to the directories of the files that the instance has open: `skiff checkpoint show` names them"))
    }
}

impl Mounts {
    fn of(own_places: &[PathBuf]) -> Result<Self> {
        let listed = fs::read("/proc/self/mountinfo").context(|| "the list of mounts")?;
        let number = |id: &[u8]| std::str::from_utf8(id).ok()?.parse().ok();
        Ok(Self {
            own: own_places.iter().filter_map(|place| mount_of(place)).collect(),
            all: mountinfo::parse(&listed).iter().filter_map(|mount| number(&mount.id)).collect(),
        })
    }

    /// Of a mount elsewhere, paths are not those that the images name.
    fn are_outside(&self, mount: u64) -> bool {
        self.all.contains(&mount) && !self.own.contains(&mount)
    }
}

/// The current directory, open directories, and files that are open to be written.
fn descriptors(pid: i32) -> Vec<ShownFile> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.map(|entry| entry.path()).chain([PathBuf::from(format!("/proc/{pid}/cwd"))]);
    let shown = |link: PathBuf| {
        let path = fs::read_link(&link).ok()?.into_os_string().into_string().ok()?;
        // The rights of the link say how the file is open.
        let is_written = fs::symlink_metadata(&link).ok()?.permissions().mode() & 0o200 != 0;
        let file = openat(CWD, &link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        shown(path, file).filter(|(_, is_directory)| *is_directory || is_written).map(|(shown, _)| shown)
    };
    links.filter_map(shown).collect()
}

/// Files that are mapped so that what is written to memory is written to them.
fn mapped(pid: i32) -> Vec<ShownFile> {
    let all = of_process(pid).default_on_error("it may not be looked into");
    let is_written = |one: &Mapping| one.is_shared() && one.rights.starts_with("rw");
    all.into_iter().filter(is_written).filter_map(mapped_file).collect()
}

/// The file of a mapping, with the number that the mapping has. Where the kernel numbers mappings in an overlay otherwise than files, it is the
/// file's, if the mapping is of that very file.
fn mapped_file(mapping: Mapping) -> Option<ShownFile> {
    if let Some(file) = mapping.in_overlay().default_on_error("it counts as another file") {
        return shown(mapping.path, file.into()).map(|(file, _)| file);
    }
    let Mapping { object: (_, _, number), path, .. } = mapping;
    let file = open(&path, OFlags::PATH).ok()?;
    shown(path, file).map(|(file, _)| ShownFile { number, ..file })
}

/// Nothing of what is no regular file or directory, has no name any more, or is made by the kernel as it is read.
fn shown(path: String, file: OwnedFd) -> Option<(ShownFile, bool)> {
    let of = fstat(&file).ok()?;
    let kind = FileType::from_raw_mode(of.st_mode);
    // Network file systems and FUSE rename what is deleted while it is open.
    let has_lost_name = ["/.nfs", "/.fuse_hidden"].iter().any(|begin| path.contains(begin));
    let is_named =
        path.starts_with('/') && !path.ends_with(" (deleted)") && of.st_nlink > 0 && !has_lost_name;
    let is_kept = is_named && has_lasting_content(&file);
    let mount = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?.stx_mnt_id;
    let is_directory = kind == FileType::Directory;
    let shown = ShownFile { path, number: of.st_ino, mount };
    (is_kept && (is_directory || kind == FileType::RegularFile)).then_some((shown, is_directory))
}

/// Directories outside the instance that are reached by a symbolic link now: a path of the images has none.
pub(super) fn linked_directories(opened: &[OpenFile], own_places: &[PathBuf]) -> Result<Vec<String>> {
    let mounts = Mounts::of(own_places)?;
    let is_linked = |file: &&OpenFile| {
        let is_link = matches!(open(&file.path, OFlags::PATH), Err(rustix::io::Errno::LOOP));
        is_link && mount_of(file.path.as_ref()).is_none_or(|mount| mounts.are_outside(mount))
    };
    Ok(opened
        .iter()
        .filter(|file| file.is_directory)
        .filter(is_linked)
        .map(|file| file.path.clone())
        .collect())
}

/// So many files are named.
const MOST_NAMED: usize = 5;

/// Refuses files and directories whose mode is not what it was: CRIU compares it.
///
/// # Errors
/// All of them, each with its modes.
pub(super) fn refuse_changed_modes(opened: &[OpenFile]) -> Result<()> {
    let (mut changed, mut hints) = (BTreeSet::new(), BTreeSet::new());
    for OpenFile { path, mode: was, is_directory, .. } in opened {
        // A file that is missing, or of another type, is refused for that.
        let Ok(is) = open(path, OFlags::PATH).and_then(fstat).map(|of| of.st_mode) else { continue };
        if FileType::from_raw_mode(is) != FileType::from_raw_mode(*was) || is == *was {
            continue;
        }
        let [is, was] = [is, *was].map(|mode| mode & 0o7777);
        changed.insert(format!("{path}: its mode is {is:o}, and was {was:o}"));
        // With fewer digits chmod(1) keeps a directory's set-group-ID bit.
        hints.insert(if *is_directory {
            format!("chmod {was:05o} {path}")
        } else {
            format!("chmod {was:o} {path}")
        });
    }
    if changed.is_empty() {
        return Ok(());
    }
    let listed = |all: BTreeSet<String>, between| {
        let more = all.len().saturating_sub(MOST_NAMED);
        let named = all.into_iter().take(MOST_NAMED).collect::<Vec<_>>().join(between);
        if more == 0 { named } else { format!("{named}{between}and {more} more") }
    };
    Err(Fault::new(listed(changed, "; "))
        .hint(format!("give them the modes that they had, and restore again: {}", listed(hints, "; "))))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use rustix::fs::{major, minor};

    use super::*;

    #[test]
    fn what_took_a_files_place_after_it_was_looked_at_is_found() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = |name: &str| temp.path().join(name).to_str().expect("UTF-8").to_owned();
        for name in ["log", "rc", "read"] {
            fs::write(path(name), "x").expect("written");
        }
        let append = |name: &str| File::options().append(true).open(path(name)).expect("opened");
        let number = |name: &str| fstat(append(name)).expect("known").st_ino;
        let expected = ExpectedFiles {
            paths: BTreeSet::from([path("log")]),
            numbers: BTreeMap::from([(path("log"), number("log"))]),
        };
        let own = i32::try_from(std::process::id()).expect("a number");
        let found = || -> Vec<ShownFile> {
            let all = descriptors(own).into_iter().chain(mapped(own));
            all.filter(|shown| shown.path.starts_with(temp.path().to_str().expect("UTF-8"))).collect()
        };
        let (log, _read) = (append("log"), File::open(path("read")).expect("opened"));
        let all = found();
        assert_eq!(all.len(), 1);
        expected.check_one(&all[0]).expect("it is that file");
        drop(log);
        // By a link, and as another file of that name.
        fs::remove_file(path("log")).expect("removed");
        symlink(path("rc"), path("log")).expect("a link");
        let linked = append("log");
        expected.check_one(&found()[0]).expect_err("another path");
        drop(linked);
        fs::rename(path("rc"), path("log")).expect("moved");
        let _other = append("log");
        expected.check_one(&found()[0]).expect_err("another number");
    }

    #[test]
    fn a_mapping_of_another_file_has_its_own_number() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("mapped");
        fs::write(&path, "x").expect("written");
        let file = fs::metadata(&path).expect("known");
        let (major, minor, number) = (major(file.dev()), minor(file.dev()), file.ino());
        for number in [number, number + 1] {
            let line = format!("7f00-8000 rw-s 0 {major:x}:{minor:x} {number} {}", path.display());
            let shown = mapped_file(Mapping::parse(&line).expect("a line")).expect("a file");
            assert_eq!(shown.number, number);
        }
    }

    #[test]
    fn a_directory_that_a_link_has_replaced_is_named() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = |name: &str| temp.path().join(name).to_str().expect("UTF-8").to_owned();
        fs::create_dir(path("a")).expect("made");
        symlink(path("a"), path("b")).expect("a link");
        let opened = |name: &str| OpenFile {
            path: path(name),
            flags: 0,
            position: 0,
            size: None,
            is_directory: true,
            mode: 0o40_755,
        };
        let found = linked_directories(&[opened("a"), opened("b")], &[]).expect("looked at");
        assert_eq!(found, [path("b")]);
    }

    #[test]
    fn changed_modes_are_named_with_what_changes_them_back() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().to_str().expect("UTF-8").to_owned();
        let (dir, file) = (path.clone(), format!("{path}/log"));
        fs::write(&file, "x").expect("written");
        let had = |modes: [u32; 2]| {
            let open = |(path, mode): (&String, u32)| {
                let is_directory = FileType::from_raw_mode(mode) == FileType::Directory;
                OpenFile { path: path.clone(), flags: 0, position: 0, size: None, is_directory, mode }
            };
            refuse_changed_modes(&[&dir, &file].into_iter().zip(modes).map(open).collect::<Vec<_>>())
        };
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o2750)).expect("set");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set");
        assert_eq!(had([0o42_750, 0o100_600]), Ok(()));
        assert_eq!(had([0o100_750, 0o40_755]), Ok(()), "other types are refused elsewhere");
        let why = had([0o40_750, 0o100_644]).expect_err("other modes");
        assert_eq!(
            why.message,
            format!("{file}: its mode is 600, and was 644; {dir}: its mode is 2750, and was 750")
        );
        assert!(why.hint.ends_with(&format!(": chmod 00750 {dir}; chmod 644 {file}")), "{}", why.hint);
        temp.close().expect("removed");
        assert_eq!(had([0o40_755, 0o100_644]), Ok(()), "missing ones are refused elsewhere");
    }
}
