//! Parses challenges, tokens, explanations and signatures as registries send them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    skiff_registry::fuzz::answer(bytes);
});
