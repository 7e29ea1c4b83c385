//! What CRIU says: an answer of its RPC, commands to its page server, its log, and its images.
#![no_main]

use std::os::unix::net::UnixDatagram;

use skiff_criu::core_image::{death_signal, has_shadow_stack, with_global_barriers};
use skiff_criu::file_locks::of_processes;
use skiff_criu::files_image::{open_files, without_rights_of_deleted_sockets};
use skiff_criu::page_protocol::{PageServerCommand, bytes, of, process};
use skiff_criu::pagemap::Pagemap;
use skiff_criu::rpc::{CriuResponse, Features};
use skiff_criu::{Criu, CriuEvent, Error};

libfuzzer_sys::fuzz_target!(|said: &[u8]| {
    // As much as one message holds.
    let said = &said[..said.len().min(60 << 10)];
    if !said.is_empty() {
        match answered(said).0.next_event() {
            Ok(CriuEvent::Done(CriuResponse { success, .. })) => {
                assert!(success, "a failure taken for success")
            }
            Ok(CriuEvent::Stage(_)) | Err(Error::InvalidAnswer(_) | Error::Failed { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
        answered(said).0.version().map(|version| version.to_string()).ok();
        answered(said).0.features().map(|Features { mem_track, .. }| mem_track).ok();
    }
    if let Some(errors) = skiff_criu::fuzz::errors_of_log(said) {
        assert!(!errors.contains('\n'), "a line of the log is not one");
    }

    // Images may be from a checkpoint that somebody else has made.
    if let Some(edited) = with_global_barriers(said) {
        assert!(with_global_barriers(&edited).as_deref() == Some(&*edited), "an edit that is not whole");
    }
    if let Some(edited) = without_rights_of_deleted_sockets(said) {
        assert!(
            without_rights_of_deleted_sockets(&edited).as_deref() == Some(&*edited),
            "an edit that is not whole"
        );
    }
    of_processes(said).map(|edited| edited.len());
    open_files(said, Some(said)).map(|files| files.len());
    death_signal(said).or_else(|| has_shadow_stack(said).map(u32::from));
    Pagemap::parse(said).map(|(_, runs)| runs.len());

    let (mut rest, mut map) = (said, Pagemap::new(1));
    while let Ok(command) = PageServerCommand::read(&mut rest) {
        if command != PageServerCommand::Close {
            assert_eq!(PageServerCommand::parse(&command.bytes()).expect("known"), command);
        }
        if let PageServerCommand::Add { of: owner, address, pages, flags } = command {
            assert!(process(owner).is_none_or(|pid| of(pid) == owner), "two owners in one");
            bytes(pages).ok();
            map.add(address, pages, flags);
        }
    }
    assert!(map.bytes().len() <= 14 + said.len() * 2, "more is written than was said");
});

/// A client whose request is answered so, and the other end, which takes the request.
fn answered(said: &[u8]) -> (Criu, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().expect("sockets");
    theirs.send(said).expect("sent");
    (Criu::over(ours.into()), theirs)
}
