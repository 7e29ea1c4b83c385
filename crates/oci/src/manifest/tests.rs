use crate::platform::Platform;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

fn digest(digit: char) -> String {
    format!("sha256:{}", digit.to_string().repeat(64))
}

fn manifest_json(layer_type: &str) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest('c'), "size": 7},
        "layers": [{"mediaType": layer_type, "digest": digest('1'), "size": 5, "urls": null, "x": {"y": 1}}],
        "annotations": {"a": "b"}, "unknown": [1, 2]
    })
}

fn entry(digit: char, os: &str, architecture: &str, variant: Option<&str>) -> Value {
    json!({
        "mediaType": OCI_MANIFEST, "digest": digest(digit), "size": 9,
        "platform": {"os": os, "architecture": architecture, "variant": variant}
    })
}

fn read(document: &Value, told: Option<&str>) -> Result<Document> {
    parse("x", document.to_string().as_bytes(), told)
}

fn refusal(document: &Value, told: Option<&str>) -> String {
    read(document, told).expect_err("must be refused").to_string()
}

#[test]
fn layers_are_known_by_their_media_types() {
    for (media_type, compression) in [
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression::Gzip),
        ("application/vnd.oci.image.layer.v1.tar+zstd", Compression::Zstd),
        ("application/vnd.oci.image.layer.v1.tar", Compression::Plain),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", Compression::Gzip),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", Compression::Zstd),
    ] {
        let Ok(Document::Manifest(manifest)) = read(&manifest_json(media_type), Some(OCI_MANIFEST)) else {
            panic!("{media_type}")
        };
        assert_eq!(manifest.layers[0].compression, compression, "{media_type}");
        assert_eq!(manifest.bytes(), 5);
    }
    for (media_type, word) in [
        ("application/vnd.cncf.helm.chart.content.v1.tar+gzip", "not an image"),
        ("x+encrypted", "encrypted"),
        ("", "not an image"),
    ] {
        let error = refusal(&manifest_json(media_type), None);
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let manifest = manifest_json("application/vnd.oci.image.layer.v1.tar");
    let changed = |key: &str, value: Value| {
        let mut document = manifest.clone();
        document[key] = value;
        document
    };
    let cases = [
        (changed("manifests", json!([])), None, "both"),
        (manifest.clone(), Some(OCI_INDEX), "the server says"),
        (changed("mediaType", json!(DOCKER_LIST)), None, "no list of manifests"),
        (changed("mediaType", json!("application/x")), None, "none of an image"),
        (changed("schemaVersion", json!(3)), None, "schemaVersion"),
        (changed("schemaVersion", json!(1)), None, "schema 1"),
        (changed("layers", Value::Null), None, "no configuration or no layers"),
        (changed("config", json!({"digest": digest('c'), "size": 5 << 20})), None, "are the limit"),
        (changed("config", json!({"digest": digest('c'), "size": -1})), None, "invalid value"),
        (changed("config", json!({"digest": "sha256:../../etc", "size": 1})), None, "64 lower-case"),
        (changed("layers", json!(vec![manifest["layers"][0].clone(); MAX_LAYERS + 1])), None, "1025 layers"),
        (json!([]), None, "not sound"),
    ];
    for (document, told, word) in cases {
        let error = refusal(&document, told);
        assert!(error.contains(word), "{error}");
    }
    let twice = r#"{"schemaVersion":2,"layers":[],"layers":[],"config":{"digest":"x","size":0}}"#;
    assert!(parse("x", twice.as_bytes(), None).expect_err("twice").to_string().contains("duplicate"));
    let long = vec![b' '; MAX_DOCUMENT as usize + 1];
    assert!(parse("x", &long, None).expect_err("too long").to_string().contains("longer"));
}

#[test]
fn an_index_gives_what_suits_the_machine() {
    let entries = vec![
        entry('0', "unknown", "unknown", None),
        entry('1', "linux", "arm", Some("v6")),
        entry('2', "linux", "arm", Some("v7")),
        entry('3', "linux", "arm64", Some("v8")),
        entry('4', "linux", "amd64", None),
        entry('5', "linux", "amd64", None),
        entry('6', "windows", "amd64", None),
    ];
    let index = json!({"schemaVersion": 2, "manifests": entries});
    let Ok(Document::Index(index)) = read(&index, Some(OCI_INDEX)) else { panic!("an index") };
    for (wanted, digit) in
        [("amd64", '4'), ("x86_64", '4'), ("amd64/v3", '4'), ("aarch64", '3'), ("armhf", '2'), ("armv6", '1')]
    {
        let wanted: Platform = wanted.parse().expect("known");
        let chosen = index.choose("x", &wanted).expect("it is there");
        assert_eq!(chosen.digest.to_string(), digest(digit), "{wanted}");
    }
    let error = index.choose("x", &"s390x".parse().expect("known")).expect_err("it is not there").to_string();
    assert!(
        error.contains("linux/s390x") && error.contains("linux/arm64") && !error.contains("unknown"),
        "{error}"
    );

    let only = json!({"schemaVersion": 2, "manifests": [{"mediaType": OCI_MANIFEST, "digest": digest('7'), "size": 1}]});
    let Ok(Document::Index(only)) = read(&only, None) else { panic!("an index") };
    assert_eq!(only.choose("x", &Platform::host()).map(|d| d.digest.to_string()).ok(), Some(digest('7')));
}

