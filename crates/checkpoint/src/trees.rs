//! The directories that belong to an instance and to nothing else: its changes and its own `/tmp`, and what it has in memory. Each goes
//! into one file of a checkpoint, and comes back out of it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_env::snapshot_fault::ours;
use skiff_runtime::record::InstanceDir;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_sandbox::mountinfo;
use skiff_sandbox::mounts::{bind_one, open_dir};
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{LayerId, whole};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::plan::{Mount, Plan, Route, Source, covering, inside};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::record::{self, Checkpoint, SavedTree, TREES, TreeContents};

/// What there is to keep of an instance with this plan.
fn all(plan: &Plan) -> Vec<(String, TreeContents)> {
    let own = plan.mounts.iter().filter_map(|mount| match &mount.source {
        Source::Own(name) => Some((name.clone(), TreeContents::Own(name.clone()))),
        _ => None,
    });
    let memory = plan.mounts.iter().enumerate().filter_map(|(n, mount)| match &mount.source {
        Source::Memory { .. } => Some((format!("memory.{n}"), TreeContents::Memory(mount.target.clone()))),
        _ => None,
    });
    let upper = ("upper".to_owned(), TreeContents::Own("upper".into()));
    [upper].into_iter().chain(own).chain(memory).chain([("output".into(), TreeContents::Output)]).collect()
}

/// Where that is, inside.
pub fn own_places(plan: &Plan) -> Vec<PathBuf> {
    // The output is in the instance's directory, and a volume in its root; files with content of the plan's are made anew.
    let is_own = |mount: &&Mount| match mount.source {
        Source::Bind(_) => mount.target.starts_with(inside::DIR),
        Source::Own(_) | Source::Memory { .. } | Source::Volume => true,
        Source::Text(_) | Source::Hosts(_) | Source::Files(_) | Source::Program(_) => true,
        _ => false,
    };
    // Where something else may be mounted over it, what is seen there counts as that.
    let is_seen = |(at, _): &(usize, &Mount)| covering(&plan.mounts, *at).next().is_none();
    let own = plan.mounts.iter().enumerate().filter(is_seen).map(|(_, mount)| mount).filter(is_own);
    [PathBuf::from("/")].into_iter().chain(own.map(|mount| mount.target.clone())).collect()
}

/// Inside, where these are the places of all mounts: whether something else is mounted over what the instance has in memory at this place. What is
/// seen there is not the instance's then, and what is below nobody sees.
fn is_covered(mounts: &[Mount], target: &Path, mounted: &[PathBuf]) -> bool {
    let is_one = |mount: &Mount| mount.target == target && matches!(mount.source, Source::Memory { .. });
    let Some(at) = mounts.iter().rposition(is_one) else { return false };
    let is_there = |one: &Mount| {
        let needed = mounts.iter().filter(|mount| mount.target == one.target && !mount.optional).count();
        !one.optional || mounted.iter().filter(|place| **place == one.target).count() > needed
    };
    covering(mounts, at).any(is_there)
}

/// Inside: the places of all mounts.
fn mounted() -> Result<Vec<PathBuf>> {
    let listed = fs::read("/proc/self/mountinfo").context(|| "the list of mounts")?;
    Ok(mountinfo::parse(&listed).into_iter().map(|mount| mount.place).collect())
}

/// New files for all of them, of a checkpoint.
pub(crate) struct TreeFiles<'a> {
    plan: &'a Plan,
    output: Output,
    all: Vec<TreeFile>,
}

/// A file, and the directory that goes into it, if it can be opened outside.
struct TreeFile {
    name: String,
    of: TreeContents,
    file: OwnedFd,
    from: Option<OwnedFd>,
}

