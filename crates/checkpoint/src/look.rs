//! Checkpoints as they lie there: listing, showing, removing them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::Serialize;
use skiff_env::depot::CheckpointUse;
use skiff_output as output;
use skiff_snapshot::whole;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_user::checkpoints::{all, dir_of, homes, refuse_missing};
use skiff_user::context::UserContext;

use crate::files::{self, WrittenFile};
use crate::obstacles::{Obstacle, SavedProcess, lost_processor_time};
use crate::place;
use crate::record::{Checkpoint, IMAGES};
use crate::set::{self, JobCheckpoint, SavedMember};
use crate::stored;

/// One, for people and programs.
#[derive(Serialize)]
struct Listed {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "output::as_time_if_any")]
    created: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Bytes that nothing else needs: so much room is there when it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_bytes: Option<u64>,
    /// Whether its record can be read. Its files are checked when it is restored.
    readable: bool,
    /// Whether nothing has been saved into it yet.
    empty: bool,
    path: String,
    /// Of a whole job's: its instances.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<SavedMember>,
}

impl Listed {
    fn of(context: &UserContext, slot: &CheckpointName, rooms: &OwnRooms) -> Result<Self> {
        let dir = dir_of(context, slot)?;
        if let Ok(Some(job)) = JobCheckpoint::read(&dir) {
            return Ok(Self::of_job(slot, &dir, job));
        }
        let read = Checkpoint::read(&dir).ok();
        let read = read.as_ref();
        Ok(Self {
            members: vec![],
            name: slot.to_string(),
            instance: read.map(|c| c.instance.name.to_string()),
            of: read.map(|c| c.instance.of.clone()),
            created: read.map(|c| c.created),
            processes: read.map(|c| c.processes.len()),
            bytes: read.map(Checkpoint::size),
            own_bytes: read.map(|c| rooms.of(&dir, c)),
            readable: read.is_some(),
            empty: place::is_empty(&dir),
            path: dir.display().to_string(),
        })
    }

    fn of_job(slot: &CheckpointName, dir: &Path, job: JobCheckpoint) -> Self {
        Self {
            name: slot.to_string(),
            instance: None,
            of: None,
            created: Some(job.created),
            processes: Some(job.processes()),
            bytes: Some(job.size()),
            // The store has nothing of its parts.
            own_bytes: Some(job.size()),
            readable: true,
            empty: false,
            path: dir.display().to_string(),
            members: job.members,
        }
    }
}

/// How much room checkpoints take by themselves.
struct OwnRooms(BTreeMap<PathBuf, u64>);

impl OwnRooms {
    fn look(context: &UserContext) -> Result<Self> {
        let mut rooms = BTreeMap::new();
        for home in homes(context)? {
            rooms.extend(stored::own_bytes(&home)?.into_iter().map(|(name, own)| (home.join(name), own)));
        }
        Ok(Self(rooms))
    }

    /// Bytes of its files, and of the chunks that only it needs.
    fn of(&self, dir: &Path, checkpoint: &Checkpoint) -> u64 {
        checkpoint.files_size().saturating_add(self.0.get(dir).copied().unwrap_or(0))
    }
}

/// The checkpoints that need a snapshot to be restored. One that cannot be read cannot be restored either.
pub fn snapshots(context: &UserContext) -> Result<Vec<CheckpointUse>> {
    let mut uses = vec![];
    for slot in all(context)? {
        let snapshots = set::instances(&dir_of(context, &slot)?).into_iter();
        let snapshots = snapshots.filter_map(|checkpoint| checkpoint.instance.snapshot);
        uses.extend(snapshots.map(|snapshot| CheckpointUse { checkpoint: slot.to_string(), snapshot }));
    }
    Ok(uses)
}

/// Prints all.
pub fn list(context: &UserContext, json: bool) -> Result<()> {
    place::undo_interrupted_renames(context)?;
    place::remove_all_left(context);
    let rooms = OwnRooms::look(context)?;
    let all: Vec<Listed> =
        all(context)?.iter().map(|slot| Listed::of(context, slot, &rooms)).collect::<Result<_>>()?;
    if json {
        return output::json(&all);
    }
    let or_not = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let rows: Vec<Vec<String>> = all
        .into_iter()
        .map(|l| {
            let size = match l.bytes {
                Some(bytes) => output::size(bytes),
                None if l.empty => "empty".into(),
                None => "damaged".into(),
            };
            vec![
                l.name,
                match l.members.len() {
                    0 => or_not(l.instance),
                    number => format!("{number} of a job"),
                },
                if l.members.is_empty() { or_not(l.of) } else { "-".into() },
                or_not(l.created.map(output::time)),
                or_not(l.processes.map(|n| n.to_string())),
                size,
                l.own_bytes.map_or_else(String::new, output::size),
            ]
        })
        .collect();
    output::table(&["NAME", "INSTANCE", "OF", "SAVED", "PROCESSES", "SIZE", "OWN"], &rows)
}

