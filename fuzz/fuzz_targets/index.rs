//! Parses an index.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_snapshot::fuzz::index(bytes);
});
