//! Opens an archive of an image, by `docker save` or of an OCI layout.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_image::fuzz::archive(bytes);
});
