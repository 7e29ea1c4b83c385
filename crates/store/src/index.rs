//! The user's images: which name is which image, and how it is run. One small file each, in their own directory, so that the same names
//! mean the same on every node; whether a node has the image, and lets them use it, its store says.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skiff_image::changes::is_of_changes;
use skiff_oci::manifest::{ExecConfig, ImageConfig};
use skiff_oci::platform::Platform;
use skiff_oci::reference::Named;
use skiff_spec::fault::{Context as _, Fault};
use skiff_spec::image::ImageId;
use skiff_sys::small_file;
use skiff_user::context::UserContext;
use skiff_user::dirs::{self, make_private};

use crate::error::{Error, Result};
use crate::file::FileStamp;

/// A file's name is the image's as long as it fits; most file systems take 255 bytes.
const LONGEST: usize = 200;

/// Of so many images below each other each is known; what is below these counts as one.
const MOST_BASES: usize = 100;

/// An image that another one was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageBase {
    /// The name that it was pulled by, or what it was called.
    pub reference: String,
    /// The image.
    pub id: ImageId,
}

/// One name of an image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageName {
    /// The name in full: `docker.io/library/debian:12`; or the archive or directory it was imported from.
    pub reference: String,
    /// The image.
    pub id: ImageId,
    /// Seconds since 1970 at which it was last pulled.
    pub pulled: u64,
    /// Length of its file in the store, in bytes.
    pub size: u64,
    /// Configuration of the image as it came.
    pub config: serde_json::Value,
    /// What the file that it was imported from looked like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<FileStamp>,
    /// The name that it was pulled by, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulled_as: Option<Box<str>>,
    /// The image that this one was made of, the one that that was made of, and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<ImageBase>,
}

impl ImageName {
    /// How its programs are run, and what else it says of itself.
    pub fn config(&self) -> Result<ImageConfig> {
        let bytes = serde_json::to_vec(&self.config)?;
        Ok(ImageConfig::parse(&self.reference, &bytes)?)
    }

    /// The name that it was pulled by; nothing if it came from a file, or was made here.
    #[must_use]
    pub fn in_registry(&self) -> Option<Named> {
        let name = match (&self.pulled_as, &self.origin) {
            (Some(name), _) => &**name,
            (None, None) => &*self.reference,
            (None, Some(_)) => return None,
        };
        name.parse().ok().filter(|named: &Named| !named.is_local())
    }

    /// The same image under another name.
    #[must_use]
    pub fn called(self, reference: String) -> Self {
        let pulled_as = self.in_registry().map(|named| named.to_string());
        let pulled_as = pulled_as.filter(|name| *name != reference);
        Self { reference, pulled_as: pulled_as.map(Into::into), ..self }
    }

    /// What images that are made of this one have for their bases.
    #[must_use]
    pub fn as_bases(&self) -> Vec<ImageBase> {
        let reference = self.pulled_as.as_deref().unwrap_or(&self.reference);
        let own = ImageBase { reference: reference.into(), id: self.id };
        std::iter::once(own).chain(self.bases.iter().cloned()).take(MOST_BASES).collect()
    }

    /// Refuses an image without a root of its own: it has the changes of an environment over a host's.
    ///
    /// # Errors
    /// It is one.
    pub fn refuse_changes(&self) -> Result<()> {
        match is_of_changes(&self.config) {
            true => Err(Error::OnlyChanges(self.reference.clone())),
            false => Ok(()),
        }
    }

    /// How its programs are run, on this machine.
    ///
    /// # Errors
    /// They are another's, and nothing here emulates that; or there are none.
    pub fn exec(&self) -> Result<ExecConfig> {
        self.refuse_changes()?;
        let config = self.config()?;
        let machine = Platform::host();
        match config.platform.filter(|made_for| !machine.runs(made_for) && !emulates()) {
            None => Ok(config.exec),
            Some(other) => Err(Error::OtherMachine {
                image: self.reference.clone(),
                made_for: other.into(),
                machine: machine.into(),
            }),
        }
    }
}

/// Whether the kernel starts programs of other machines by an emulator. Which ones is for the kernel to say.
fn emulates() -> bool {
    let Ok(kinds) = fs::read_dir("/proc/sys/fs/binfmt_misc") else { return false };
    kinds.flatten().any(|kind| kind.file_name().to_string_lossy().starts_with("qemu-"))
}

impl ImageName {
    /// Reads one; nothing if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let text = match small_file::read(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.context(|| path.display().to_string())?,
        };
        let bad =
            |e: serde_json::Error| Error::BadEntry { file: path.display().to_string(), why: e.to_string() };
        serde_json::from_slice(&text).map(Some).map_err(bad)
    }

    /// Writes it where nobody reads yet.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        Ok(fs::write(path, text).context(|| path.display().to_string())?)
    }
}

