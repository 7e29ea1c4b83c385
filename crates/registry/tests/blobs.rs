//! Blobs from a real registry, through a proxy that breaks what passes: each comes whole, or fails with a clear reason.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::faults::{Fault, FaultProxy};
use crate::support::images::{noise, push_image};
use crate::support::server::{Access, Registry};
use skiff_oci::manifest::{Descriptor, Manifest};
use skiff_oci::platform::Platform;
use skiff_registry::auth::Credentials;
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{BlobDir, Client, ClientSettings, Error, Growing, Repositories, Result, Status};

const MIB: usize = 1 << 20;

/// A registry with an image of a few layers, a proxy before it, and a directory for its blobs.
struct Bench {
    dir: tempfile::TempDir,
    layers: Vec<Vec<u8>>,
    proxy: FaultProxy,
    _registry: Registry,
}

impl Bench {
    fn new(sizes: &[usize]) -> Option<Bench> {
        if !support::have(&["docker-registry", "setpriv"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("blobs")).expect("a directory");
        let registry = Registry::start(dir.path(), &Access::Anyone, None);
        let layers: Vec<_> = sizes.iter().enumerate().map(|(i, size)| noise(i as u64 + 1, *size)).collect();
        push_image(&registry.server, "team/tool", "1", "amd64", &layers);
        let proxy = FaultProxy::before(&registry.server);
        Some(Bench { dir, layers, proxy, _registry: registry })
    }

    fn client(&self) -> Client {
        client(settings())
    }

    fn resolve(&self, client: &Client) -> (Repositories, Manifest) {
        let name = format!("{}/team/tool:1", self.proxy.server).parse().expect("a name");
        let resolved = client.resolve(&name, &Platform::linux("amd64", None)).expect("an image");
        self.proxy.seen();
        (resolved.source, resolved.manifest)
    }

    fn blobs(&self) -> BlobDir {
        BlobDir::open(&self.dir.path().join("blobs")).expect("a directory")
    }

    /// Fetches all layers and compares them, as read while they arrive and as they lie on disk.
    fn pull(&self) -> Result<()> {
        let client = self.client();
        let (source, manifest) = self.resolve(&client);
        self.pull_with(&client, &source, &manifest)
    }

    fn pull_with(&self, client: &Client, source: &Repositories, manifest: &Manifest) -> Result<()> {
        let fetch = client.fetch(source, self.blobs())?;
        let growing: Vec<_> = manifest.layers.iter().map(|layer| fetch.blob(&layer.blob)).collect();
        for (growing, expected) in growing.iter().zip(&self.layers) {
            read_all(growing, expected)?;
            growing.wait()?;
            let file = self
                .blob_path(&manifest.layers[0].blob)
                .with_file_name(format!("sha256-{}", growing.digest().hex()));
            assert!(std::fs::read(file).expect("the blob") == *expected, "the blob on disk differs");
        }
        Ok(())
    }

    fn blob_path(&self, blob: &Descriptor) -> std::path::PathBuf {
        self.dir.path().join("blobs").join(format!("sha256-{}", blob.digest.hex()))
    }
}

fn settings() -> ClientSettings {
    ClientSettings {
        // Beside other tests on a busy machine nobody is heard for seconds now and then.
        stall: Duration::from_secs(20),
        connect: Duration::from_secs(2),
        tries: 4,
        parallel: 4,
        chunk: MIB as u64,
        ..ClientSettings::default()
    }
}

/// Servers that fall silent are given up after two seconds, so that tests of silence end soon.
fn settings_against(fault: &Fault) -> ClientSettings {
    match fault {
        Fault::Stall(_) => ClientSettings { stall: Duration::from_secs(2), ..settings() },
        _ => settings(),
    }
}

fn client(settings: ClientSettings) -> Client {
    Client::new(settings, RegistriesConf::default(), Credentials::default())
}

/// The last bytes first, then all in order, from the beginning again where they turned out wrong.
fn read_all(growing: &Arc<Growing>, expected: &[u8]) -> Result<()> {
    'again: for _ in 0..5 {
        let reader = growing.reader();
        let mut tail = [0; 8];
        let at = expected.len() - 8;
        let mut read = vec![0; expected.len()];
        for (buffer, at) in std::iter::once((&mut tail[..], at))
            .chain(read.chunks_mut(100_000).enumerate().map(|(i, b)| (b, i * 100_000)))
        {
            match reader.read_at(buffer, at as u64) {
                Err(e) if e.is_restart() => continue 'again,
                other => other?,
            }
        }
        match reader.wait_verified() {
            Err(e) if e.is_restart() => continue 'again,
            other => other?,
        }
        assert!(tail == expected[at..] && read == expected, "other bytes were read than were pushed");
        return Ok(());
    }
    panic!("restarted too often")
}

