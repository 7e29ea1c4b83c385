//! Pushes to a registry that fails as told: what arrived does not go again, and nobody but the registry sees a password.

use std::cell::Cell;
use std::io::{Cursor, Read};

use skiff_oci::hash::sha256;
use skiff_oci::reference::Named;
use skiff_registry::auth::{AuthFile, Credentials};
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{BlobArrival, Client, ClientSettings, PushSummary, Result, Upload};

use crate::support::images::noise;
use crate::support::uploads::{UploadFault, Uploads};

const MEDIA_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const SIZE: usize = 3_000_000;

fn client(server: &str) -> Client {
    let settings = ClientSettings { tries: 3, ..ClientSettings::default() };
    // alice:open sesame
    let auth = format!(r#"{{"auths": {{"{server}": {{"auth": "YWxpY2U6b3BlbiBzZXNhbWU="}}}}}}"#);
    let auth = AuthFile::parse("test", auth.as_bytes()).expect("credentials");
    Client::new(settings, RegistriesConf::default(), Credentials::of(vec![auth]))
}

fn name(server: &str, rest: &str) -> Named {
    format!("{server}/{rest}").parse().expect("a name")
}

fn push_from(server: &str, to: &str, from: Option<&str>, bytes: &[u8]) -> Result<PushSummary> {
    let read = |begin: u64| {
        let rest = bytes[usize::try_from(begin).expect("in memory")..].to_vec();
        Ok(Box::new(Cursor::new(rest)) as Box<dyn Read>)
    };
    let last = Cell::new(0);
    let sent = |at| last.set(at);
    let (from, size) = (from.map(|from| name(server, from)), bytes.len() as u64);
    let blob = Upload { digest: sha256(bytes), size, from: from.as_ref(), read: &read, sent: &sent };
    let pushed = client(server).push(&name(server, to), &[blob], (MEDIA_TYPE, b"{}"))?;
    assert!(pushed.sent == 0 || last.get() == bytes.len() as u64, "told of {} bytes", last.get());
    Ok(pushed)
}

fn push(uploads: &Uploads, bytes: &[u8]) -> Result<PushSummary> {
    push_from(&uploads.server, "a/b:1", None, bytes)
}

fn is_whole(uploads: &Uploads, bytes: &[u8]) -> bool {
    let blob = uploads.blob(&sha256(bytes).to_string());
    blob.as_deref() == Some(bytes) && uploads.manifest("/v2/a/b/manifests/1").as_deref() == Some(b"{}")
}

#[test]
fn what_is_there_is_not_sent() {
    let (uploads, bytes) = (Uploads::start(), noise(1, SIZE));
    assert_eq!(
        push(&uploads, &bytes).expect("pushed"),
        PushSummary { sent: SIZE as u64, arrivals: vec![BlobArrival::Sent] }
    );
    assert!(is_whole(&uploads, &bytes));
    uploads.seen();
    // Again: one question. Under another tag: its blobs are there. From another repository: they are taken from there.
    assert_eq!(push(&uploads, &bytes).expect("pushed").sent, 0);
    let (seen, received) = uploads.seen();
    assert_eq!((seen.iter().filter(|(_, path, _)| path != "/v2/").count(), received), (1, 0), "{seen:?}");
    assert_eq!(push_from(&uploads.server, "a/b:2", None, &bytes).expect("pushed").sent, 0);
    let (seen, received) = uploads.seen();
    assert!(received < 10 && !seen.iter().any(|(method, ..)| method == "POST"), "{seen:?}");
    let other = noise(2, 1000);
    push_from(&uploads.server, "c:1", Some("a/b:1"), &other).expect("pushed");
    let (seen, _) = uploads.seen();
    let mount = format!("/v2/c/blobs/uploads/?mount={}&from=a/b", sha256(&other));
    assert!(seen.iter().any(|(method, path, _)| method == "POST" && *path == mount), "{seen:?}");
}

#[test]
fn where_another_repository_is_refused_nothing_is_mounted() {
    let (uploads, bytes) = (Uploads::start(), noise(1, 1000));
    uploads.faults(&[UploadFault::Status("403 Forbidden", "x", "y".into())]);
    let pushed = push_from(&uploads.server, "c:1", Some("a/b:1"), &bytes).expect("pushed");
    assert_eq!(pushed.arrivals, [BlobArrival::Sent]);
    let (seen, _) = uploads.seen();
    let begins: Vec<&str> =
        seen.iter().filter(|(method, ..)| method == "POST").map(|(_, path, _)| &**path).collect();
    assert!(
        begins.len() == 2 && begins[0].contains("?mount=") && begins[1] == "/v2/c/blobs/uploads/",
        "{begins:?}"
    );
}

#[test]
fn what_arrived_before_a_cut_is_not_sent_again() {
    for (faults, most) in [
        // POST goes well each time: a fault is of the next request that changes something.
        (vec![UploadFault::Status("503 Service Unavailable", "x", "y".into())], SIZE),
        (vec![UploadFault::Nothing, UploadFault::Cut(2_000_000)], SIZE),
        (vec![UploadFault::Nothing, UploadFault::Cut(1_000_000), UploadFault::Cut(1_000_000)], SIZE),
        (vec![UploadFault::Nothing, UploadFault::Cut(0)], SIZE),
        (vec![UploadFault::Nothing, UploadFault::Forget(1_000_000)], SIZE + 1_000_000),
        (vec![UploadFault::Nothing, UploadFault::Mute], SIZE),
        (vec![UploadFault::Nothing, UploadFault::Lie], SIZE),
        (
            vec![
                UploadFault::Nothing,
                UploadFault::Status("429 Too Many Requests", "retry-after", "0".into()),
            ],
            2 * SIZE,
        ),
    ] {
        let (uploads, bytes) = (Uploads::start(), noise(1, SIZE));
        uploads.faults(&faults);
        let pushed = push(&uploads, &bytes);
        assert!(pushed.is_ok(), "{faults:?}: {:?}", pushed.err().map(|e| e.to_string()));
        assert!(is_whole(&uploads, &bytes), "{faults:?}");
        let (_, received) = uploads.seen();
        // The manifest comes, too.
        assert!(received <= most + 2, "{faults:?}: {received} bytes");
    }
}

#[test]
fn what_a_registry_does_not_take_is_told() {
    let status = |status| UploadFault::Status(status, "x", "y".into());
    for (faults, message, hint) in [
        (vec![status("403 Forbidden")], "cannot push blob sha256:", "log in to the server as somebody"),
        (vec![status("405 Method Not Allowed")], "405", "read-only"),
        (vec![status("404 Not Found")], "404", "repository to be made before"),
        (vec![UploadFault::Nothing, status("413 Payload Too Large")], "413", "takes no request of this size"),
        (vec![UploadFault::Nothing, status("507 Insufficient Storage")], "507", "no space"),
        (
            [vec![UploadFault::Nothing], vec![status("500 Internal Server Error"); 3]].concat(),
            "500",
            "try again later",
        ),
        (
            vec![UploadFault::Nothing, UploadFault::Nothing, status("400 Bad Request")],
            "cannot push the manifest of",
            "push it again",
        ),
    ] {
        let (uploads, bytes) = (Uploads::start(), noise(3, 10_000));
        uploads.faults(&faults);
        let Err(error) = push(&uploads, &bytes) else { panic!("{faults:?}: must fail") };
        assert!(error.to_string().contains(message), "{faults:?}: {error}");
        assert!(error.hint().is_some_and(|told| told.contains(hint)), "{faults:?}: {:?}", error.hint());
        assert!(uploads.manifest("/v2/a/b/manifests/1").is_none(), "{faults:?}: an image without its blobs");
    }
}

#[test]
fn what_cannot_be_read_here_is_not_asked_for_again() {
    let uploads = Uploads::start();
    let tried = Cell::new(0);
    let read = |_: u64| {
        tried.set(tried.get() + 1);
        // Less than it is to have.
        Ok(Box::new(Cursor::new(vec![0u8; 100])) as Box<dyn Read>)
    };
    let blob = Upload { digest: sha256(&[0; 200]), size: 200, from: None, read: &read, sent: &|_| () };
    let to = name(&uploads.server, "a/b:1");
    let error = client(&uploads.server).push(&to, &[blob], (MEDIA_TYPE, b"{}")).expect_err("must fail");
    assert!(error.to_string().contains("what is to be pushed cannot be read"), "{error}");
    assert_eq!(tried.get(), 1);
}

#[test]
fn a_password_goes_to_the_registry_only() {
    let (uploads, elsewhere, bytes) = (Uploads::start(), Uploads::start(), noise(3, 10_000));
    uploads.close();
    let location = format!("http://{}/v2/a/b/blobs/uploads/x", elsewhere.server);
    uploads.faults(&[UploadFault::Status("202 Accepted", "location", location)]);
    // There the blob is, and not where it is to be.
    push(&uploads, &bytes).expect("pushed");
    let (seen, received) = elsewhere.seen();
    assert!(received == bytes.len() && seen.iter().all(|(.., has_login)| !has_login), "{seen:?}");
    let (seen, _) = uploads.seen();
    assert!(seen.iter().any(|(method, _, has_login)| method == "PUT" && *has_login), "{seen:?}");
    // One that wants a password gets none.
    let (uploads, elsewhere) = (Uploads::start(), Uploads::start());
    elsewhere.close();
    let location = format!("http://{}/v2/a/b/blobs/uploads/x", elsewhere.server);
    uploads.faults(&[UploadFault::Status("202 Accepted", "location", location)]);
    let error = push(&uploads, &bytes).expect_err("must fail");
    assert!(error.to_string().contains("401"), "{error}");
    let (seen, _) = elsewhere.seen();
    assert!(!seen.is_empty() && seen.iter().all(|(.., has_login)| !has_login), "{seen:?}");
}
