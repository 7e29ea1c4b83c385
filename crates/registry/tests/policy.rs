//! Signed images in a real registry, signed by OpenSSL the way cosign does, and a policy that demands it.

use std::path::Path;
use std::process::Command;

use crate::support;
use crate::support::images::{noise, push_blob, push_image, push_index, push_manifest};
use crate::support::server::{Access, Registry};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use skiff_oci::platform::Platform;
use skiff_registry::auth::Credentials;
use skiff_registry::policy::{Policies, Policy};
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{Client, ClientSettings, Error, Resolved};

/// Signs what lies in the file `payload` of a directory with a new key there.
fn openssl(dir: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").current_dir(dir).args(arguments).output().expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Puts a signature for the digest beside the images of `team/tool`.
fn push_signature(dir: &Path, server: &str, digest: &str, name: &str) {
    let payload = json!({
        "critical": {
            "identity": {"docker-reference": name},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature"
        },
        "optional": null
    });
    let payload = payload.to_string().into_bytes();
    std::fs::write(dir.join("payload"), &payload).expect("a file");
    openssl(dir, &["dgst", "-sha256", "-sign", "key.pem", "-out", "signature", "payload"]);
    let signature = std::fs::read(dir.join("signature")).expect("a signature");
    let blob = push_blob(server, "team/tool", &payload);
    let config = push_blob(server, "team/tool", b"{}");
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 2},
        "layers": [{
            "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "digest": blob, "size": payload.len(),
            "annotations": {"dev.cosignproject.cosign/signature": BASE64_STANDARD.encode(signature)}
        }]
    });
    push_manifest(server, "team/tool", &format!("{}.sig", digest.replace(':', "-")), &manifest);
}

#[test]
fn a_site_can_demand_signed_images() {
    if !support::have(&["docker-registry", "setpriv", "openssl"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let registry = Registry::start(dir, &Access::Anyone, None);
    let server = registry.server.as_str();
    openssl(dir, &["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem"]);
    openssl(dir, &["ec", "-in", "key.pem", "-pubout", "-out", "key.pub"]);

    let client = Client::new(ClientSettings::default(), RegistriesConf::default(), Credentials::default());
    let resolve = |tag: &str| -> Resolved {
        let name = format!("{server}/team/tool:{tag}").parse().expect("a name");
        client.resolve(&name, &Platform::linux("amd64", None)).expect("an image")
    };
    let mut images = vec![];
    for (seed, tag) in [(1, "signed"), (2, "unsigned"), (3, "misnamed"), (4, "member")] {
        images.push(push_image(server, "team/tool", tag, "amd64", &[noise(seed, 100)]));
    }
    let index = push_index(server, "team/tool", "index", &[("amd64", &images[3])]);
    push_signature(dir, server, &resolve("signed").digest.to_string(), &format!("{server}/team/tool:signed"));
    push_signature(
        dir,
        server,
        &resolve("misnamed").digest.to_string(),
        &format!("{server}/team/tool:other"),
    );
    push_signature(dir, server, &index, &format!("{server}/team/tool:index"));

    let policies = |json: serde_json::Value| {
        Policies::of(vec![Policy::parse("policy.json", json.to_string().as_bytes()).expect("a policy")])
    };
    let admit = |policies: &Policies, tag| {
        let image = resolve(tag);
        policies.admit(&image, || client.signatures(&image))
    };
    let demand = json!({"type": "sigstoreSigned", "keyPath": dir.join("key.pub")});
    let strict =
        policies(json!({"default": [{"type": "reject"}], "transports": {"docker": {server: [demand]}}}));
    admit(&strict, "signed").expect("it is signed");
    admit(&strict, "index").expect("the index is signed");
    for (tag, word) in [
        ("unsigned", "it has no signature"),
        ("misnamed", "it is for the name"),
        ("member", "it has no signature"),
    ] {
        let error = admit(&strict, tag).expect_err("it is not signed so");
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(word) && text.contains("policy.json") && text.contains(tag), "{text}");
    }
    // The tag is moved to another image: the signature stays with the old one.
    push_manifest(server, "team/tool", "signed", &images[1]);
    assert!(admit(&strict, "signed").is_err());

    let by_name = json!({"type": "matchRepository"});
    let demand = json!({"type": "sigstoreSigned", "keyPath": dir.join("key.pub"), "signedIdentity": by_name});
    let loose = policies(json!({"default": [demand]}));
    admit(&loose, "misnamed").expect("the repository is the same");
    openssl(dir, &["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "other.pem"]);
    openssl(dir, &["ec", "-in", "other.pem", "-pubout", "-out", "key.pub"]);
    let others = policies(json!({"default": [{"type": "sigstoreSigned", "keyPath": dir.join("key.pub")}]}));
    let text = admit(&others, "misnamed").expect_err("another key").to_string();
    assert!(text.contains("not by one of the keys"), "{text}");
}
