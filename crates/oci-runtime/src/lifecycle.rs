//! What is done to a container that is there: started, looked at, sent signals, frozen, deleted.

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use crate::config::{OciHook, Resources};
use crate::create::start_address;
use crate::log::Log;
use crate::process_info::{InitProcess, family, send};
use crate::state::{Container, ContainerId, ContainerRecord, ContainerStatus, START, States};
use crate::sync::{self, InitStatus};
use crate::{cgroup, hooks};

/// A container's state as JSON.
///
/// # Errors
/// When there is no such container.
pub fn state(states: &States, id: &ContainerId) -> Result<String> {
    let container = states.container(id)?;
    let record = container.whole_record()?;
    let state = record.state(id, container.status(Some(&record)));
    serde_json::to_string_pretty(&state).map_err(|e| Fault::new(format!("state: {e}")))
}

fn state_of(record: &ContainerRecord, id: &ContainerId, status: ContainerStatus) -> Result<Vec<u8>> {
    serde_json::to_vec(&record.state(id, status)).map_err(|e| Fault::new(format!("state: {e}")))
}

fn wrong_status(id: &ContainerId, status: ContainerStatus, what: &str) -> Fault {
    Fault::new(format!("container {id} is {status}: {what}"))
}

/// Has a created container's process become its program.
///
/// # Errors
/// When it is not created, or its program cannot be started.
pub fn start(states: &States, id: &ContainerId, log: &Log) -> Result<()> {
    start_locked(states, &states.container(id)?.locked()?, log)
}

/// As [`start`], for a container that this call has locked.
///
/// # Errors
/// As [`start`].
pub fn start_locked(states: &States, container: &Container, log: &Log) -> Result<()> {
    let id = &container.id;
    let record = container.whole_record()?;
    let status = container.status(Some(&record));
    if status != ContainerStatus::Created {
        return Err(wrong_status(id, status, "only one that is created can be started"));
    }
    let about = || format!("container {id}: start");
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.context(about)?;
    connect(&socket, &start_address(container)?).context(about)?;
    let heard = sync::receive(&socket);
    match unlinkat(container, START, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e).context(about),
    }
    match heard? {
        InitStatus::Closed => {}
        InitStatus::Failed(fault) => return Err(fault.about(&format!("container {id}"))),
        _ => return Err(Fault::new(format!("{}: an unexpected message", about()))),
    }
    let running = container.status(Some(&record));
    run_hooks(states, "poststart", &record.hooks.poststart, &state_of(&record, id, running)?, log);
    Ok(())
}

/// A user's hooks, unless it is root who does this for them: what they start would be outside of the user's job and session, and root,
/// or Slurm, would wait for it.
fn run_hooks(states: &States, kind: &str, hooks: &[OciHook], state: &[u8], log: &Log) {
    match states.is_for_owner {
        false => hooks::run_all(kind, hooks, state, log),
        true if hooks.is_empty() => {}
        true => log.warn(&format!("hooks.{kind}: not run: root does this in the place of the user")),
    }
}

/// Sends a signal to a container's process, or to all of its processes.
///
/// # Errors
/// When it does not run.
pub fn kill(states: &States, id: &ContainerId, number: i32, all: bool) -> Result<()> {
    let container = states.container(id)?;
    let record = container.whole_record()?;
    let status = container.status(Some(&record));
    let (Some(init), true) = (init(&record), status != ContainerStatus::Stopped) else {
        // Of one whose first process has ended others may still run, where it has no PID namespace of its own.
        let others = record.cgroup.as_deref().map_or_else(Vec::new, cgroup::processes);
        return match all {
            true => others.iter().try_for_each(|process| send(*process, number)),
            false => Err(wrong_status(id, status, "there is no process to send signals to")),
        };
    };
    let targets = if all { processes(&record, init) } else { vec![init] };
    targets.iter().try_for_each(|process| send(*process, number))
}

fn init(record: &ContainerRecord) -> Option<InitProcess> {
    record.process.filter(|process| process.alive().is_some())
}

/// All processes of a container.
fn processes(record: &ContainerRecord, init: InitProcess) -> Vec<InitProcess> {
    match (record.cgroup.as_ref().filter(|cgroup| cgroup::is_there(cgroup)), init.alive()) {
        (Some(cgroup), _) => cgroup::processes(cgroup),
        (None, Some(pid)) => family(pid).into_iter().filter_map(|pid| InitProcess::of(pid).ok()).collect(),
        (None, None) => vec![],
    }
}

