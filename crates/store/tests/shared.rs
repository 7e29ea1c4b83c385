//! A store that users share: who names an image that is there must show that they could have it.

#![allow(clippy::unwrap_used)]

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::layers::build::{RawEntry as Tar, archive};
use crate::common::stores::Watching;
use crate::support::images::{digest, noise};
use crate::support::web::{Head, Listener, answer};
use serde::{Deserialize, Serialize};
use serde_json::json;
use skiff_ipc::{Message, receive, send};
use skiff_oci::platform::Platform;
use skiff_registry::auth::Credentials;
use skiff_registry::policy::Policies;
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{BlobDir, Client, ClientSettings};
use skiff_store::Store;
use skiff_store::fetcher::{FetcherQuestion, RemoteFetcher, serve, told};
use skiff_store::pull::{PullJob, Pulled, pull};

const ALICE: u32 = 1001;
const BOB: u32 = 1002;
const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// What a registry does that is not as it should be.
#[derive(Clone, Copy, PartialEq)]
enum Oddity {
    None,
    /// A registry that gives blobs as a whole only.
    NoRanges,
    /// A registry that knows the manifest and the configuration of somebody's image, but not the layers' bytes.
    Forger,
    /// The same, but for all of the layer's bytes except a hundred of the file in it.
    Guesser,
}

struct Image {
    layer: Vec<u8>,
    config: Vec<u8>,
    manifest: Vec<u8>,
}

impl Image {
    fn new() -> Image {
        let layer = archive(&[Tar::file("secret", noise(1, 100_000))]);
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]}
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len()
            },
            "layers": [{"mediaType": TAR, "digest": digest(&layer), "size": layer.len()}]
        });
        Image { layer, config, manifest: manifest.to_string().into_bytes() }
    }
}

/// A registry of one image, and how many bytes of its layer it has sent.
fn registry(oddity: Oddity) -> (Listener, Arc<Mutex<usize>>) {
    registry_with(oddity, || ())
}

/// The same; before it sends anything of the layer it does something.
fn registry_with(
    oddity: Oddity,
    before: impl Fn() + Clone + Send + Sync + 'static,
) -> (Listener, Arc<Mutex<usize>>) {
    let sent = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&sent);
    let image = Image::new();
    let serve = move |connection: TcpStream| {
        let mut from = BufReader::new(connection.try_clone().unwrap());
        let mut to = connection;
        while let Ok(Some(head)) = Head::read(&mut from) {
            if head.path().ends_with(&digest(&image.layer)) {
                before();
            }
            if respond(&head, &image, oddity, &mut to, &counter).is_err() {
                return;
            }
        }
    };
    (Listener::start("127.0.0.1:0", serve), sent)
}

fn respond(
    head: &Head,
    image: &Image,
    oddity: Oddity,
    to: &mut impl Write,
    sent: &Mutex<usize>,
) -> std::io::Result<()> {
    let is_head = head.line.starts_with("HEAD");
    let name = head.path().rsplit('/').next().unwrap_or_default();
    let body = match name {
        _ if head.path().contains("/manifests/") => image.manifest.clone(),
        name if name == digest(&image.config) => image.config.clone(),
        name if name == digest(&image.layer) && oddity == Oddity::Forger => vec![0; image.layer.len()],
        name if name == digest(&image.layer) && oddity == Oddity::Guesser => {
            let (known, rest) = image.layer.split_at(50_000);
            [known, &[0; 100], &rest[100..]].concat()
        }
        name if name == digest(&image.layer) => image.layer.clone(),
        _ => return answer(to, "200 OK", &[], b""),
    };
    let digest = digest(&image.manifest);
    let headers = [("content-type", MANIFEST), ("docker-content-digest", digest.as_str())];
    let range = head.get("range").filter(|_| oddity != Oddity::NoRanges).and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?))
    });
    let (status, part) = match range {
        Some((first, last)) => ("206 Partial Content", &body[first..=last]),
        None => ("200 OK", &body[..]),
    };
    if head.path().contains("/blobs/") && name != self::digest(&image.config) {
        *sent.lock().unwrap() += part.len();
    }
    let content_range = range.map(|(first, last)| format!("bytes {first}-{last}/{}", body.len()));
    let mut headers: Vec<_> = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    headers.extend(content_range.map(|range| ("content-range".to_owned(), range)));
    headers.push(("content-length".into(), part.len().to_string()));
    Head { line: format!("HTTP/1.1 {status}"), headers }.write(to)?;
    if is_head { Ok(()) } else { to.write_all(part) }
}

