//! Merges the configuration of the site and the user.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_spec::fuzz::configuration(bytes);
});
