//! Converts a squashfs file into an image.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_image::fuzz::squashfs(bytes);
});
