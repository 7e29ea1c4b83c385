//! Where a build's steps are kept: each step's changes as a layer, by the key of the step; and which images were made of them.
//!
//! A layer is the upper directory in which a step has worked. It gets its name when it is whole, and is never changed after.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use skiff_sandbox::visit::as_root_of_ids;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::{Base, Upper};
use skiff_spec::scratch::ScratchPlace;
use skiff_store::index::ImageName;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;
use skiff_user::dirs;
use skiff_user::scratch::{self, Scratch};

use crate::plan::BuildKey;
use crate::room::WorkRoom;

/// What nobody has needed for so long is removed.
const KEPT: Duration = Duration::from_hours(14 * 24);

/// The directory with all of it, in the user's state.
const DIR: &str = "build";
/// In front of the name of a layer that only the build uses that made it.
const ONCE: &str = "once.";
/// In front of the name of what is being removed: if that is interrupted, nobody takes what is left for a whole layer.
const GONE: &str = "gone.";
/// A layer's files, in its directory.
const UPPER: &str = "upper";
/// What commands keep in a directory of their own, in its directory.
const FILES: &str = "files";

/// The user's cache, in use.
pub struct BuildCache<'a> {
    context: &'a UserContext,
    dir: TrustedDir,
    layers: TrustedDir,
    images: TrustedDir,
    /// Directories of `RUN --mount=type=cache`.
    mounts: TrustedDir,
    /// In front of the names of this build's layers: nothing, or what no other build has.
    prefix: String,
    /// A base without files.
    pub empty: PathBuf,
    /// As long as it is held, nobody removes layers.
    lock: Option<OwnedFd>,
}

impl<'a> BuildCache<'a> {
    /// Opens it, and makes it if need be. A build that makes all anew (`is_once`) neither uses layers of others nor leaves them its own.
    ///
    /// # Errors
    /// The user's state cannot hold it.
    pub fn open(context: &'a UserContext, is_once: bool) -> Result<Self> {
        let dir = dirs::make_ready(&dirs::own_dir(context, DIR)?)?;
        let lock = dir.lock("lock", FlockOperation::LockShared)?;
        let sub = |name: &str| -> Result<TrustedDir> { Ok(dir.make_dir(name, 0o700)?) };
        let (layers, images, mounts) = (sub("layers")?, sub("images")?, sub("mounts")?);
        // Root inside is the user, and all may look into a root.
        dir.make_dir("empty", 0o755)?;
        let empty = dir.path_of("empty");
        let prefix = if is_once { format!("{ONCE}{}.", random()?) } else { String::new() };
        Ok(Self { context, dir, layers, images, mounts, prefix, empty, lock })
    }

    /// Where a build's temporary files are.
    #[must_use]
    pub fn room(&self) -> WorkRoom {
        WorkRoom::new(self.dir.path())
    }

    /// Where layers are made; it goes with this process, however that ends.
    ///
    /// # Errors
    /// As [`BuildCache::open`].
    pub fn work_directory(&self) -> Result<Scratch> {
        let place = ScratchPlace::Directory(self.dir.path().to_owned());
        let (made, _) = scratch::make(self.context, &place).map_err(own_hint)?;
        made.ok_or_else(|| Fault::new(format!("{}: no directory for work", self.dir.path().display())))
    }

    /// The files of a layer, if the step was done before.
    pub fn layer(&self, key: &BuildKey) -> Option<PathBuf> {
        let layer = self.layers.dir(self.name(key)).ok()?;
        layer.stat(UPPER).ok().flatten()?;
        touch(layer.path());
        Some(layer.path_of(UPPER))
    }

