//! A registry that can be reached through a proxy only. Variables of the environment are the whole process's: so the pull is in
//! one of its own.

#![allow(clippy::unused_result_ok, reason = "whoever closes a connection first is right")]

use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::support;
use crate::support::images::{noise, push_image};
use crate::support::server::{Access, Registry};
use crate::support::web::{Head, Listener, answer};
use skiff_oci::platform::Platform;
use skiff_registry::auth::Credentials;
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{Client, ClientSettings};

const CONF: &str = "SKIFF_TEST_CONF";

/// Connects to the registry whatever it is asked for, and notes what that was.
fn tunnel(connection: TcpStream, registry: &str, asked: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut to = connection.try_clone()?;
    let mut from = BufReader::new(connection);
    let Some(head) = Head::read(&mut from)? else { return Ok(()) };
    asked.lock().expect("no panic").push(format!(
        "{} {}",
        head.line,
        head.get("proxy-authorization").unwrap_or("")
    ));
    if !head.line.starts_with("CONNECT images.example:80 ") {
        return answer(&mut to, "403 Forbidden", &[], b"");
    }
    let mut server = TcpStream::connect(registry)?;
    to.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut back, mut client) = (server.try_clone()?, to.try_clone()?);
    let answers = std::thread::spawn(move || {
        std::io::copy(&mut back, &mut client).ok();
        client.shutdown(Shutdown::Both).ok();
    });
    std::io::copy(&mut from, &mut server).ok();
    server.shutdown(Shutdown::Both).ok();
    answers.join().ok();
    Ok(())
}

#[test]
fn a_proxy_is_gone_through() {
    if let Ok(conf) = std::env::var(CONF) {
        let mut registries = RegistriesConf::default();
        registries.add("test", &conf).expect("a configuration");
        let client = Client::new(
            ClientSettings { tries: 1, ..ClientSettings::default() },
            registries,
            Credentials::default(),
        );
        let resolve =
            |name: &str| client.resolve(&name.parse().expect("a name"), &Platform::linux("amd64", None));
        assert_eq!(resolve("images.example/team/tool:1").expect("an image").manifest.bytes(), 100);
        let Err(refused) = resolve("other.example/team/tool:1") else { panic!("the proxy refuses that") };
        assert!(refused.to_string().contains("the proxy refuses other.example"), "{refused}");
        let Err(direct) = resolve("direct.invalid/team/tool:1") else { panic!("there is no such host") };
        assert!(!direct.to_string().contains("the proxy"), "{direct}");
        return;
    }
    if !support::have(&["docker-registry", "setpriv"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let registry = Registry::start(dir.path(), &Access::Anyone, None);
    push_image(&registry.server, "team/tool", "1", "amd64", &[noise(1, 100)]);
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let (server, shared) = (registry.server.clone(), Arc::clone(&asked));
    let proxy = Listener::start("127.0.0.1:0", move |connection| {
        tunnel(connection, &server, &shared).ok();
    });
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "proxy::a_proxy_is_gone_through", "--nocapture"])
        .env(CONF, "[[registry]]\nlocation = 'images.example'\ninsecure = true")
        .envs([("ALL_PROXY", format!("http://user:pw@{}", proxy.address)), ("NO_PROXY", ".invalid".into())])
        .output()
        .expect("the test again");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    let asked = asked.lock().expect("no panic").clone();
    assert!(
        asked.iter().any(|line| line == "CONNECT images.example:80 HTTP/1.1 Basic dXNlcjpwdw=="),
        "{asked:?}"
    );
    assert!(asked[0].starts_with("CONNECT images.example:443 "), "TLS is tried first: {asked:?}");
}
