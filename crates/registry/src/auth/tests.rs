use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use skiff_sys::IgnoreError;

use super::*;

fn found(files: &[&str], server: &str, repository: &str) -> String {
    let parse = |text: &&str| AuthFile::parse("t", text.as_bytes()).expect("sound");
    match Credentials::of(files.iter().map(parse).collect()).find(server, repository) {
        Ok(Some(Credential::Basic { user, password })) => format!("{user}:{}", password.0),
        Ok(Some(Credential::IdentityToken(token))) => format!("token {}", token.0),
        Ok(None) => "none".into(),
        Err(e) => e.to_string(),
    }
}

/// base64 of "a:server", "b:team", "c:tool", "d:hub".
const FILE: &str = r#"{"auths": {
    "quay.io": {"auth": "YTpzZXJ2ZXI="},
    "quay.io/team": {"auth": "Yjp0ZWFt"},
    "quay.io/team/tool": {"auth": "Yzp0b29s", "email": "x"},
    "https://index.docker.io/v1/": {"auth": "ZDpodWI="},
    "https://old.example/v2/": {"username": "e", "password": "p:w"},
    "token.example": {"auth": "YTpi", "identitytoken": "t"},
    "bad.example": {"auth": "!"},
    "worse.example": {"auth": "YWI="},
    "empty.example": {}
}, "HttpHeaders": {"x": "y"}, "plugins": null}"#;

#[test]
fn the_longest_key_of_the_first_file_is_taken() {
    for (server, repository, expected) in [
        ("quay.io", "team/tool", "c:tool"),
        ("quay.io", "team/tool2", "b:team"),
        ("quay.io", "teams/x", "a:server"),
        ("docker.io", "library/debian", "d:hub"),
        ("old.example", "x", "e:p:w"),
        ("token.example", "x", "token t"),
        ("bad.example", "x", "t: the entry of bad.example is not the base64 of USER:PASSWORD"),
        ("worse.example", "x", "t: the entry of worse.example is not the base64 of USER:PASSWORD"),
        ("empty.example", "x", "none"),
        ("other.example", "x", "none"),
    ] {
        assert_eq!(found(&["", FILE], server, repository), expected, "{server}/{repository}");
    }
    let first = r#"{"auths": {"quay.io": {"auth": "ZDpodWI="}}}"#;
    assert_eq!(found(&[first, FILE], "quay.io", "team/tool"), "d:hub");
}

#[test]
fn secrets_are_not_shown() {
    let credential = Credential::Basic { user: "a".into(), password: Secret("hidden".into()) };
    let file = AuthFile::parse("t", FILE.as_bytes()).expect("sound");
    assert!(!format!("{credential:?}{file:?}").contains("hidden"));
    assert!(!format!("{file:?}").contains("ZDpodWI"));
    for bad in ["x", "7", r#"{"auths": 7}"#] {
        assert!(
            AuthFile::parse("t", bad.as_bytes()).expect_err("no such file").to_string().starts_with("t: ")
        );
    }
}

#[test]
fn a_login_is_kept_for_the_owner_alone_and_what_else_there_was_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("new/auth.json");
    file::save(&path, "quay.io", "alice", &Secret("p:ß".into())).expect("saved");
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().expect("a parent"))), (0o600, 0o700));

    std::fs::write(&path, FILE).expect("written by another program");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("as Docker would not");
    file::save(&path, "docker.io", "alice", &Secret("p:ß".into())).expect("saved");
    assert_eq!(mode(&path), 0o600);
    let text = std::fs::read_to_string(&path).expect("readable");
    assert!(text.contains("HttpHeaders") && !text.contains("index.docker.io"), "{text}");
    assert_eq!(found(&[&text], "docker.io", "x"), "alice:p:ß");
    assert_eq!(found(&[&text], "quay.io", "team/tool"), "c:tool");

    assert_eq!(file::forget(&path, "docker.io").expect("forgotten").len(), 1);
    assert_eq!(file::forget(&path, "docker.io").expect("nothing to forget").len(), 0);
    assert_eq!(found(&[&std::fs::read_to_string(&path).expect("readable")], "docker.io", "x"), "none");
    assert_eq!(file::forget(&dir.path().join("missing/auth.json"), "x").expect("nothing there").len(), 0);
    let left: Vec<_> = std::fs::read_dir(path.parent().expect("a parent")).expect("a directory").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_link_to_the_file_stays_a_link() {
    let dir = tempfile::tempdir().expect("a directory");
    let (real, link) = (dir.path().join("real.json"), dir.path().join("auth.json"));
    std::fs::write(&real, "{}").expect("a file");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    file::save(&link, "quay.io", "alice", &Secret("p".into())).expect("saved");
    assert!(std::fs::symlink_metadata(&link).expect("it is there").is_symlink());
    assert_eq!(found(&[&std::fs::read_to_string(&real).expect("readable")], "quay.io", "x"), "alice:p");
}