fn client() -> Client {
    let settings = ClientSettings { tries: 2, ..ClientSettings::default() };
    Client::new(settings, RegistriesConf::default(), Credentials::default())
}

/// By a fetcher and a writer, as users who share a store do.
fn pulled(store: &Store, from: &Listener, reference: &str, uid: u32) -> skiff_store::Result<Pulled> {
    let name = format!("{}/{reference}", from.address);
    let blobs = BlobDir::open(&store.blobs(uid).unwrap()).unwrap();
    let fetcher = move |link: UnixStream| {
        let begin = |wish: &str| Ok((client(), wish.parse().unwrap(), Platform::linux("amd64", None)));
        serve(link, &blobs, Ok(None), &begin).unwrap();
    };
    pulled_by(store, &name, uid, fetcher)
}

fn pulled_by(
    store: &Store,
    name: &str,
    uid: u32,
    fetcher: impl FnOnce(UnixStream) + Send,
) -> skiff_store::Result<Pulled> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| fetcher(theirs));
        let remote = RemoteFetcher::new(ours).unwrap();
        let policies = Policies::of_text(remote.policy()?.as_ref())?;
        let image = remote.begin(name.into())?;
        assert!(remote.begin("another/wish:1".into()).is_err(), "only one wish is heard");
        let platform = Platform::linux("amd64", None);
        let (policies, image, platform) = (&policies, &image, &platform);
        let wish = PullJob { store, fetcher: &remote, policies, image, platform, uid };
        pull(&wish, &mut Watching::default())
    })
}

/// What a fetcher may do that was taken over.
#[derive(Clone, Copy, Debug)]
enum Lie {
    None,
    /// Another manifest than the digest's.
    Manifest,
    /// Another configuration than the manifest's.
    Config,
    /// Other bytes than the layer's.
    Layer,
    /// The right ones, until they have been read once.
    Later,
    /// Fewer than it says.
    Short,
    /// What makes no sense.
    Nonsense,
    /// The process ends.
    Gone,
}

/// An answer, or what looks like one.
#[derive(Serialize, Deserialize)]
struct Claim(serde_json::Value);

impl Message for Claim {
    const LONGEST: usize = 1 << 20;
}

/// Answers as a fetcher would, but for its lie.
fn lies(lie: Lie, blobs: &Path, mut link: UnixStream) {
    let image = Image::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let file = blobs.join(digest(&image.layer).replace(':', "-"));
    while let Ok(Some(question)) = receive::<FetcherQuestion>(&mut link) {
        let mut events = vec![];
        let answer = match question {
            FetcherQuestion::Policy => json!({"Policy": null}),
            FetcherQuestion::Begin(wish) if wish.starts_with("another") => {
                json!({"Failed": told(&skiff_image::Error::Cancelled.into())})
            }
            FetcherQuestion::Begin(wish) => json!({"Name": wish}),
            FetcherQuestion::Digest => json!({"Digest": digest(&image.manifest)}),
            FetcherQuestion::Resolve => {
                let mut manifest = text(&image.manifest);
                let mut config = text(&image.config);
                match lie {
                    Lie::Manifest => manifest.push(' '),
                    Lie::Config => config.push(' '),
                    _ => {}
                }
                json!({"Documents": {"digest": digest(&image.manifest), "documents": [[manifest, MANIFEST]], "config": config}})
            }
            FetcherQuestion::Fetch { number } => {
                let mut layer = image.layer.clone();
                match lie {
                    Lie::Layer => layer[50_000] ^= 1,
                    Lie::Short => layer.truncate(50_000),
                    Lie::Gone => return,
                    _ => {}
                }
                std::fs::write(&file, &layer).unwrap();
                let size = image.layer.len();
                let (chunk, filled) =
                    if matches!(lie, Lie::Nonsense) { (1, vec![size; 3]) } else { (8 << 20, vec![size]) };
                for event in [json!({"Opened": {"chunk": chunk, "filled": filled}}), json!("Verified")] {
                    events.push(json!({"Event": {"number": number, "layer": 0, "event": event}}));
                }
                json!("Done")
            }
            FetcherQuestion::Origin | FetcherQuestion::ClaimedOrigins => json!({"Origins": []}),
            FetcherQuestion::Settle { .. } if matches!(lie, Lie::Later) => {
                std::fs::write(&file, vec![0; image.layer.len()]).unwrap();
                continue;
            }
            _ => continue,
        };
        for claim in std::iter::once(answer).chain(events) {
            if send(&mut link, &Claim(claim)).is_err() {
                return;
            }
        }
    }
}