/// The PIDs of a container's processes.
///
/// # Errors
/// When it does not run.
pub fn pids(states: &States, id: &ContainerId) -> Result<Vec<i32>> {
    let container = states.container(id)?;
    let record = container.whole_record()?;
    let init = init(&record)
        .ok_or_else(|| wrong_status(id, container.status(Some(&record)), "it has no processes"))?;
    Ok(processes(&record, init).iter().map(|process| process.pid).collect())
}

/// Freezes a container's processes, or lets them go on.
///
/// # Errors
/// When it has no control group of its own, or does not run.
pub fn freeze(states: &States, id: &ContainerId, frozen: bool) -> Result<()> {
    let container = states.container(id)?.locked()?;
    let record = container.whole_record()?;
    let status = container.status(Some(&record));
    let can_be = match frozen {
        // One without a control group is told so.
        true => status == ContainerStatus::Running || record.cgroup.is_none(),
        // A `pause` that was killed may have frozen a part of the processes.
        false => {
            status == ContainerStatus::Paused || record.cgroup.as_deref().is_some_and(cgroup::is_freezing)
        }
    };
    if can_be {
        return cgroup::freeze(record.cgroup.as_deref(), frozen)
            .map_err(|e| e.about(&format!("container {id}")));
    }
    Err(wrong_status(
        id,
        status,
        if frozen { "only one that runs can be paused" } else { "it is not paused" },
    ))
}

/// Changes limits of a container.
///
/// # Errors
/// When it has no control group of its own, or has ended.
pub fn update(states: &States, id: &ContainerId, resources: &Resources, log: &Log) -> Result<()> {
    let container = states.container(id)?.locked()?;
    let record = container.whole_record()?;
    match container.status(Some(&record)) {
        status @ ContainerStatus::Stopped => Err(wrong_status(id, status, "it has no limits to change")),
        _ => cgroup::update(record.cgroup.as_deref(), resources, log)
            .map_err(|e| e.about(&format!("container {id}"))),
    }
}

/// Removes what is left of a container. With `force` its processes are killed first, and one that is not there is no error.
///
/// # Errors
/// When it has not ended.
pub fn delete(states: &States, id: &ContainerId, force: bool, log: &Log) -> Result<()> {
    delete_found(states, id, states.find_container(id)?, force, log)
}

/// As [`delete`], for a container that has been looked for already.
fn delete_found(
    states: &States,
    id: &ContainerId,
    found: Option<Container>,
    force: bool,
    log: &Log,
) -> Result<()> {
    // Another call may have deleted it while this one waited for the lock.
    let container = match found.map(Container::locked_if_there).transpose()?.flatten() {
        Some(container) => container,
        None if force => return Ok(()),
        None => return Err(states.missing(id)),
    };
    let record = match container.record() {
        // Whatever is in it: it is the user's, and goes.
        Err(e) if force => {
            log.warn(&e.to_string());
            None
        }
        record => record?,
    };
    let status = container.status(record.as_ref());
    let Some(record) = record else {
        return match force {
            true => states.remove(container),
            false => Err(wrong_status(id, status, "it has no state")
                .hint(format!("`skiff oci delete --force {id}` removes what is left of it"))),
        };
    };
    if status != ContainerStatus::Stopped {
        if !force {
            return Err(wrong_status(id, status, "only one that has stopped can be deleted")
                .hint(format!("`skiff oci kill {id} KILL` ends it; --force does both")));
        }
        end(&record, id)?;
    }
    if let Some(cgroup) = &record.cgroup {
        cgroup::end(cgroup, &record.cgroups_above).map_err(|e| e.about(&format!("container {id}")))?;
    }
    let state = state_of(&record, id, ContainerStatus::Stopped)?;
    states.remove(container)?;
    run_hooks(states, "poststop", &record.hooks.poststop, &state, log);
    Ok(())
}

/// Removes what is left of all containers that have ended and whose `run` has, too: it was killed, or it would have removed them. One that
/// cannot be removed keeps none of the others.
///
/// # Errors
/// When the directory of containers cannot be read, or some of the containers cannot be removed.
pub fn delete_orphaned(states: &States, log: &Log) -> Result<()> {
    skiff_output::each(&states.names()?, |id| {
        delete_if_orphaned(states, id, log).inspect_err(|e| log.error(e))
    })
}

