//! Where the `/tmp` of a job is, and how much goes into it.

use std::path::{Component, PathBuf};

use serde::{Deserialize, Serialize};

use crate::size;

/// Where the `/tmp` and `/var/tmp` of a job are, which end with the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum JobTmp {
    /// The disk of `slurm.cache`: the job's directory there.
    #[default]
    Disk,
    /// Memory.
    Memory,
    /// This directory of the node, in which each job gets one of its own.
    Directory(PathBuf),
}

impl TryFrom<String> for JobTmp {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let path = PathBuf::from(&text);
        match text.as_str() {
            "disk" => Ok(Self::Disk),
            "memory" => Ok(Self::Memory),
            _ if path.is_absolute() && path.components().all(|part| part != Component::ParentDir) => {
                Ok(Self::Directory(path))
            }
            _ => Err("must be `disk`, `memory` or an absolute path without `..`".into()),
        }
    }
}

impl From<JobTmp> for String {
    fn from(tmp: JobTmp) -> Self {
        match tmp {
            JobTmp::Disk => "disk".into(),
            JobTmp::Memory => "memory".into(),
            JobTmp::Directory(path) => path.display().to_string(),
        }
    }
}

/// How many bytes a job may write to its directory on a node's disk; without a number as many as there is room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TmpQuota(pub Option<u64>);

impl TryFrom<String> for TmpQuota {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match (text.as_str(), size::parse(&text)) {
            ("", _) => Ok(Self(None)),
            (_, Some(bytes)) if bytes > 0 => Ok(Self(Some(bytes))),
            _ => Err("it is a size above zero, such as `20G`".into()),
        }
    }
}

impl From<TmpQuota> for String {
    fn from(quota: TmpQuota) -> Self {
        quota.0.map_or_else(Self::new, |bytes| bytes.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::{JobTmp, TmpQuota};

    #[test]
    fn texts_come_back_as_they_went() {
        for text in ["disk", "memory", "/local/scratch"] {
            assert_eq!(JobTmp::try_from(text.to_owned()).map(String::from), Ok(text.to_owned()));
        }
        for text in ["", "ram", "local", "/local/../etc"] {
            assert!(JobTmp::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn quotas_are_sizes() {
        for (text, bytes) in [("", None), ("20G", Some(20 << 30)), ("4096", Some(4096))] {
            assert_eq!(TmpQuota::try_from(text.to_owned()), Ok(TmpQuota(bytes)), "{text}");
        }
        assert_eq!(String::from(TmpQuota(Some(1 << 20))), "1048576");
        for text in ["0", "much", "-1G", "20 G"] {
            assert!(TmpQuota::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
