//! Small images, pushed as any client pushes them.

use serde_json::{Value, json};
use skiff_oci::hash;

/// Bytes that look random, and are the same each time.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub fn digest(bytes: &[u8]) -> String {
    hash::sha256(bytes).to_string()
}

/// Uploads a blob to a registry without authentication.
pub fn push_blob(server: &str, repository: &str, bytes: &[u8]) -> String {
    let digest = digest(bytes);
    let base = format!("http://{server}/v2/{repository}/blobs/uploads/");
    let begun = ureq::post(&base).send_empty().expect("an upload begun");
    let place = begun.headers()["location"].to_str().expect("a location").to_owned();
    let place = if place.starts_with('/') { format!("http://{server}{place}") } else { place };
    let join = if place.contains('?') { '&' } else { '?' };
    let upload = ureq::put(format!("{place}{join}digest={digest}")).content_type("application/octet-stream");
    assert_eq!(upload.send(bytes).expect("a blob").status(), 201);
    digest
}

/// Uploads a manifest or index under a tag.
pub fn push_manifest(server: &str, repository: &str, tag: &str, manifest: &Value) -> String {
    let media_type = manifest["mediaType"].as_str().expect("a media type");
    let bytes = manifest.to_string();
    let put = ureq::put(format!("http://{server}/v2/{repository}/manifests/{tag}")).content_type(media_type);
    assert_eq!(put.send(bytes.as_bytes()).expect("a manifest").status(), 201);
    digest(bytes.as_bytes())
}

/// Pushes an image of these layers, whose content does not matter here; gives its manifest.
pub fn push_image(
    server: &str,
    repository: &str,
    tag: &str,
    architecture: &str,
    layers: &[Vec<u8>],
) -> Value {
    let diff_ids: Vec<_> = layers.iter().map(|layer| digest(layer)).collect();
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {"Env": ["A=1"], "Cmd": ["/bin/true"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids}
    });
    let config = config.to_string().into_bytes();
    push_blob(server, repository, &config);
    let layer = |bytes: &Vec<u8>| {
        let digest = push_blob(server, repository, bytes);
        json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": bytes.len()})
    };
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(&config), "size": config.len()
        },
        "layers": layers.iter().map(layer).collect::<Vec<_>>(),
    });
    push_manifest(server, repository, tag, &manifest);
    manifest
}

/// Pushes an index of images.
pub fn push_index(server: &str, repository: &str, tag: &str, images: &[(&str, &Value)]) -> String {
    let entry = |(architecture, manifest): &(&str, &Value)| {
        let bytes = manifest.to_string();
        json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(bytes.as_bytes()),
            "size": bytes.len(), "platform": {"os": "linux", "architecture": architecture}
        })
    };
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": images.iter().map(entry).collect::<Vec<_>>()
    });
    push_manifest(server, repository, tag, &index)
}