impl<'a> TreeFiles<'a> {
    /// Makes them in a checkpoint's directory.
    pub fn new(plan: &'a Plan, record: &InstanceDir, dir: &Path) -> Result<Self> {
        let output = Output::new(record)?;
        let mut files = vec![];
        for (name, of) in all(plan) {
            let from = match &of {
                TreeContents::Own(name) => Some(record.dir.join(name)),
                TreeContents::Output => Some(output.dir.clone()),
                TreeContents::Memory(_) => None,
            };
            let open = |path: PathBuf| open_dir(CWD, &path).context(|| path.display().to_string());
            let file = create(&dir.join(TREES).join(&name))?;
            files.push(TreeFile { name, of, file, from: from.map(open).transpose()? });
        }
        Ok(Self { plan, output, all: files })
    }

    /// The descriptors that [`TreeFiles::write`] needs.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let files = self.all.iter().map(|tree| tree.file.as_fd());
        files.chain(self.all.iter().filter_map(|tree| tree.from.as_ref()).map(AsFd::as_fd)).collect()
    }

    /// To be called before they are written: the instance has its output as it is now. Gives how many bytes its command has written to that.
    pub fn hold_output(&self) -> Result<u64> {
        self.output.hold()
    }

    /// Inside: writes all of them; their ids, but of those that nobody sees. Nothing may change them meanwhile.
    pub fn write(&self) -> Result<Vec<Option<String>>> {
        let mounted = mounted()?;
        self.all.iter().map(|tree| tree.write(self.plan, &mounted)).collect()
    }

    /// What has been written, by the ids.
    pub fn written(self, ids: Vec<Option<String>>) -> Vec<SavedTree> {
        let all = self.all.into_iter().zip(ids);
        all.filter_map(|(TreeFile { name: file, of, .. }, id)| Some(SavedTree { file, of, id: id? }))
            .collect()
    }
}

impl TreeFile {
    fn write(&self, plan: &Plan, mounted: &[PathBuf]) -> Result<Option<String>> {
        let Self { name, of, file, from } = self;
        let from = match (of, from) {
            (TreeContents::Memory(target), _) if is_covered(&plan.mounts, target, mounted) => {
                return Ok(None);
            }
            (TreeContents::Memory(target), _) => without_mounts(target)?,
            (_, Some(from)) => from.try_clone().context(|| name.clone())?,
            (_, None) => return Err(Error::new(format!("{name}: it was not opened"))),
        };
        let file = file.try_clone().context(|| name.clone())?;
        let places = places_in(plan, of);
        let left_out = |path: &[u8]| places.iter().any(|place| place.as_os_str().as_bytes() == path);
        let whole = whole::keep(from.as_fd(), file, name, left_out).map_err(ours)?;
        Ok(Some(whole.id.to_string()))
    }
}

/// Puts those that lie on the disk back into an instance's new directory, before it is started.
pub fn put_back_own(
    context: &UserContext,
    checkpoint: &Checkpoint,
    dir: &Path,
    record: &InstanceDir,
) -> Result<()> {
    let plan = &checkpoint.instance.plan;
    let helper = context.helper.as_deref().filter(|_| plan.route == Route::Helper);
    // An empty one is there, with which nothing can be done yet.
    fs::remove_file(record.output()).context(|| record.output().display().to_string())?;
    as_root_of_ids(helper, plan.base, |_| {
        for tree in &checkpoint.trees {
            match &tree.of {
                TreeContents::Own(name) => {
                    let to = record.dir.join(own_name(plan, name)?);
                    put_back(tree, dir, own_dir(&to)?.as_fd(), false)?;
                }
                TreeContents::Output => put_back_output(tree, dir, record)?,
                TreeContents::Memory(_) => {}
            }
        }
        Ok(())
    })
}

/// A directory of the instance's own, and nothing that a link in its place leads to.
fn own_dir(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).context(|| path.display().to_string())
}

