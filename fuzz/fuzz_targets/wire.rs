//! Parses a message to or from the helper.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_spec::fuzz::wire(bytes);
});
