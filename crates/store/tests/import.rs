//! Archives and directories of layers, as skopeo, umoci and `docker save` write them: each gives the tree that umoci unpacks.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::layers::build::{RawEntry as Tar, archive};
use crate::common::layers::piped;
use crate::common::mounted::of_directory;
use crate::common::seen::{Seen, assert_same, without_devices};
use crate::common::stores::TestStore;
use crate::common::tools::{has, run, write_oci};
use crate::common::{bytes, is_root};
use serde_json::{Value, json};
use skiff_image::Error::{NotInside, WrongDigest};
use skiff_image::export::{OpenImage, Target, export};
use skiff_image::source::{Description, Form, ImageSource};
use skiff_ipc::Message;
use skiff_oci::hash::sha256;
use skiff_oci::platform::Platform;
use skiff_store::Error;
use skiff_store::protocol::StoreRequest;

fn layers() -> Vec<Vec<u8>> {
    let lower = [
        Tar::directory("./"),
        Tar::directory("d/"),
        Tar::file("d/removed", b"x"),
        Tar::file("d/big", bytes(300_000, 1)).owner(70_000, 5).mode(0o4755),
        Tar::hard_link("d/again", "d/big"),
        Tar::symlink("d/link", "../d/big"),
        Tar::file("d/cap", b"c").pax("SCHILY.xattr.security.capability", common::CAPABILITY),
        Tar::new(b'3', "null").device(1, 3),
        Tar::new(b'6', "fifo"),
        Tar::directory("d/"),
        Tar::directory("./"),
    ];
    let upper = [Tar::file("d/.wh.removed", b""), Tar::file("d/new", b"new"), Tar::directory("d/")];
    vec![archive(&lower), archive(&upper)]
}

/// The image of these layers, and what umoci makes of it; `None` if this cannot be tried here.
fn bench(test: &str) -> Option<(tempfile::TempDir, Seen)> {
    if !is_root(test) || !has("umoci") || !has("skopeo") {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    write_oci(&dir.path().join("oci"), &layers());
    let expected = unpacked(dir.path(), "oci");
    Some((dir, expected))
}

fn unpacked(dir: &Path, layout: &str) -> Seen {
    let bundle = dir.join(format!("bundle-{layout}"));
    let image = format!("{}:x", dir.join(layout).display());
    run(Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle));
    without_devices(without_root(of_directory(&bundle.join("rootfs"))))
}

/// umoci gives the root the time of day.
fn without_root(mut seen: Seen) -> Seen {
    seen.remove(&vec![]);
    seen
}

fn skopeo(dir: &Path, to: &str) {
    let from = format!("oci:{}:x", dir.join("oci").display());
    run(Command::new("skopeo").args(["copy", "--quiet", "--insecure-policy", &from, to]));
}

#[test]
fn what_skopeo_writes_is_read() {
    let Some((dir, expected)) = bench("what_skopeo_writes_is_read") else { return };
    let path = |name: &str| dir.path().join(name).display().to_string();
    for to in [
        format!("docker-archive:{}:team/tool:1", path("docker.tar")),
        format!("oci-archive:{}:x", path("oci.tar")),
        format!("oci:{}:x", path("other")),
        format!("dir:{}", path("dir")),
    ] {
        skopeo(dir.path(), &to);
        let store = TestStore::new();
        assert_same(&without_root(store.imported(&to)), &expected);
        assert!(store.import(&to).unwrap().there, "{to}: imported again, it is there");
    }
    let store = TestStore::new();
    for name in ["team/tool:1", "docker.io/team/tool:1", "@0"] {
        store.imported(&format!("docker-archive:{}:{name}", path("docker.tar")));
    }
    assert_eq!(store.store.images().unwrap().len(), 1, "it is the same image by each name, and without one");
}

