//! Reads and merges dpkg's database.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_packages::fuzz::packages(bytes);
});
