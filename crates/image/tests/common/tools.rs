//! Programs of others, and what they read.

use std::path::Path;
use std::process::Command;

use skiff_oci::hash::sha256;

/// Whether the program is there. Where it is not, the test says that it is skipped, and fails in CI.
pub fn has(program: &str) -> bool {
    if Command::new(program).arg("--version").output().is_ok() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{program} is not installed");
    use std::io::Write;
    std::io::stderr().write_all(format!("SKIPPED: {program} is not installed\n").as_bytes()).unwrap();
    false
}

/// What it prints; it must not fail.
pub fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// An OCI image of these layers, which it calls x.
pub fn write_oci(dir: &Path, layers: &[Vec<u8>]) {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| {
        let digest = sha256(bytes);
        std::fs::write(blobs.join(digest.hex()), bytes).unwrap();
        (digest.to_string(), bytes.len())
    };
    let descriptor = |kind: &str, (digest, size): (String, usize)| {
        format!(r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"{digest}","size":{size}}}"#)
    };
    let layers: Vec<_> = layers.iter().map(|layer| put(layer)).collect();
    let ids: Vec<_> = layers.iter().map(|(digest, _)| format!("{digest:?}")).collect();
    let config = format!(
        r#"{{"architecture":"amd64","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
        ids.join(",")
    );
    let config = descriptor("config.v1+json", put(config.as_bytes()));
    let layers: Vec<_> = layers.into_iter().map(|layer| descriptor("layer.v1.tar", layer)).collect();
    let manifest = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, layers.join(","));
    let manifest = descriptor("manifest.v1+json", put(manifest.as_bytes()));
    let tagged = manifest.replace('}', r#","annotations":{"org.opencontainers.image.ref.name":"x"}}"#);
    std::fs::write(dir.join("index.json"), format!(r#"{{"schemaVersion":2,"manifests":[{tagged}]}}"#))
        .unwrap();
    std::fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}
