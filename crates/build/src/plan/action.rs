//! What steps do to files.

use serde::Serialize;
use skiff_spec::image::ImageId;

use super::BuildKey;
use crate::context::CopyOptions;
use crate::context::ignore::IgnoreRules;
use crate::context::mode::ModeChange;
use crate::dockerfile::{DebootstrapInstruction, DirectoryCopy};
use crate::git::GitSource;

/// What a step does to files.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Runs a command.
    Run(RunAction),
    /// Copies files.
    Copy(CopyAction),
    /// Makes the first files of a Debian.
    Debootstrap {
        /// The release and its packages.
        packages: DebootstrapInstruction,
        /// Variables that the result does not depend on: proxies.
        #[serde(skip)]
        uncounted: Vec<(String, String)>,
    },
    /// Makes a directory and those above it, as far as they are missing.
    MakeDirectory {
        /// Which one.
        path: String,
        /// `USER[:GROUP]` whose they become; root's if there is none.
        owner: Option<String>,
    },
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunAction {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Variables.
    pub env: Vec<(String, String)>,
    /// Variables that the result does not depend on: proxies.
    #[serde(skip)]
    pub uncounted: Vec<(String, String)>,
    /// Where it begins.
    pub workdir: String,
    /// Who runs it.
    pub user: String,
    /// Whether it has no network.
    pub no_network: bool,
    /// What it sees beside the files of its stage.
    pub mounts: Vec<PlannedMount>,
    /// Whether what it changes is not kept.
    pub is_test: bool,
}

/// Something that a command sees beside the files of its stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedMount {
    /// Where: an absolute path, or nowhere.
    pub target: String,
    /// What.
    pub kind: PlannedMountKind,
}

/// What a mount shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlannedMountKind {
    /// Files, from a layer that has nothing else.
    Files {
        /// The key of that layer.
        key: BuildKey,
        /// How it is made.
        copy: CopyAction,
        /// Whether the command may change them; a copy then, which goes with the command.
        is_writable: bool,
    },
    /// A directory that later builds find again.
    Cache {
        /// What it is called.
        id: String,
        /// Whether no other command has it at the same time.
        is_exclusive: bool,
        /// Permission bits of a new one.
        mode: u16,
        /// Whose a new one is.
        owner: (u32, u32),
    },
    /// An empty file system in memory.
    Memory {
        /// At most so many bytes.
        size: Option<u64>,
    },
    /// A file that the user gives.
    Secret {
        /// What `--secret` calls it.
        id: String,
        /// The variable that has it, too.
        variable: Option<String>,
        /// Whether the build fails without it.
        is_required: bool,
    },
    /// The way to an ssh agent that the user gives.
    Agent {
        /// What `--ssh` calls it.
        id: String,
        /// Whether the build fails without it.
        is_required: bool,
        /// Permission bits of the socket.
        mode: u16,
        /// User and group of its owner.
        owner: (u32, u32),
    },
    /// A program with this text.
    Script(String),
}

/// Files to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopyAction {
    /// Whether archives of the context are unpacked.
    pub unpacks: bool,
    /// Where they come from.
    pub from: CopyFrom,
    /// What becomes of directories.
    pub directories: DirectoryCopy,
    /// Which ones.
    pub sources: Vec<PlannedSource>,
    /// Patterns of those that are left out all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excludes: Vec<String>,
    /// The sum of those of the context; nothing for others.
    pub sum: String,
    /// Where to: an absolute path.
    pub destination: String,
    /// Whether that is a directory, whatever is there.
    pub is_directory: bool,
    /// `USER[:GROUP]`.
    pub chown: Option<String>,
    /// Permission bits, or how they are changed.
    pub mode: Option<ModeChange>,
}

impl CopyAction {
    /// What is left out.
    #[must_use]
    pub fn excluded(&self) -> IgnoreRules {
        IgnoreRules::of_patterns(&self.excludes)
    }

    /// What is asked of the tree that files come from, where this is left out.
    #[must_use]
    pub fn options<'a>(&'a self, excluded: &'a IgnoreRules) -> CopyOptions<'a> {
        CopyOptions { mode: self.mode.as_ref(), excluded: Some(excluded), directories: self.directories }
    }
}

/// Where copied files come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyFrom {
    /// The context.
    Context,
    /// A stage, by its place among the planned ones.
    Stage(usize),
    /// An image.
    Image(ImageId),
}

/// Something to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlannedSource {
    /// Files at a path, which may have wildcards.
    Path(String),
    /// A file.
    Text {
        /// Name of the file.
        name: String,
        /// What is in it.
        content: String,
    },
    /// A file of another server.
    Remote {
        /// Where it is.
        address: String,
        /// Name of the file.
        name: String,
        /// The file's digest.
        digest: String,
        /// Whether it is unpacked if it is an archive.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        unpacks: bool,
    },
    /// The files of a git repository.
    Repository {
        /// Where it is, and what of it is wanted.
        repository: GitSource,
        /// The commit, in full.
        commit: String,
        /// Whether `.git` comes with it.
        keeps_git: bool,
    },
}

impl PlannedSource {
    /// Whether it is of no tree that is on this host.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote { .. } | Self::Repository { .. })
    }
}