#[test]
fn a_layout_is_read_with_its_own_digest() {
    let Some((dir, expected)) = bench("a_layout_is_read_with_its_own_digest") else { return };
    let layout = dir.path().join("oci");
    let index: Value = serde_json::from_slice(&std::fs::read(layout.join("index.json")).unwrap()).unwrap();
    let store = TestStore::new();
    let image = store.import(&format!("oci:{}:x", layout.display())).unwrap();
    assert_eq!(image.digest.to_string(), index["manifests"][0]["digest"]);
    assert_same(&without_root(store.seen(&image)), &expected);
    let layers: Vec<_> = image.record.layers.iter().map(|layer| layer.digest.clone()).collect();
    assert_eq!(layers, layers_digests());
}

fn layers_digests() -> Vec<String> {
    layers().iter().map(|layer| sha256(layer).to_string()).collect()
}

/// What is not part of the image is passed over, however much it is.
#[test]
fn an_archive_of_many_gib_is_read_where_it_matters() {
    let dir = tempfile::tempdir().unwrap();
    let layers = layers();
    let path = docker_save(dir.path(), &layers, &config(&layers), |_| ());
    let reference = format!("docker-archive:{}:team/tool:1", path.display());
    let expected = TestStore::new().imported(&reference);
    let saved = std::fs::read(&path).unwrap();
    let size: u64 = (5 << 30) + 1;
    let before = Tar::file("of-another-image.tar", b"").pax("size", size.to_string()).bytes();
    let file = File::create(&path).unwrap();
    file.write_all_at(&before, 0).unwrap();
    file.write_all_at(&saved, before.len() as u64 + size.next_multiple_of(512)).unwrap();
    assert_same(&TestStore::new().imported(&reference), &expected);
}

/// What `umoci repack` makes: gzip layers, and a configuration that umoci changed.
#[test]
fn what_umoci_writes_is_read() {
    let Some((dir, _)) = bench("what_umoci_writes_is_read") else { return };
    let bundle = dir.path().join("bundle-oci");
    std::fs::write(bundle.join("rootfs/d/more"), bytes(100_000, 3)).unwrap();
    std::fs::remove_file(bundle.join("rootfs/null")).unwrap();
    let image = |tag: &str| format!("{}:{tag}", dir.path().join("oci").display());
    run(Command::new("umoci").args(["repack", "--image", &image("x")]).arg(&bundle));
    std::fs::remove_dir_all(&bundle).unwrap();
    let again = unpacked(dir.path(), "oci");
    let store = TestStore::new();
    assert_same(&without_root(store.imported(&format!("oci:{}", image("x")))), &again);
}

/// An archive as Docker before 25 saved it: a directory a layer, layers that others have too as symbolic links.
fn docker_save(
    dir: &Path,
    layers: &[Vec<u8>],
    config: &Value,
    change: impl FnOnce(&mut Vec<Tar>),
) -> PathBuf {
    let config = config.to_string();
    let config_name = format!("{}.json", sha256(config.as_bytes()).hex());
    let names: Vec<String> = (0..=layers.len()).map(|number| format!("{number:064x}/layer.tar")).collect();
    let mut entries = vec![Tar::file(&config_name, config.as_bytes())];
    for (name, layer) in names.iter().zip(layers) {
        let directory = name.trim_end_matches("layer.tar");
        entries.extend([Tar::directory(directory), Tar::file(format!("{directory}VERSION"), b"1.0")]);
        entries.push(Tar::file(name, layer));
    }
    entries.push(Tar::symlink(&names[layers.len()], format!("../{}", names[0])));
    let last = names[1..].iter();
    let item = json!({
        "Config": config_name, "RepoTags": ["team/tool:1", "other:2"],
        "Layers": std::iter::once(&names[layers.len()]).chain(last.take(layers.len() - 1)).collect::<Vec<_>>()
    });
    entries.push(Tar::file("manifest.json", json!([item]).to_string()));
    entries.push(Tar::file("repositories", b"{}"));
    change(&mut entries);
    let path = dir.join("saved.tar");
    std::fs::write(&path, archive(&entries)).unwrap();
    path
}

