//! Puts a staged tree (`make install DESTDIR=DIR`) really on the machine while a bed is up.
//!
//! Bind mounts would not do: an environment stands on a clone of `/` without its mounts, and a setuid helper must be
//! found where the system's own files are.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::journal::{HostChange, Journal};

/// The part of a staged tree that goes into the bed's own /etc/slurm instead.
pub const SLURM_CONFIG: &str = "etc/slurm";

/// Opens the journal of the installed files.
pub fn journal() -> anyhow::Result<Journal> {
    Journal::open("install")
}

/// Everything below `tree`, parents first, relative to it; without Slurm's configuration.
pub fn list(tree: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(dir) = open.pop() {
        let path = tree.join(&dir);
        for entry in fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))? {
            let entry = entry?;
            let name = dir.join(entry.file_name());
            if name == Path::new(SLURM_CONFIG) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                open.push(name.clone());
            }
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// Copies the tree to `root` (the machine's); `journal` must be locked exclusively.
pub fn install(tree: &Path, root: &Path, journal: &Journal) -> anyhow::Result<()> {
    for (index, name) in list(tree)?.iter().enumerate() {
        let (source, target) = (tree.join(name), root.join(name));
        put(&source, &target, index, journal)
            .with_context(|| format!("cannot install {} as {}", source.display(), target.display()))?;
    }
    Ok(())
}

/// Copies Slurm's part of the tree (plugstack.conf.d) into the bed's /etc/slurm.
pub fn install_slurm_config(tree: &Path, target: &Path) -> anyhow::Result<()> {
    let source = tree.join(SLURM_CONFIG);
    if !source.exists() {
        return Ok(());
    }
    super::process::run(std::process::Command::new("cp").arg("-rT").arg(&source).arg(target))
}

fn put(source: &Path, target: &Path, index: usize, journal: &Journal) -> anyhow::Result<()> {
    let meta = source.symlink_metadata()?;
    let there = target.symlink_metadata().ok();
    if meta.is_dir() {
        if there.is_none() {
            journal.note(&HostChange::Dir(target.into()))?;
            fs::create_dir(target)?;
            chown(target, Some(meta.uid()), Some(meta.gid()))?;
            fs::set_permissions(target, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
        }
        return Ok(());
    }
    match there {
        Some(there) if there.is_dir() => bail!("a directory is in the way"),
        Some(_) => {
            let saved = journal.saved(index);
            // Both lie on the root file system; if not, rename says so (EXDEV) and nothing was changed.
            journal.note(&HostChange::Replaced(target.into(), saved.clone()))?;
            fs::rename(target, saved)?;
        }
        None => journal.note(&HostChange::File(target.into()))?,
    }
    if meta.is_symlink() {
        symlink(fs::read_link(source)?, target)?;
        return Ok(lchown(target, Some(meta.uid()), Some(meta.gid()))?);
    }
    fs::copy(source, target)?;
    // Order matters: a change of owner takes the setuid bit away.
    chown(target, Some(meta.uid()), Some(meta.gid()))?;
    Ok(fs::set_permissions(target, fs::Permissions::from_mode(meta.mode() & 0o7777))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::journal::tests::journal_in;

    fn write(path: &Path, text: &str, mode: u32) {
        fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        fs::write(path, text).expect("file");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    }

    #[test]
    fn what_is_installed_is_there_and_afterwards_all_is_as_before() {
        let dir = tempfile::tempdir().expect("directory");
        let (tree, root) = (dir.path().join("tree"), dir.path().join("root"));
        write(&tree.join("usr/bin/skiff"), "new", 0o755);
        write(&tree.join("usr/libexec/skiff/helper"), "helper", 0o4755);
        write(&tree.join("etc/slurm/plugstack.conf.d/skiff.conf"), "not for the machine", 0o644);
        symlink("skiff", tree.join("usr/bin/link")).expect("link");
        write(&root.join("usr/bin/skiff"), "old", 0o700);
        let journal = journal_in(dir.path());

        install(&tree, &root, &journal).expect("install");
        assert_eq!(fs::read_to_string(root.join("usr/bin/skiff")).expect("read"), "new");
        let helper = root.join("usr/libexec/skiff/helper");
        assert_eq!(helper.metadata().expect("helper").mode() & 0o7777, 0o4755);
        assert_eq!(fs::read_link(root.join("usr/bin/link")).expect("link"), Path::new("skiff"));
        assert!(!root.join("etc/slurm").exists());

        journal.undo().expect("undo");
        let left = list(&root).expect("list");
        assert_eq!(left, ["usr", "usr/bin", "usr/bin/skiff"].map(PathBuf::from));
        let old = root.join("usr/bin/skiff");
        assert_eq!(fs::read_to_string(&old).expect("read"), "old");
        assert_eq!(old.metadata().expect("old").mode() & 0o7777, 0o700);
    }

    #[test]
    fn a_directory_in_the_way_is_an_error_and_stays() {
        let dir = tempfile::tempdir().expect("directory");
        let (tree, root) = (dir.path().join("tree"), dir.path().join("root"));
        write(&tree.join("a"), "file", 0o644);
        fs::create_dir_all(root.join("a")).expect("directory");
        let journal = journal_in(dir.path());
        let error = install(&tree, &root, &journal).expect_err("must fail");
        assert!(format!("{error:#}").contains("a directory is in the way"), "{error:#}");
        assert!(root.join("a").is_dir());
    }
}
