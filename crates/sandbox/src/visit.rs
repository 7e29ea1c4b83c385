//! Doing something as root of the user's own ids, without an environment: comparing, packing and removing layers whose files
//! belong to several of them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, kill_process};
use skiff_spec::plan::Base;
use skiff_sys::process::{CloneFlags, Fork, exit_now, fork};

use crate::child::{read_all, reap};
use crate::helper::Helper;
use crate::start::die_with_maker;
use crate::{Context, Error, Result, map};

/// Runs `act` in a process that is root of a new user namespace with the user's ids; gives what it gave. `act` gets the view of
/// `base` where the helper makes one.
///
/// # Errors
/// Its own, or that the namespace could not be had.
pub fn as_root_of_ids(
    helper: Option<&Path>,
    base: Base,
    act: impl FnOnce(Option<OwnedFd>) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let helper = helper.map(|program| Helper::spawn_for(program, base)).transpose()?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let (go, gate) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let made = fork(CloneFlags::USER).context(|| "new user namespace");
    let Fork::Parent(child) = made.map_err(|e| e.hint("`skiff doctor` says whether users may have one"))?
    else {
        drop((report, gate));
        let done = die_with_maker(go.as_fd()).and_then(|()| {
            let view = match &helper {
                Some(helper) => Some(helper.layers()?.view),
                None => rustix::io::read(&go, &mut [0]).map(|_| None).context(|| "pipe")?,
            };
            act(view)
        });
        let word = match done {
            Ok(bytes) => [b"+", &bytes[..]].concat(),
            Err(e) => [b"-", &e.to_bytes()[..]].concat(),
        };
        let file = std::fs::File::from(reporter);
        exit_now(i32::from(std::io::Write::write_all(&mut &file, &word).is_err()));
    };
    drop((reporter, go));
    let asked = match &helper {
        Some(helper) => helper.ask_for(base, child.pid),
        None => {
            let go = || rustix::io::write(&gate, &[1]).map(drop).context(|| "pipe");
            let mapped = map::write(child.pid).and_then(|_| go());
            if mapped.is_err() {
                // It waits for that word.
                kill_process(child.pid, Signal::KILL).unwrap_or_default();
            }
            mapped
        }
    };
    let told = read_all(report.as_fd());
    reap(child.pid);
    // Not before: until the child has its answer the helper is needed.
    helper.into_iter().for_each(Helper::finish);
    drop(gate);
    match (told.split_first(), asked) {
        (Some((b'+', bytes)), Ok(())) => Ok(bytes.to_vec()),
        (Some((b'-', why)), _) => Err(Error::from_bytes(why)),
        (_, Err(e)) => Err(e),
        _ => Err(Error::new("the process in the user namespace ended without a word")),
    }
}
