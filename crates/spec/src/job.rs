//! What a job carries of what it runs in: one line of JSON that the plug-in takes from the submitting side to every node.

mod named;

pub use named::{AttachMode, ContainerName, ContainerNameError, UnsharedNamespace, UnsharedNamespaceError};
pub use skiff_slurm_names as names;

use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::image::ImageId;
use crate::name::EnvName;

/// What a job runs in, and where a node gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum JobSpec {
    /// One of the user's environments, as it was at submission.
    Snapshot(Snapshot),
    /// An image, asked for by `--container-image` and the like.
    Container(JobContainer),
}

/// Names the snapshot a job runs in, and where a node gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The environment's name on the submitting side.
    pub environment: EnvName,
    /// The snapshot, 64 hexadecimal digits.
    pub snapshot: String,
    /// The directory on a shared file system that holds it.
    pub depot: String,
    /// Which nodes' changes become a snapshot at the end; nothing if none do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<JobCommit>,
    /// Devices that the environment was made with, as on the command line of `skiff run`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
}

/// What is kept of the changes that a job makes in its environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobCommit {
    /// On which nodes.
    pub nodes: CommitNodes,
    /// Whether a job's step has asked for it: that ends before the job does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub step: bool,
    /// Whether the job has a script, whose end is the job's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub script: bool,
}

/// The nodes whose changes are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CommitNodes {
    /// The first one of the job, where its script and its first task run.
    Rank0,
    /// Each of them: a snapshot for each.
    All,
    /// This one.
    Node(String),
}

/// Why [`CommitNodes`] were not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not rank0, all or the name of a node")]
pub struct CommitNodesError(String);

impl FromStr for CommitNodes {
    type Err = CommitNodesError;
    fn from_str(text: &str) -> Result<Self, CommitNodesError> {
        let is_rank = |text: &str| {
            let digits = text.strip_prefix("rank").unwrap_or_default();
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        // No node is meant by another case of these: that it is none would show only when the job starts.
        match &text.to_ascii_lowercase()[..] {
            "rank0" => Ok(Self::Rank0),
            "all" => Ok(Self::All),
            "yes" | "no" | "true" | "false" | "on" | "off" | "none" => Err(CommitNodesError(text.into())),
            rank if is_rank(rank) => Err(CommitNodesError(text.into())),
            _ => Self::node(text),
        }
    }
}

impl CommitNodes {
    fn node(text: &str) -> Result<Self, CommitNodesError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match text {
            node if (1..=LONGEST_NODE).contains(&node.len())
                && node.as_bytes()[0].is_ascii_alphanumeric()
                && node.bytes().all(plain) =>
            {
                Ok(Self::Node(node.into()))
            }
            _ => Err(CommitNodesError(text.into())),
        }
    }
}

impl TryFrom<String> for CommitNodes {
    type Error = CommitNodesError;
    fn try_from(text: String) -> Result<Self, CommitNodesError> {
        text.parse()
    }
}

impl From<CommitNodes> for String {
    fn from(nodes: CommitNodes) -> Self {
        match nodes {
            CommitNodes::Rank0 => "rank0".into(),
            CommitNodes::All => "all".into(),
            CommitNodes::Node(name) => name,
        }
    }
}

/// No name of a node is longer, in bytes.
const LONGEST_NODE: usize = 255;

