//! Parses the helper's configuration.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_spec::fuzz::site(bytes);
});
