//! Names resolved at real registries: open ones, with passwords, with tokens, with TLS, behind mirrors.

use std::path::Path;
use std::time::Duration;

use crate::support;
use crate::support::faults::{Fault, FaultProxy};
use crate::support::images::{noise, push_image, push_index, push_manifest};
use crate::support::server::{Access, PASSWORD, Registry, USER};
use crate::support::token::{IDENTITY_TOKEN, TokenService, make_certificate};
use skiff_oci::platform::Platform;
use skiff_oci::reference::{ImageReference, Named};
use skiff_registry::auth::{AuthFile, Credential, Credentials, Secret};
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{BlobDir, Client, ClientSettings, Error, Result};

const NEEDED: &[&str] = &["docker-registry", "setpriv", "openssl"];

fn settings() -> ClientSettings {
    ClientSettings { stall: Duration::from_secs(5), tries: 3, ..ClientSettings::default() }
}

fn client(conf: &str, auth: &str) -> Client {
    let mut registries = RegistriesConf::default();
    registries.add("test", conf).expect("a configuration");
    let auth = AuthFile::parse("test", auth.as_bytes()).expect("credentials");
    Client::new(settings(), registries, Credentials::of(vec![auth]))
}

fn amd64() -> Platform {
    Platform::linux("amd64", None)
}

fn name(server: &str, rest: &str) -> Named {
    format!("{server}/{rest}").parse().expect("a name")
}