/// An image and how a job's tasks are put into it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobContainer {
    /// How it is called in the place of an environment: `image:NAME`, or `container:NAME`.
    pub environment: String,
    /// The image; nothing if an earlier step of the job has made the container, or the next one must.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<JobImage>,
    /// Whether a step of a job has asked for it, which is then alone in it.
    #[serde(default)]
    pub step: bool,
    /// The name under which its changes are kept as long as the job has the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<EnvName>,
    /// What is wanted of the container of that name.
    #[serde(default, skip_serializing_if = "AttachMode::is_auto")]
    pub attach: AttachMode,
    /// Namespaces that it has of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unshare: Vec<UnsharedNamespace>,
    /// `SOURCE:TARGET[:ro]`; devices as on the command line of `skiff run`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// Files with a file system in them that are mounted read-only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<JobData>,
    /// Where tasks start, if not where the image says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Whether the user's home is mounted.
    pub home: bool,
    /// Whether the user is root inside.
    pub root: bool,
    /// Whether its files can be changed.
    pub writable: bool,
    /// Whether the image's entry point is run, with the task's program as its argument.
    pub entrypoint: bool,
    /// Variables that an environment definition file sets, and their values, in which the image's may stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "settings")]
    pub definition_variables: Vec<(String, String)>,
    /// Variables whose value outside counts, whatever the image says.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "variables")]
    pub kept_variables: Vec<String>,
    /// Where its files are written to at the end, as `skiff export` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<String>,
    /// Whether that is when the job's script has ended: its steps have the same spec, also where no script runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub script: bool,
    /// The user's depot, on a file system that all nodes share.
    pub depot: String,
}

/// Which image: its name alone may mean another one by the time a node asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobImage {
    /// The image.
    pub id: ImageId,
    /// Full name of the image, or the file it is in.
    pub reference: String,
}

/// A file with data, and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobData {
    /// What the image store makes of the file.
    pub image: JobImage,
    /// Where its files are to be, inside.
    pub target: String,
}

impl JobSpec {
    /// What it is called: an environment's name, or what stands in its place.
    #[must_use]
    pub fn environment(&self) -> &str {
        match self {
            Self::Snapshot(snapshot) => snapshot.environment.as_str(),
            Self::Container(container) => &container.environment,
        }
    }

    /// Directory on a shared file system that holds what belongs to it.
    #[must_use]
    pub fn depot(&self) -> &str {
        match self {
            Self::Snapshot(snapshot) => &snapshot.depot,
            Self::Container(container) => &container.depot,
        }
    }

