//! Merges layers: whatever they do to each other, what comes out is a tree.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_image::fuzz::layers(bytes);
});
