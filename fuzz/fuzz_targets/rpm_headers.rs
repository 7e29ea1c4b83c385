//! Reads and merges lists of RPM's headers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_packages::fuzz::rpm_headers(bytes);
});