fn failure(result: Result<()>) -> (String, String) {
    let error = result.expect_err("must fail");
    (error.to_string(), error.hint().unwrap_or_default().to_owned())
}

#[test]
fn blobs_of_all_sizes_come_whole_and_are_read_while_they_come() {
    let Some(bench) = Bench::new(&[8, 1000, MIB, MIB + 1, 5 * MIB + 77]) else { return };
    bench.pull().expect("a pull");
    let requests = bench.proxy.seen();
    assert!(requests.len() >= 5 && requests.iter().all(|(range, _)| range.is_some()), "{requests:?}");
    bench.pull().expect("another pull");
    assert_eq!(bench.proxy.seen(), [], "all is there already, and is only looked at");
}

#[test]
fn a_blob_can_be_removed_as_soon_as_it_is_here() {
    let Some(bench) = Bench::new(&[MIB, 20]) else { return };
    let client = bench.client();
    let (source, manifest) = bench.resolve(&client);
    let fetch = client.fetch(&source, bench.blobs()).expect("threads");
    for (layer, expected) in manifest.layers.iter().zip(&bench.layers) {
        let growing = fetch.blob(&layer.blob);
        growing.wait().expect("the blob");
        assert!(bench.blobs().remove(&layer.blob.digest).expect("removed"), "it is still locked");
        read_all(&growing, expected).expect("who reads it goes on");
    }
    assert_eq!(list(&bench.dir.path().join("blobs")), Vec::<String>::new());
}

#[test]
fn every_fault_is_survived() {
    let Some(bench) = Bench::new(&[3 * MIB + 77]) else { return };
    let faults = [
        Fault::Reset,
        Fault::Truncate(0),
        Fault::Truncate(300_000),
        Fault::Stall(0),
        Fault::Stall(100_000),
        Fault::Status("500 Internal Server Error", "x-a", "b"),
        Fault::Status("502 Bad Gateway", "x-a", "b"),
        Fault::Status("503 Service Unavailable", "retry-after", "0"),
        Fault::Status("429 Too Many Requests", "retry-after", "1"),
        Fault::Status("429 Too Many Requests", "retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"),
        Fault::Flip(1234),
        Fault::IgnoreRange,
    ];
    for fault in faults {
        let client = client(settings_against(&fault));
        let (source, manifest) = bench.resolve(&client);
        bench.blobs().remove(&manifest.layers[0].blob.digest).expect("removed");
        bench.proxy.faults(&[fault.clone(), fault.clone()]);
        bench.pull_with(&client, &source, &manifest).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        bench.proxy.never();
    }
}

#[test]
fn a_server_without_ranges_gives_one_stream() {
    let Some(bench) = Bench::new(&[3 * MIB + 77, MIB]) else { return };
    bench.proxy.always(Fault::IgnoreRange);
    bench.pull().expect("a pull");
}

#[test]
fn what_never_works_fails_with_a_reason_and_in_time() {
    let Some(bench) = Bench::new(&[2 * MIB]) else { return };
    for (fault, words, hint) in [
        (Fault::Reset, "tried 4 times", "goes on from there"),
        (Fault::Truncate(10), "ended after 10 of", "goes on from there"),
        (Fault::Stall(10), "tried 4 times", "goes on from there"),
        (
            Fault::Status("500 Internal Server Error", "x-a", "b"),
            "500 Internal Server Error",
            "try again later",
        ),
        (Fault::Status("404 Not Found", "x-a", "b"), "404 Not Found", "spelling"),
        (Fault::Status("403 Forbidden", "x-a", "b"), "403 Forbidden", "log in to the server"),
        (Fault::Status("429 Too Many Requests", "retry-after", "3600"), "429 Too Many Requests", "log in"),
        (Fault::Flip(77), "digest", "administrator"),
        (Fault::WrongRange, "it has 3 bytes", ""),
    ] {
        let client = client(settings_against(&fault));
        let (source, manifest) = bench.resolve(&client);
        bench.blobs().remove(&manifest.layers[0].blob.digest).expect("removed");
        bench.proxy.always(fault.clone());
        let begun = Instant::now();
        let (message, mend) = failure(bench.pull_with(&client, &source, &manifest));
        bench.proxy.never();
        assert!(message.contains(words) && message.contains("127.0.0.1:"), "{fault:?}: {message}");
        assert!(mend.contains(hint), "{fault:?}: {mend}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{fault:?} took {:?}", begun.elapsed());
    }
    bench.pull().expect("a pull, once nothing fails any more");
}