fn delete_if_orphaned(states: &States, id: &ContainerId, log: &Log) -> Result<()> {
    let Some(container) = states.find_container(id)? else { return Ok(()) };
    // A container that is being made, or whose record cannot be read, is left to whoever names it.
    let Ok(Some(record)) = container.record() else { return Ok(()) };
    let is_orphan = record.waiter.is_some_and(|waiter| waiter.alive().is_none());
    match is_orphan && container.status(Some(&record)) == ContainerStatus::Stopped {
        true => delete(states, id, true, log),
        false => Ok(()),
    }
}

/// Kills all processes, and waits until they are gone.
fn end(record: &ContainerRecord, id: &ContainerId) -> Result<()> {
    let Some(init) = init(record) else { return Ok(()) };
    if record.cgroup.as_deref().is_some_and(cgroup::is_frozen) {
        cgroup::freeze(record.cgroup.as_deref(), false).ignore_error("those that are killed need not go on");
    }
    for process in processes(record, init) {
        send(process, Signal::KILL.as_raw())?;
    }
    send(init, Signal::KILL.as_raw())?;
    let is_gone =
        || Ok::<_, Fault>(record.process.is_none_or(|process| process.alive().is_none()).then_some(()));
    match skiff_sys::lock::within(cgroup::DYING, is_gone)? {
        Some(()) => Ok(()),
        None => Err(Fault::new(format!("container {id}: process {} does not end", init.pid))
            .hint("it waits in the kernel, perhaps for a file server")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Log {
        Log::open(None, false, false).expect("no log")
    }

    #[test]
    fn what_is_frozen_in_part_can_be_resumed() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = tempfile::tempdir().expect("a directory");
        let states = States::of_test(dir.path());
        let id: ContainerId = "box".parse().expect("a name");
        let container = states.create(&id).expect("made");
        let process = InitProcess::of(rustix::process::getpid()).expect("this one");
        let record = ContainerRecord {
            process: Some(process),
            is_created: true,
            cgroup: Some(group.path().to_owned()),
            ..ContainerRecord::new("/bundle/rootfs".into(), "/bundle".into())
        };
        container.note(&record).expect("noted");
        drop(container);
        let freeze_file = group.path().join("cgroup.freeze");
        std::fs::write(group.path().join("cgroup.events"), "populated 1\nfrozen 0\n").expect("written");
        std::fs::write(&freeze_file, "1\n").expect("written");
        assert_eq!(freeze(&states, &id, false), Ok(()));
        assert_eq!(std::fs::read_to_string(&freeze_file).expect("read").trim(), "0");
        let e = freeze(&states, &id, false).expect_err("it runs");
        assert!(e.to_string().contains("it is not paused"), "{e}");
    }

    #[test]
    fn an_orphan_that_cannot_be_removed_keeps_none_of_the_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let states = States::of_test(dir.path());
        let ended = InitProcess { pid: 1, start_time: 1 };
        for name in ["a", "b", "c"] {
            let container = states.create(&name.parse().expect("a name")).expect("made");
            let record = ContainerRecord {
                process: Some(ended),
                waiter: Some(ended),
                is_created: true,
                ..ContainerRecord::new("/bundle/rootfs".into(), "/bundle".into())
            };
            container.note(&record).expect("noted");
        }
        // A directory in it is nothing that a container's has.
        std::fs::create_dir(dir.path().join("a/other")).expect("made");
        let e = delete_orphaned(&states, &log()).expect_err("the first");
        assert!(e.to_string().contains("container a"), "{e}");
        let names: Vec<String> = states.names().expect("read").iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a"]);
    }

    #[test]
    fn what_another_call_has_deleted_meanwhile_is_no_error_with_force() {
        let dir = tempfile::tempdir().expect("a directory");
        let states = States::of_test(dir.path());
        let id: ContainerId = "box".parse().expect("a name");
        let container = states.create(&id).expect("made");
        let found = || states.find_container(&id).expect("looked for");
        let (first, second) = (found(), found());
        states.remove(container).expect("removed");
        assert_eq!(delete_found(&states, &id, first, true, &log()), Ok(()));
        assert!(delete_found(&states, &id, second, false, &log()).is_err());
    }
}
