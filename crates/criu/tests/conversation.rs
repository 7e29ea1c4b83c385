//! Conversations with a CRIU that says what a table has it say.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread::{JoinHandle, spawn};

use proptest::prelude::{any, proptest};
use prost::Message;
use skiff_criu::rpc::{
    CriuRequest, CriuResponse, Features, Notify, Options, RequestType, RestoredTree, Version,
};
use skiff_criu::{CarryOutError, Criu, CriuEvent, Error, Installation};

/// A peer that gives these answers, one to each request, and closes; the requests that it got.
fn peer(answers: Vec<Vec<u8>>) -> (Criu, JoinHandle<Vec<CriuRequest>>) {
    let (ours, theirs) = pair();
    let talk = move || {
        let mut requests = vec![];
        for answer in answers {
            let mut bytes = vec![0; 1 << 16];
            let length = theirs.recv(&mut bytes).unwrap();
            requests.push(CriuRequest::decode(&bytes[..length]).unwrap());
            theirs.send(&answer).unwrap();
        }
        requests
    };
    (Criu::over(ours.into()), spawn(talk))
}

/// As CRIU's sockets, which tell of an end.
fn pair() -> (UnixDatagram, UnixDatagram) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (ours.into(), theirs.into())
}

fn answer(kind: RequestType, success: bool) -> CriuResponse {
    CriuResponse { kind: kind.into(), success, ..CriuResponse::default() }
}

fn stage(name: &str) -> Vec<u8> {
    let notify = Some(Notify { stage: Some(name.into()), pid: None });
    CriuResponse { notify, ..answer(RequestType::Notify, true) }.encode_to_vec()
}

#[test]
fn a_restore_is_seen_through_stage_by_stage() {
    let restored =
        CriuResponse { restored: Some(RestoredTree { pid: 7 }), ..answer(RequestType::Restore, true) };
    let (criu, talk) = peer(vec![stage("pre-restore"), stage("post-restore"), restored.encode_to_vec()]);
    let mut stages = vec![];
    let options = Options { images_dir_fd: 5, notify_scripts: Some(true), ..Options::default() };
    let done = criu.carry_out(RequestType::Restore, options, |stage| {
        stages.push(stage.to_owned());
        Ok::<(), String>(())
    });
    assert_eq!(done.unwrap().restored.unwrap().pid, 7);
    assert_eq!(stages, ["pre-restore", "post-restore"]);
    let requests = talk.join().unwrap();
    let said: Vec<_> = requests.iter().map(|request| (request.kind(), request.notify_success)).collect();
    let proceed = (RequestType::Notify, Some(true));
    assert_eq!(said, [(RequestType::Restore, None), proceed, proceed]);
    // Nothing is put in place of what the caller says where this is not the one that runs CRIU.
    let options = requests[0].options.as_ref().unwrap();
    assert_eq!((options.images_dir_fd, &options.images_dir, options.log_to_stderr), (5, &None, None));
}

#[test]
fn what_the_caller_refuses_is_taken_back_and_its_error_told() {
    let (criu, talk) = peer(vec![stage("pre-dump"), answer(RequestType::Dump, false).encode_to_vec()]);
    let refused = criu.carry_out(RequestType::Dump, Options::default(), |_| Err("no room".to_owned()));
    assert!(matches!(refused, Err(CarryOutError::Refused(why)) if why == "no room"));
    assert_eq!(talk.join().unwrap()[1].notify_success, Some(false));

    let (criu, talk) = peer(vec![
        stage("pre-dump"),
        stage("post-dump"),
        stage("pre-resume"),
        answer(RequestType::Dump, false).encode_to_vec(),
    ]);
    criu.ask(RequestType::Dump, Options::default()).unwrap();
    assert_eq!(criu.next_event().unwrap(), CriuEvent::Stage("pre-dump".into()));
    criu.take_back();
    let said: Vec<_> = talk.join().unwrap().iter().map(|request| request.notify_success).collect();
    assert_eq!(said, [None, Some(false), Some(false), Some(false)]);
}