    /// As one line.
    ///
    /// # Errors
    /// None in practice: all fields are text.
    pub fn to_line(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// From one line, which on a node comes from the user's side: checked here, so that what is made of it are
    /// harmless names.
    ///
    /// # Errors
    /// Says which field is wrong.
    pub fn from_line(line: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(line).map_err(|e| format!("job spec: {e}"))?;
        let spec = if value.get("snapshot").is_some() {
            Self::Snapshot(read(value)?)
        } else {
            Self::Container(read(value)?)
        };
        spec.check().map_err(|why| format!("job spec: {why}")).map(|()| spec)
    }

    /// The environment that a job spec names; nothing where it names none, or is none.
    #[must_use]
    pub fn environment_of(line: &str) -> Option<EnvName> {
        match Self::from_line(line) {
            Ok(Self::Snapshot(snapshot)) => Some(snapshot.environment),
            Ok(Self::Container(_)) | Err(_) => None,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Snapshot(Snapshot { snapshot, .. }) => {
                let hex = snapshot.len() == 64
                    && snapshot.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase());
                if !hex {
                    return Err(format!("snapshot {snapshot:?} is no digest"));
                }
            }
            Self::Container(container) => {
                if let Some(dir) = container.workdir.as_ref().filter(|dir| !dir.starts_with('/')) {
                    return Err(format!("working directory {dir:?} is not an absolute path"));
                }
            }
        }
        let depot = self.depot();
        if depot.starts_with('/') { Ok(()) } else { Err(format!("depot {depot:?} is not an absolute path")) }
    }
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|e| format!("job spec: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_descriptors_are_taken() {
        let good = format!(r#"{{"environment":"dev","snapshot":"{}","depot":"/d"}}"#, "a1".repeat(32));
        let d = JobSpec::from_line(&good).expect("the good one");
        assert_eq!(d.to_line().expect("plain text"), good);
        for (from, to, reason) in [
            ("dev", "../x", "environment name \"../x\": holds a slash"),
            ("a1", "A1", "is no digest"),
            ("a1a1", "/../", "is no digest"),
            ("/d", "d", "depot \"d\" is not an absolute path"),
            ("\"depot\"", "\"x\":1,\"depot\"", "unknown field `x`"),
        ] {
            let refused = JobSpec::from_line(&good.replacen(from, to, 1)).expect_err(to);
            assert!(refused.contains(reason), "{from} -> {to}: {refused}");
        }
    }

    #[test]
    fn what_is_kept_comes_back_as_it_went() {
        let plain = format!(r#"{{"environment":"dev","snapshot":"{}","depot":"/d"}}"#, "a1".repeat(32));
        for (text, nodes) in [
            ("rank0", CommitNodes::Rank0),
            ("all", CommitNodes::All),
            ("n-1.x", CommitNodes::Node("n-1.x".into())),
        ] {
            let Ok(JobSpec::Snapshot(snapshot)) = JobSpec::from_line(&plain) else { panic!("{plain}") };
            let commit = JobCommit { nodes: nodes.clone(), step: false, script: true };
            let spec = JobSpec::Snapshot(Snapshot { commit: Some(commit), ..snapshot });
            let line = spec.to_line().expect("plain text");
            assert!(line.contains(&format!(r#""nodes":"{text}","script":true"#)), "{line}");
            assert_eq!(JobSpec::environment_of(&line), "dev".parse().ok());
            assert_eq!(JobSpec::from_line(&line), Ok(spec));
            assert_eq!(text.parse(), Ok(nodes));
        }
        for (text, nodes) in
            [("All", "all"), ("RANK0", "rank0"), ("Rank0", "rank0"), ("rank", "rank"), ("rank1a", "rank1a")]
        {
            assert_eq!(text.parse::<CommitNodes>().map(String::from), Ok(nodes.to_owned()));
        }
        let long = "n".repeat(256);
        for text in
            ["", "../x", "a b", "a@b", "-n", "n\n", "rank1", "Rank00", "RANK12", "yes", "False", &long]
        {
            assert!(text.parse::<CommitNodes>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn containers_come_back_as_they_went() {
        let container = JobContainer {
            environment: "image:docker.io/library/debian:12".into(),
            image: Some(JobImage { id: ImageId([7; 32]), reference: "docker.io/library/debian:12".into() }),
            step: true,
            name: Some("kept".parse().expect("a name")),
            attach: AttachMode::NoExec,
            unshare: vec![UnsharedNamespace::Net, UnsharedNamespace::Uts],
            mounts: vec!["/a:/b:ro".into()],
            data: vec![JobData {
                image: JobImage { id: ImageId([8; 32]), reference: "/d.sqsh".into() },
                target: "/data".into(),
            }],
            workdir: Some("/w".into()),
            home: true,
            root: false,
            writable: true,
            entrypoint: false,
            definition_variables: vec![("A".into(), "${B}".into())],
            kept_variables: vec!["PATH".into()],
            save: Some("/s.sqsh".into()),
            script: true,
            depot: "/d".into(),
        };
        let line = JobSpec::Container(container.clone()).to_line().expect("plain text");
        assert_eq!(JobSpec::from_line(&line), Ok(JobSpec::Container(container)));
        for (from, to, reason) in [
            ("\"kept\"", "\"../x\"", "environment name \"../x\": holds a slash"),
            ("\"/w\"", "\"w\"", "working directory \"w\" is not an absolute path"),
            ("\"/d\"", "\"d\"", "depot \"d\" is not an absolute path"),
            ("0707", "07/7", "no image id"),
            ("root", "x", "unknown field `x`"),
        ] {
            let refused = JobSpec::from_line(&line.replacen(from, to, 1)).expect_err(to);
            assert!(refused.contains(reason), "{from} -> {to}: {refused}");
        }
    }
}
