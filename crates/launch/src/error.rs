//! What can go wrong while programs are started on other hosts, call back and talk.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;

use skiff_spec::fault::{Context as _, Fault};

use crate::handshake::HandshakeError;
use crate::hosts::InvalidLine;
use crate::sealed_box::SealedBoxError;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there are no hosts, nothing was started on them, or what was started does not talk as it should.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No manager has set its variables, and no file names hosts.
    #[error("no hosts: not in an allocation of Slurm, PBS, LSF or Grid Engine")]
    NoAllocation,
    /// A manager's list names no host.
    #[error("no hosts: the list of them is empty")]
    NoHosts,
    /// A file names no host.
    #[error("host file {}: no host in it", .0.display())]
    EmptyHostFile(PathBuf),
    /// A line of a file names no host.
    #[error("host file {}: {line}", path.display())]
    InvalidHostFile {
        /// The file.
        path: PathBuf,
        /// The first such line.
        line: InvalidLine,
    },
    /// A name that a program might take for an option, or a shell for a command.
    #[error("host {0:?}: not a valid host name")]
    InvalidName(String),
    /// A variable that the manager sets is missing.
    #[error("{0}: not set, though this is a job")]
    Unset(String),
    /// What a manager says of its hosts makes no sense.
    #[error("{source_of_hosts}: {why}")]
    InvalidHosts {
        /// The variable or file.
        source_of_hosts: String,
        /// What is wrong with it.
        why: String,
    },
    /// A host's name means this very host.
    #[error("host {0}: the name means this host here")]
    OwnHost(String),
    /// A host's name is not known here.
    #[error("host {host}: {why}")]
    UnknownHost {
        /// Name of the host.
        host: String,
        /// What the resolver says.
        why: io::Error,
    },
    /// A launcher has no program.
    #[error("nothing to start")]
    NothingToStart,
    /// A launcher's program cannot be run.
    #[error("{program}: {why}")]
    NoLauncher {
        /// The program.
        program: String,
        /// The system's reason.
        why: io::Error,
    },
    /// A launcher has ended before what it was to start has called back.
    #[error("{0}")]
    LauncherEnded(String),
    /// Whom to call back is not said as it should be.
    #[error("how to call back ({from}): {why}")]
    InvalidCall {
        /// File, or `-` for standard input.
        from: String,
        /// What is wrong with it.
        why: skiff_ipc::Error,
    },
    /// Nobody can be called back.
    #[error("{whom} cannot be reached at port {port} ({tried})")]
    Unreachable {
        /// Who is to be called.
        whom: String,
        /// At which port.
        port: u16,
        /// The addresses that were tried, and why each failed.
        tried: String,
    },
    /// Who was called does not answer.
    #[error("{whom}: no answer ({why})")]
    NoAnswer {
        /// Who was called.
        whom: String,
        /// The system's reason.
        why: io::Error,
    },
    /// Both sides do not come together.
    #[error("{whom}: {why}")]
    Handshake {
        /// The other side.
        whom: String,
        /// Why.
        why: HandshakeError,
    },
    /// The other side does not talk as these programs do. Holds the beginning of what it says.
    #[error("{0:?} came instead of a message")]
    OtherTalk(String),
    /// A message is not one of those that are expected.
    #[error(transparent)]
    UnknownMessage(skiff_ipc::Error),
    /// A secret cannot be sealed or opened.
    #[error(transparent)]
    SealedBox(#[from] SealedBoxError),
    /// A system call failed.
    #[error("{object}: {source}")]
    System {
        /// On what.
        object: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    /// How to mend it; empty if there is nothing to say.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoAllocation => {
                "run it in a job (`sbatch -N2 --wrap '...'`), or name a file of hosts: --hostfile FILE"
            }
            Self::InvalidHostFile { .. } => "a line is HOST, `HOST slots=N` or HOST:N",
            Self::Unset(_) => "check whether the job has changed its variables",
            Self::OwnHost(_) => "list each host once, by a name that means the same on all hosts",
            Self::UnknownHost { .. } => "make its name known on every host (/etc/hosts, DNS)",
            Self::NoLauncher { .. } => {
                "put the manager's own commands into your PATH on the host where this is started"
            }
            Self::Unreachable { .. } => {
                "check that no firewall keeps hosts from connecting to the one that had programs started on them"
            }
            Self::NoAnswer { .. } | Self::UnknownMessage(_) => "have the same version installed on all hosts",
            Self::Handshake { why, .. } => why.hint(),
            Self::OtherTalk(_) => "have .bashrc and .profile print nothing where there is no terminal",
            _ => "",
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            // This says what to do about system calls that the kernel lacks.
            Error::System { object, source } => {
                let Err(fault) = Err::<Infallible, _>(source).context(|| object);
                fault
            }
            error => Self::new(error.to_string()).hint(error.hint()),
        }
    }
}

/// Adds on what a system call failed.
pub(crate) trait OfSystem<T> {
    /// `object` names it.
    fn of<D: std::fmt::Display>(self, object: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: Into<io::Error>> OfSystem<T> for std::result::Result<T, E> {
    fn of<D: std::fmt::Display>(self, object: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|source| Error::System { object: object().to_string(), source: source.into() })
    }
}
