//! Random things that a user does in a tree, of few names, so that they meet.

#![allow(dead_code, clippy::unwrap_used, clippy::unused_result_ok)] // not every test binary uses all

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

/// Something a user does. Paths are of a few names, so that they meet.
#[derive(Debug, Clone)]
pub enum Act {
    Write(PathBuf, u8),
    Mkdir(PathBuf),
    Remove(PathBuf),
    Symlink(PathBuf, u8),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Mode(PathBuf, u32),
    Owner(PathBuf, u32),
    Xattr(PathBuf, u8),
    Truncate(PathBuf, u64),
}

pub fn paths() -> impl Strategy<Value = PathBuf> {
    let name = prop::sample::select(vec!["a", "b", "c-c"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.iter().collect())
}

pub fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (paths(), any::<u8>()).prop_map(|(path, seed)| Act::Write(path, seed)),
        3 => paths().prop_map(Act::Mkdir),
        4 => paths().prop_map(Act::Remove),
        1 => (paths(), any::<u8>()).prop_map(|(path, seed)| Act::Symlink(path, seed)),
        2 => (paths(), paths()).prop_map(|(a, b)| Act::Link(a, b)),
        2 => (paths(), paths()).prop_map(|(a, b)| Act::Rename(a, b)),
        1 => (paths(), 0u32..0o1000).prop_map(|(path, mode)| Act::Mode(path, mode)),
        1 => (paths(), 0u32..60000).prop_map(|(path, id)| Act::Owner(path, id)),
        1 => (paths(), any::<u8>()).prop_map(|(path, seed)| Act::Xattr(path, seed)),
        1 => (paths(), 0u64..200_000).prop_map(|(path, size)| Act::Truncate(path, size)),
    ]
}

/// Does it, as far as it can be done: what fails (no such file, ...) changes nothing.
pub fn act(root: &Path, act: &Act) {
    let at = |path: &Path| root.join(path);
    let result = match act {
        Act::Write(path, seed) => std::fs::write(at(path), vec![*seed; usize::from(*seed) * 40]),
        Act::Mkdir(path) => std::fs::create_dir_all(at(path)),
        Act::Remove(path) => std::fs::remove_dir_all(at(path)).or_else(|_| std::fs::remove_file(at(path))),
        Act::Symlink(path, seed) => std::os::unix::fs::symlink(format!("to/{seed}"), at(path)),
        Act::Link(from, to) => std::fs::hard_link(at(from), at(to)),
        Act::Rename(from, to) => std::fs::rename(at(from), at(to)),
        Act::Mode(path, mode) if !at(path).is_symlink() => {
            std::fs::set_permissions(at(path), std::fs::Permissions::from_mode(*mode))
        }
        Act::Owner(path, id) => std::os::unix::fs::lchown(at(path), Some(*id), Some(*id)),
        Act::Xattr(path, seed) if at(path).exists() => {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(at(path), format!("user.{}", seed % 3), &[*seed], flags).map_err(Into::into)
        }
        Act::Truncate(path, size) => {
            std::fs::File::options().write(true).open(at(path)).and_then(|file| file.set_len(*size))
        }
        _ => Ok(()),
    };
    result.ok();
}

pub fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60)
}
