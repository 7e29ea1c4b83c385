//! RUN: what the command finds, and what it sees beside the files of its stage.

use serde_json::json;
use skiff_spec::fault::{Fault, Result};
use skiff_spec::size;

use super::stage::StagePlanner;
use super::{BuildKey, PlannedMount, PlannedMountKind, RunAction};
use crate::dockerfile::{CopyInstruction, CopySource, MountInstruction, MountKind, RunInstruction};

/// Where the files of a mount are in their own layer.
pub const MOUNTED: &str = "files";

impl StagePlanner<'_, '_> {
    pub(super) fn run(&mut self, run: &RunInstruction) -> Result<RunAction> {
        let mut mounts = run.mounts.iter().map(|mount| self.mount(mount)).collect::<Result<Vec<_>>>()?;
        name_agents(&mut mounts);
        let mut env: Vec<(String, String)> = vec![];
        for setting in self.env.settings() {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            env.push((name.into(), value.into()));
        }
        for (name, value) in &self.args {
            if !self.env.has(name) {
                env.push((name.clone(), value.clone()));
            }
        }
        let is_known = |name: &String| self.env.has(name) || self.args.contains_key(name);
        let proxies = self.planner.arguments.proxies();
        let uncounted = proxies.into_iter().filter(|(name, _)| !is_known(name)).collect();
        env.extend(run.env.iter().cloned());
        let user = self.config.text("User");
        Ok(RunAction {
            words: run.command.words(&self.shell()),
            env,
            uncounted,
            workdir: self.workdir(),
            user: if user.is_empty() { "0".into() } else { user.into() },
            no_network: run.no_network,
            mounts,
            is_test: run.is_test,
        })
    }

    fn mount(&mut self, mount: &MountInstruction) -> Result<PlannedMount> {
        let target = self.word(&mount.target)?;
        // A secret may go into a variable alone, and an agent has a place of its own.
        let target = if target.is_empty() { target } else { self.absolute(&target) };
        if target == "/" {
            return Err(Fault::new(format!("--mount: {}: nothing can be seen there", mount.target))
                .hint("target=DIR names a directory below /"));
        }
        let kind = match &mount.kind {
            MountKind::Bind { from, source, is_writable } => {
                self.files(from.as_deref(), source, *is_writable)?
            }
            MountKind::Cache { id, is_exclusive, mode, owner } => PlannedMountKind::Cache {
                id: id.as_deref().map_or_else(|| Ok(target.clone()), |id| self.word(id))?,
                is_exclusive: *is_exclusive,
                mode: *mode,
                owner: *owner,
            },
            MountKind::Memory { size } => {
                PlannedMountKind::Memory { size: size.as_deref().map(memory).transpose()? }
            }
            MountKind::Secret { id, variable, is_required } => PlannedMountKind::Secret {
                id: id.clone(),
                variable: variable.clone(),
                is_required: *is_required,
            },
            MountKind::Agent { id, is_required, mode, owner } => PlannedMountKind::Agent {
                id: id.clone(),
                is_required: *is_required,
                mode: *mode,
                owner: *owner,
            },
            MountKind::Script(text) => PlannedMountKind::Script(text.clone()),
        };
        Ok(PlannedMount { target, kind })
    }

    /// Files that are mounted are first copied into a layer of their own, as COPY would: so their content counts, and nothing of the context
    /// but what may be seen of it.
    fn files(&mut self, from: Option<&str>, source: &str, is_writable: bool) -> Result<PlannedMountKind> {
        if from.is_some_and(|from| from.contains('$')) {
            return Err(Fault::new("--mount: from: variables are not replaced there")
                .hint("FROM $IMAGE AS NAME makes a stage, and from=NAME names it"));
        }
        let copy = CopyInstruction {
            from: from.map(String::from),
            sources: vec![CopySource::Path(source.into())],
            destination: format!("/{MOUNTED}"),
            ..CopyInstruction::default()
        };
        let mut copy = self.copy(&copy)?;
        copy.destination = format!("/{MOUNTED}");
        let key = BuildKey::of(&json!(["mount", self.planner.options.ids, copy, self.origin(&copy)]));
        Ok(PlannedMountKind::Files { key, copy, is_writable })
    }
}

/// Where agents are that the file gives no place: as in BuildKit, by their number.
fn name_agents(mounts: &mut [PlannedMount]) {
    let agents = mounts.iter_mut().filter(|mount| matches!(mount.kind, PlannedMountKind::Agent { .. }));
    for (number, mount) in agents.enumerate() {
        if mount.target.is_empty() {
            mount.target = format!("/run/buildkit/ssh_agent.{number}");
        }
    }
}

fn memory(text: &str) -> Result<u64> {
    let size = size::parse(text).filter(|size| *size > 0);
    size.ok_or_else(|| Fault::new(format!("--mount: size={text}: not a size")).hint("size=64M"))
}
