//! Instances as they fare: listing, entering, ending, removing them.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use skiff_env as env;
use skiff_output::{self as output, ListFormat};
use skiff_plan::definition::templates;
use skiff_plan::inside::ProcessArgs;
use skiff_plan::{devices, in_image};
use skiff_runtime::control::{self, ControlRequest, Live};
use skiff_runtime::environments::Environment;
use skiff_runtime::record::{ENV, InstanceDir, State};
use skiff_runtime::{enter, lock, network};
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::Failed;
use skiff_sandbox::own_terminal;
use skiff_sandbox::session::CommandExit as HowEnded;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::{End, Ended, Started};
use skiff_spec::job::names;
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_spec::plan::{Identity, Plan, Route};
use skiff_user::context::UserContext;
use skiff_user::named;

/// One, for people and programs.
#[derive(Serialize)]
pub struct ListedInstance {
    name: String,
    of: String,
    command: Vec<String>,
    #[serde(serialize_with = "output::as_time")]
    started: u64,
    /// `running`, `exited`, `killed`, `saved`, `moved`, `stopped`, `lost`, or `unresponsive` where its supervisor does not answer.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "output::as_time_if_any")]
    ended: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<u32>,
    net: Net,
    /// On a network of the site's, if that is to be saved, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<Ipv4Addr>,
    checkpoint: bool,
    path: String,
}

impl ListedInstance {
    fn of(record: &InstanceDir) -> Result<Self> {
        let started = record.started()?;
        let mut listed = Self {
            name: record.name.to_string(),
            of: started.of,
            command: started.command,
            started: started.started,
            state: "lost",
            exit_code: None,
            signal: None,
            ended: None,
            pid: None,
            sessions: None,
            net: started.net,
            address: None,
            checkpoint: started.checkpoint,
            path: record.dir.display().to_string(),
        };
        match record.state_for_list()? {
            // The one that hangs must not keep the others from being listed.
            None => listed.state = "unresponsive",
            Some(State::Running(live)) => {
                listed.state = "running";
                listed.pid = Some(live.pid.as_raw_nonzero().get());
                listed.sessions = Some(live.sessions);
                listed.address = record.address().ok();
            }
            Some(State::Ended(Ended { end, at })) => {
                listed.ended = Some(at);
                (listed.state, listed.exit_code, listed.signal) = match end {
                    Some(End::Exited(code)) => ("exited", Some(code), None),
                    Some(End::Killed(signal)) => ("killed", Some(128 + signal), Some(signal)),
                    Some(End::Saved) => ("saved", None, None),
                    Some(End::Moved) => ("moved", None, None),
                    None => ("stopped", None, None),
                };
            }
            Some(State::Lost) => {}
        }
        Ok(listed)
    }

    /// `exited 3`, say.
    fn shown_state(&self) -> String {
        match self.signal.or(self.exit_code) {
            Some(number) => format!("{} {number}", self.state),
            None => self.state.into(),
        }
    }

    /// A row as `skiff ps` has it.
    pub fn row(&self) -> Vec<String> {
        let pid = self.pid.map_or_else(|| "-".into(), |pid| pid.to_string());
        let (name, of) = (self.name.clone(), self.of.clone());
        let state = match self.state {
            "running" => "instance".into(),
            _ => self.shown_state(),
        };
        vec![name, of, output::time(self.started), state, pid]
    }
}

/// Lists all instances, running and ended.
pub fn listed(context: &UserContext) -> Result<Vec<ListedInstance>> {
    let all = InstanceDir::all(context)?;
    let looked = all.iter().map(|record| (record, ListedInstance::of(record)));
    // One that has gone meanwhile is none.
    let there = looked.filter(|(record, one)| one.is_ok() || record.dir.exists());
    Ok(named::listable(there.map(|(_, one)| one)))
}

