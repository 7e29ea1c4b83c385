//! Parses a list of chunks, and reads what it names.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_snapshot::fuzz::chunks(bytes);
});
