//! Reads vendors' descriptions of devices, libraries, and the linker's cache.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_cdi::fuzz::cdi(bytes);
});