#[test]
fn a_refused_connection_is_waited_for() {
    let Some(mut bench) = Bench::new(&[2 * MIB]) else { return };
    let client = bench.client();
    let (source, manifest) = bench.resolve(&client);
    bench.proxy.down();
    let blob = &manifest.layers[0].blob;
    let fetch = client.fetch(&source, bench.blobs()).expect("threads");
    let growing = fetch.blob(blob);
    let end = Instant::now() + Duration::from_secs(10);
    while !matches!(growing.progress().1, Status::Retrying(why) if why.contains("refused")) {
        assert!(Instant::now() < end, "{:?}", growing.progress());
        std::thread::sleep(Duration::from_millis(5));
    }
    bench.proxy.up();
    growing.wait().expect("the blob");
}

#[test]
fn a_pull_that_was_killed_goes_on_with_what_is_missing() {
    let Some(bench) = Bench::new(&[8 * MIB]) else { return };
    bench.proxy.pace(Duration::from_millis(2));
    let client = bench.client();
    let (source, manifest) = bench.resolve(&client);
    let fetch = client.fetch(&source, bench.blobs()).expect("threads");
    let growing = fetch.blob(&manifest.layers[0].blob);
    let end = Instant::now() + Duration::from_secs(20);
    while growing.progress().0 < 4 * MIB as u64 {
        assert!(Instant::now() < end, "{:?}", growing.progress());
        std::thread::sleep(Duration::from_millis(2));
    }
    let begun = Instant::now();
    drop(fetch);
    assert!(begun.elapsed() < Duration::from_secs(2), "giving up took {:?}", begun.elapsed());
    assert!(matches!(growing.wait(), Err(Error::Shared(_))));
    let first = bench.proxy.seen();
    bench.pull_with(&client, &source, &manifest).expect("the rest");
    let second = bench.proxy.seen();
    assert!(!second.is_empty() && second.len() < 9, "{second:?}");
    let again = second.iter().filter(|(range, _)| first.iter().any(|(r, _)| r == range)).count();
    assert!(again <= 4, "{again} ranges were fetched twice: {first:?} {second:?}");
}

/// Runs one test of this file in a process of its own, under another program.
fn again(test: &str, under: &[&str], environment: &[(&str, &str)]) -> std::process::Child {
    let mut command = std::process::Command::new(under[0]);
    command.args(&under[1..]).arg(std::env::current_exe().expect("this test")).args([
        "--exact",
        &format!("blobs::{test}"),
        "--nocapture",
    ]);
    command.envs(environment.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|e| panic!("{}: {e}", under[0]))
}

/// The image at `server`, for a process that is not the one that has pushed it.
fn pull_alone(server: &str, blobs: &Path) -> Result<()> {
    let client = client(settings());
    let name = format!("{server}/team/tool:1").parse().expect("a name");
    let resolved = client.resolve(&name, &Platform::linux("amd64", None))?;
    let fetch = client.fetch(&resolved.source, BlobDir::open(blobs)?)?;
    resolved.manifest.layers.iter().try_for_each(|layer| fetch.blob(&layer.blob).wait())
}

const SERVER: &str = "SKIFF_TEST_SERVER";
const BLOBS: &str = "SKIFF_TEST_BLOBS";

