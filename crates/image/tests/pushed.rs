//! A layer between two images, over the lower one, is the upper one; and documents say of each layer where it comes from.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::Read;

use crate::common::layers::build::RawEntry as Tar;
use crate::common::layers::{Assembled, from_bytes, from_entries};
use crate::common::seen::assert_same;
use proptest::prelude::*;
use serde_json::{Value, json};
use skiff_image::export::{ImageDocuments, ImageLayerSource, OpenImage, PackedLayerFile};
use skiff_oci::hash::sha256;
use skiff_oci::manifest::Compression;

const ALL: [Compression; 3] = [Compression::Plain, Compression::Gzip, Compression::Zstd];

fn opened(image: &Assembled) -> OpenImage {
    OpenImage { name: "image".into(), config: json!({}), file: File::open(&image.path).unwrap() }
}

fn bytes(made: &PackedLayerFile) -> Vec<u8> {
    let mut bytes = vec![];
    made.read_from(0).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!((made.layer.digest, made.layer.size), (sha256(&bytes), bytes.len() as u64));
    bytes
}

/// The layer's paths.
fn paths(bytes: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(bytes);
    let path = |entry: tar::Entry<'_, &[u8]>| String::from_utf8(entry.path_bytes().into_owned()).unwrap();
    archive.entries().unwrap().map(|entry| path(entry.unwrap())).collect()
}

/// The layer between two images, if they differ; together with the lower one's it is the upper one.
fn between(below: &Assembled, above: &Assembled) -> Vec<String> {
    let (lower, upper) = (opened(below), opened(above));
    let Some(plain) =
        upper.make_layer(Some(&lower), Compression::Plain, (tempfile::tempfile().unwrap(), "layer")).unwrap()
    else {
        assert_same(&above.seen(), &below.seen());
        return vec![];
    };
    let plain = bytes(&plain);
    for compression in ALL {
        let base = bytes(
            &lower.make_layer(None, compression, (tempfile::tempfile().unwrap(), "layer")).unwrap().unwrap(),
        );
        let made = upper
            .make_layer(Some(&lower), compression, (tempfile::tempfile().unwrap(), "layer"))
            .unwrap()
            .unwrap();
        assert_eq!(made.layer.diff_id, sha256(&plain), "{compression:?}");
        let again = from_bytes(&[base, bytes(&made)]).unwrap();
        assert_same(&again.seen(), &above.seen());
    }
    paths(&plain)
}

fn base() -> Vec<Tar> {
    vec![
        Tar::directory("bin").mode(0o755),
        Tar::file("bin/a", "a tool"),
        Tar::hard_link("bin/again", "bin/a"),
        Tar::file("bin/other", "another"),
        Tar::directory("etc"),
        Tar::file("etc/one", "1"),
        Tar::file("etc/two", "2").owner(3, 4),
        Tar::directory("etc/sub"),
        Tar::file("etc/sub/deep", "deep"),
        Tar::symlink("link", "etc/one"),
    ]
}

#[test]
fn a_layer_has_only_what_differs() {
    let below = from_entries(&[base()]).unwrap();
    assert!(between(&below, &below).is_empty());
    for (change, expected) in [
        // Written anew with the same content, owner and time it is the same file.
        (vec![Tar::file("etc/one", "1")], vec![]),
        (vec![Tar::file("etc/one", "I")], vec!["./", "etc/", "etc/one"]),
        (vec![Tar::file("etc/one", "1").mtime(7)], vec!["./", "etc/", "etc/one"]),
        (vec![Tar::file("etc/sub/new", "new")], vec!["./", "etc/", "etc/sub/", "etc/sub/new"]),
        (vec![Tar::file("etc/.wh.sub", "")], vec!["./", "etc/", "etc/.wh.sub"]),
        (vec![Tar::file("etc/.wh.sub", ""), Tar::file("etc/sub", "")], vec!["./", "etc/", "etc/sub"]),
        (vec![Tar::file(".wh.link", ""), Tar::directory("link")], vec!["./", "link/"]),
        (vec![Tar::directory("etc").mode(0o700)], vec!["./", "etc/"]),
        (vec![Tar::symlink("link", "etc/two")], vec!["./", "link"]),
        // Of several names all are there, or none.
        (vec![Tar::hard_link("new", "bin/a")], vec!["./", "bin/", "bin/a", "bin/again", "new"]),
        (vec![Tar::file("bin/.wh.again", "")], vec!["./", "bin/", "bin/a", "bin/.wh.again"]),
        (vec![Tar::file("bin/other", "changed")], vec!["./", "bin/", "bin/other"]),
    ] {
        let above = from_entries(&[base(), change]).unwrap();
        assert_eq!(between(&below, &above), expected);
    }
}

