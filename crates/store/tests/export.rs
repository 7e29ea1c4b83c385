//! What is exported is what others read, and what gives the same image when it is imported again.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use crate::common;
use crate::common::layers::build::{RawEntry as Tar, archive};
use crate::common::mounted::{Mounted, of_directory};
use crate::common::seen::{Seen, assert_same};
use crate::common::stores::{TestStore, files};
use crate::common::tools::{has, run, write_oci};
use crate::common::{Builder, bytes, is_root, of_all_but_huge};
use serde_json::{Value, json};
use skiff_erofs::tree::Tree;
use skiff_image::export::{Exported, OpenImage, Target, export};
use skiff_store::pull::Pulled;

/// Files of all kinds, as an image of a store.
fn everything(store: &TestStore) -> Pulled {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    of_all_but_huge(&mut builder);
    let image = builder.finish(dir);
    store.import(&image.path.display().to_string()).unwrap()
}

fn export_to(store: &TestStore, image: &Pulled, target: &str) -> skiff_image::Result<Exported> {
    export_with(store, image, image.record.config.clone(), target)
}

fn export_with(
    store: &TestStore,
    image: &Pulled,
    config: Value,
    target: &str,
) -> skiff_image::Result<Exported> {
    let file = store.store.open_image(image.id).unwrap();
    export(&OpenImage { name: image.id.to_string(), config, file }, &target.parse::<Target>().unwrap())
}

/// No tar archive has sockets.
fn without_sockets(mut seen: Seen) -> Seen {
    seen.retain(|_, entry| entry.mode & 0o17_0000 != 0o14_0000);
    seen
}

#[test]
fn what_is_exported_comes_back() {
    let store = TestStore::new();
    let image = everything(&store);
    let expected = without_sockets(store.seen(&image));
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    for target in [
        format!("docker-archive:{}:team/tool:1", at("docker.tar")),
        format!("oci-archive:{}:x", at("oci.tar")),
        format!("oci:{}:x", at("oci")),
    ] {
        let exported = export_to(&store, &image, &target).unwrap();
        assert_eq!(exported.left_out.sockets, 1);
        let again = TestStore::new();
        let imported = again.import(&target).unwrap();
        assert_same(&again.seen(&imported), &expected);
        assert_eq!(Some(imported.digest), exported.digest);
        let history = imported.record.config["history"].as_array().unwrap().clone();
        assert_eq!(history.iter().filter(|step| step["empty_layer"] != json!(true)).count(), 1);
        assert_eq!(export_to(&store, &image, &target).unwrap(), exported, "the same again");
    }
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"], "Entrypoint": ["/x"], "WorkingDir": "/w"},
        "rootfs": {"type": "layers", "diff_ids": []}
    });
    let expected = store.seen(&image);
    for name in ["image.erofs", "image.sqsh"] {
        let target = at(name);
        export_with(&store, &image, config.clone(), &target).unwrap();
        let again = TestStore::new();
        let imported = again.import(&target).unwrap();
        assert_eq!(imported.record.config, config, "{name}");
        again.store.verify(imported.id).unwrap();
        if name == "image.erofs" {
            assert_same(&again.seen(&imported), &expected);
        }
        let exported = std::fs::read(&target).unwrap();
        assert_eq!(exported.len() % 4096, 0, "{name}");
        // What is cut off, is no configuration, or is for another machine is refused.
        let end = exported.len() - 16;
        for (change, because) in [
            (&|bytes: &mut Vec<u8>| bytes[end..end + 8].fill(0xff), "longer than the file"),
            (&|bytes: &mut Vec<u8>| bytes[end..end + 8].copy_from_slice(&3u64.to_le_bytes()), "EOF"),
            (&|bytes: &mut Vec<u8>| drop(bytes.splice(..bytes.len() - 4096, [])), ""),
        ] as [(&dyn Fn(&mut Vec<u8>), &str); 3]
        {
            let mut bytes = exported.clone();
            change(&mut bytes);
            std::fs::write(&target, bytes).unwrap();
            let error = TestStore::new().refused(&target).to_string();
            assert!(error.contains(because), "{name}: {error}");
        }
        let other = json!({"architecture": "s390x", "os": "linux", "rootfs": {"type": "layers"}});
        export_with(&store, &image, other, &target).unwrap();
        assert!(TestStore::new().refused(&target).to_string().contains("linux/s390x"), "{name}");
    }
}