fn config(layers: &[Vec<u8>]) -> Value {
    let diff_ids: Vec<_> = layers.iter().map(|layer| sha256(layer).to_string()).collect();
    json!({
        "architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"], "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids}
    })
}

#[test]
fn what_docker_saves_is_read() {
    let Some((dir, expected)) = bench("what_docker_saves_is_read") else { return };
    let layers = layers();
    let path = docker_save(dir.path(), &layers, &config(&layers), |_| ());
    let plain = std::fs::read(&path).unwrap();
    let mut digests = vec![];
    for packer in [&["cat"][..], &["gzip", "-1"], &["zstd", "-q"]] {
        std::fs::write(&path, piped(packer[0], &packer[1..], &plain)).unwrap();
        let store = TestStore::new();
        let image = store.import(&format!("docker-archive:{}:team/tool:1", path.display())).unwrap();
        assert_same(&without_root(store.seen(&image)), &expected);
        assert_eq!(image.record.config["config"]["Env"][0], "A=1");
        digests.push(image.digest);
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "however the archive is compressed, it is one image");
    // Docker's newer store leaves layers compressed.
    let gzip: Vec<Vec<u8>> = layers.iter().map(|layer| piped("gzip", &["-1"], layer)).collect();
    let path = docker_save(dir.path(), &gzip, &config(&layers), |_| ());
    assert_same(
        &without_root(TestStore::new().imported(&format!("docker-archive:{}", path.display()))),
        &expected,
    );
}

#[test]
fn damaged_and_forged_archives_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let layers = layers();
    let store = TestStore::new();
    let refused = |because: &str, config: &Value, change: &dyn Fn(&mut Vec<Tar>)| {
        let path = docker_save(dir.path(), &layers, config, change);
        let error = store.refused(&format!("docker-archive:{}", path.display()));
        assert!(error.to_string().contains(because), "{error} does not say {because:?}");
    };
    let sound = config(&layers);
    refused("twice", &sound, &|entries| entries.push(Tar::file("./manifest.json", b"[]")));
    refused("outside", &sound, &|entries| entries.push(Tar::file("../evil", b"")));
    refused("outside", &sound, &|entries| entries.push(Tar::file("/evil", b"")));
    refused("there is no", &sound, &|entries| drop(entries.remove(3)));
    refused("no manifest.json", &sound, &|entries| drop(entries.drain(entries.len() - 2..)));
    refused("manifest.json", &sound, &|entries| {
        entries.retain(|entry| !entry.bytes().starts_with(b"manifest.json"));
        entries.push(Tar::file("manifest.json", b"{\"Config\":"));
    });
    refused("not what its digest promises", &config(&[layers[1].clone(), layers[0].clone()]), &|_| ());
    refused("layers where", &config(&layers[..1]), &|_| ());
    let mut other = sound.clone();
    other["architecture"] = "s390x".into();
    refused("linux/s390x", &other, &|_| ());
    let absolute = Tar::symlink(format!("{:064x}/layer.tar", 2), "/etc/passwd");
    refused("leads out", &sound, &|entries| {
        let at = entries.len() - 3;
        entries[at] = absolute.clone();
    });

    let path = docker_save(dir.path(), &layers, &sound, |_| ());
    let whole = std::fs::read(&path).unwrap();
    for len in [0, 1, 511, 512, 5000, whole.len() / 2] {
        std::fs::write(&path, &whole[..len]).unwrap();
        store.refused(&format!("docker-archive:{}", path.display()));
    }
    std::fs::write(&path, &piped("gzip", &["-1"], &whole)[..10_000]).unwrap();
    let error = store.refused(&format!("docker-archive:{}", path.display()));
    assert!(error.to_string().contains("cut off"), "{error}");
}

