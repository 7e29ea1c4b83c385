//! Reads a layer file. Bytes of all kinds end in a record or an error, in bounded memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_snapshot::fuzz::records(bytes).ok();
});
