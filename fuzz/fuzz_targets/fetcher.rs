//! Parses what the store's writer and the process that fetches for it say to each other, and carries out the events.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_store::fuzz::fetcher(bytes);
});
