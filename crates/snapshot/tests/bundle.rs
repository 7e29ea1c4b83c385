//! Exported environments come back as they were, or not at all.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use proptest::prelude::*;
use skiff_snapshot::{Bundle, BundleInfo, bundle};

use crate::common::acts::{act, acts, cases};
use crate::common::{World, assert_same, dump, is_root, noise};

fn info() -> BundleInfo {
    let texts = BTreeMap::from([("packages".into(), "hello 2.10\n".into())]);
    BundleInfo { environment: "dev".into(), base: BTreeMap::new(), created: 1_700_000_000, texts }
}

fn export(world: &World) -> Vec<u8> {
    let path = world.path("exported");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let (upper, base) = (world.open("upper"), world.open("base"));
    let done = bundle(upper.as_fd(), base.as_fd(), (file.as_fd(), "exported"), &info()).unwrap();
    assert_eq!(done.bytes, file.metadata().unwrap().len());
    std::fs::read(path).unwrap()
}

/// Puts back what the bytes say, and says what is wrong with them.
fn import(bytes: &[u8], target: &Path) -> Result<BundleInfo, String> {
    let file = target.with_extension("file");
    std::fs::write(&file, bytes).unwrap();
    std::fs::create_dir(target).unwrap();
    let opened = Bundle::open(File::open(&file).unwrap().into(), "exported");
    let put_back = opened.and_then(|bundle| {
        bundle.unpack(File::open(target).unwrap().as_fd())?;
        Ok(bundle.info().clone())
    });
    put_back.map_err(|e| e.to_string())
}

#[test]
fn what_is_damaged_is_refused() {
    let world = World::new();
    std::fs::write(world.upper().join("a"), noise(1, 100_000)).unwrap();
    std::fs::write(world.upper().join("b"), "text ".repeat(10_000)).unwrap();
    let good = export(&world);
    for (number, at) in
        (0..good.len()).step_by(good.len() / 200).chain(good.len() - 120..good.len()).enumerate()
    {
        let mut altered = good.clone();
        altered[at] ^= 4;
        let error = import(&altered, &world.path(&format!("altered{number}"))).unwrap_err();
        assert!(error.contains("exported") || error.contains("layer"), "{at}: {error}");
        assert!(import(&good[..at], &world.path(&format!("cut{number}"))).is_err(), "{at}");
    }
    assert_eq!(import(&good, &world.path("good")), Ok(info()));
    assert_same(&dump(&world.upper()), &dump(&world.path("good")));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases() / 4) })]

    #[test]
    fn all_comes_back(done in prop::collection::vec(acts(), 0..40)) {
        if !is_root("all_comes_back") {
            return Ok(());
        }
        let world = World::new();
        done.iter().for_each(|done| act(&world.upper(), done));
        prop_assert_eq!(import(&export(&world), &world.path("new")), Ok(info()));
        assert_same(&dump(&world.upper()), &dump(&world.path("new")));
    }
}