/// Puts the output back. Only that file is taken of its tree, which may be a stranger's: beside it lies what Skiff believes of the instance.
fn put_back_output(tree: &SavedTree, dir: &Path, record: &InstanceDir) -> Result<()> {
    let (to, new) = (record.output(), record.dir.join(format!("restoring.{}", std::process::id())));
    let about = || to.display().to_string();
    fs::create_dir(&new).context(|| new.display().to_string())?;
    put_back(tree, dir, own_dir(&new)?.as_fd(), true)?;
    let from = new.join(to.file_name().unwrap_or_default());
    match from.symlink_metadata().context(about)?.is_file() {
        true => fs::rename(&from, &to).context(about)?,
        false => return Err(Error::new(format!("{}: not a file in the checkpoint", about()))),
    }
    fs::remove_dir_all(&new).context(|| new.display().to_string())
}

/// Puts those that lie in memory back into a started instance.
pub fn put_back_memory(inside: EnterTarget<'_>, checkpoint: &Checkpoint, dir: &Path) -> Result<()> {
    let mut opened = vec![];
    for tree in &checkpoint.trees {
        if let TreeContents::Memory(target) = &tree.of {
            opened.push((tree, target, record::open(dir, &format!("{TREES}/{}", tree.file))?));
        }
    }
    let fds: Vec<BorrowedFd<'_>> = opened.iter().map(|(_, _, file)| file.as_fd()).collect();
    enter::run(inside, &fds, || {
        let mounted = mounted()?;
        for (tree, target, file) in &opened {
            // Checkpoints of before have what was mounted there.
            if is_covered(&checkpoint.instance.plan.mounts, target, &mounted) {
                continue;
            }
            let to = without_mounts(target)?;
            whole::put_back(file, &tree.file, &id(tree)?, to.as_fd(), true).map_err(ours)?;
        }
        Ok(())
    })
}

fn put_back(tree: &SavedTree, dir: &Path, target: BorrowedFd<'_>, over: bool) -> Result<()> {
    let file = record::open(dir, &format!("{TREES}/{}", tree.file))?;
    whole::put_back(file, &tree.file, &id(tree)?, target, over).map_err(ours)
}

fn id(tree: &SavedTree) -> Result<LayerId> {
    tree.id.parse().map_err(|e| Error::new(format!("{}: {e}", tree.file)))
}

/// Only what the plan mounts from the instance's directory is put there.
fn own_name<'a>(plan: &Plan, name: &'a str) -> Result<&'a str> {
    let known = name == "upper" || plan.mounts.iter().any(|mount| mount.source == Source::Own(name.into()));
    match known && Path::new(name).file_name() == Some(OsStr::new(name)) {
        true => Ok(name),
        false => Err(Error::new(format!("{name:?}: no directory of an instance's own"))),
    }
}

/// What is mounted at `target`, without what is mounted below it.
fn without_mounts(target: &Path) -> Result<OwnedFd> {
    open_dir(CWD, target)
        .and_then(|dir| bind_one(dir.as_fd()))
        .context(|| format!("{} inside", target.display()))
}

/// Places in memory that are only there for something to be mounted on, relative to it.
fn places_in(plan: &Plan, of: &TreeContents) -> Vec<PathBuf> {
    let TreeContents::Memory(target) = of else { return vec![] };
    let targets = plan.mounts.iter().map(|mount| mount.target.as_path()).chain([Path::new(inside::DIR)]);
    let below = |place: &Path| place.strip_prefix(target).ok().map(Path::to_owned);
    targets.filter_map(below).filter(|place| !place.as_os_str().is_empty()).collect()
}

fn create(path: &Path) -> Result<OwnedFd> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
    file.map(OwnedFd::from).context(|| path.display().to_string())
}

/// The output file alone in a directory.
struct Output {
    dir: PathBuf,
    file: PathBuf,
}

impl Output {
    fn new(record: &InstanceDir) -> Result<Self> {
        let dir = record.dir.join(format!("saving.{}", std::process::id()));
        fs::create_dir(&dir).context(|| dir.display().to_string())?;
        Ok(Self { dir, file: record.output() })
    }