    /// Keeps what a step has done in `upper`, now that nothing works there any more.
    ///
    /// # Errors
    /// The system's.
    pub fn keep(&self, key: &BuildKey, upper: &Upper) -> Result<PathBuf> {
        let (Upper::Scratch(path) | Upper::Directory(path)) = upper else {
            return Err(Fault::new("build: a step's changes are in memory"));
        };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Fault::new(format!("{}: not a directory of a step", path.display())));
        };
        let parent = TrustedDir::open(parent, self.context.uid)?;
        let made = parent.dir(name)?;
        as_root_of_ids(self.context.helper.as_deref(), Base::Host, |_| {
            for part in ["work", "tmp", "vartmp"] {
                made.remove_tree(part)?;
            }
            // The overlay left that out, and under its name a layer must be whole.
            rustix::fs::syncfs(made.readable()?).context(|| made.path().display().to_string())
        })?;
        match parent.rename(name, &self.layers, self.name(key)) {
            // Another build of the same step was faster.
            Err(e) if matches!(e.errno(), Some(Errno::NOTEMPTY | Errno::EXIST)) => {}
            renamed => renamed?,
        }
        self.layer(key).ok_or_else(|| {
            Fault::new(format!("{}: the layer is missing", self.layers.path_of(self.name(key)).display()))
        })
    }

    /// The name of a layer.
    fn name(&self, key: &BuildKey) -> String {
        format!("{}{}", self.prefix, key.0)
    }

    /// The image that was made of these files with this configuration.
    pub fn image(&self, key: &BuildKey) -> Option<ImageName> {
        let note = self.images.path_of(format!("{}.json", key.0));
        // One that cannot be read is made anew.
        let image = ImageName::read(&note).ok().flatten()?;
        touch(&note);
        Some(image)
    }

    /// Notes an image.
    ///
    /// # Errors
    /// The system's.
    pub fn note_image(&self, key: &BuildKey, image: &ImageName) -> Result<()> {
        let text =
            serde_json::to_vec(image).map_err(|e| Fault::new(format!("image {}: {e}", image.reference)))?;
        Ok(self.images.write(format!("{}.json", key.0), &text, 0o600)?)
    }

    /// Where a directory that commands keep is or is to be made; and what keeps others out, if nobody else may have it meanwhile.
    ///
    /// # Errors
    /// The system's.
    pub fn kept_directory(&self, name: &str, is_exclusive: bool) -> Result<(PathBuf, Option<OwnedFd>)> {
        let dir = self.mounts.make_dir(name, 0o700)?;
        touch(dir.path());
        // Whoever is to make it does so alone.
        let is_alone = is_exclusive || dir.stat(FILES)?.is_none();
        let operation = if is_alone { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        Ok((dir.path_of(FILES), dir.lock("lock", operation)?))
    }

    /// Removes what nobody has needed for long, unless another build is under way.
    pub fn tidy(self) {
        let (context, dir) = (self.context, self.dir);
        drop(self.lock);
        let tidied = prune(context, &dir, [&self.layers, &self.images, &self.mounts], KEPT);
        tidied.map(drop).ignore_error("what stays is removed another time");
    }
}

/// What is used is not old.
fn touch(path: &Path) {
    let set = std::fs::File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    set.ignore_error("it may be taken for older than it is");
}

fn random() -> Result<String> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty()).context(|| "random bytes")?;
    Ok(format!("{:016x}", u64::from_ne_bytes(random)))
}

/// Builds have no `--scratch`, which others are told of.
fn own_hint(fault: Fault) -> Fault {
    match fault.hint.contains("--scratch") {
        true => fault.hint(
            "steps are run in your state, which must be on a file system with room that overlayfs can use",
        ),
        false => fault,
    }
}

/// Removes all of it; how many layers these were.
///
/// # Errors
/// A build is under way, or the system's.
pub fn clear(context: &UserContext) -> Result<usize> {
    let BuildCache { dir, layers, images, mounts, lock, .. } = BuildCache::open(context, false)?;
    drop(lock);
    prune(context, &dir, [&layers, &images, &mounts], Duration::ZERO)?.ok_or_else(|| {
        Fault::new(format!("{}: a build is under way", dir.path().display()))
            .hint("remove the cache when it has ended")
    })
}

