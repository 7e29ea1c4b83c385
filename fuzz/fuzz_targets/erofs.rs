//! Verifies an image file and reads it. Bytes of all kinds end in an image or an error, in bounded memory and time; and what
//! was verified can be read. Checksum and UUID are made to fit first: who forges an image does so too.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut image = bytes.to_vec();
    skiff_erofs::fuzz::reseal(&mut image);
    skiff_erofs::fuzz::read(&image);
});