/// The directory of all of them.
pub struct Names {
    dir: PathBuf,
    /// Whether it is there: nobody else may say what a name stands for.
    is_there: bool,
}

impl Names {
    /// Opens the user's names of images.
    pub fn of(context: &UserContext) -> Result<Self> {
        Self::in_dir(context.data().join("images"))
    }

    /// The names in this directory, if it is there.
    pub(crate) fn in_dir(dir: PathBuf) -> Result<Self> {
        Ok(Self { is_there: dirs::find(&dir)?.is_some(), dir })
    }

    /// What a name in full stands for, if it was pulled.
    pub fn find(&self, reference: &str) -> Result<Option<ImageName>> {
        if !self.is_there {
            return Ok(None);
        }
        ImageName::read(&self.dir.join(file_name(reference))).map_err(|e| Error::BadName(Box::new(e)))
    }

    /// All, by name.
    pub fn all(&self) -> Result<Vec<ImageName>> {
        self.all_but(|_| ())
    }

    /// All, by name; those that cannot be read are named to `bad`.
    pub fn all_but(&self, mut bad: impl FnMut(Error)) -> Result<Vec<ImageName>> {
        if !self.is_there {
            return Ok(vec![]);
        }
        let entries = fs::read_dir(&self.dir).context(|| self.dir.display().to_string())?;
        let mut all = vec![];
        for entry in entries {
            let path = entry.context(|| self.dir.display().to_string())?.path();
            if path.extension().is_some_and(|e| e == "json") {
                // One that has gone meanwhile is none.
                match ImageName::read(&path) {
                    Ok(entry) => all.extend(entry),
                    Err(e) => bad(e),
                }
            }
        }
        all.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(all)
    }

    /// Notes a name, in place of what it meant before.
    pub fn put(&self, entry: &ImageName) -> Result<()> {
        let text = serde_json::to_vec_pretty(entry)?;
        let dir = make_private(&self.dir)?;
        Ok(dir.write(file_name(&entry.reference), &text, 0o600).map_err(Fault::from)?)
    }

    /// Forgets a name.
    pub fn remove(&self, entry: &ImageName) -> Result<()> {
        let path = self.dir.join(file_name(&entry.reference));
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context(|| path.display().to_string())?,
            _ => Ok(()),
        }
    }
}

/// A name as the name of a file: different ones differ.
fn file_name(reference: &str) -> String {
    let escaped: String = reference
        .bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b':' | b'@' => char::from(b).to_string(),
            b'.' => ".".into(),
            b => format!("%{b:02x}"),
        })
        .collect();
    if escaped.len() <= LONGEST && !escaped.starts_with('.') {
        return format!("{escaped}.json");
    }
    let tail = &escaped[escaped.len().saturating_sub(100)..];
    format!("{}%%{tail}.json", skiff_oci::hash::sha256_hex(reference.as_bytes()))
}

#[cfg(test)]
impl ImageName {
    /// A name for tests.
    pub(crate) fn of_test(reference: &str, id: ImageId) -> Self {
        let config = serde_json::json!({});
        let (origin, pulled_as) = (None, None);
        Self { reference: reference.into(), id, pulled: 1, size: 1, config, origin, pulled_as, bases: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_noted_leaves_nothing_behind() {
        let all = tempfile::tempdir().expect("a directory");
        let dir = all.path().join("images");
        let names = Names::in_dir(dir.clone()).expect("no names yet");
        let reference = "docker.io/library/debian:12";
        let taken = dir.join(file_name(reference));
        fs::create_dir_all(&taken).expect("something in its place");
        let entry = ImageName::of_test(reference, ImageId([7; 32]));
        assert!(matches!(names.put(&entry), Err(Error::Fault(fault)) if fault.message.contains("rename")));
        let left: Vec<_> = fs::read_dir(&dir).expect("listed").flatten().map(|e| e.path()).collect();
        assert_eq!(left, [taken]);
    }

    #[test]
    fn names_of_images_are_names_of_files() {
        assert_eq!(file_name("docker.io/library/debian:12"), "docker.io%2flibrary%2fdebian:12.json");
        assert!(!file_name("../x").starts_with('.') && !file_name("../x").contains('/'));
        let long = |c: &str| file_name(&c.repeat(300));
        assert!(long("/").len() <= 255 && long("é").len() <= 255);
        assert_ne!(file_name(&("x".to_owned() + &"y".repeat(300))), file_name(&"y".repeat(301)));
    }
}
