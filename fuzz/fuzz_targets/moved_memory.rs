//! Memory of processes as it comes from another machine: while they run there, as CRIU tells of them, and for those that are made here.
#![no_main]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use skiff_migrate::direct::{MemoryRanges, Stock, fill};
use skiff_migrate::early::PrecopyBuffer;
use skiff_migrate::pages::Arrival;
use skiff_migrate::populate::Reserve;
use skiff_migrate::squeeze::{Taking, pair};

/// A program in Rust hears of a reader that has gone by an error; the one that fuzzes is none.
fn without_sigpipe() {
    // SAFETY: nothing else runs yet, and no handler is set.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

libfuzzer_sys::fuzz_target!(init: without_sigpipe(), |bytes: &[u8]| {
    // As much as a socket holds that nobody reads.
    let bytes = &bytes[..bytes.len().min(64 << 10)];
    // No process has this number.
    let ranges = MemoryRanges::from([(i32::MAX, vec![(0x1000, 0x5000), (0x8000, 0x9000)])]);
    let early = PrecopyBuffer::new(&ranges, 16 << 10).expect("a file");
    early.receive(&mut &bytes[..], |_| ()).ok();
    let reserve = Reserve::new(0).expect("a file");
    for early in [None, Some(&early)] {
        fill(&mut &bytes[..], Stock { reserve: &reserve, early }, |_| ()).ok();
    }

    let place = Path::new("/dev/shm");
    let place = if place.is_dir() { place.into() } else { std::env::temp_dir() };
    let dir = tempfile::tempdir_in(place).expect("a temporary directory");
    let open = File::open(dir.path()).expect("the directory");
    let arrival = Arrival::prepare(open.into(), &[(2, 4096)], &reserve).expect("room");
    arrival.receive(said(bytes).as_fd(), |_| ()).ok();

    // Packed.
    let (end, ours) = pair().expect("sockets");
    let taking = Taking::begin(ours, said(bytes).as_fd()).expect("threads");
    early.receive(&mut File::from(end), |_| ()).ok();
    taking.end().ok();
});

/// A socket on which this has been said.
fn said(bytes: &[u8]) -> std::os::fd::OwnedFd {
    let (here, there) = pair().expect("sockets");
    File::from(here).write_all(bytes).expect("said");
    there
}
