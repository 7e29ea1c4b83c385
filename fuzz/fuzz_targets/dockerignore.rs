//! The list of files that a build does not see.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_build::fuzz::ignore_rules(bytes);
});
