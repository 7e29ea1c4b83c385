//! Reads environment definition files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_edf::fuzz::edf(bytes);
});
