//! Debian's docker-registry on a free port of loopback, over a directory that several can share.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Of the user alice with the password "open sesame".
const HTPASSWD: &str = "alice:$2y$05$1a7dqNHa.oetcDHEn5ojYuQrBP35GvrfhFb1t1K72PKZBExJYCfbC\n";
pub const USER: &str = "alice";
pub const PASSWORD: &str = "open sesame";

/// Who may ask a registry.
pub enum Access<'a> {
    Anyone,
    Basic,
    /// Who has a token: the service's URL, and the certificate it signs with.
    Token {
        realm: String,
        certificate: &'a Path,
    },
}

/// A running registry; ended when dropped.
pub struct Registry {
    pub server: String,
    process: Child,
}

impl Registry {
    /// Over the blobs in `storage`; its configuration is written there too. With a certificate and key: over TLS.
    pub fn start(storage: &Path, access: &Access<'_>, tls: Option<(&Path, &Path)>) -> Registry {
        Registry::start_at("127.0.0.1", storage, access, tls)
    }

    /// At another address of this machine.
    pub fn start_at(
        address: &str,
        storage: &Path,
        access: &Access<'_>,
        tls: Option<(&Path, &Path)>,
    ) -> Registry {
        // Another may take the port before the registry has it.
        for _ in 0..5 {
            if let Some(registry) = Registry::try_start(address, storage, access, tls) {
                return registry;
            }
        }
        panic!("docker-registry does not start");
    }

    fn try_start(
        address: &str,
        storage: &Path,
        access: &Access<'_>,
        tls: Option<(&Path, &Path)>,
    ) -> Option<Registry> {
        let listener = TcpListener::bind((address, 0)).expect("a free port");
        let server = listener.local_addr().expect("its address").to_string();
        drop(listener);
        let config = storage.join(format!("{}.yml", server.replace(':', "-")));
        std::fs::write(&config, configuration(storage, &server, access, tls)).expect("a configuration");
        // Ends with this process, should that be killed.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "docker-registry", "serve"])
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry");
        let mut registry = Registry { server, process };
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if TcpStream::connect(&registry.server).is_ok() {
                return Some(registry);
            }
            if matches!(registry.process.try_wait(), Ok(Some(_))) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn configuration(storage: &Path, server: &str, access: &Access<'_>, tls: Option<(&Path, &Path)>) -> String {
    let auth = match access {
        Access::Anyone => String::new(),
        Access::Basic => {
            let file = storage.join("htpasswd");
            std::fs::write(&file, HTPASSWD).expect("a password file");
            format!("auth: {{htpasswd: {{realm: test, path: {file:?}}}}}\n")
        }
        Access::Token { realm, certificate } => format!(
            "auth: {{token: {{realm: {realm:?}, service: tests, issuer: tests, rootcertbundle: {certificate:?}}}}}\n"
        ),
    };
    let tls =
        tls.map(|(cert, key)| format!(", tls: {{certificate: {cert:?}, key: {key:?}}}")).unwrap_or_default();
    format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {:?}}}}}\n\
         http: {{addr: {server:?}{tls}}}\n{auth}",
        storage.join("data")
    )
}
