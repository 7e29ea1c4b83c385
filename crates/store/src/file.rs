//! Images in files and directories: what a user calls them, and whether they have changed since they were imported.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Mode, OFlags, openat};
use serde::{Deserialize, Serialize};
use skiff_image::source::ImageSource;
use skiff_oci::reference::ImageReference;
use skiff_spec::fault::{Context as _, Fault};
use skiff_sys::clock::now;

use crate::error::{Error, Result};

/// A file or directory with an image in it.
pub struct ImageFile {
    /// What the image is called when it has no better name.
    pub name: String,
    path: PathBuf,
    /// Nothing: what is in the file decides.
    reference: Option<ImageReference>,
    /// The file itself, if its path is not to be looked up again.
    open: Option<File>,
}

/// What tells a file that has changed from one that has not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    inode: u64,
    size: u64,
    /// Seconds since 1970 and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl ImageFile {
    /// The file that the text names; nothing if it is the name of an image in a registry, or of nothing at all.
    pub fn of(text: &str) -> Option<Self> {
        match ImageReference::from_str(text) {
            Ok(ImageReference::Registry(_) | ImageReference::Short(_) | ImageReference::Artifact(_)) => None,
            Ok(reference) => Some(Self::referred(reference)),
            Err(_) if text.starts_with(['/', '.']) => Some(Self::at(Path::new(text))),
            Err(_) => None,
        }
    }

    /// The same, where nothing but a file can be meant.
    pub fn meant(text: &str) -> Result<Self> {
        if let Some(file) = Self::of(text) {
            return Ok(file);
        }
        let path = Path::new(text);
        path.symlink_metadata().context(|| format!("file {text:?}")).map_err(|e| match parse(text) {
            Ok(name) => e.hint(format!("if it is in a registry: skiff pull {name}")),
            Err(_) => e,
        })?;
        Ok(Self::at(path))
    }

    fn at(path: &Path) -> Self {
        let path = in_full(path);
        Self { name: path.display().to_string(), path, reference: None, open: None }
    }

    /// One that is open, for reading. The path, an absolute one without links, is its name: what lies there by now is not looked at.
    pub fn opened(path: PathBuf, file: File) -> Self {
        let name = path.display().to_string();
        Self { reference: ImageReference::from_str(&name).ok(), name, path, open: Some(file) }
    }

    fn referred(mut reference: ImageReference) -> Self {
        let path = match &mut reference {
            ImageReference::Oci { dir: path, .. }
            | ImageReference::OciArchive { file: path, .. }
            | ImageReference::DockerArchive { file: path, .. }
            | ImageReference::Dir(path)
            | ImageReference::Squashfs(path)
            | ImageReference::Erofs(path)
            | ImageReference::Sif(path) => {
                *path = in_full(path);
                path.clone()
            }
            ImageReference::Registry(_) | ImageReference::Short(_) | ImageReference::Artifact(_) => {
                PathBuf::new()
            }
        };
        Self { name: reference.to_string(), path, reference: Some(reference), open: None }
    }

    /// Whether it holds one image, whatever it is called: a file system. An archive may have several, which its stamp does not tell apart.
    #[must_use]
    pub fn is_one_image(&self) -> bool {
        use ImageReference::{Erofs, Sif, Squashfs};
        matches!(self.reference, Some(Squashfs(_) | Erofs(_) | Sif(_)))
    }

    /// Opens it.
    pub fn open(&self) -> Result<ImageSource> {
        self.refuse_environment()?;
        let open = self.open.as_ref().map(File::try_clone).transpose();
        let open = open.context(|| format!("file {}", self.path.display()))?;
        Ok(match (&self.reference, open) {
            (Some(reference), None) => ImageSource::open(reference)?,
            (Some(reference), Some(file)) => ImageSource::of_reference(reference, file)?,
            (None, None) => ImageSource::open_path(&self.path)?,
            (None, Some(file)) => ImageSource::of_path(&self.path, file)?,
        })
    }

    /// Refuses a file that holds an environment's changes: as an archive it would seem to be damaged.
    fn refuse_environment(&self) -> Result<()> {
        match self.open_regular() {
            Ok(Some(file)) if skiff_snapshot::is_bundle(&file) => Err(Fault::new(format!(
                "file {}: an exported environment, not an image",
                self.path.display()
            ))
            .hint(format!("`skiff env import {}` makes an environment of it", self.path.display()))
            .into()),
            _ => Ok(()),
        }
    }

    /// The file itself, where it is one; nothing of a directory.
    pub fn open_regular(&self) -> io::Result<Option<File>> {
        let file = match &self.open {
            Some(file) => file.try_clone()?,
            None => {
                // A pipe in its place must not make us wait.
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
                File::from(rustix::fs::open(&self.path, flags, Mode::empty())?)
            }
        };
        Ok(file.metadata()?.is_file().then_some(file))
    }

    /// An image of the same name, which is read of this open file.
    #[must_use]
    pub fn read_from(&self, file: File) -> Self {
        let Self { name, path, reference, open: _ } = self;
        let (name, path, reference) = (name.clone(), path.clone(), reference.clone());
        Self { name, path, reference, open: Some(file) }
    }

    /// What it looks like now; of a directory, what its list of images looks like.
    pub fn stamp(&self) -> Result<FileStamp> {
        let meta = self.metadata().context(|| format!("file {}", self.path.display()))?;
        if meta.is_dir() {
            // Of a root's files any may have changed: each stamp is another one.
            let now = (now().cast_signed(), i64::from(std::process::id()));
            return Ok(FileStamp { inode: meta.ino(), size: 0, modified: now, changed: now });
        }
        Ok(FileStamp {
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

impl ImageFile {
    fn metadata(&self) -> io::Result<Metadata> {
        const LISTS: [&str; 2] = ["index.json", "manifest.json"];
        let Some(open) = &self.open else {
            let lists = LISTS.map(|list| self.path.join(list));
            return lists
                .iter()
                .find_map(|list| list.metadata().ok())
                .map_or_else(|| self.path.metadata(), Ok);
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let list = LISTS.iter().find_map(|list| openat(open, *list, flags, Mode::empty()).ok());
        list.map_or_else(|| open.metadata(), |list| File::from(list).metadata())
    }
}

/// The path from `/` on, where links lead: the same file is the same image, wherever the user stands.
fn in_full(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.into())
}

/// Reads a name of an image.
pub fn parse(text: &str) -> Result<ImageReference> {
    Ok(ImageReference::from_str(text)?)
}

/// The name in full of an image that is imported and to be called so. Without a server it is one that no registry is ever asked for.
pub fn name_for(text: &str) -> Result<String> {
    let named = match parse(text)? {
        ImageReference::Registry(named) => named,
        ImageReference::Short(short) => short.local(),
        _ => {
            return Err(Error::NamesFile(text.into()));
        }
    };
    if named.digest().is_some() {
        return Err(Error::HasDigest(text.into()));
    }
    Ok(named.with_default_tag().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_names() {
        for (text, name) in [
            ("/no/such/x.sqsh", Some("/no/such/x.sqsh")),
            ("/no/such/image", Some("/no/such/image")),
            ("docker-archive:/no/such/x.tar:a/b:1", Some("docker-archive:/no/such/x.tar:a/b:1")),
            ("oci:/no/such/dir", Some("oci:/no/such/dir")),
            ("debian:12", None),
            ("localhost:5000/x", None),
            ("docker://x/y.sif", None),
            ("image.tar", None),
        ] {
            assert_eq!(ImageFile::of(text).map(|f| f.name).as_deref(), name, "{text}");
        }
        let here = std::env::current_dir().expect("a directory");
        for (text, is_one) in [
            ("/x.sqsh", true),
            ("/x.sif", true),
            ("/x.tar", false),
            ("docker-archive:/x.tar:a", false),
            ("oci:/x", false),
            ("/x", false),
        ] {
            assert_eq!(ImageFile::of(text).is_some_and(|file| file.is_one_image()), is_one, "{text}");
        }
        let name = |text| ImageFile::of(text).map(|f| f.name);
        assert_eq!(name("./no-such.sif"), Some(here.join("no-such.sif").display().to_string()));
        assert_eq!(name("./."), Some(here.display().to_string()));
        let missing = ImageFile::meant("no-such-file").err().map(|e| e.to_string());
        assert_eq!(missing.as_deref(), Some("file \"no-such-file\": No such file or directory (os error 2)"));
        assert!(ImageFile::meant("Cargo.toml").is_ok());
    }

    #[test]
    fn what_is_open_is_not_looked_up_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let [path, other] = ["image.tar", "other"].map(|name| dir.path().join(name));
        std::fs::write(&path, "first").expect("written");
        let file = ImageFile::opened(path.clone(), File::open(&path).expect("a file"));
        let stamp = file.stamp().expect("a file");
        // Another file is in its place now: a private one, which a link leads to.
        std::fs::write(&other, "private").expect("written");
        std::fs::rename(&path, dir.path().join("away")).expect("renamed");
        std::os::unix::fs::symlink(&other, &path).expect("a link");
        assert_eq!(file.name, path.display().to_string());
        let again = file.stamp().expect("a file");
        assert_eq!((again.inode, again.size), (stamp.inode, 5));
    }

    #[test]
    fn names_that_may_be_given() {
        assert_eq!(name_for("tool").ok().as_deref(), Some("localhost/tool:latest"));
        assert_eq!(name_for("localhost/tool").ok().as_deref(), Some("localhost/tool:latest"));
        assert_eq!(name_for("site.example/a/b:1").ok().as_deref(), Some("site.example/a/b:1"));
        let digest = format!("tool@sha256:{}", "0".repeat(64));
        for text in ["x.sqsh", "oci:dir"] {
            assert!(matches!(name_for(text), Err(Error::NamesFile(name)) if name == text), "{text}");
        }
        assert!(matches!(name_for(&digest), Err(Error::HasDigest(name)) if name == digest));
        for (text, reason) in [("Tool", "the repository has capitals"), ("", "it is empty")] {
            let refused = name_for(text).expect_err(text);
            assert!(matches!(refused, Error::Reference(_)), "{text}: {refused}");
            assert!(refused.to_string().contains(reason), "{text}: {refused}");
        }
    }
}
