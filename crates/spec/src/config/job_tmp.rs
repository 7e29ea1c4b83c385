//! Where the `/tmp` of a job is.

use std::path::{Component, PathBuf};

use serde::{Deserialize, Serialize};

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
            _ => Err("it is `disk`, `memory` or an absolute path without `..`".into()),
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

#[cfg(test)]
mod tests {
    use super::JobTmp;

    #[test]
    fn texts_come_back_as_they_went() {
        for text in ["disk", "memory", "/local/scratch"] {
            assert_eq!(JobTmp::try_from(text.to_owned()).map(String::from), Ok(text.to_owned()));
        }
        for text in ["", "ram", "local", "/local/../etc"] {
            assert!(JobTmp::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