#[test]
fn failures_are_told_apart() {
    let failed = |errno, message: Option<&str>| {
        let message = message.map(str::to_owned);
        CriuResponse { errno, message, ..answer(RequestType::Dump, false) }.encode_to_vec()
    };
    let dump = |bytes: Vec<u8>| {
        let (criu, talk) = peer(vec![bytes]);
        let outcome = criu.carry_out(RequestType::Dump, Options::default(), |_| Ok::<(), String>(()));
        talk.join().unwrap();
        match outcome {
            Err(CarryOutError::Criu(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    for (errno, message, text) in [
        (Some(1), Some("Error (criu/tty.c:3): tty: no master\n"), "CRIU: tty: no master"),
        (Some(28), Some(" "), "CRIU: No space left on device (os error 28)"),
        (None, None, "CRIU: it does not say why"),
        (Some(0), None, "CRIU: it does not say why"),
    ] {
        let error = dump(failed(errno, message));
        assert!(
            matches!(error, Error::Failed { errno: e, .. } if e == errno.filter(|e| *e != 0)),
            "{error:?}"
        );
        assert_eq!(error.to_string(), text);
    }
    assert!(matches!(dump(vec![0xff; 3]), Error::InvalidAnswer(_)));
    // The peer has gone after a stage.
    let error = dump(stage("pre-dump"));
    assert!(matches!(error, Error::Exited { log: None }), "{error:?}");
    assert_eq!(error.to_string(), "CRIU has exited without an answer");
}

#[test]
fn questions_leave_the_conversation_open() {
    let version = Version { major: 4, minor: 2, sublevel: Some(1), gitid: None };
    let features = Features { mem_track: Some(false), lazy_pages: Some(true), pidfd_store: None };
    let (criu, talk) = peer(vec![
        CriuResponse { version: Some(version), ..answer(RequestType::Version, true) }.encode_to_vec(),
        CriuResponse { features: Some(features), ..answer(RequestType::FeatureCheck, true) }.encode_to_vec(),
        answer(RequestType::FeatureCheck, false).encode_to_vec(),
        answer(RequestType::Version, true).encode_to_vec(),
    ]);
    assert_eq!(criu.version().unwrap().to_string(), "4.2.1");
    assert_eq!(criu.features().unwrap(), features);
    assert!(matches!(criu.features(), Err(Error::Failed { .. })));
    assert!(matches!(criu.version(), Err(Error::Incomplete("version"))));
    assert!(talk.join().unwrap().iter().all(|request| request.keep_open == Some(true)));
}

/// A program at `dir/criu` in CRIU's place.
fn script(dir: &Path, text: &str) -> Installation {
    let path = dir.join("criu");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    Installation::at(&path)
}

#[test]
fn the_program_gets_its_socket_as_standard_input_and_its_log_is_read() {
    let dir = tempfile::tempdir().unwrap();
    // One message each is read and written; the variables and words are checked.
    let text = r#"[ "$*" = '--no-default-config swrk 0' ] && [ -z "$HOME$CRIU_CONFIG_FILE" ] || exit 1
dd bs=65536 count=1 of=/dev/null 2>/dev/null
printf '\010\012\020\001\122\004\010\004\020\003' >&0
dd bs=65536 count=1 of=request 2>/dev/null
echo '(00.1) Error (criu/x.c:1): x: no' >&2"#;
    let program = script(dir.path(), &format!("cd '{}'\n{text}", dir.path().display()));
    let criu = Criu::spawn(&program, Some(dir.path())).unwrap();
    assert!(criu.pid().is_some());
    assert_eq!(criu.version().unwrap().to_string(), "4.3");
    criu.ask(RequestType::Dump, Options { pid: Some(1), ..Options::default() }).unwrap();
    let error = criu.next_event().unwrap_err();
    assert_eq!(error.to_string(), "CRIU has exited without an answer; its log says: x: no");
    let request = CriuRequest::decode(&*fs::read(dir.path().join("request")).unwrap()).unwrap();
    let options = request.options.unwrap();
    assert_eq!((options.images_dir_fd, options.images_dir.as_deref()), (-1, dir.path().to_str()));
    assert_eq!((options.log_level, options.log_to_stderr), (Some(2), Some(true)));
    let pid = criu.pid().unwrap();
    drop(criu);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "a zombie is left");
}

#[test]
fn a_program_that_is_not_there_is_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none");
    for program in [Installation::Program(none.clone()), Installation::Folder(none.clone())] {
        let spawned = Criu::spawn(&program, None).map(drop).unwrap_err();
        assert!(matches!(&spawned, Error::Io { what: "run", object, .. } if object.contains("none")));
        let prepared = Criu::prepare(&program, None, &[]).map(drop).unwrap_err();
        assert!(matches!(&prepared, Error::Io { what: "open", .. }), "{prepared}");
    }
    assert_eq!(Installation::at(dir.path()), Installation::Folder(dir.path().into()));
    assert!(
        matches!(Criu::prepare(&Installation::at(dir.path()), None, &[]), Ok((_, launch)) if launch.descriptors().len() == 3)
    );
}

#[test]
fn a_caller_can_wait_for_news() {
    let (ours, theirs) = pair();
    let criu = Criu::over(ours.into());
    let readable = |criu: &Criu| {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(criu.news().as_fd(), PollFlags::IN)], Some(&now)).unwrap()
    };
    assert_eq!(readable(&criu), 0);
    theirs.send(&stage("pre-dump")).unwrap();
    assert_eq!(readable(&criu), 1);
}

proptest! {
    #[test]
    fn no_answer_takes_the_client_down(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
        let (ours, theirs) = pair();
        theirs.send(&bytes).unwrap();
        drop(theirs);
        let criu = Criu::over(ours.into());
        match criu.next_event() {
            Ok(CriuEvent::Done(answer)) => assert!(answer.success),
            Ok(CriuEvent::Stage(_)) | Err(Error::InvalidAnswer(_) | Error::Failed { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}