#[test]
fn a_process_killed_in_the_middle_is_taken_over_from() {
    if let (Ok(server), Some(blobs)) = (std::env::var(SERVER), std::env::var_os(BLOBS)) {
        return pull_alone(&server, Path::new(&blobs)).expect("not so far");
    }
    let Some(bench) = Bench::new(&[12 * MIB]) else { return };
    let client = bench.client();
    let (source, manifest) = bench.resolve(&client);
    // Four chunks come at a time: of these, four at least are whole.
    bench.proxy.allow(Some(8 * MIB));
    let blobs = bench.dir.path().join("blobs");
    let (test, blobs) = ("a_process_killed_in_the_middle_is_taken_over_from", blobs.to_string_lossy());
    let mut child =
        again(test, &["setpriv", "--pdeathsig", "KILL"], &[(SERVER, &bench.proxy.server), (BLOBS, &blobs)]);
    let end = Instant::now() + Duration::from_secs(20);
    // The file of the bytes is made by who has the lock.
    while list(Path::new(&*blobs)).len() < 2 {
        assert!(Instant::now() < end, "the other process does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    let fetch = client.fetch(&source, bench.blobs()).expect("threads");
    let growing = fetch.blob(&manifest.layers[0].blob);
    while !matches!(growing.progress(), (bytes, Status::Followed) if bytes >= 4 * MIB as u64) {
        assert!(Instant::now() < end, "{:?}", growing.progress());
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("killed");
    child.wait().expect("gone");
    bench.proxy.allow(None);
    growing.wait().expect("the rest");
    read_all(&growing, &bench.layers[0]).expect("its bytes");
    let seen = bench.proxy.seen().len();
    // The other process has asked for the configuration too.
    assert!((15..=19).contains(&seen), "{seen} requests for 14 chunks, of which 4 at most were cut off");
}

#[test]
fn a_full_disk_ends_the_pull_and_says_how_much_was_needed() {
    if let (Ok(server), Some(blobs)) = (std::env::var(SERVER), std::env::var_os(BLOBS)) {
        let error = pull_alone(&server, Path::new(&blobs)).expect_err("there is no room");
        let text = error.to_string();
        assert!(text.contains("it needs at least 4.0 MiB") && text.contains("are free"), "{text}");
        assert!(error.hint().is_some_and(|hint| hint.contains("free some space")));
        assert_eq!(list(Path::new(&blobs)), Vec::<String>::new());
        return;
    }
    let Some(bench) = Bench::new(&[4 * MIB]) else { return };
    let blobs = bench.dir.path().join("blobs");
    // A small file system that goes with the process.
    let script = format!("mount -t tmpfs -o size=2m none {} && exec \"$@\"", blobs.display());
    let under = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"];
    let environment = [(SERVER, bench.proxy.server.as_str()), (BLOBS, &*blobs.to_string_lossy())];
    let output = again("a_full_disk_ends_the_pull_and_says_how_much_was_needed", &under, &environment);
    let output = output.wait_with_output().expect("the test again");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn two_pulls_at_once_do_the_work_once() {
    let Some(bench) = Bench::new(&[6 * MIB]) else { return };
    bench.proxy.pace(Duration::from_millis(2));
    let client = bench.client();
    let (source, manifest) = bench.resolve(&client);
    let pull = || bench.pull_with(&client, &source, &manifest);
    std::thread::scope(|scope| {
        for pull in [scope.spawn(pull), scope.spawn(pull)] {
            pull.join().expect("no panic").expect("a pull");
        }
    });
    let seen = bench.proxy.seen();
    assert_eq!(seen.len(), 8, "six chunks and both edges, once each: {seen:?}");
}

#[test]
fn who_follows_takes_over_when_the_first_gives_up() {
    let Some(bench) = Bench::new(&[6 * MIB]) else { return };
    bench.proxy.pace(Duration::from_millis(20));
    let client = bench.client();
    let (source, manifest) = bench.resolve(&client);
    let first = client.fetch(&source, bench.blobs()).expect("threads");
    let ours = first.blob(&manifest.layers[0].blob);
    let end = Instant::now() + Duration::from_secs(20);
    while ours.progress().0 == 0 {
        assert!(Instant::now() < end, "{:?}", ours.progress());
        std::thread::sleep(Duration::from_millis(1));
    }
    let second = client.fetch(&source, bench.blobs()).expect("threads");
    let theirs = second.blob(&manifest.layers[0].blob);
    while theirs.progress().1 != Status::Followed {
        assert!(Instant::now() < end, "{:?}", theirs.progress());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(first);
    theirs.wait().expect("the blob");
    read_all(&theirs, &bench.layers[0]).expect("its bytes");
}

#[test]
fn damaged_and_foreign_files_on_disk_are_not_believed() {
    let Some(bench) = Bench::new(&[2 * MIB + 5]) else { return };
    bench.pull().expect("a pull");
    let client = bench.client();
    let (source, manifest) = bench.resolve(&client);
    let path = bench.blob_path(&manifest.layers[0].blob);
    let journal =
        path.with_file_name(format!("{}.journal", path.file_name().expect("a name").to_string_lossy()));
    let damage: [&dyn Fn(); 4] = [
        &|| std::fs::write(&path, noise(9, 2 * MIB + 5)).expect("other bytes"),
        &|| std::fs::write(&path, b"short").expect("fewer bytes"),
        &|| std::fs::write(&journal, b"nonsense").expect("another journal"),
        &|| std::fs::remove_file(&path).expect("no file"),
    ];
    for (i, damage) in damage.iter().enumerate() {
        damage();
        bench.pull_with(&client, &source, &manifest).unwrap_or_else(|e| panic!("damage {i}: {e}"));
        assert!(!bench.proxy.seen().is_empty(), "damage {i} was believed");
    }
    let outside = bench.dir.path().join("outside");
    std::fs::write(&outside, b"not ours").expect("a file");
    std::fs::remove_file(&path).expect("removed");
    std::os::unix::fs::symlink(&outside, &path).expect("a link");
    assert!(bench.pull_with(&client, &source, &manifest).is_err(), "a link was followed");
    assert_eq!(std::fs::read(&outside).expect("the file"), b"not ours");
}

#[test]
fn a_manifest_that_lies_about_sizes_is_found_out() {
    let Some(bench) = Bench::new(&[MIB]) else { return };
    let client = bench.client();
    let (source, manifest) = bench.resolve(&client);
    for size in [MIB as u64 - 1, MIB as u64 + 1, 3 * MIB as u64] {
        let blob = Descriptor { size, ..manifest.layers[0].blob.clone() };
        let fetch = client.fetch(&source, bench.blobs()).expect("threads");
        let error = fetch.blob(&blob).wait().expect_err("a lie").to_string();
        assert!(error.contains("descriptor says") || error.contains("416 Range"), "{size}: {error}");
    }
}

#[test]
fn too_little_room_is_noticed_before_anything_is_written() {
    let Some(bench) = Bench::new(&[8]) else { return };
    let client = bench.client();
    let (source, manifest) = bench.resolve(&client);
    let fetch = client.fetch(&source, bench.blobs()).expect("threads");
    let blob = Descriptor { size: 1 << 60, ..manifest.layers[0].blob.clone() };
    let error = fetch.blob(&blob).wait().expect_err("nobody has so much room");
    let text = error.to_string();
    assert!(text.contains("1152921504606846976") || text.contains("too large"), "{text}");
    assert_eq!(list(&bench.dir.path().join("blobs")), Vec::<String>::new());
}

fn list(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn who_waits_for_another_layer_holds_up_nobody() {
    let Some(bench) = Bench::new(&[5 * MIB, 5 * MIB, 5 * MIB]) else { return };
    // Two ranges fill it, or none does.
    for memory in [2 * MIB, 0] {
        let client = client(ClientSettings { memory: memory as u64, ..settings() });
        let (source, manifest) = bench.resolve(&client);
        let fetch = client.fetch(&source, bench.blobs()).expect("threads");
        let growing: Vec<_> = manifest.layers.iter().map(|layer| fetch.blob(&layer.blob)).collect();
        let (last, others) = growing.split_last().expect("layers");
        let readers: Vec<_> = others.iter().map(|growing| growing.reader()).collect();
        readers.iter().for_each(|reader| reader.read_at(&mut [0; 18], 0).expect("its beginning"));
        // As a layer whose files find no room until those below it have theirs.
        read_all(last, &bench.layers[2]).expect("the last one");
        for (growing, expected) in others.iter().zip(&bench.layers) {
            read_all(growing, expected).expect("the others");
        }
        drop(fetch);
        manifest
            .layers
            .iter()
            .for_each(|layer| assert!(bench.blobs().remove(&layer.blob.digest).expect("removed")));
    }
}
