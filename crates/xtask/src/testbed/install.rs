//! Puts a staged tree (`make install DESTDIR=DIR`) really on the machine while a bed is up.
//!
//! Bind mounts would not do: an environment stands on a clone of `/` without its mounts, and a setuid helper must be
//! found where the system's own files are.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::journal::{Change, Journal, STATE};

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

/// Copies the tree to the root of the machine; `journal` must be locked exclusively.
pub fn install(tree: &Path, journal: &Journal) -> anyhow::Result<()> {
    for (index, name) in list(tree)?.iter().enumerate() {
        let (source, target) = (tree.join(name), Path::new("/").join(name));
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
            journal.note(&Change::Dir(target.into()))?;
            fs::create_dir(target)?;
            chown(target, Some(meta.uid()), Some(meta.gid()))?;
            fs::set_permissions(target, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
        }
        return Ok(());
    }
    match there {
        Some(there) if there.is_dir() => bail!("a directory is in the way"),
        Some(_) => {
            let saved = Path::new(STATE).join(format!("saved-{index}"));
            // Both lie on the root file system; if not, rename says so (EXDEV) and nothing was changed.
            journal.note(&Change::Replaced(target.into(), saved.clone()))?;
            fs::rename(target, saved)?;
        }
        None => journal.note(&Change::File(target.into()))?,
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