/// base64 of "alice:open sesame", and of another password.
fn auth(server: &str, is_right: bool) -> String {
    let auth = if is_right { "YWxpY2U6b3BlbiBzZXNhbWU=" } else { "YWxpY2U6b3BlbiBtZQ==" };
    format!(r#"{{"auths": {{"{server}": {{"auth": "{auth}"}}}}}}"#)
}

fn message<T>(result: Result<T>) -> (String, String) {
    let Err(error) = result else { panic!("must fail") };
    (error.to_string(), error.hint().unwrap_or_default().into())
}

/// All blobs of an image, read to their end.
fn pull(client: &Client, image: &Named, dir: &Path) -> Result<u64> {
    let resolved = client.resolve(image, &amd64())?;
    let fetch = client.fetch(&resolved.source, BlobDir::open(dir)?)?;
    let growing: Vec<_> = resolved.manifest.layers.iter().map(|layer| fetch.blob(&layer.blob)).collect();
    growing.iter().try_for_each(|growing| growing.wait())?;
    Ok(resolved.manifest.bytes())
}

#[test]
fn names_lead_to_images_for_a_platform() {
    if !support::have(NEEDED) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let registry = Registry::start(dir.path(), &Access::Anyone, None);
    let server = registry.server.as_str();
    let amd = push_image(server, "team/tool", "amd", "amd64", &[noise(1, 2000), noise(2, 10)]);
    let arm = push_image(server, "team/tool", "arm", "arm64", &[noise(3, 20)]);
    let index = push_index(server, "team/tool", "latest", &[("amd64", &amd), ("arm64", &arm)]);
    let client = client("", "{}");

    let digest = client.digest(&name(server, "team/tool")).expect("a digest");
    assert_eq!(digest.to_string(), index);
    let resolved = client.resolve(&name(server, "team/tool"), &amd64()).expect("an image");
    assert_eq!(
        (resolved.digest.to_string(), resolved.name.to_string()),
        (index.clone(), format!("{server}/team/tool:latest"))
    );
    assert_eq!((resolved.manifest.layers.len(), resolved.manifest.bytes()), (2, 2010));
    assert_eq!(resolved.config.exec.env, ["A=1"]);
    let other =
        client.resolve(&name(server, "team/tool"), &Platform::linux("arm64", None)).expect("an image");
    assert_ne!(other.manifest_digest, resolved.manifest_digest);
    let pinned = name(server, &format!("team/tool:nonsense@{index}"));
    assert_eq!(
        client.resolve(&pinned, &amd64()).expect("an image").manifest_digest,
        resolved.manifest_digest
    );

    let (text, _) = message(client.resolve(&name(server, "team/tool"), &Platform::linux("s390x", None)));
    assert!(text.contains("linux/s390x") && text.contains("linux/amd64, linux/arm64"), "{text}");
    let (text, _) = message(client.resolve(&name(server, "team/tool:arm"), &amd64()));
    assert!(text.contains("linux/arm64"), "{text}");
    let (text, hint) = message(client.resolve(&name(server, "team/tool:absent"), &amd64()));
    assert!(text.contains("404 Not Found (manifest unknown)") && text.contains(server), "{text}");
    assert!(hint.contains("spelling"), "{hint}");
    assert!(client.resolve(&name(server, "other"), &amd64()).is_err());

    let mut chart = amd.clone();
    chart["layers"][0]["mediaType"] = "application/vnd.cncf.helm.chart.content.v1.tar+gzip".into();
    push_manifest(server, "team/tool", "chart", &chart);
    let (text, _) = message(client.resolve(&name(server, "team/tool:chart"), &amd64()));
    assert!(text.contains("it is not an image"), "{text}");
}

#[test]
fn passwords_are_shown_where_they_are_wanted() {
    if !support::have(NEEDED) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let open = Registry::start(dir.path(), &Access::Anyone, None);
    push_image(&open.server, "team/tool", "1", "amd64", &[noise(1, 2000)]);
    let locked = Registry::start(dir.path(), &Access::Basic, None);
    let (server, image) = (locked.server.as_str(), name(&locked.server, "team/tool:1"));
    assert_eq!(pull(&client("", &auth(server, true)), &image, dir.path()).expect("a pull"), 2000);

    let (text, hint) = message(client("", "{}").resolve(&image, &amd64()));
    assert!(text.contains("it wants a login"), "{text}");
    assert!(hint.contains("log in to the server"), "{hint}");
    let (text, hint) = message(client("", &auth(server, false)).resolve(&image, &amd64()));
    assert!(text.contains("does not take the login") && hint.contains("log in to"), "{text} {hint}");

    let login = |password: &str| Credential::Basic { user: USER.into(), password: Secret(password.into()) };
    client("", "{}").check_login(server, &login(PASSWORD)).expect("the right password");
    let (text, _) = message(client("", "{}").check_login(server, &login("guess")));
    assert!(text.contains("does not take the login"), "{text}");
}

#[test]
fn tokens_are_fetched_and_renewed() {
    if !support::have(NEEDED) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let open = Registry::start(dir.path(), &Access::Anyone, None);
    for repository in ["team/tool", "public/tool"] {
        push_image(&open.server, repository, "1", "amd64", &[noise(1, 3 << 20)]);
    }
    let tokens = TokenService::start(dir.path());
    let access = Access::Token { realm: tokens.realm(), certificate: &tokens.certificate };
    let registry = Registry::start(dir.path(), &access, None);
    let proxy = FaultProxy::before(&registry.server);
    let server = proxy.server.as_str();
    let blobs = |i: i32| {
        let blobs = dir.path().join(format!("blobs{i}"));
        std::fs::create_dir(&blobs).expect("a directory");
        blobs
    };

    pull(&client("", "{}"), &name(server, "public/tool:1"), &blobs(1)).expect("an anonymous pull");
    assert_eq!(tokens.given(), 1, "one token serves all requests");
    let private = name(server, "team/tool:1");
    pull(&client("", &auth(server, true)), &private, &blobs(2)).expect("a pull");
    let identity = format!(r#"{{"auths": {{"{server}": {{"identitytoken": "{IDENTITY_TOKEN}"}}}}}}"#);
    pull(&client("", &identity), &private, &blobs(3)).expect("a pull by a refresh token");

    tokens.given();
    tokens.stale(1);
    proxy.faults(&[Fault::LoseToken, Fault::LoseToken]);
    pull(&client("", &auth(server, true)), &private, &blobs(4)).expect("a pull with tokens that expire");
    assert!((2..=4).contains(&tokens.given()));
    tokens.broken(2);
    pull(&client("", &auth(server, true)), &private, &blobs(5)).expect("a pull when the service comes back");

    for (credentials, word) in
        [("{}".to_owned(), "does not take"), (auth(server, false), "incorrect username or password")]
    {
        let (text, hint) = message(client("", &credentials).resolve(&private, &amd64()));
        assert!(text.contains(word) && hint.contains("log in to"), "{text} {hint}");
    }
    tokens.stale(99);
    let (text, _) = message(client("", &auth(server, true)).resolve(&private, &amd64()));
    assert!(text.contains("does not take the login"), "{text}");
}

#[test]
fn credentials_do_not_follow_redirects() {
    if !support::have(NEEDED) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let open = Registry::start(dir.path(), &Access::Anyone, None);
    push_image(&open.server, "team/tool", "1", "amd64", &[noise(1, 9 << 20)]);
    let locked = Registry::start(dir.path(), &Access::Basic, None);
    let storage = FaultProxy::before(&open.server);
    let front = FaultProxy::before(&locked.server);
    let client = client("", &auth(&front.server, true));
    let image = name(&front.server, "team/tool:1");
    front.always(Fault::Redirect(storage.server.clone()));
    pull(&client, &image, dir.path()).expect("a pull");
    let (asked, served) = (front.seen(), storage.seen());
    assert!(asked.iter().any(|(_, with_password)| *with_password), "{asked:?}");
    assert!(served.len() > 1 && !served.iter().any(|(_, with_password)| *with_password), "{served:?}");
    let ranges = asked.iter().filter(|(range, _)| range.is_some()).count();
    assert_eq!(ranges, 1, "where it leads is remembered: {asked:?}");
    // The address given for the first range does not last: the registry is asked again.
    storage.faults(&[Fault::Status("403 Forbidden", "x-a", "b"), Fault::Status("403 Forbidden", "x-a", "b")]);
    let other = dir.path().join("other");
    std::fs::create_dir(&other).expect("a directory");
    assert!(pull(&client, &image, &other).is_err(), "refused at the first request");
}

#[test]
fn tls_is_checked_against_what_the_site_trusts() {
    if !support::have(NEEDED) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (key, certificate) =
        make_certificate(dir.path(), "server", &["DNS:127-0-0-1.example", "IP:127.0.0.1"]);
    let registry = Registry::start(dir.path(), &Access::Anyone, Some((&certificate, &key)));
    let plain = Registry::start(dir.path(), &Access::Anyone, None);
    push_image(&plain.server, "team/tool", "1", "amd64", &[noise(1, 2000)]);
    // Loopback needs no certificate, but TLS is used where it is there.
    let image = name(&registry.server, "team/tool:1");
    assert_eq!(pull(&client("", "{}"), &image, dir.path()).expect("a pull over TLS"), 2000);

    // Any other address of this machine stands for another one.
    let Some(address) = own_address() else {
        return eprintln!("SKIPPED: this machine has no address but loopback");
    };
    let (key, certificate) = make_certificate(dir.path(), "outer", &[&format!("IP:{address}")]);
    let outer = Registry::start_at(&address, dir.path(), &Access::Anyone, Some((&certificate, &key)));
    let image = name(&outer.server, "team/tool:1");
    let (text, hint) = message(client("", "{}").resolve(&image, &amd64()));
    assert!(text.contains("not to be trusted"), "{text}");
    assert!(hint.contains(&format!("certs.d/{}/ca.crt", outer.server)), "{hint}");
    let insecure = format!("[[registry]]\nlocation = {:?}\ninsecure = true", outer.server);
    assert!(client(&insecure, "{}").resolve(&image, &amd64()).is_ok());

    let certs_d = dir.path().join("certs.d");
    std::fs::create_dir_all(certs_d.join(&outer.server)).expect("a directory");
    std::fs::copy(&certificate, certs_d.join(&outer.server).join("ca.crt")).expect("a certificate");
    let settings = ClientSettings { certs_d: vec![certs_d], ..settings() };
    let client = Client::new(settings, RegistriesConf::default(), Credentials::default());
    client.resolve(&image, &amd64()).expect("the site's own certificate");
}

fn own_address() -> Option<String> {
    // Nothing is sent: it only asks for the way there.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then(|| address.to_string())
}

#[test]
fn mirrors_come_first_and_short_names_are_completed() {
    if !support::have(NEEDED) {
        return;
    }
    let (near_dir, far_dir) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let near = Registry::start(near_dir.path(), &Access::Anyone, None);
    let far = Registry::start(far_dir.path(), &Access::Anyone, None);
    push_image(&near.server, "mirror/team/tool", "1", "amd64", &[noise(1, 100)]);
    push_image(&far.server, "team/tool", "1", "amd64", &[noise(2, 200)]);
    push_image(&far.server, "team/tool", "2", "amd64", &[noise(3, 300)]);
    let conf = format!(
        "unqualified-search-registries = [{:?}, {:?}]\n[[registry]]\nprefix = 'images.example'\nlocation = {:?}\n\
         [[registry.mirror]]\nlocation = '{}/mirror'\n[[registry]]\nprefix = 'images.example/secret'\nblocked = true",
        near.server, far.server, far.server, near.server
    );
    let client = client(&conf, "{}");
    for (tag, bytes) in [("1", 100), ("2", 300)] {
        let image = name("images.example", &format!("team/tool:{tag}"));
        assert_eq!(pull(&client, &image, near_dir.path()).expect("a pull"), bytes, "{tag}");
    }
    let blocked = client.resolve(&name("images.example", "secret/x"), &amd64());
    assert!(matches!(blocked, Err(Error::Blocked { .. })));

    let Ok(ImageReference::Short(short)) = "team/tool:1".parse() else { panic!("short") };
    assert_eq!(
        client.complete(&short).expect("somewhere").to_string(),
        format!("{}/team/tool:1", far.server)
    );
    // One that is not to be asked says nothing of the next; one that cannot be asked ends the search, which could find another's image.
    let searched = |first: &str, more: &str| {
        let conf = format!("unqualified-search-registries = [{first:?}, {:?}]\n{more}", far.server);
        self::client(&conf, "{}").complete(&short)
    };
    let blocked = searched("no.example", "[[registry]]\nprefix = 'no.example'\nblocked = true");
    assert_eq!(blocked.expect("the second").to_string(), format!("{}/team/tool:1", far.server));
    let Err(silent) = searched("127.0.0.1:1", "") else { panic!("the first does not answer") };
    assert!(silent.to_string().starts_with("registry 127.0.0.1:1: "), "{silent}");
    let hint = silent.hint().expect("a hint");
    for part in ["127.0.0.1:1 is searched before others", "name it, as in 127.0.0.1:1/team/tool:1"] {
        assert!(hint.contains(part), "{hint}");
    }
}