/// What a squashfs can hold of it.
fn as_squashfs(mut seen: Seen) -> Seen {
    for entry in seen.values_mut() {
        entry.mtime = (entry.mtime.0.clamp(0, u32::MAX.into()), 0);
        entry.xattrs.retain(|name, _| !name.starts_with(b"system.") && !name.starts_with(b"lustre."));
    }
    seen
}

#[test]
fn a_squashfs_is_what_the_image_is() {
    let store = TestStore::new();
    let image = everything(&store);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.sqsh");
    export_to(&store, &image, &path.display().to_string()).unwrap();
    let expected = as_squashfs(store.seen(&image));
    let exported = std::fs::read(&path).unwrap();
    export_to(&store, &image, &path.display().to_string()).unwrap();
    assert!(std::fs::read(&path).unwrap() == exported, "the same bytes again");
    assert_same(&TestStore::new().imported(&path.display().to_string()), &expected);
    if !is_root("a_squashfs_is_what_the_image_is") {
        return;
    }
    let mounted = Mounted::from_loop_device("squashfs", &path).unwrap();
    assert_same(&of_directory(&mounted.path()), &expected);
    // Other file systems have no room for so many attributes.
    let image = sober(&store);
    export_to(&store, &image, &path.display().to_string()).unwrap();
    let root = dir.path().join("root");
    run(Command::new("unsquashfs").args(["-quiet", "-no-progress", "-dest"]).arg(&root).arg(&path));
    assert_same(&of_directory(&root), &as_squashfs(store.seen(&image)));
}

