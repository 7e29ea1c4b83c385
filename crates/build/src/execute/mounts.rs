//! What RUN sees beside the files of its stage (`--mount`), made ready for one command.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use skiff_oci::hash::sha256_hex;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::{Base, File, Mount, Source, Upper};
use skiff_user::context::UserContext;

use super::Builder;
use crate::agents;
use crate::container::{ReadyMounts, StageFiles};
use crate::plan::{BuildKey, CopyAction, MOUNTED, PlannedMount, PlannedMountKind};

/// Permission bits of a file system in memory.
const MEMORY_MODE: u32 = 0o1777;

impl Builder<'_> {
    /// Makes mounts ready, in their order.
    pub(super) fn ready(&self, planned: &[PlannedMount]) -> Result<ReadyMounts> {
        let mut ready = ReadyMounts::default();
        let caches = self.lock_caches(planned, &mut ready)?;
        for (number, mount) in planned.iter().enumerate() {
            let shown = |source, read_only| Mount {
                source,
                target: mount.target.clone().into(),
                read_only,
                optional: false,
                propagation: None,
            };
            match &mount.kind {
                PlannedMountKind::Files { key, copy, is_writable } => {
                    let layer = self.mounted_files(number, (!is_writable).then_some(key), copy)?;
                    ready.mounts.push(shown(Source::Bind(layer.join(MOUNTED)), !is_writable));
                }
                PlannedMountKind::Cache { id, mode, owner, .. } => {
                    let dir = caches.get(id).cloned().unwrap_or_else(PathBuf::new);
                    let dir = made_directory(self.containers.context, dir, *mode, *owner)?;
                    ready.mounts.push(shown(Source::Bind(dir), false));
                }
                PlannedMountKind::Memory { size } => {
                    ready.mounts.push(shown(Source::Memory { mode: MEMORY_MODE, size: *size }, false));
                }
                PlannedMountKind::Secret { id, variable, is_required } => {
                    let Some(secret) = secret(&self.inputs.secrets, id, *is_required)? else { continue };
                    ready.env.extend(variable.iter().map(|name| (name.clone(), secret.clone())));
                    if !mount.target.is_empty() {
                        ready.mounts.push(shown(Source::Text(secret), true));
                    }
                }
                PlannedMountKind::Agent { id, is_required, mode, owner } => {
                    let Some(agent) = agents::given(&self.inputs.agents, id, *is_required)? else { continue };
                    let place = self.new_directory(&format!("agent.{number}"))?;
                    let (socket, relay) =
                        agents::open_agent_socket(self.containers.context, agent, &place, *mode, *owner)?;
                    ready.add_agent(relay, &mount.target);
                    ready.mounts.push(shown(Source::Bind(socket), false));
                }
                PlannedMountKind::Script(text) => ready.mounts.push(script(&mount.target, text)),
            }
        }
        Ok(ready)
    }

    /// Locks the caches that a command has, each once and all builds in the same order: so none waits for itself, nor two for each other. Gives
    /// their directories.
    fn lock_caches(
        &self,
        planned: &[PlannedMount],
        ready: &mut ReadyMounts,
    ) -> Result<BTreeMap<String, PathBuf>> {
        let mut wanted = BTreeMap::<String, (&String, bool)>::new();
        for mount in planned {
            if let PlannedMountKind::Cache { id, is_exclusive, .. } = &mount.kind {
                wanted.entry(sha256_hex(id.as_bytes())).or_insert((id, false)).1 |= is_exclusive;
            }
        }
        let mut directories = BTreeMap::new();
        for (name, (id, is_exclusive)) in wanted {
            let (dir, lock) = self.cache.kept_directory(&name, is_exclusive)?;
            ready.locks.extend(lock);
            directories.insert(id.clone(), dir);
        }
        Ok(directories)
    }

    /// The layer that has the files of a mount: by its key one of the cache, else one that goes with the build.
    fn mounted_files(&self, number: usize, key: Option<&BuildKey>, copy: &CopyAction) -> Result<PathBuf> {
        if let Some(layer) = key.and_then(|key| self.cache.layer(key)) {
            return Ok(layer);
        }
        let upper = self.new_upper(&format!("mount.{number}"))?;
        self.copy(&StageFiles { image: None, layers: vec![] }, upper.clone(), copy)?;
        match (key, &upper) {
            (Some(key), _) => self.cache.keep(key, &upper),
            (None, Upper::Scratch(path) | Upper::Directory(path)) => Ok(path.join("upper")),
            (None, _) => Err(Fault::new("--mount: its files are in memory")),
        }
    }
}

/// A program, in a directory of its own.
fn script(target: &str, text: &str) -> Mount {
    let target = Path::new(target);
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = File { name, mode: 0o755, text: text.into() };
    Mount {
        source: Source::Files(vec![file]),
        target: target.parent().unwrap_or(target).into(),
        read_only: true,
        optional: false,
        propagation: None,
    }
}

fn secret(secrets: &BTreeMap<String, String>, id: &str, is_required: bool) -> Result<Option<String>> {
    match secrets.get(id) {
        None if is_required => Err(Fault::new(format!("--mount=type=secret: {id} is missing"))
            .hint(format!("skiff build --secret id={id},src=FILE gives it"))),
        found => Ok(found.cloned()),
    }
}

/// The directory as it is, or a new one with these rights.
fn made_directory(context: &UserContext, dir: PathBuf, mode: u16, owner: (u32, u32)) -> Result<PathBuf> {
    if dir.is_dir() {
        return Ok(dir);
    }
    as_root_of_ids(context.helper.as_deref(), Base::Host, |_| {
        let about = || dir.display().to_string();
        // It gets its name when it is as it is to be.
        let new = dir.with_extension("new");
        if !new.is_dir() {
            std::fs::create_dir(&new).context(about)?;
        }
        chown(&new, Some(owner.0), Some(owner.1)).context(about)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode.into())).context(about)?;
        std::fs::rename(&new, &dir).context(about)
    })?;
    Ok(dir)
}
