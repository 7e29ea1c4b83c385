//! Finds the configuration behind a file system, and writes it again.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_image::fuzz::trailer(bytes);
});