#[test]
fn a_hole_of_a_terabyte_is_no_squashfs() {
    let store = TestStore::new();
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    builder.sparse(Tree::ROOT, "hollow", 1 << 40, &[(0, bytes(4096, 1))]);
    let image = builder.finish(dir);
    let image = store.import(&image.path.display().to_string()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.sqsh");
    let error = export_to(&store, &image, &path.display().to_string()).err().unwrap();
    assert!(error.to_string().contains("holes counted"), "{error}");
    assert_eq!(files(dir.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_plain_tar_is_what_gnu_tar_unpacks() {
    if !is_root("a_plain_tar_is_what_gnu_tar_unpacks") {
        return;
    }
    let store = TestStore::new();
    let image = sober(&store);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("files.tar");
    export_to(&store, &image, &path.display().to_string()).unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    run(Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf"])
        .arg(&path)
        .arg("-C")
        .arg(&root));
    assert_same(&of_directory(&root), &store.seen(&image));
}

/// What every program can unpack: no times before the first day, say.
fn sober(store: &TestStore) -> Pulled {
    let dir = tempfile::tempdir().unwrap();
    let long = format!("d/{}", "n".repeat(200));
    let layer = archive(&[
        Tar::directory("./"),
        Tar::directory("d/"),
        Tar::file("d/big", bytes(300_000, 1)).pax("uid", "3000000000").mode(0o4755),
        Tar::hard_link("again", "d/big"),
        Tar::symlink("d/link", "../d/big"),
        Tar::symlink("d/long-link", "t".repeat(300)),
        Tar::file(&long, b"long").pax("mtime", "1700000000.123456789"),
        Tar::file(b"d/\xff\xfe", b"not UTF-8"),
        Tar::file("d/cap", b"c").pax("SCHILY.xattr.security.capability", common::CAPABILITY),
        Tar::file("d/x", b"x").pax("SCHILY.xattr.user.a", b"1\n=2"),
        Tar::new(b'3', "null").device(1, 3),
        Tar::new(b'6', "fifo"),
        Tar::directory("d/"),
        Tar::directory("./"),
    ]);
    write_oci(&dir.path().join("oci"), &[layer]);
    store.import(&format!("oci:{}:x", dir.path().join("oci").display())).unwrap()
}

#[test]
fn others_read_it() {
    if !is_root("others_read_it") || !has("skopeo") || !has("umoci") {
        return;
    }
    let store = TestStore::new();
    let image = sober(&store);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    export_to(&store, &image, &format!("oci:{}:x", at("oci"))).unwrap();
    export_to(&store, &image, &format!("docker-archive:{}:team/tool:1", at("docker.tar"))).unwrap();
    export_to(&store, &image, &format!("oci-archive:{}:x", at("oci.tar"))).unwrap();
    for (from, to) in [
        (format!("docker-archive:{}:team/tool:1", at("docker.tar")), "by-docker"),
        (format!("oci-archive:{}:x", at("oci.tar")), "by-oci"),
    ] {
        let to = format!("oci:{}:x", at(to));
        run(Command::new("skopeo").args(["copy", "--quiet", "--insecure-policy", &from, &to]));
    }
    for layout in ["oci", "by-docker", "by-oci"] {
        let bundle = dir.path().join(format!("bundle-{layout}"));
        run(Command::new("umoci").args(["unpack", "--image", &format!("{}:x", at(layout))]).arg(&bundle));
        assert_same(&of_directory(&bundle.join("rootfs")), &store.seen(&image));
    }
}

#[test]
fn a_layout_keeps_its_other_images() {
    let store = TestStore::new();
    let image = sober(&store);
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("oci");
    write_oci(&layout, &[archive(&[Tar::file("other", b"other")])]);
    let names = || {
        let index: Value =
            serde_json::from_slice(&std::fs::read(layout.join("index.json")).unwrap()).unwrap();
        let images = index["manifests"].as_array().unwrap().clone();
        let name = |image: &Value| image["annotations"]["org.opencontainers.image.ref.name"].to_string();
        images.iter().map(name).collect::<Vec<_>>()
    };
    let target = |tag: &str| format!("oci:{}{tag}", layout.display());
    for tag in [":y", "", ":y", ""] {
        export_to(&store, &image, &target(tag)).unwrap();
    }
    assert_eq!(names(), ["\"x\"", "\"y\"", "null"]);
    assert_eq!(TestStore::new().imported(&target(":x")).len(), 2);
    export_to(&store, &image, &target(":x")).unwrap();
    assert_same(&TestStore::new().imported(&target(":x")), &store.seen(&image));
}

#[test]
fn nothing_half_made_is_left() {
    let store = TestStore::new();
    let image = sober(&store);
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().join("there.tar");
    std::fs::write(&there, "what was there before").unwrap();
    std::fs::create_dir(dir.path().join("a-directory.tar")).unwrap();
    let before = files(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    for (target, because) in [
        (at("a-directory.tar"), "no regular file"),
        (format!("docker-archive:{}:x", at("none/x.tar")), "No such file"),
        ("/dev/full.tar/x.tar".to_string(), "No such file"),
        ("oci-archive:/dev/null".to_string(), "no regular file"),
        (format!("oci:{}", there.display()), "cannot write"),
    ] {
        let error = export_to(&store, &image, &target).unwrap_err();
        assert!(error.to_string().contains(because), "{target}: {error}");
        assert_eq!(files(dir.path()), before, "{target}");
    }
    assert_eq!(std::fs::read(&there).unwrap(), b"what was there before");
    for (target, because) in
        [("debian:12", "not written in that form"), ("x.sif", "not written in that form")]
    {
        let error = target.parse::<Target>().unwrap_err();
        assert!(error.to_string().contains(because) && error.hint().is_some(), "{error}");
    }
}

/// A file called as if it removed another one, which only other file systems than layers can have.
#[test]
fn names_of_whiteouts_are_not_put_into_layers() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    builder.file(skiff_erofs::tree::Tree::ROOT, ".wh.file", common::plain(), b"x");
    let image = builder.finish(dir);
    let store = TestStore::new();
    let image = store.import(&image.path.display().to_string()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let target = format!("oci-archive:{}", dir.path().join("x.tar").display());
    let error = export_to(&store, &image, &target).unwrap_err();
    assert!(error.to_string().contains("/.wh.file"), "{error}");
    assert_eq!(files(dir.path()), Vec::<std::path::PathBuf>::new());
    let plain = Path::new(dir.path()).join("x.erofs");
    export_to(&store, &image, &plain.display().to_string()).unwrap();
}