/// Some tools call a configuration as they like, or change what is in it without giving it another name.
#[test]
fn a_configuration_may_have_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let layers = layers();
    let config = config(&layers);
    let named = format!("{}.json", sha256(config.to_string().as_bytes()).hex());
    for name in [format!("{}.json", "0".repeat(64)), "config".into(), "dir/image.json".into()] {
        let path = docker_save(dir.path(), &layers, &config, |entries| {
            entries[0] = Tar::file(&name, config.to_string());
            let list = entries.iter_mut().find(|entry| entry.bytes().starts_with(b"manifest.json")).unwrap();
            let text = list.bytes()[512..].to_vec();
            let text = String::from_utf8(text).unwrap().trim_end_matches('\0').replace(&named, &name);
            *list = Tar::file("manifest.json", text);
        });
        let image = TestStore::new().import(&format!("docker-archive:{}", path.display())).unwrap();
        assert_eq!(image.record.config["config"]["Env"][0], "A=1", "{name}");
    }
}

/// What `docker export` and mmdebstrap write, and a directory of such files.
#[test]
fn the_files_of_a_root_are_an_image() {
    let dir = tempfile::tempdir().unwrap();
    let entries = [
        Tar::directory("./"),
        Tar::symlink("./bin", "usr/bin"),
        Tar::directory("./usr/"),
        Tar::file("./usr/bin/tool", bytes(300_000, 1)).mode(0o755),
        Tar::hard_link("./usr/bin/again", "./usr/bin/tool"),
        Tar::new(b'3', "./dev/null").device(1, 3),
        // Which an archive of an image may not have.
        Tar::file("./etc/passwd", b"before"),
        Tar::file("./etc/passwd", b"root:x:0:0::/:/bin/sh"),
    ];
    let plain = archive(&entries);
    let path = dir.path().join("root.tar");
    let mut digests = vec![];
    let import = || {
        let store = TestStore::new();
        let image = store.import_source(1000, &ImageSource::open_path(&path).unwrap()).unwrap();
        store.store.verify(image.id).unwrap();
        (store.seen(&image), image)
    };
    for packer in [&["cat"][..], &["gzip", "-1"], &["zstd", "-q"]] {
        std::fs::write(&path, piped(packer[0], &packer[1..], &plain)).unwrap();
        digests.push(import().1.digest);
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "however it is compressed, it is one image");
    std::fs::write(&path, &plain).unwrap();
    let (expected, image) = import();
    let passwd = expected.iter().find(|(path, _)| path.ends_with(b"etc/passwd")).unwrap().1;
    assert_eq!(passwd.size, 21, "the later one");
    assert_eq!(image.record.config["architecture"], "amd64");

    // Out as a directory, and in again: all belongs to root, as it does where a user has unpacked it.
    let root = dir.path().join("root");
    let store = TestStore::new();
    let image = store.import_source(1000, &ImageSource::open_path(&path).unwrap()).unwrap();
    let file = store.store.open_image(image.id).unwrap();
    let image = OpenImage { name: "root".into(), config: image.record.config.clone(), file };
    let target: Target = format!("{}/", root.display()).parse().unwrap();
    export(&image, &target).unwrap();
    assert!(export(&image, &target).is_err(), "it is not empty");
    let again = TestStore::new();
    let imported = again.import_source(1000, &ImageSource::open_path(&root).unwrap()).unwrap();
    assert_same(&again.seen(&imported), &expected);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
}

/// More than a process may have open twice, and than Docker's graph drivers stack.
#[test]
fn hundreds_of_layers_are_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let layers: Vec<_> = (0..600).map(|n| archive(&[Tar::file(format!("f{n}"), n.to_string())])).collect();
    let layout = dir.path().join("oci");
    write_oci(&layout, &layers);
    let (description, files) =
        ImageSource::open_path(&layout).unwrap().hand_over(&Platform::linux("amd64", None)).unwrap();
    assert!((600..=StoreRequest::DESCRIPTORS).contains(&files.len()), "{}", files.len());
    let store = TestStore::new();
    let image = store.import_source(1000, &ImageSource::given(description, files).unwrap()).unwrap();
    assert_eq!(store.seen(&image).len(), 601);
}

