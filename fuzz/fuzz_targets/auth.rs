//! Parses a file of credentials.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_registry::fuzz::auth(bytes);
});