/// Nothing if a build is under way.
fn prune(
    context: &UserContext,
    dir: &TrustedDir,
    [layers, images, mounts]: [&TrustedDir; 3],
    older: Duration,
) -> Result<Option<usize>> {
    let Some(_lock) = dir.lock("lock", FlockOperation::NonBlockingLockExclusive)? else { return Ok(None) };
    let old_in = |dir: &TrustedDir| -> Result<Vec<String>> {
        let names = dir.names()?.into_iter().filter_map(|name| name.into_string().ok());
        let is_unused = |name: &String| {
            [ONCE, GONE].iter().any(|begin| name.starts_with(begin)) || is_old(&dir.path_of(name), older)
        };
        Ok(names.filter(is_unused).collect())
    };
    for image in old_in(images)? {
        images.remove_file(image)?;
    }
    let old = old_in(layers)?;
    let removed = [(mounts, old_in(mounts)?), (layers, old.clone())].map(|(dir, old)| {
        let gone = set_aside(dir, &old)?;
        remove(context, dir, &gone)
    });
    removed.into_iter().fold(Ok(()), Result::and)?;
    Ok(Some(old.len()))
}

/// Gives all that is to go names under which nobody looks for it; these names.
fn set_aside(dir: &TrustedDir, names: &[String]) -> Result<Vec<String>> {
    let set_aside = |name: &String| {
        if name.starts_with(GONE) {
            return Ok(name.clone());
        }
        let gone = format!("{GONE}{}", random()?);
        dir.rename(name, dir, &gone)?;
        Ok(gone)
    };
    names.iter().map(set_aside).collect()
}

fn is_old(path: &Path, older: Duration) -> bool {
    let changed = path.symlink_metadata().and_then(|found| found.modified());
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age >= older))
}

/// Files of a layer may belong to any of the user's ids.
fn remove(context: &UserContext, dir: &TrustedDir, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    as_root_of_ids(context.helper.as_deref(), Base::Host, |_| {
        // What stays of one keeps no other.
        names.iter().map(|name| Ok(dir.remove_tree(name)?)).fold(Ok(()), Result::and)
    })
}

/// Whose ids files have: layers made by others would mean something else.
///
/// # Errors
/// There are no user namespaces to be had.
pub fn ids(context: &UserContext) -> Result<String> {
    let map = as_root_of_ids(context.helper.as_deref(), Base::Host, |_| {
        std::fs::read_to_string("/proc/self/uid_map").context(|| "own ids")
    })?;
    let map: Vec<&str> = map.split_whitespace().collect();
    Ok(map.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_not_old() {
        let dir = tempfile::tempdir().expect("made");
        let file = dir.path().join("note");
        std::fs::write(&file, "").expect("written");
        for path in [dir.path(), &file] {
            let opened = std::fs::File::open(path).expect("opened");
            opened.set_modified(SystemTime::now() - 2 * KEPT).expect("set");
            assert!(is_old(path, KEPT));
            touch(path);
            assert!(!is_old(path, KEPT));
        }
    }

    #[test]
    fn what_is_to_go_has_lost_its_name_before_anything_of_it_is_removed() {
        let made = tempfile::tempdir().expect("made");
        for layer in ["aa", "bb", "gone.1"] {
            std::fs::create_dir_all(made.path().join(layer).join(UPPER)).expect("a layer");
        }
        let dir = TrustedDir::open(made.path(), rustix::process::geteuid().as_raw()).expect("opened");
        let gone = set_aside(&dir, &["aa".into(), "gone.1".into()]).expect("set aside");
        assert!(gone[0].starts_with(GONE) && gone[1] == "gone.1", "{gone:?}");
        let names = dir.names().expect("names").into_iter();
        let mut left: Vec<String> = names.map(|name| name.into_string().expect("text")).collect();
        left.sort();
        let mut want = [vec!["bb".to_owned()], gone].concat();
        want.sort();
        assert_eq!(left, want);
    }

    #[test]
    fn hints_name_no_option_that_a_build_has_not() {
        assert!(!own_hint(Fault::new("x").hint("--scratch is a directory")).hint.contains("--scratch"));
        assert_eq!(own_hint(Fault::new("x").hint("y")).hint, "y");
    }
}
