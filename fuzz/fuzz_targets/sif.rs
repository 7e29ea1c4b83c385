//! Opens a file of Apptainer's, and converts the squashfs in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_image::fuzz::sif(bytes);
});