#[test]
fn which_image_is_asked_when_there_are_several() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::new();
    let layers = layers();
    write_oci(&dir.path().join("oci"), &layers);
    let index = dir.path().join("oci/index.json");
    let mut list: Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    let mut second = list["manifests"][0].clone();
    second["annotations"]["org.opencontainers.image.ref.name"] = "y".into();
    list["manifests"].as_array_mut().unwrap().push(second);
    std::fs::write(&index, list.to_string()).unwrap();
    let oci = format!("oci:{}", dir.path().join("oci").display());
    for reference in [oci.clone(), format!("{oci}:z")] {
        let error = store.refused(&reference);
        assert!(matches!(&error, Error::Image(NotInside { offered, .. }) if offered == "x, y"), "{error}");
        assert!(error.hint().is_some());
    }
    store.import(&format!("{oci}:y")).unwrap();
}

#[test]
fn links_out_of_a_directory_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::new();
    let layout = dir.path().join("oci");
    write_oci(&layout, &layers());
    let layer = layout.join("blobs/sha256").join(sha256(&layers()[0]).hex());
    let (outside, inside) = (dir.path().join("layer"), layout.join("layer"));
    std::fs::copy(&layer, &outside).unwrap();
    std::fs::rename(&layer, &inside).unwrap();
    let reference = format!("oci:{}:x", layout.display());
    for target in [outside.as_path(), Path::new("../../../layer"), Path::new("/proc/self/fd/0")] {
        std::os::unix::fs::symlink(target, &layer).unwrap();
        let error = store.refused(&reference);
        assert!(error.to_string().contains("leads out"), "{error}");
        std::fs::remove_file(&layer).unwrap();
    }
    rustix::fs::mknodat(rustix::fs::CWD, &layer, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert!(store.refused(&reference).to_string().contains("not a regular file"));
    std::fs::remove_file(&layer).unwrap();
    std::os::unix::fs::symlink("../../layer", &layer).unwrap();
    store.import(&reference).unwrap();
}

/// Whoever knows the manifest of an image in the store, but has no layers, must not get it.
#[test]
fn an_image_that_is_there_is_not_given_for_its_manifest_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::new();
    let layout = dir.path().join("oci");
    write_oci(&layout, &layers());
    let reference = format!("oci:{}:x", layout.display());
    let image = store.import_for(1000, &reference).unwrap();
    let layer = layout.join("blobs/sha256").join(sha256(&layers()[0]).hex());
    let len = std::fs::metadata(&layer).unwrap().len() as usize;
    std::fs::write(&layer, vec![0; len]).unwrap();
    let error = store.import_for(1001, &reference).unwrap_err();
    assert!(matches!(error, Error::Image(WrongDigest { .. })), "{error}");
    assert!(!store.store.permitted(1001, image.id));
    assert!(store.import_for(1000, &reference).unwrap().there, "who has it keeps it");
}

/// The same by a file that is called an image, but is the other one's manifest.
#[test]
fn a_manifest_is_not_taken_for_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::new();
    let layout = dir.path().join("oci");
    write_oci(&layout, &layers());
    let image = store.import_for(1000, &format!("oci:{}:x", layout.display())).unwrap();
    let manifest = layout.join("blobs/sha256").join(image.id.to_string());
    for name in ["x.sqsh", "x.sif", "x.erofs"] {
        let forged = dir.path().join(name);
        std::fs::copy(&manifest, &forged).unwrap();
        store.import_for(1001, &forged.display().to_string()).unwrap_err();
        assert!(!store.store.permitted(1001, image.id), "{name}");
    }
}

