//! The fuzz targets' seeds are real files of the present formats: if one is no longer read, its version has to change.

#![allow(clippy::unwrap_used)]

use crate::common;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use skiff_snapshot::fuzz;

fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let seeds: Vec<_> = paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    assert!(!seeds.is_empty());
    seeds
}

#[test]
fn all_are_read() {
    for (path, bytes) in seeds("layer") {
        fuzz::records(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    for (path, bytes) in seeds("manifest") {
        assert!(fuzz::manifest(&bytes), "{}", path.display());
    }
    for (path, bytes) in seeds("chunks") {
        assert!(fuzz::chunks(&bytes), "{}", path.display());
    }
    for (path, bytes) in seeds("index") {
        assert!(fuzz::index(&bytes), "{}", path.display());
    }
}

#[test]
fn layers_are_unpacked() {
    if !common::is_root("layers_are_unpacked") {
        return;
    }
    for (path, bytes) in seeds("unpack") {
        let dir = tempfile::tempdir().unwrap();
        let open = std::fs::File::open(dir.path()).unwrap();
        fuzz::layer(&bytes, open.as_fd()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(common::dump(dir.path()).len(), 11);
    }
}
