//! A store of the test's own, and what is imported into it.

use std::path::{Path, PathBuf};

use skiff_image::source::ImageSource;
use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;
use skiff_registry::policy::Policies;
use skiff_store::Store;
use skiff_store::import::{ImportJob, import};
use skiff_store::pull::{LayerProgress, PullWatch, Pulled};

use super::seen::{Seen, of_image};

pub struct TestStore {
    pub store: Store,
    dir: tempfile::TempDir,
}

/// Remembers what it was told last.
#[derive(Default)]
pub struct Watching(pub Vec<LayerProgress>);

impl PullWatch for Watching {
    fn waiting(&mut self) {}

    fn layers(&mut self, _digests: &[Digest], progress: &[LayerProgress]) -> bool {
        self.0 = progress.to_vec();
        true
    }
}

impl TestStore {
    pub fn new() -> TestStore {
        let dir = tempfile::tempdir().unwrap();
        TestStore { store: Store::open(dir.path()).unwrap(), dir }
    }

    pub fn import(&self, reference: &str) -> skiff_store::Result<Pulled> {
        self.import_for(1000, reference)
    }

    pub fn import_for(&self, uid: u32, reference: &str) -> skiff_store::Result<Pulled> {
        self.import_source(uid, &ImageSource::open(&reference.parse().unwrap())?)
    }

    pub fn import_source(&self, uid: u32, source: &ImageSource) -> skiff_store::Result<Pulled> {
        self.import_on(uid, source, &Platform::linux("amd64", None))
    }

    pub fn import_on(
        &self,
        uid: u32,
        source: &ImageSource,
        platform: &Platform,
    ) -> skiff_store::Result<Pulled> {
        let mut watching = Watching::default();
        let policies = Policies::default();
        let job = ImportJob { store: &self.store, source, policies: &policies, platform, uid };
        let pulled = import(&job, &mut watching)?;
        assert!(self.store.permitted(uid, pulled.id));
        if !pulled.there {
            assert!(watching.0.iter().all(|layer| layer.unpacked == layer.size), "{:?}", watching.0);
        }
        Ok(pulled)
    }

    /// Imports, and shows what came of it.
    pub fn imported(&self, reference: &str) -> Seen {
        let pulled = self.import(reference).unwrap_or_else(|error| panic!("{reference}: {error}"));
        self.seen(&pulled)
    }

    pub fn seen(&self, pulled: &Pulled) -> Seen {
        of_image(&self.dir.path().join(format!("images/{}.erofs", pulled.id)))
    }

    /// What it says, where it must fail; and then nothing of it is left.
    pub fn refused(&self, reference: &str) -> skiff_store::Error {
        let before = files(self.dir.path());
        let error = self.import(reference).err().unwrap_or_else(|| panic!("{reference} was imported"));
        assert_eq!(files(self.dir.path()), before, "{reference}: {error}: the store has changed");
        error
    }
}

pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![];
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        }
        all.push(path);
    }
    all.sort();
    all
}
