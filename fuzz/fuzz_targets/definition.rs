//! A definition file of Apptainer's.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_build::fuzz::definition(bytes);
});
