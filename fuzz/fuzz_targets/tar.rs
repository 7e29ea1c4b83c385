//! Reads a tar stream: bytes of all kinds end in entries or an error, in bounded memory and time.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_tar::fuzz::tar(bytes);
});
