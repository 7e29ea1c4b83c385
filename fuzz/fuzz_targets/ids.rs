//! Finds a user's ids in /etc/subuid and makes a map of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_spec::fuzz::ids(bytes);
});
