//! Unpacks a layer file. Whatever it says, nothing appears beside the target directory.
#![no_main]

use std::os::fd::AsFd;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // In memory where there is some: thousands of small trees a second.
    let place = Path::new("/dev/shm");
    let place = if place.is_dir() { place.into() } else { std::env::temp_dir() };
    let dir = tempfile::tempdir_in(place).expect("a temporary directory");
    let target = dir.path().join("target");
    std::fs::create_dir(&target).expect("the target");
    let open = std::fs::File::open(&target).expect("the target");
    skiff_snapshot::fuzz::layer(bytes, open.as_fd()).ok();
    let beside = std::fs::read_dir(dir.path()).expect("the directory").count();
    assert_eq!(beside, 1, "something escaped");
});
