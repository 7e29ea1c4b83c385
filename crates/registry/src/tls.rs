//! Whom to believe: the system's certificate authorities, and those that the site and the user name for one server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use skiff_sys::{IgnoreError, SystemError};
use ureq::tls::{Certificate, ClientCert, RootCerts, TlsConfig, parse_pem};

use super::failure::Failure;
use crate::error::Error;

/// Where distributions keep their bundles of authorities: Debian, Red Hat, SUSE, Alpine.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What a user has of certificates, by its contents: who asks registries for them need not be able to read their files.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Certificates {
    /// The authorities that they name in the place of the system's.
    roots: Option<Vec<Vec<u8>>>,
    files: Vec<Pem>,
}

/// A file for one server: `*.crt` is an authority, `NAME.cert` and `NAME.key` are ourselves.
#[derive(Clone, Serialize, Deserialize)]
struct Pem {
    /// `HOST` or `HOST:PORT`.
    server: String,
    path: PathBuf,
    text: Vec<u8>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Certificates({:?})", self.files.iter().map(|pem| &pem.path).collect::<Vec<_>>())
    }
}

impl Certificates {
    /// Reads what `$SSL_CERT_FILE` and `$SSL_CERT_DIR` name, and the user's `certs.d`; their keys only for servers that are `concerned`.
    ///
    /// # Errors
    /// A file of those in `certs.d` cannot be read.
    pub fn of_user(concerned: impl Fn(&str) -> bool) -> Result<Certificates, Error> {
        let mut files = vec![];
        let certs_d = crate::user_dirs::config_home().map(|home| home.join("containers/certs.d"));
        for dir in certs_d.iter().flat_map(|dir| entries(dir)).filter(|dir| dir.is_dir()) {
            let server = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let found = match concerned(&server) {
                true => pem_files(&dir, &server, &[AUTHORITY, OURSELVES, KEY])
                    .map_err(|(path, e)| SystemError::new("read", path, e))?,
                false => pem_files(&dir, &server, &[AUTHORITY]).default_on_error("it may yet be asked, for a token say; if not, what is wrong with these is no reason to fail"),
            };
            files.extend(found);
        }
        Ok(Certificates { roots: named_roots(), files })
    }

    /// Whether the user leaves it to the site whom to believe to be `server`, and shows a certificate of theirs to no other: an answer that a
    /// redirect has led to one of those is not that server's own.
    pub(super) fn leave_to_site(&self, server: &str) -> bool {
        let has_say = |pem: &Pem| (pem.server == server) == pem.is(AUTHORITY);
        self.roots.is_none() && !self.files.iter().any(has_say)
    }

    /// What the user shows, without what they believe.
    pub(super) fn without_authorities(&self) -> Certificates {
        let files = self.files.iter().filter(|pem| !pem.is(AUTHORITY));
        Certificates { roots: None, files: files.cloned().collect() }
    }
}

impl Pem {
    fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|e| e == extension)
    }
}

const AUTHORITY: &str = "crt";
const OURSELVES: &str = "cert";
const KEY: &str = "key";

/// Where Podman and Docker have a directory per server, for all users.
pub fn certs_d() -> Vec<PathBuf> {
    ["/etc/containers/certs.d", "/etc/docker/certs.d"].map(PathBuf::from).into()
}

/// Where the site's authorities and certificates may lie: the places themselves, and what these lead to by links.
pub fn site_places() -> Vec<PathBuf> {
    let servers: Vec<PathBuf> = certs_d().iter().flat_map(|dir| entries(dir)).collect();
    let files = servers.iter().flat_map(|dir| entries(dir));
    BUNDLES.iter().map(PathBuf::from).chain(certs_d()).chain(files).chain(servers.clone()).collect()
}

/// How to do TLS with `server`, which is `HOST` or `HOST:PORT`.
pub(super) fn config(
    server: &str,
    own: &Certificates,
    certs_d: &[PathBuf],
    insecure: bool,
) -> Result<TlsConfig, Failure> {
    let mut files: Vec<Pem> = own.files.iter().filter(|pem| pem.server == server).cloned().collect();
    for dir in certs_d.iter().map(|dir| dir.join(server)).filter(|dir| dir.is_dir()) {
        let cannot = |(path, e)| Failure::Certificate(format!("cannot read {path}: {e}"));
        files.extend(pem_files(&dir, server, &[AUTHORITY, OURSELVES, KEY]).map_err(cannot)?);
    }
    let mut roots: Vec<Certificate<'static>> = match &own.roots {
        Some(texts) => texts.iter().flat_map(|text| certificates(text)).collect(),
        None => system_roots().to_vec(),
    };
    roots.extend(files.iter().filter(|pem| pem.is(AUTHORITY)).flat_map(|pem| certificates(&pem.text)));
    // The site's word comes last.
    let ourselves = files.iter().rfind(|pem| pem.is(OURSELVES));
    let client = ourselves.map(|pem| client_certificate(pem, &files)).transpose()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .client_cert(client)
        .disable_verification(insecure)
        .build())
}

/// What `$SSL_CERT_FILE` and `$SSL_CERT_DIR` have, as OpenSSL knows them; nothing if neither is set.
fn named_roots() -> Option<Vec<Vec<u8>>> {
    let (file, dir) =
        (crate::user_dirs::from_env("SSL_CERT_FILE"), crate::user_dirs::from_env("SSL_CERT_DIR"));
    let named = file.is_some() || dir.is_some();
    let files = file.into_iter().chain(dir.iter().flat_map(|dir| entries(dir)));
    // A file that cannot be read says no more than one that is missing: no server is believed for it.
    named.then(|| files.filter_map(|file| std::fs::read(file).ok()).collect())
}

/// The distribution's bundle. Read once.
fn system_roots() -> &'static [Certificate<'static>] {
    static ROOTS: OnceLock<Vec<Certificate<'static>>> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let bundle = BUNDLES.iter().find_map(|file| std::fs::read(file).ok());
        bundle.map(|pem| certificates(&pem)).unwrap_or_default()
    })
}

fn certificates(pem: &[u8]) -> Vec<Certificate<'static>> {
    let found = CertificateDer::pem_slice_iter(pem).flatten();
    found.map(|certificate| Certificate::from_der(&certificate).to_owned()).collect()
}

fn client_certificate(ourselves: &Pem, files: &[Pem]) -> Result<ClientCert, Failure> {
    let path = ourselves.path.with_extension(KEY);
    let bad = || Failure::Certificate(format!("{} holds no private key", path.display()));
    let pem = &files.iter().find(|pem| pem.path == path).ok_or_else(bad)?.text;
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| bad())?;
    let key = parse_pem(pem).flatten().find_map(|item| match item {
        ureq::tls::PemItem::PrivateKey(key) => Some(key),
        _ => None,
    });
    Ok(ClientCert::new_with_certs(&certificates(&ourselves.text), key.ok_or_else(bad)?))
}

/// The files of a server's directory that have these extensions; which one cannot be read, and why.
fn pem_files(dir: &Path, server: &str, wanted: &[&str]) -> Result<Vec<Pem>, (String, std::io::Error)> {
    let mut found = vec![];
    for path in entries(dir) {
        let pem = Pem { server: server.into(), path, text: vec![] };
        if wanted.iter().any(|extension| pem.is(extension)) {
            let text = std::fs::read(&pem.path).map_err(|e| (pem.path.display().to_string(), e))?;
            found.push(Pem { text, ..pem });
        }
    }
    Ok(found)
}

/// In the order of their names, so that the same one wins everywhere.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    entries
}