#[test]
fn a_fetcher_that_lies_changes_no_image() {
    let all = [Lie::Manifest, Lie::Config, Lie::Layer, Lie::Short, Lie::Nonsense, Lie::Gone];
    for lie in all.into_iter().chain([Lie::None, Lie::Later]) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blobs = store.blobs(ALICE).unwrap();
        let pulled = pulled_by(&store, "r.example/team/secret:1", ALICE, |link| lies(lie, &blobs, link));
        match lie {
            // What it does to the layer's file when that was hashed is of no use to it.
            Lie::None | Lie::Later => {
                store.verify(pulled.unwrap().id).unwrap();
            }
            _ => {
                assert!(pulled.is_err(), "{lie:?}");
                assert_eq!(store.images().unwrap(), [], "{lie:?}");
            }
        }
    }
}

/// Who was told by a fetcher that all came, and has not seen it, proves nothing.
#[test]
fn a_fetcher_that_lies_proves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let blobs = [ALICE, BOB].map(|uid| store.blobs(uid).unwrap());
    let name = "r.example/team/secret:1";
    let first = pulled_by(&store, name, ALICE, |link| lies(Lie::None, &blobs[0], link)).unwrap();
    for lie in [Lie::Layer, Lie::Short, Lie::Nonsense, Lie::Gone] {
        assert!(pulled_by(&store, name, BOB, |link| lies(lie, &blobs[1], link)).is_err(), "{lie:?}");
        assert!(!store.permitted(BOB, first.id), "{lie:?}");
    }
    assert!(pulled_by(&store, name, BOB, |link| lies(Lie::None, &blobs[1], link)).unwrap().there);
}

/// As a user does who has a store of their own.
#[test]
fn one_process_does_for_one_user() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (registry, _) = registry(Oddity::None);
    let image = format!("{}/team/secret:1", registry.address).parse().unwrap();
    let (client, policies, platform) = (client(), Policies::default(), Platform::linux("amd64", None));
    for uid in [ALICE, BOB] {
        let (policies, image, platform) = (&policies, &image, &platform);
        let wish = PullJob { store: &store, fetcher: &client, policies, image, platform, uid };
        assert_eq!(pull(&wish, &mut Watching::default()).unwrap().there, uid == BOB);
    }
}

#[test]
fn a_digest_is_not_enough() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (honest, sent) = registry(Oddity::None);
    let (forger, _) = registry(Oddity::Forger);
    let first = pulled(&store, &honest, "team/secret:1", ALICE).unwrap();
    assert!(!first.there && store.permitted(ALICE, first.id));
    for name in ["x/y:1".to_owned(), format!("x/y@{}", first.digest)] {
        let refused = pulled(&store, &forger, &name, BOB);
        assert!(refused.is_err() && !store.permitted(BOB, first.id), "{refused:?}");
    }
    // Nor for the layer alone, in an image that is not there.
    store.forbid(ALICE, first.id).unwrap();
    pulled(&store, &honest, "team/secret:1", ALICE).unwrap();
    std::fs::remove_file(dir.path().join(format!("images/{}.erofs", first.id))).unwrap();
    assert!(pulled(&store, &forger, "x/y:1", BOB).is_err());
    assert!(!store.permitted(BOB, first.id));

    *sent.lock().unwrap() = 0;
    assert!(!pulled(&store, &honest, "team/secret:1", ALICE).unwrap().there);
    let second = pulled(&store, &honest, "team/secret:1", BOB).unwrap();
    assert!(second.there && store.permitted(BOB, first.id));
    // Nothing vouches for a registry without TLS, whoever it says it is: it has to send everything.
    let layer = Image::new().layer.len();
    assert!(*sent.lock().unwrap() >= layer, "all of the layer is the proof: {sent:?}");
    // From then on it is one question; whoever answers it.
    assert!(pulled(&store, &forger, "x/y:1", BOB).unwrap().there);
}

