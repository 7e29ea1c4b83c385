//! Where CRIU is, and how a process becomes it.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::error::{Error, Result, WithObject as _};

/// CRIU looks for what it runs itself (`ip`, `iptables-restore`) here: where a distribution has it, not where users of a root put programs of
/// their own.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// CRIU as it is installed on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installation {
    /// Path of an installed `criu`, or its name, which is looked for where programs usually are. Its loader and libraries are those of the root that it runs in.
    Program(PathBuf),
    /// Path of a folder that holds all that CRIU needs, so that it runs in any root: the program `criu`, its dynamic loader `ld.so`, its
    /// libraries in `lib`, and a directory `plugins`, which is usually empty.
    Folder(PathBuf),
}

impl Installation {
    /// The program at a path: a folder if it is a directory.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        if path.is_dir() { Self::Folder(path.into()) } else { Self::Program(path.into()) }
    }

    /// Path of the program or folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Program(path) | Self::Folder(path) => path,
        }
    }

    /// The path from `/`: CRIU changes its directory, and looks for its plug-ins then.
    pub(crate) fn absolute(&self) -> Result<PathBuf> {
        let path = self.path();
        if path.components().count() == 1 && matches!(self, Self::Program(_)) {
            return Ok(path.into());
        }
        std::path::absolute(path).on("find", &path.display().to_string())
    }

    /// Holds it open, so that it is found from wherever the process goes.
    pub(crate) fn open(&self) -> Result<OwnedFd> {
        let kind = match self {
            Self::Program(_) => OFlags::empty(),
            Self::Folder(_) => OFlags::DIRECTORY,
        };
        openat(CWD, self.path(), OFlags::PATH | OFlags::CLOEXEC | kind, Mode::empty())
            .on("open", &self.path().display().to_string())
    }

    /// CRIU with nothing but its own arguments and variables. It serves the socket of this number; `at` is where the program is found.
    pub(crate) fn command(&self, at: &Path, socket: RawFd) -> Command {
        let mut command = match self {
            Self::Program(_) => Command::new(at),
            Self::Folder(_) => {
                let mut command = Command::new(at.join("ld.so"));
                command.arg("--library-path").arg(at.join("lib")).arg(at.join("criu"));
                command
            }
        };
        command.env_clear().env("PATH", PATH).args(["--no-default-config", "swrk", &socket.to_string()]);
        if let Self::Folder(_) = self {
            // No plug-ins of whatever root it runs in.
            command.env("CRIU_LIBS_DIR", at.join("plugins"));
        }
        command
    }
}

/// All that a process needs to become CRIU, made by [`Criu::prepare`](crate::Criu::prepare).
///
/// The process is the caller's: forked, moved into whatever namespaces, with whatever capabilities.
pub struct CriuExec<'a> {
    pub(crate) installation: Installation,
    pub(crate) opened: OwnedFd,
    pub(crate) socket: OwnedFd,
    pub(crate) log: File,
    /// Descriptors of the caller's that CRIU is to have under the same numbers.
    pub(crate) inherited: Vec<BorrowedFd<'a>>,
}

impl CriuExec<'_> {
    /// The descriptors that the process must still have when it calls [`CriuExec::exec`].
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let own = [self.opened.as_fd(), self.socket.as_fd(), self.log.as_fd()];
        own.into_iter().chain(self.inherited.iter().copied()).collect()
    }

    /// Replaces this process by CRIU. It returns only if that fails.
    ///
    /// The program is found by its descriptor in `/proc`, which must be mounted in the root that the process is in.
    #[must_use]
    pub fn exec(&self) -> Error {
        for fd in self.descriptors() {
            if let Err(e) = fcntl_setfd(fd, FdFlags::empty()).on("keep", "a descriptor for CRIU") {
                return e;
            }
        }
        let log = match self.log.try_clone().on("duplicate", "the log's descriptor") {
            Ok(log) => log,
            Err(e) => return e,
        };
        let at = PathBuf::from(format!("/proc/self/fd/{}", self.opened.as_raw_fd()));
        let mut command = self.installation.command(&at, self.socket.as_raw_fd());
        let source = command.stderr(Stdio::from(log)).exec();
        Error::Io { what: "run", object: program_of(&command), source }
    }
}

/// The path of a command's program, for a message.
pub fn program_of(command: &Command) -> String {
    OsString::from(command.get_program()).display().to_string()
}
