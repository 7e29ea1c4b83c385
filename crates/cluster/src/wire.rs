//! What head and agents say to each other.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skiff_ipc::{Framing, Message, Protocol};
use skiff_launch::frame::{LONGEST, Stream};
use skiff_launch::handshake::Call;
use skiff_launch::sealed_box::SealedBox;
use skiff_spec::image::ImageId;
use skiff_spec::instance;
use skiff_spec::plan::Identity;
use skiff_spec::scratch::ScratchPlace;

/// Both sides must be of one version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The head to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadMessage {
    /// Get ready, and say where you will be reached.
    Prepare(ContainerSpec),
    /// The list of members, which is complete; start your container.
    Start(Vec<ClusterMember>),
    /// Run this in it.
    Run(Box<Program>),
    /// Send the program this signal.
    Signal(i32),
    /// New number of rows and columns of the program's terminal.
    Resize([u16; 2]),
    /// Be this node.
    Serve(Box<NodeSpec>),
    /// Be it no more.
    Leave,
    /// Let somebody in who is to be called like that: the secret is to be derived from its key.
    Admit(Call),
    /// There is no more input.
    InputEnd,
    /// Nobody reads this any more.
    Closed(Stream),
    /// I am here.
    Beat,
    /// End everything.
    End,
}

/// An agent to the head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentMessage {
    /// Where it will be reached, and by what it proves who it is.
    Prepared(SshAddress),
    /// The agent's container runs, and its ssh daemon listens.
    Started,
    /// The agent serves as the node, whose process 1 has this PID on its host.
    Serves(i32),
    /// What is worth knowing, though it goes on.
    Note(String),
    /// So many bytes of input have been passed on.
    Took(u32),
    /// How the program has ended.
    Ended(ProgramEnd),
    /// The node has ended by itself: how, and the last lines of its output.
    Left(instance::End, String),
    /// The agent cannot go on: message and hint.
    Failed(String, String),
    /// I am here.
    Beat,
}

impl Message for HeadMessage {
    const LONGEST: usize = LONGEST;
}

impl Message for AgentMessage {
    const LONGEST: usize = LONGEST;
}

impl Protocol for HeadMessage {
    type Answer = AgentMessage;
    const NAME: &'static str = "Agents";
    const SIDES: [&'static str; 2] = ["the head of a cluster", "the agent on a host"];
    const FRAMING: Framing = Framing::Own(
        "Between messages go bytes of the program, and neither side may wait for the other. A frame is its kind (`m`: a message in JSON; `0`, `1`, `2`: input, output and errors), the length in 4 bytes, big endian, and so many bytes.",
    );
}

/// What all containers have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// The head's version.
    pub version: String,
    /// What the cluster is called in lists.
    pub name: String,
    /// All hosts, by the names that their manager gives them.
    pub hosts: Vec<String>,
    /// Which of them this is.
    pub index: usize,
    /// What the containers are there for.
    pub duty: Role,
    /// What lies below.
    pub root: Root,
    /// Who the user is inside.
    pub identity: Identity,
    /// Where changes go.
    pub scratch: ScratchPlace,
    /// Mounts, as the user wrote them.
    pub mounts: Vec<String>,
    /// What sessions in the containers find in their environment.
    pub variables: Vec<(OsString, OsString)>,
    /// How many seconds one side may say nothing before the other takes it for lost.
    pub silence: u32,
}

/// What a container is there for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// An ssh daemon, by which programs get in; and in the first, the script.
    Script,
    /// The root is there already: a program is to run on a node of the cluster's own Slurm.
    Visit,
    /// To be a node of the cluster's own Slurm.
    Node {
        /// The port that it had before, if it had one.
        port: Option<u16>,
        /// The controller's address, if that is on none of the hosts.
        controller: Option<IpAddr>,
    },
}

/// What an agent needs to be a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Which.
    pub name: skiff_spec::members::Member,
    /// Where the controller and all nodes are, by their names.
    pub members: Vec<ClusterMember>,
    /// The text of `slurm.conf`.
    pub conf: String,
    /// By which the cluster's nodes know each other.
    pub key: SealedBox,
    /// The file that takes what its daemon says, if that is to be kept.
    pub log: Option<PathBuf>,
}

/// What lies below a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Root {
    /// The host's own root.
    Host,
    /// An image, and by what name it can be had.
    Image {
        /// Digest of the image.
        id: ImageId,
        /// Name of the image.
        reference: String,
    },
    /// A directory that all hosts see.
    Directory(PathBuf),
}

/// Where a container is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshAddress {
    /// The agent's version.
    pub version: String,
    /// Address of the member.
    pub address: IpAddr,
    /// The port of its ssh daemon.
    pub port: u16,
    /// By which that proves who it is, as a line of a public key.
    pub host_key: String,
    /// By which its user proves who they are.
    pub user_key: String,
    /// How many processors it may use.
    pub processors: u32,
    /// How much memory its host has, in MiB.
    pub megabytes: u64,
    /// For whom secrets are to be sealed that go there.
    pub opener: Vec<u8>,
}

impl SshAddress {
    /// Whether both are one and the same.
    #[must_use]
    pub fn is_at(&self, other: &Self) -> bool {
        (self.address, self.port) == (other.address, other.port)
    }
}

/// A container of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMember {
    /// The name of its host.
    pub name: String,
    /// How many processes are meant to run there.
    pub slots: u32,
    /// Where it is.
    pub place: SshAddress,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Arguments, the program first.
    pub argv: Vec<OsString>,
    /// Environment variables.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts.
    pub cwd: PathBuf,
    /// Whether nowhere else will do.
    pub only_there: bool,
    /// The rows and columns of the terminal that it gets, if its user sits at one.
    pub terminal: Option<[u16; 2]>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramEnd {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// The program could not be executed, for this errno.
    NotExecuted(i32),
}
