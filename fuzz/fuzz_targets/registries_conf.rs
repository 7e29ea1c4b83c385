//! Parses a registries.conf and asks it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_registry::fuzz::registries(bytes);
});
