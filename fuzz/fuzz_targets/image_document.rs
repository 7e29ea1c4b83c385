//! Parses a manifest, an index or a configuration of an image.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_oci::fuzz::document(bytes);
});
