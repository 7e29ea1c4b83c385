//! What the kernel and the format's own tools say of the images that we write.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;

use common::mounted::{Mounted, of_directory};
use common::seen::{assert_same, of_tree};
use common::{Builder, is_root, of_everything};

#[test]
fn the_kernel_shows_what_the_tree_says() {
    if !is_root("the_kernel_shows_what_the_tree_says") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    of_everything(&mut builder);
    let expected = of_tree(&builder);
    let image = builder.finish(dir);
    let mounted = Mounted::new(&image.path).unwrap();
    assert_same(&of_directory(&mounted.path()), &expected);
}

#[test]
fn fsck_accepts() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    of_everything(&mut builder);
    let image = builder.finish(dir);
    let output = Command::new("fsck.erofs").arg("-d3").arg(&image.path).output();
    let output = output.expect("fsck.erofs of the package erofs-utils is needed");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("No errors found"), "{}: {text}", output.status);
}
