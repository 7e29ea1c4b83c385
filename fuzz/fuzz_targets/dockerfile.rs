//! A Dockerfile.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_build::fuzz::dockerfile(bytes);
});
