//! Parses a checkpoint's record, and a whole job's; and the same behind a head that fits it, as somebody writes one who means it.
#![no_main]

use skiff_checkpoint::record::{Checkpoint, FORMAT, MAGIC};
use skiff_checkpoint::set::{self, JobCheckpoint};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    Checkpoint::parse(bytes).ok();
    JobCheckpoint::parse(bytes).ok();
    let head = format!("{} {FORMAT} {}\n", set::MAGIC, blake3::hash(bytes));
    if let Ok(read) = JobCheckpoint::parse(&[head.as_bytes(), bytes].concat()) {
        std::hint::black_box((read.size(), read.processes()));
    }
    let head = format!("{MAGIC} {FORMAT} {}\n", blake3::hash(bytes));
    if let Ok(read) = Checkpoint::parse(&[head.as_bytes(), bytes].concat()) {
        std::hint::black_box((read.size(), read.free_number(), read.main().ok()));
        let paths = read.files.iter().map(|file| &file.path).chain(read.trees.iter().map(|tree| &tree.file));
        assert!(
            paths.into_iter().all(|path| !path.starts_with('/') && !path.contains("..")),
            "a path that leads out"
        );
    }
});