#[test]
fn many_at_once_lose_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("auth.json");
    std::thread::scope(|scope| {
        for i in 0..8 {
            let path = &path;
            let save = move || file::save(path, &format!("s{i}.example"), "u", &Secret(i.to_string()));
            scope.spawn(move || save().expect("saved"));
        }
    });
    let text = std::fs::read_to_string(&path).expect("readable");
    for i in 0..8 {
        assert_eq!(found(&[&text], &format!("s{i}.example"), "x"), format!("u:{i}"));
    }
}

/// Acts as several credential helpers at once, by what it is asked.
const HELPER: &str = r#"#!/bin/sh
read -r line
echo "$1 $line" >>"$HELPER_LOG"
case "$1 $line" in
    "get kept.example") echo '{"ServerURL":"kept.example","Username":"bob","Secret":"s3"}' ;;
    "get https://index.docker.io/v1/") echo '{"Username":"<token>","Secret":"refresh"}' ;;
    "get broken.example") echo "the keyring is locked" >&2; exit 1 ;;
    "get nonsense.example") echo hello ;;
    get*) echo "credentials not found in native keychain"; exit 1 ;;
esac
"#;

/// The search path is the process's: so this test runs itself once more with another.
#[test]
fn credential_helpers_are_asked() {
    const INNER: &str = "SKIFF_TEST_HELPERS";
    if let Some(dir) = std::env::var_os(INNER) {
        return with_helpers(&PathBuf::from(dir));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let helper = dir.path().join("docker-credential-test");
    std::fs::write(&helper, HELPER).expect("a program");
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").expect("a path"));
    let output = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "auth::tests::credential_helpers_are_asked", "--nocapture"])
        .env("PATH", path)
        .env("HELPER_LOG", dir.path().join("log"))
        .env(INNER, dir.path())
        .output()
        .expect("the test again");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn with_helpers(dir: &std::path::Path) {
    let file = r#"{"credHelpers": {"kept.example": "test", "broken.example": "test", "nonsense.example": "test",
        "absent.example": "absent", "outside.example": "../x"},
        "auths": {"plain.example": {"auth": "YTpi"}}}"#;
    assert_eq!(found(&[file], "kept.example", "x"), "bob:s3");
    assert_eq!(found(&[file], "plain.example", "x"), "a:b");
    assert!(found(&[file], "broken.example", "x").contains("the keyring is locked"));
    assert!(found(&[file], "nonsense.example", "x").contains("is not a credential"));
    assert!(found(&[file], "absent.example", "x").contains("cannot run it"));
    assert!(found(&[file], "outside.example", "x").contains("slash"));
    let store = r#"{"credsStore": "test", "auths": {"plain.example": {"auth": "YTpi"}}}"#;
    assert_eq!(found(&[store], "docker.io", "x"), "token refresh");
    assert_eq!(found(&[store], "plain.example", "x"), "a:b");
    let path = dir.join("auth.json");
    std::fs::write(&path, store).expect("a file");
    let place = file::save(&path, "kept.example", "carol", &Secret("pw".into())).expect("saved");
    assert_eq!(place, "docker-credential-test");
    assert_eq!(file::forget(&path, "kept.example").expect("forgotten"), ["docker-credential-test"]);
    let log = std::fs::read_to_string(dir.join("log")).expect("what it was asked");
    assert!(log.contains(r#"store {"Secret":"pw","ServerURL":"kept.example","Username":"carol"}"#), "{log}");
    assert!(log.contains("erase kept.example"), "{log}");
    assert_eq!(std::fs::read_to_string(&path).expect("readable"), store, "the password is not in the file");
}

proptest! {
    #[test]
    fn any_bytes_are_a_file_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(file) = AuthFile::parse("t", &bytes) {
            file.find("a.example", "b/c").ignore_error("only a panic counts");
        }
    }
}
