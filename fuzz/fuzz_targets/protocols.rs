//! Reads any bytes as a message of each protocol that `skiff_ipc::Protocol` declares: no panic, no more memory than the bytes can be the reason
//! for, no message beyond its limit, and what was read is the same when it is written and read again. `cargo xtask protocols` sees to it that
//! no protocol of a library is missing here.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use skiff_ipc::check;

/// Bytes of memory per byte of a message: the widest is a list of empty lists.
const MOST_EACH: usize = 512;
/// Bytes of memory that any message may take.
const MOST: usize = 1 << 20;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is done by the system's allocator, and only counted here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PROTOCOLS: &[fn(&[u8]) -> bool] = &[
    check::<skiff_launch::handshake::Call>,
    check::<skiff_relay::wire::PieceRequest>,
    check::<skiff_cluster::hub::HubRequest>,
    check::<skiff_cluster::local::wire::SupervisorRequest>,
    check::<skiff_cluster::wire::HeadMessage>,
    check::<skiff_store::fetcher::FetcherQuestion>,
    check::<skiff_store::protocol::StoreRequest>,
    check::<skiff_migrate::agent::request::BoundCall>,
    check::<skiff_migrate::talk::SourceMessage>,
    check::<skiff_runtime::control::ControlRequest>,
    check::<skiff_runtime::proxy::words::CommandRequest>,
    check::<skiff_sandbox::exec_request::ExecRequest<'static>>,
    check::<skiff_sandbox::word::Word>,
    check::<skiff_spec::job::JobSpec>,
    check::<skiff_spec::wire::Request>,
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for check in PROTOCOLS {
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        check(bytes);
        let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        assert!(taken <= MOST + MOST_EACH * bytes.len(), "{taken} bytes of memory for {}", bytes.len());
    }
});
