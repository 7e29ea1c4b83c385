//! Whom to believe: the system's certificate authorities, and those the site names for one server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use ureq::tls::{Certificate, ClientCert, RootCerts, TlsConfig, parse_pem};

use super::failure::Failure;

/// Where distributions keep their bundles of authorities: Debian, Red Hat, SUSE, Alpine.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Where Podman and Docker have a directory per server, with `*.crt` (authorities), `NAME.cert` and `NAME.key` (ourselves).
pub fn certs_d() -> Vec<PathBuf> {
    let user = crate::places::config_home().map(|home| home.join("containers/certs.d"));
    let site = ["/etc/containers/certs.d", "/etc/docker/certs.d"].map(PathBuf::from);
    user.into_iter().chain(site).collect()
}

/// How to do TLS with `server`, which is `HOST` or `HOST:PORT`.
pub(super) fn config(server: &str, certs_d: &[PathBuf], insecure: bool) -> Result<TlsConfig, Failure> {
    let mut roots: Vec<Certificate<'static>> = system_roots().to_vec();
    let mut client = None;
    for dir in certs_d.iter().map(|dir| dir.join(server)).filter(|dir| dir.is_dir()) {
        for file in files(&dir) {
            match file.extension().and_then(|e| e.to_str()) {
                Some("crt") => roots.extend(certificates(&read(&file)?)),
                Some("cert") => client = Some(client_certificate(&file)?),
                _ => {}
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .client_cert(client)
        .disable_verification(insecure)
        .build())
}

/// `$SSL_CERT_FILE` and `$SSL_CERT_DIR` as OpenSSL knows them, else the distribution's bundle. Read once.
fn system_roots() -> &'static [Certificate<'static>] {
    static ROOTS: OnceLock<Vec<Certificate<'static>>> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let (file, dir) = (crate::places::from_env("SSL_CERT_FILE"), crate::places::from_env("SSL_CERT_DIR"));
        let named: Vec<PathBuf> = file.into_iter().chain(dir.iter().flat_map(|dir| files(dir))).collect();
        let sources = match named.is_empty() {
            true => BUNDLES.iter().map(PathBuf::from).find(|file| file.exists()).into_iter().collect(),
            false => named,
        };
        // A file that cannot be read says no more than one that is missing: no server is believed for it.
        let texts = sources.iter().filter_map(|file| std::fs::read(file).ok());
        texts.flat_map(|pem| certificates(&pem)).collect()
    })
}

fn certificates(pem: &[u8]) -> Vec<Certificate<'static>> {
    let found = CertificateDer::pem_slice_iter(pem).flatten();
    found.map(|certificate| Certificate::from_der(&certificate).to_owned()).collect()
}

fn client_certificate(file: &Path) -> Result<ClientCert, Failure> {
    let chain = certificates(&read(file)?);
    let key_file = file.with_extension("key");
    let pem = read(&key_file)?;
    let bad = || Failure::Certificate(format!("{} holds no private key", key_file.display()));
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| bad())?;
    let key = parse_pem(&pem).flatten().find_map(|item| match item {
        ureq::tls::PemItem::PrivateKey(key) => Some(key),
        _ => None,
    });
    Ok(ClientCert::new_with_certs(&chain, key.ok_or_else(bad)?))
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|e| Failure::Certificate(format!("cannot read {}: {e}", file.display())))
}

/// In the order of their names, so that the same one wins everywhere.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    files
}
