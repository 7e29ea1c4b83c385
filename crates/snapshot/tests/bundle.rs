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

/// The parts of an exported file, which a stranger may have put together in another way.
struct Parts {
    frames: Vec<u8>,
    list: Vec<u8>,
    about: Vec<u8>,
}

impl Parts {
    const TAIL: usize = 60;
    const LIST_HEAD: usize = 24;

    fn of(file: &[u8]) -> Self {
        let (rest, tail) = file.split_at(file.len() - Self::TAIL);
        let long = |at: usize| u64::from_le_bytes(tail[at..at + 8].try_into().unwrap()) as usize;
        let (rest, about) = rest.split_at(rest.len() - long(8));
        let (frames, list) = rest.split_at(rest.len() - long(0));
        Self { frames: frames.into(), list: list.into(), about: about.into() }
    }

    /// Names the longest chunk so often besides.
    fn repeat_longest_chunk(&mut self, times: u32) {
        let mut list = self.list[..self.list.len() - 32].to_vec();
        let chunks = u32::from_le_bytes(list[20..Self::LIST_HEAD].try_into().unwrap());
        let length = |chunk: &&[u8]| u32::from_le_bytes(chunk[32..36].try_into().unwrap());
        let entries = list[list.len() - 44 * chunks as usize..].chunks(44);
        let longest = entries.max_by_key(length).unwrap().to_vec();
        list[20..Self::LIST_HEAD].copy_from_slice(&(chunks + times).to_le_bytes());
        list.extend(longest.repeat(times as usize));
        list.extend(blake3::hash(&list).as_bytes());
        self.list = list;
    }

    fn file(&self) -> Vec<u8> {
        let Self { frames, list, about } = self;
        let lengths = [list, about].map(|part| (part.len() as u64).to_le_bytes()).concat();
        let digest = blake3::hash(about);
        [frames, list, about, &lengths[..], digest.as_bytes(), &1_u32.to_le_bytes(), b"SKIFFENV"].concat()
    }
}

/// A file of 44 MB must not fill the disk with 130 GB first, and be found to be wrong then.
#[test]
fn chunks_that_come_again_and_again_write_nothing() {
    let world = World::new();
    std::fs::write(world.upper().join("a"), vec![b'a'; 1 << 20]).unwrap();
    let good = export(&world);
    let mut parts = Parts::of(&good);
    assert_eq!(parts.file(), good);
    parts.repeat_longest_chunk(1_000_000);
    let target = world.path("hostile");
    let error = import(&parts.file(), &target).unwrap_err();
    let is_refused = error.contains("more than 1000 times as long") || error.contains("B free");
    assert!(is_refused, "{error}");
    assert_eq!(std::fs::read_dir(target).unwrap().count(), 0);
}

#[test]
fn a_file_of_another_version_is_not_called_damaged() {
    let world = World::new();
    let mut file = export(&world);
    let version = file.len() - 12;
    file[version] = 2;
    let error = import(&file, &world.path("newer")).unwrap_err();
    assert!(error.contains("is of version 2"), "{error}");
}

#[test]
fn names_without_end_are_not_kept() {
    let world = World::new();
    let mut parts = Parts::of(&export(&world));
    let about = String::from_utf8(parts.about.clone()).unwrap();
    for (map, count, is_refused) in
        [("base", 64, false), ("base", 65, true), ("texts", 63, false), ("texts", 64, true)]
    {
        let names: Vec<String> = (0..count).map(|number| format!(r#""{number:x}":"""#)).collect();
        let begin = format!(r#""{map}":{{"#);
        let comma = if map == "texts" { "," } else { "" };
        parts.about = about.replace(&begin, &format!("{begin}{}{comma}", names.join(","))).into_bytes();
        let imported = import(&parts.file(), &world.path(&format!("{map}{count}")));
        assert_eq!(imported.is_err(), is_refused, "{map} {count}: {imported:?}");
        let Err(error) = imported else { continue };
        assert!(error.contains("names too much"), "{error}");
    }
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