/// Prints what is in one.
pub fn show(context: &UserContext, slot: &CheckpointName, json: bool) -> Result<()> {
    place::undo_interrupted_renames(context)?;
    refuse_missing(context, slot)?;
    if place::is_empty(&dir_of(context, slot)?) {
        let listed = Listed::of(context, slot, &OwnRooms::look(context)?)?;
        if json {
            return output::json(&listed);
        }
        output::line(&format!("checkpoint   {slot}, empty"))?;
        return output::line(&format!("where        {}", listed.path));
    }
    if let Some(job) = JobCheckpoint::read(&dir_of(context, slot)?)? {
        return show_job(context, slot, &job, json);
    }
    let (held, checkpoint) = place::existing(context, slot)?;
    if json {
        return output::json(&checkpoint);
    }
    let Checkpoint {
        created,
        instance,
        processes,
        left_running,
        trees,
        written: _,
        written_files,
        clocks: _,
        sysv,
        posix_queues,
        made_with,
        files: digests,
        read_files: _,
        stored: _,
    } = &checkpoint;
    let dir = dir_of(context, slot)?;
    let own = OwnRooms::look(context)?.of(&dir, &checkpoint);
    let (size, own) = (output::size(checkpoint.size()), output::size(own));
    output::line(&format!("checkpoint   {slot}, {size}; {own} that no other checkpoint needs"))?;
    output::line(&format!("where        {}", dir.display()))?;
    let then = if *left_running { "went on" } else { "ended" };
    output::line(&format!("saved        {}; the instance {then} then", output::time(*created)))?;
    output::line(&format!(
        "instance     {} of {}: {}",
        instance.name,
        instance.of,
        quoted(&instance.command)
    ))?;
    output::line(&format!("network      {}", instance.net))?;
    let (skiff, criu, kernel) = (&made_with.skiff, &made_with.criu, &made_with.kernel);
    output::line(&format!("made with    skiff {skiff}, CRIU {criu}, Linux {kernel}, {}", made_with.machine))?;
    for process in processes {
        output::line(&self::process(process))?;
    }
    if let Some(note) = lost_processor_time(processes) {
        output::line(&format!("not in it    {note}"))?;
    }
    for tree in trees {
        let path = format!("{}/{}", crate::record::TREES, tree.file);
        let size = digests.iter().find(|sum| sum.path == path).map_or(0, |sum| sum.size);
        let size = if size <= whole::EMPTY { "empty".into() } else { output::size(size) };
        output::line(&format!("files        {} ({size})", tree.of))?;
    }
    if let Some(sysv) = sysv {
        output::line(&format!("System V     {}", sysv.summary()))?;
    }
    if let Some(queues) = posix_queues {
        output::line(&format!("POSIX        {}", queues.summary()))?;
    }
    show_written(&held.path(), written_files)
}

/// Prints what a restore of the checkpoint in `dir` does with the files elsewhere that are open to be written.
pub(crate) fn show_written(dir: &Path, written: &[WrittenFile]) -> Result<()> {
    if written.is_empty() {
        return Ok(());
    }
    let images = dir.join(IMAGES);
    let images = File::open(&images).context(|| images.display().to_string())?;
    for line in files::outlook(images.as_fd(), written)? {
        output::line(&format!("writes       {line}"))?;
    }
    for line in files::set_aside(written) {
        output::line(&format!("set aside    {line}"))?;
    }
    Ok(())
}

/// A command as a shell would take it.
fn quoted(command: &[String]) -> String {
    let quoted = shlex::try_join(command.iter().map(String::as_str));
    quoted.default_on_error("no program's argument holds a zero byte")
}

/// Prints what is in a whole job's.
fn show_job(context: &UserContext, slot: &CheckpointName, job: &JobCheckpoint, json: bool) -> Result<()> {
    if json {
        return output::json(&Listed::of(context, slot, &OwnRooms::look(context)?)?);
    }
    output::line(&format!("checkpoint   {slot}, {}", output::size(job.size())))?;
    output::line(&format!("where        {}", dir_of(context, slot)?.display()))?;
    let then = if job.left_running { "went on" } else { "ended" };
    output::line(&format!("saved        {}; the instances {then} then", output::time(job.created)))?;
    for SavedMember { instance, node, processes, bytes, .. } in &job.members {
        let size = output::size(*bytes);
        output::line(&format!("instance     {instance} on {node} ({processes} processes, {size})"))?;
    }
    Ok(())
}

/// A process in a line.
pub fn process(process: &SavedProcess) -> String {
    let count = |count, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let SavedProcess { pid, name, threads, memory, files, sockets, .. } = process;
    let (threads, memory) = (count(threads.len(), "thread"), output::size(*memory));
    let (files, sockets) = (count(*files, "file"), count(*sockets, "socket"));
    format!("process      {pid} {name} ({threads}, {memory}, {files}, {sockets})")
}

/// What is in the way, in a line.
pub fn obstacle(obstacle: &Obstacle) -> String {
    format!("in the way   {} {}: {}", obstacle.pid, obstacle.name, obstacle.why)
}

/// Removes one, also one that is damaged.
pub fn delete(context: &UserContext, slot: &CheckpointName, dry_run: bool) -> Result<()> {
    place::undo_interrupted_renames(context)?;
    if !dry_run {
        place::remove_all_left(context);
    }
    refuse_missing(context, slot)?;
    let dir = dir_of(context, slot)?;
    match dry_run {
        true => output::line(&format!("remove {}", dir.display())),
        false => place::remove(&dir, &slot.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it() {
        let command = ["sh", "-c", "echo $HOME; sleep 5", "", "plain"].map(String::from);
        assert_eq!(quoted(&command), "sh -c 'echo $HOME; sleep 5' '' plain");
    }
}
