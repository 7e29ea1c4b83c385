//! The promises of all protocols on the fuzz target's seeds and on some thousand changed copies of these, the same each time.

use std::path::Path;

use skiff_ipc::check;
use skiff_spec::fuzz::changed_copies;

const PROTOCOLS: &[fn(&[u8]) -> bool] = &[
    check::<skiff_cluster::local::wire::SupervisorRequest>,
    check::<skiff_runtime::control::ControlRequest>,
    check::<skiff_store::protocol::StoreRequest>,
    check::<skiff_migrate::agent::request::BoundCall>,
    check::<skiff_migrate::talk::SourceMessage>,
    check::<skiff_runtime::proxy::words::CommandRequest>,
    check::<skiff_launch::handshake::Call>,
    check::<skiff_relay::wire::PieceRequest>,
    check::<skiff_cluster::hub::HubRequest>,
    check::<skiff_cluster::wire::HeadMessage>,
    check::<skiff_store::fetcher::FetcherQuestion>,
    check::<skiff_sandbox::exec_request::ExecRequest<'static>>,
    check::<skiff_sandbox::word::Word>,
    check::<skiff_spec::job::JobSpec>,
    check::<skiff_spec::wire::Request>,
];

/// How many changed copies of each seed.
const COPIES: usize = 500;

#[test]
fn protocols_hold_what_they_promise() {
    let mut is_taken = [false; PROTOCOLS.len()];
    let mut check_all = |bytes: &[u8]| {
        let taken = PROTOCOLS.iter().map(|check| check(bytes)).collect::<Vec<_>>();
        is_taken.iter_mut().zip(&taken).for_each(|(before, now)| *before |= now);
        taken.contains(&true)
    };
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/protocols");
    for seed in std::fs::read_dir(seeds).expect("seeds").map(|entry| entry.expect("a seed").path()) {
        let bytes = std::fs::read(&seed).expect("a seed");
        // A line each, as editors leave it.
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        assert!(check_all(bytes), "{} is no message of any protocol", seed.display());
        for copy in changed_copies(bytes, COPIES) {
            check_all(&copy);
        }
    }
    assert_eq!(is_taken, [true; PROTOCOLS.len()], "a protocol without a seed");
}
