//! Programs on a node of a cluster's own Slurm that is on another host: who wants one listens, and an agent of their own, forked from
//! the node's, comes by it. Between the two it is as between any head and agent.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::process::{WaitId, WaitIdOptions, waitid};
use skiff_launch::callback;
use skiff_launch::handshake::{Call, SharedSecret};
use skiff_launch::hosts::Host;
use skiff_launch::listener::CallbackListener;
use skiff_output as output;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::Failed;
use skiff_sandbox::session::CommandExit;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::members::Member;
use skiff_spec::plan::Identity;
use skiff_spec::scratch::ScratchPlace;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};
use skiff_sys::signal::Signals;
use skiff_user::context::UserContext;

use crate::fleet::Limits;
use crate::head::{self, ProgramRun, terminal};
use crate::launching::HEAD;
use crate::node::RunningNode;
use crate::wire::{ContainerSpec, Program, ProgramEnd, Role, Root, VERSION};

/// How long it may take until a program runs.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs a command on a node, whose agent `ask` asks to come to where the call says; all hosts reach this one at `address`, and `key` is what
/// the cluster's nodes know each other by.
pub fn run(
    context: &UserContext,
    node: Member,
    command: &CommandSpec,
    address: String,
    key: &str,
    ask: impl FnOnce(Call) -> Result<()>,
) -> std::result::Result<CommandExit, Failed> {
    let listener = listen(key)?;
    let call = Call { secret: None, ..listener.call(vec![address]).map_err(Fault::from)? };
    let CommandSpec { argv, env, cwd, only_there, .. } = command.clone();
    let task = ProgramRun {
        hosts: &[Host { name: node.to_string(), slots: Some(1) }],
        launches: &[],
        wanted: &wanted(node, context.config.cluster.silence_seconds),
        program: Program { argv, env, cwd, only_there, terminal: terminal::size() },
        limits: Limits { answer: LIMIT, start: LIMIT },
        note: &output::note,
    };
    let signals = Signals::block(&[]).context(|| "signals")?;
    ask(call.clone())?;
    match head::run(&task, Some(listener), &call, &signals)? {
        ProgramEnd::Code(code) => Ok(CommandExit::Code(code)),
        ProgramEnd::Signal(number) => Ok(CommandExit::Signal(number)),
        ProgramEnd::NotExecuted(errno) => Err(Failed::Command(command.argv[0].clone(), errno)),
    }
}

/// Where the agent of one command calls back. The agent has the key; the word tells this call from others by that key.
fn listen(key: &str) -> Result<CallbackListener> {
    Ok(CallbackListener::open_to(key.parse()?, &SharedSecret::generate()?.to_hex())?)
}

/// There is nothing to be made.
fn wanted(node: Member, silence: u32) -> ContainerSpec {
    ContainerSpec {
        version: VERSION.into(),
        name: node.to_string(),
        hosts: vec![node.to_string()],
        index: 0,
        duty: Role::Visit,
        root: Root::Host,
        identity: Identity::Root,
        scratch: ScratchPlace::Memory,
        mounts: vec![],
        variables: vec![],
        silence,
    }
}

/// Programs on a node of ours, each served by a process.
#[derive(Default)]
pub struct RemoteExecs(Vec<Child>);

impl RemoteExecs {
    /// Calls one, whom `receive` serves in a process of its own, given the node's process 1.
    pub fn admit(
        &mut self,
        node: &RunningNode,
        call: &Call,
        receive: impl FnOnce(OwnedFd) -> Result<()>,
    ) -> Result<()> {
        let init = node.init().try_clone_to_owned().context(|| "handle of the node")?;
        match fork(CloneFlags::NONE).context(|| "process for a visitor")? {
            Fork::Parent(child) => {
                self.0.push(child);
                Ok(())
            }
            Fork::Child => {
                close_all_except(&[init.as_fd()]);
                exit_now(serve(node.name(), call, || receive(init)))
            }
        }
    }

    /// Forgets those that have ended.
    pub fn bury(&mut self) {
        let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        self.0.retain(|child| matches!(waitid(WaitId::PidFd(child.pidfd.as_fd()), flags), Ok(None)));
    }
}

fn serve(name: Member, call: &Call, receive: impl FnOnce() -> Result<()>) -> i32 {
    // Whoever listens in vain says so; we have nobody to tell.
    let served =
        callback::call_as(&name.to_string(), call, HEAD).map_err(Fault::from).and_then(|()| receive());
    i32::from(served.is_err())
}
