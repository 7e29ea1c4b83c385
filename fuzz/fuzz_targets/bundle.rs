//! Opens an exported environment, and unpacks it.
#![no_main]

use std::io::Write;
use std::os::fd::AsFd;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (Ok(mut file), Ok(dir)) = (tempfile::tempfile(), tempfile::tempdir()) else { return };
    if file.write_all(bytes).is_ok()
        && let Ok(target) = std::fs::File::open(dir.path())
    {
        skiff_snapshot::fuzz::bundle(file.into(), target.as_fd());
    }
});
