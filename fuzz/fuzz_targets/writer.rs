//! Parses what the user's `skiff` and the store's writer say to each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_store::fuzz::writer(bytes);
});
