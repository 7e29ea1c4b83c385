//! What commands and the supervisor of a cluster say to each other: one question, one answer.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use serde::{Deserialize, Serialize};
use skiff_ipc::{Framing, Message, Protocol};
use skiff_launch::handshake::Call;
use skiff_runtime::control::dial;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::instance::End;
use skiff_spec::members::Member;

use crate::hub;

/// What a command wants.
#[derive(Debug, Serialize, Deserialize)]
pub enum SupervisorRequest {
    /// To know who is there.
    Status,
    /// A handle of a node's process 1.
    Enter(Member),
    /// That the agent of a node on another host calls like that.
    Visit(Member, Call),
    /// These nodes, or none of them.
    Make(Vec<Member>),
    /// That they go.
    End(Vec<Member>),
    /// That all goes.
    Down,
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
pub enum SupervisorReply {
    /// Who is there.
    Nodes(Vec<NodeStatus>),
    /// Success; for [`SupervisorRequest::Enter`] with the pidfd.
    Done,
    /// Refused, or failed on the way.
    Failed(Error),
}

impl Message for SupervisorRequest {
    const LONGEST: usize = hub::LONGEST;
}

impl Message for SupervisorReply {
    const LONGEST: usize = hub::LONGEST;
    const DESCRIPTORS: usize = 1;
}

impl Protocol for SupervisorRequest {
    type Answer = SupervisorReply;
    const NAME: &'static str = "Supervisor of a cluster";
    const SIDES: [&'static str; 2] = ["`skiff cluster`", "the cluster's supervisor"];
    const FRAMING: Framing = Framing::Packets;
}

/// A node as the supervisor knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node's name.
    pub name: Member,
    /// Where the others reach it.
    pub address: String,
    /// The host that it is on, if the cluster has several.
    pub host: Option<String>,
    /// The node's process 1, seen from outside; nothing if it is lost, or on another host.
    pub pid: Option<i32>,
    /// Seconds since 1970 at which it was made.
    pub since: u64,
    /// How the daemon that it was there for has ended.
    pub lost: Option<End>,
}

/// Asks the supervisor of the cluster at `dir`; nothing if none runs.
pub fn ask(dir: &Path, want: &SupervisorRequest) -> Result<Option<(SupervisorReply, Vec<OwnedFd>)>> {
    let Some(socket) = dial(dir)? else { return Ok(None) };
    hub::send(socket.as_fd(), want, &[])?;
    match hub::receive(socket.as_fd()) {
        Ok((SupervisorReply::Failed(why), _)) => Err(why),
        Ok(answer) => Ok(Some(answer)),
        // Without an answer it closes the connection only at its end.
        Err(_) => Ok(None),
    }
}
