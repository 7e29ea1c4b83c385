//! What a user may write for an image.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_oci::fuzz::reference(bytes);
});