/// An image from before origins were noted, and a registry without ranges.
#[test]
fn whole_layers_are_the_proof() {
    for (oddity, forget) in [(Oddity::NoRanges, false), (Oddity::None, true)] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let (registry, _) = registry(oddity);
        let (forger, _) = self::registry(Oddity::Forger);
        let first = pulled(&store, &registry, "team/secret:1", ALICE).unwrap();
        let record = dir.path().join(format!("images/{}.json", first.id));
        if forget {
            let mut text: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
            text.as_object_mut().unwrap().insert("samples".into(), json!([[{"at": 0, "bytes": "00"}]]));
            std::fs::write(&record, text.to_string()).unwrap();
        }
        let (guesser, _) = self::registry(Oddity::Guesser);
        for liar in [&forger, &guesser] {
            assert!(pulled(&store, liar, "x/y:1", BOB).is_err());
        }
        assert!(pulled(&store, &registry, "team/secret:1", BOB).unwrap().there);
        assert_eq!(std::fs::read_dir(store.blobs(BOB).unwrap()).unwrap().count(), 0, "nothing is kept of it");
    }
}

/// Whoever shared it lets go of it while another shows that they can have it: that one has it all the same.
#[test]
fn an_image_that_its_user_removes_meanwhile_is_there_for_who_wants_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (registry, _) = registry(Oddity::None);
    let first = pulled(&store, &registry, "team/secret:1", ALICE).unwrap();
    let (path, removed) = (dir.path().to_owned(), Arc::new(Mutex::new(0)));
    let counter = Arc::clone(&removed);
    let (other, _) = registry_with(Oddity::None, move || {
        let store = Store::open(&path).unwrap();
        if store.permitted(ALICE, first.id) {
            store.forbid(ALICE, first.id).unwrap();
            *counter.lock().unwrap() += 1;
        }
    });
    let second = pulled(&store, &other, "team/secret:1", BOB).unwrap();
    assert_eq!(*removed.lock().unwrap(), 1);
    assert!(store.find(second.id).unwrap().is_some() && store.permitted(BOB, second.id));
    store.verify(second.id).unwrap();
}

/// Who tries again and again is not heard any more, even where they would succeed; others are.
#[test]
fn failures_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (honest, _) = registry(Oddity::None);
    let (forger, _) = registry(Oddity::Forger);
    let first = pulled(&store, &honest, "team/secret:1", ALICE).unwrap();
    for _ in 0..10 {
        assert!(pulled(&store, &forger, "x/y:1", BOB).is_err());
    }
    for registry in [&forger, &honest] {
        let refused = pulled(&store, registry, "team/secret:1", BOB).unwrap_err();
        assert!(matches!(refused, skiff_store::Error::RefusedTooOften { times: 10, .. }), "{refused}");
    }
    assert!(!store.permitted(BOB, first.id));
    assert!(pulled(&store, &honest, "team/secret:1", ALICE + 5).unwrap().there);
}

/// A name that says its digest itself means nothing else, whatever is in the store.
#[test]
fn what_is_named_by_its_digest_is_that() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (registry, _) = registry(Oddity::None);
    pulled(&store, &registry, "team/secret:1", ALICE).unwrap();
    let other = format!("team/secret@sha256:{}", "0".repeat(64));
    assert!(pulled(&store, &registry, &other, ALICE).is_err());
}