#[test]
fn a_configuration_is_read_with_whatever_is_missing() {
    let full = json!({
        "architecture": "amd64", "os": "linux", "created": "2024-01-01T00:00:00Z",
        "config": {
            "Env": ["A=1", "B="], "Entrypoint": ["/e"], "Cmd": null, "WorkingDir": "/w", "User": "1:2",
            "Labels": {"l": "v"}, "Volumes": {"/data": {}}, "ExposedPorts": {"80/tcp": {}}, "StopSignal": "SIGINT",
            "Healthcheck": {"Test": ["x"]}, "OnBuild": null
        },
        "rootfs": {"type": "layers", "diff_ids": [digest('a'), digest('b')]},
        "history": [{"created_by": "x", "empty_layer": true}, {"created_by": null}]
    });
    let config = ImageConfig::parse("x", full.to_string().as_bytes()).expect("sound");
    assert_eq!((config.exec.env.len(), config.exec.entrypoint.len(), config.exec.cmd.len()), (2, 1, 0));
    assert_eq!(config.exec.stop_signal.as_deref(), Some("SIGINT"));
    assert!(config.exec.volumes.contains("/data") && config.exec.exposed_ports.contains("80/tcp"));
    assert_eq!((config.diff_ids.len(), config.history.len()), (2, 2));
    assert_eq!(config.platform, Some(Platform::linux("amd64", None)));

    let least = json!({"rootfs": {"type": "layers"}, "config": null});
    let config = ImageConfig::parse("x", least.to_string().as_bytes()).expect("sound");
    assert_eq!((config.platform, config.exec), (None, ExecConfig::default()));

    for bad in [
        json!({}),
        json!({"rootfs": {"type": "vhd"}}),
        json!({"rootfs": {"type": "layers", "diff_ids": ["x"]}}),
    ] {
        assert!(ImageConfig::parse("x", bad.to_string().as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn manifest_and_configuration_must_agree() {
    let Ok(Document::Manifest(manifest)) =
        read(&manifest_json("application/vnd.oci.image.layer.v1.tar"), None)
    else {
        panic!("a manifest")
    };
    let config = |architecture: &str, layers: usize| {
        let diff_ids = vec![digest('a'); layers];
        let json = json!({"architecture": architecture, "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        ImageConfig::parse("x", json.to_string().as_bytes()).expect("sound")
    };
    let amd64 = Platform::linux("amd64", None);
    assert!(manifest.check_config("x", &config("amd64", 1), &amd64).is_ok());
    assert!(matches!(manifest.check_config("x", &config("arm64", 1), &amd64), Err(Error::NoPlatform { .. })));
    assert!(matches!(
        manifest.check_config("x", &config("amd64", 2), &amd64),
        Err(Error::BadManifest { .. })
    ));

    let abc = crate::hash::sha256(b"abc");
    let blob = |size| Descriptor {
        media_type: String::new(),
        digest: abc,
        size,
        urls: vec![],
        annotations: Default::default(),
    };
    assert!(blob(3).check("x", b"abc").is_ok());
    assert!(blob(4).check("x", b"abc").expect_err("longer").to_string().contains("3 bytes"));
    assert!(blob(3).check("x", b"abd").expect_err("other").to_string().contains("digest"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (Ok(_) | Err(_)) = parse("x", &bytes, None);
        let (Ok(_) | Err(_)) = ImageConfig::parse("x", &bytes);
    }

    /// Every single byte of a sound manifest may be wrong.
    #[test]
    fn damaged_manifests_are_read_or_refused(at in 0usize..400, byte: u8) {
        let mut bytes = manifest_json("application/vnd.oci.image.layer.v1.tar").to_string().into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        let (Ok(_) | Err(_)) = parse("x", &bytes, None);
    }
}