/// The words of a command as a shell would take them.
fn shown_command(words: &[String]) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:=@%+,".contains(c);
    let quoted = |word: &String| match word.is_empty() || !word.chars().all(is_plain) {
        true => format!("'{}'", word.replace('\'', r"'\''")),
        false => word.clone(),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Prints all.
pub fn list(context: &UserContext, format: &ListFormat<'_>) -> Result<()> {
    let all = listed(context)?;
    let row = |l: &ListedInstance| {
        let pid = l.pid.map_or_else(|| "-".into(), |pid| pid.to_string());
        let (name, of) = (l.name.clone(), l.of.clone());
        vec![name, of, output::time(l.started), l.shown_state(), pid, shown_command(&l.command)]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    output::list(
        format,
        &all,
        |l| l.name.clone(),
        || output::table(&["NAME", "OF", "STARTED", "STATE", "PID", "COMMAND"], &rows),
    )
}

/// Lists the instances that run.
pub fn running(context: &UserContext) -> Result<Vec<ListedInstance>> {
    let all = listed(context)?;
    Ok(all.into_iter().filter(|listed| matches!(listed.state, "running" | "unresponsive")).collect())
}

/// Runs a command in one; its exit code.
pub fn exec(context: &UserContext, name: &EnvName, inside: &ProcessArgs, words: &[OsString]) -> Result<i32> {
    let record = InstanceDir::existing(context, name)?;
    let started = record.started()?;
    let live = Live::connect(&record.dir, ControlRequest::Session)?.ok_or_else(|| not_running(&record))?;
    if let Some(name) = started.plan.network_to_join() {
        network::follow(context, name, live.pid)?;
    }
    let (identity, mut command) = command(context, (&record, &started), inside, words)?;
    command.close_descriptors = started.plan.closes_descriptors();
    let _agent = env::forward_to_instance(context, (live.init.as_fd(), &started.plan), inside, &mut command);
    match session(context, &live, identity, &started.plan, &command) {
        Ok(ended) => Ok(output::exit_as(ended)),
        Err(why) => Ok(output::failed(why)),
    }
}

fn session(
    context: &UserContext,
    live: &Live,
    identity: Identity,
    plan: &Plan,
    command: &CommandSpec,
) -> std::result::Result<HowEnded, Failed> {
    let net = enter::net_space(&plan.net, plan.dumpable).named(plan.hostname.is_some());
    let terminals = own_terminal::is_needed(plan).then(|| live.init.as_fd());
    own_terminal::run(terminals, command, |session| {
        let child = enter::spawn(context, (&live.init, live.pid, net), identity, command, &session)?;
        Ok(session.wait(&child)?)
    })
}

/// As the instance's own command would be run, unless the user wants to be somebody else.
fn command(
    context: &UserContext,
    (record, started): (&InstanceDir, &Started),
    inside: &ProcessArgs,
    words: &[OsString],
) -> Result<(Identity, CommandSpec)> {
    let own = started.identity == Identity::Root || context.route() == Route::Rootless;
    let root = inside.root || (own && !inside.me);
    let templates = templates(&started.definition_variables)?;
    let inside = ProcessArgs { root, me: !root, templates, ..inside.clone() };
    let mut command = match (started.of.strip_prefix(ENV), record.image()?) {
        (Some(name), _) => {
            let env = name.parse().map_err(|e| Error::new(format!("{e}")))?;
            let mut command = env::command(context, &Environment::existing(context, env)?, &inside, words)?;
            command.set(names::ENVIRONMENT, name);
            command
        }
        (None, Some(entry)) => {
            let exec = entry.config()?.exec;
            let mut command = in_image::in_environment(context, (entry.id, &exec), &inside, words)?;
            if inside.root && shows_nothing_of_user(context, &started.plan) {
                in_image::be_at_home_there(&mut command, &exec, &inside);
                if inside.workdir.is_none() {
                    command.cwd = Path::new("/").join(&exec.working_dir);
                }
            }
            command
        }
        (None, None) => inside.command(context, words),
    };
    devices::set(&started.plan.devices.variables, &mut command, &inside);
    Ok((identity_in(context, &started.plan, inside.identity(), &mut command), command))
}

/// A root of FUSE is closed to processes of the host's user namespace, and the helper would start one there. So the user is themselves in a
/// user namespace below the instance's.
fn identity_in(
    context: &UserContext,
    plan: &Plan,
    identity: Identity,
    command: &mut CommandSpec,
) -> Identity {
    if identity == Identity::Root || plan.route == Route::Helper {
        return identity;
    }
    command.seen_as = Some([context.uid, rustix::process::getgid().as_raw()]);
    Identity::Root
}

/// Whether nothing of the host is there but what was named, as in a container of Docker's.
fn shows_nothing_of_user(context: &UserContext, plan: &Plan) -> bool {
    plan.contain && !plan.mounts.iter().any(|mount| mount.target == context.home)
}

/// Why there is nothing to talk to.
pub fn not_running(record: &InstanceDir) -> Error {
    let how = match record.state() {
        Ok(State::Ended(Ended { end: Some(End::Exited(code)), .. })) => {
            format!("has ended (exit code {code})")
        }
        Ok(State::Ended(Ended { end: Some(End::Killed(signal)), .. })) => {
            format!("was ended by signal {signal}")
        }
        Ok(State::Ended(Ended { end: Some(End::Saved), .. })) => "was saved, and ended with that".into(),
        Ok(State::Ended(Ended { end: Some(End::Moved), .. })) => "now runs on another host".into(),
        Ok(State::Ended(Ended { end: None, .. })) => "was stopped".into(),
        _ => "is not running".into(),
    };
    Error::new(format!("instance {} {how}", record.name))
        .hint(format!("`skiff instance logs {}` shows what it has written", record.name))
}

/// Ends one, kindly at first.
pub fn stop(context: &UserContext, name: &EnvName, seconds: u64) -> Result<()> {
    let record = InstanceDir::existing(context, name)?;
    env::calling::outlive()?;
    let live = Live::connect(&record.dir, ControlRequest::End)?.ok_or_else(|| not_running(&record))?;
    let limit = Timespec::try_from(Duration::from_secs(seconds))
        .map_err(|_| Error::new(format!("--time {seconds}: too long")))?;
    // If it has not ended by itself then, it is ended.
    poll(&mut [PollFd::new(&live.init, PollFlags::IN)], Some(&limit))
        .context(|| format!("waiting for instance {name}"))?;
    drop(live);
    if !control::stop_at(&record.dir)? {
        lock::wait(&record.dir)?;
    }
    Ok(())
}

/// Sends a signal to the command of one.
pub fn signal(context: &UserContext, name: &EnvName, number: u8) -> Result<()> {
    let record = InstanceDir::existing(context, name)?;
    if record.started()?.command.is_empty() {
        return Err(Error::new(format!("instance {name} has no command to get a signal"))
            .hint(format!("`skiff stop {name}` ends the instance")));
    }
    let live = Live::connect(&record.dir, ControlRequest::Signal(number))?;
    live.map(drop).ok_or_else(|| not_running(&record))
}

/// Ends one at once.
pub fn kill(context: &UserContext, name: &EnvName) -> Result<()> {
    let record = InstanceDir::existing(context, name)?;
    env::calling::outlive()?;
    match control::stop_at(&record.dir)? {
        true => Ok(()),
        false => Err(not_running(&record)),
    }
}

/// Removes what is kept of one.
pub fn remove(context: &UserContext, name: &EnvName, force: bool) -> Result<()> {
    let record = InstanceDir::existing(context, name)?;
    let mut lock = record.lock_ended()?;
    if lock.is_none() && force {
        env::calling::outlive()?;
        control::stop_at(&record.dir)?;
        lock = record.lock_ended()?;
    }
    let lock = lock.ok_or_else(|| {
        Error::new(format!("instance {name} is running"))
            .hint(format!("`skiff instance stop {name}` first, or rm --force"))
    })?;
    record.remove(context, lock)
}

#[cfg(test)]
mod tests {
    use super::shown_command;

    #[test]
    fn a_command_is_shown_as_it_can_be_typed() {
        for (words, shown) in [
            (&["redis-server", "--port", "6390", "--save", ""][..], "redis-server --port 6390 --save ''"),
            (&["sh", "-c", "sleep 1; echo 'a'"], r"sh -c 'sleep 1; echo '\''a'\'''"),
            (&["a=b", "/x/é"], "a=b /x/é"),
            (&[], ""),
        ] {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            assert_eq!(shown_command(&words), shown);
        }
    }
}