/// The writer of the trusted store may read nothing of a user's: it gets open what the image consists of.
#[test]
fn what_was_opened_by_another_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let platform = Platform::linux("amd64", None);
    let layout = dir.path().join("oci");
    write_oci(&layout, &layers());
    let saved = docker_save(dir.path(), &layers(), &config(&layers()), |_| ());
    let oci: ImageSource =
        ImageSource::open(&format!("oci:{}:x", layout.display()).parse().unwrap()).unwrap();
    for (source, count) in [
        (oci, 5),
        (ImageSource::open_path(&layout).unwrap(), 5),
        (ImageSource::open_path(&saved).unwrap(), 0),
    ] {
        let (description, files) = source.hand_over(&platform).unwrap();
        assert_eq!((description.files.len(), files.len()), (count, count + 1), "{description:?}");
        let store = TestStore::new();
        let source = ImageSource::given(description.clone(), files).unwrap();
        std::fs::rename(&layout, dir.path().join("away")).unwrap();
        store.import_source(1000, &source).unwrap();
        std::fs::rename(dir.path().join("away"), &layout).unwrap();
        let file = || std::fs::File::open(&saved).unwrap().into();
        assert!(ImageSource::given(description.clone(), vec![]).is_err());
        let directory = || std::fs::File::open(&layout).unwrap().into();
        for form in [Form::DockerArchive, Form::OciArchive, Form::Archive, Form::Squashfs] {
            let forged = Description { form, files: vec![], ..description.clone() };
            let error = ImageSource::given(forged, vec![directory()]).err().unwrap().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
        assert!(ImageSource::given(description, (0..count + 2).map(|_| file()).collect()).is_err());
    }
}

#[test]
fn a_path_without_a_prefix_is_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("oci");
    write_oci(&layout, &layers());
    let saved = docker_save(dir.path(), &layers(), &config(&layers()), |_| ());
    let docker = std::fs::read(&saved).unwrap();
    let mut entries = vec![];
    for path in ["index.json", "oci-layout"] {
        entries.push(Tar::file(path, std::fs::read(layout.join(path)).unwrap()));
    }
    for blob in std::fs::read_dir(layout.join("blobs/sha256")).unwrap() {
        let path = blob.unwrap().path();
        let name = format!("blobs/sha256/{}", path.file_name().unwrap().display());
        entries.push(Tar::file(name, std::fs::read(path).unwrap()));
    }
    let oci = archive(&entries);
    let mut seen = vec![];
    for bytes in [&oci, &piped("gzip", &["-1"], &oci), &docker, &piped("zstd", &["-q"], &docker)] {
        let path = dir.path().join("archive");
        std::fs::write(&path, bytes).unwrap();
        let store = TestStore::new();
        let image = store.import_source(1000, &ImageSource::open_path(&path).unwrap()).unwrap();
        seen.push(store.seen(&image));
    }
    seen.windows(2).for_each(|two| assert_same(&two[0], &two[1]));

    let refused = |path: &Path| {
        let import = |source| TestStore::new().import_source(1000, &source).map(drop);
        ImageSource::open_path(path).map_err(Error::from).and_then(import).unwrap_err()
    };
    let path = dir.path().join("archive");
    for (bytes, because) in [
        (archive(&[Tar::file("etc/passwd", b"root")]), "without an image"),
        (b"text".to_vec(), "not a tar file"),
        (vec![], "without an image"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        assert!(refused(&path).to_string().contains(because), "{}", refused(&path));
    }
    let error = refused(&layout.join("blobs"));
    assert!(error.to_string().contains("no image in this directory") && error.hint().is_some(), "{error}");
}

#[test]
fn what_cannot_be_imported_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::new();
    let file = dir.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let (dir, file) = (dir.path().display(), file.display());
    for (reference, because) in [
        (format!("oci:{dir}"), "no index.json"),
        (format!("dir:{dir}"), "no manifest.json"),
        (format!("docker-archive:{dir}"), "no manifest.json"),
        (format!("docker-archive:{file}"), "not a tar file"),
        (format!("oci-archive:{dir}/none"), "No such file"),
        ("docker-archive:/dev/null".into(), "not a regular file"),
        ("debian:12".into(), "image in a registry"),
    ] {
        let error = store.refused(&reference);
        assert!(error.to_string().contains(because), "{reference}: {error}");
    }
}