    fn hold(&self) -> Result<u64> {
        let held = self.dir.join(self.file.file_name().unwrap_or_default());
        let about = || held.display().to_string();
        fs::hard_link(&self.file, &held).context(about)?;
        held.metadata().map(|found| found.len()).context(about)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ignore_error("with the instance's directory it goes in any case");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A checkpoint's directory with this one as the output.
    fn kept(from: &Path) -> (tempfile::TempDir, SavedTree) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(TREES)).unwrap();
        let file = create(&dir.path().join(TREES).join("output")).unwrap();
        let from = open_dir(CWD, from).unwrap();
        let whole = whole::keep(from.as_fd(), file, "output", |_| false).unwrap();
        (dir, SavedTree { file: "output".into(), of: TreeContents::Output, id: whole.id.to_string() })
    }

    #[test]
    fn memory_that_something_is_mounted_over_is_not_the_instances() {
        let memory = |target: &str| (Source::Memory { mode: 0o1777, size: None }, target.to_owned(), false);
        let bind = |target: &str, optional| (Source::Bind("/x".into()), target.to_owned(), optional);
        let shm = || memory("/dev/shm");
        for (mounts, mounted, covered) in [
            (vec![shm()], vec!["/dev/shm"], false),
            (vec![bind("/dev/shm", false), shm()], vec!["/dev/shm", "/dev/shm"], false),
            (vec![shm(), bind("/dev/shm/below", false)], vec!["/dev/shm", "/dev/shm/below"], false),
            (vec![shm(), bind("/dev/shm", false)], vec!["/dev/shm", "/dev/shm"], true),
            (vec![shm(), bind("/dev", false)], vec!["/dev"], true),
            (vec![shm(), bind("/dev/shm", true)], vec!["/dev/shm"], false),
            (vec![shm(), bind("/dev/shm", true)], vec!["/dev/shm", "/dev/shm"], true),
        ] {
            let mount = |(source, target, optional): (Source, String, bool)| Mount {
                source,
                target: target.into(),
                read_only: false,
                optional,
                propagation: None,
            };
            let mounts: Vec<Mount> = mounts.into_iter().map(mount).collect();
            let mounted: Vec<PathBuf> = mounted.into_iter().map(PathBuf::from).collect();
            assert_eq!(is_covered(&mounts, Path::new("/dev/shm"), &mounted), covered, "{mounts:?}");
        }
    }

    #[test]
    fn output_that_is_written_after_it_was_held_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let record = InstanceDir { name: "x".parse().unwrap(), dir: dir.path().into() };
        fs::write(record.output(), "said").unwrap();
        let output = Output::new(&record).unwrap();
        let held = output.hold().unwrap();
        fs::write(record.output(), "said, and more").unwrap();
        assert_eq!(held, 4);
        let kept = output.dir.clone();
        drop(output);
        assert!(!kept.exists());
    }

    #[test]
    fn of_the_tree_with_the_output_nothing_else_is_taken() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let record = InstanceDir { name: "x".parse().unwrap(), dir: to.path().into() };
        fs::write(from.path().join("output"), "said").unwrap();
        fs::write(from.path().join("leaving"), "to a stranger's host").unwrap();
        symlink("/tmp", from.path().join("own")).unwrap();
        let (dir, tree) = kept(from.path());
        put_back_output(&tree, dir.path(), &record).unwrap();
        assert_eq!(fs::read_to_string(record.output()).unwrap(), "said");
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
        symlink("/tmp", to.path().join("own")).unwrap();
        own_dir(&to.path().join("own")).unwrap_err();
        fs::remove_file(from.path().join("output")).unwrap();
        symlink("/etc/passwd", from.path().join("output")).unwrap();
        let (dir, tree) = kept(from.path());
        put_back_output(&tree, dir.path(), &record).unwrap_err();
        assert_eq!(fs::read_to_string(record.output()).unwrap(), "said");
    }
}