/// What may be at a path.
#[derive(Debug, Clone)]
enum Thing {
    Directory(u64),
    File(u8, u64),
    Symlink(u8),
    /// One more name of the first file.
    Again,
}

fn thing() -> impl Strategy<Value = Option<Thing>> {
    prop_oneof![
        2 => Just(None),
        3 => (0..2u64).prop_map(|mtime| Some(Thing::Directory(mtime))),
        3 => (0..2u8, 0..2u64).prop_map(|(content, mtime)| Some(Thing::File(content, mtime))),
        1 => (0..2u8).prop_map(|target| Some(Thing::Symlink(target))),
        2 => Just(Some(Thing::Again)),
    ]
}

/// In the order of an image.
const PATHS: [&str; 10] = ["a", "a/b", "a/b/c", "a/b/d", "a/b-", "a/c", "a-", "b", "b/a", "c"];

fn image() -> impl Strategy<Value = Vec<Tar>> {
    prop::collection::vec(thing(), PATHS.len()).prop_map(|things| {
        let mut directories = vec![""];
        let (mut first, mut entries) = (None, vec![]);
        for (path, thing) in PATHS.iter().zip(things) {
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            let Some(thing) = thing.filter(|_| directories.contains(&above)) else { continue };
            entries.push(match (thing, first) {
                (Thing::Directory(mtime), _) => {
                    directories.push(path);
                    Tar::directory(path).mtime(mtime)
                }
                (Thing::Again, Some(first)) => Tar::hard_link(path, first),
                (Thing::File(content, mtime), _) => {
                    first = first.or(Some(*path));
                    Tar::file(path, vec![content; 5000]).mtime(mtime)
                }
                (Thing::Again, None) => Tar::symlink(path, "2"),
                (Thing::Symlink(target), _) => Tar::symlink(path, target.to_string()),
            });
        }
        entries
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_layer_between_any_two_images_leads_from_one_to_the_other(below in image(), above in image()) {
        between(&from_entries(&[below]).unwrap(), &from_entries(&[above]).unwrap());
    }
}

#[test]
fn documents_name_each_layer_and_its_step() {
    let image = from_entries(&[base()]).unwrap();
    let layer = opened(&image)
        .make_layer(None, Compression::Gzip, (tempfile::tempfile().unwrap(), "layer"))
        .unwrap()
        .unwrap()
        .layer;
    let step = |name: &str, is_empty: bool| match is_empty {
        true => json!({"created_by": name, "empty_layer": true}),
        false => json!({"created_by": name}),
    };
    let below = json!({"config": {}, "history": [step("ADD", false), step("CMD", true)]});
    let top = json!({"config": {}, "architecture": "amd64", "os": "linux",
        "history": [step("ADD", true), step("CMD", true), step("RUN", true), step("ENV", true)]});
    let made = |steps| ImageLayerSource::Made { layer: layer.clone(), steps };
    let under = || ImageLayerSource::Below(layer.clone());
    let empty = |below: Option<&Value>, layers: &[ImageLayerSource]| -> Vec<bool> {
        let documents = ImageDocuments::new(&top, below, layers);
        let config: Value = serde_json::from_slice(&documents.config).unwrap();
        let manifest: Value = serde_json::from_slice(&documents.manifest).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), layers.len());
        assert_eq!(manifest["layers"].as_array().unwrap().len(), layers.len());
        assert_eq!(manifest["layers"][0]["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip");
        assert_eq!(documents.digest, sha256(&documents.manifest));
        let steps = config["history"].as_array().unwrap().iter();
        steps.map(|step| step["empty_layer"].as_bool().unwrap_or_default()).collect()
    };
    assert_eq!(empty(Some(&below), &[under(), made(4)]), [false, true, true, false]);
    assert_eq!(empty(None, &[made(2), made(4)]), [true, false, true, false]);
    assert_eq!(empty(None, &[made(4)]), [true, true, true, false]);
    // A history that knows less than there are layers.
    assert_eq!(empty(Some(&below), &[under(), under(), made(4)]), [false, false, true, true, true, false]);
    assert_eq!(empty(Some(&top), &[under(), made(4)]), [false, true, true, true, true, false]);
}
