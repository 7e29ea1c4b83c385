//! What Slurm's users call a job: its number, or of an array's the array's number and the task's, `46_1`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A task of an array of jobs. It is a job of its own, with a number that its user seldom sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArrayTask {
    /// Number of the array.
    pub array: u32,
    /// Number of the task in it.
    pub task: u32,
}

/// A job as a user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobName {
    /// By its number.
    Id(u32),
    /// As a task of an array.
    Task(ArrayTask),
}

/// Why a text names no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a job's number, such as 46, or 46_1 for a task of an array")]
pub struct JobNameError(String);

impl ArrayTask {
    /// The task of an array that the process's variables name; nothing in another job.
    #[must_use]
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.parse().ok();
        Some(Self { array: number("SLURM_ARRAY_JOB_ID")?, task: number("SLURM_ARRAY_TASK_ID")? })
    }
}

impl fmt::Display for ArrayTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.array, self.task)
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Task(task) => task.fmt(f),
        }
    }
}

impl FromStr for JobName {
    type Err = JobNameError;
    fn from_str(text: &str) -> Result<Self, JobNameError> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| number.to_string() == text);
        let name = match text.split_once('_') {
            None => number(text).map(Self::Id),
            Some((array, task)) => {
                number(array).and_then(|array| Some(Self::Task(ArrayTask { array, task: number(task)? })))
            }
        };
        name.ok_or_else(|| JobNameError(text.into()))
    }
}

impl TryFrom<String> for ArrayTask {
    type Error = JobNameError;
    fn try_from(text: String) -> Result<Self, JobNameError> {
        match text.parse()? {
            JobName::Task(task) => Ok(task),
            JobName::Id(_) => Err(JobNameError(text)),
        }
    }
}

impl From<ArrayTask> for String {
    fn from(task: ArrayTask) -> Self {
        task.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_as_slurm_names_them() {
        let task = ArrayTask { array: 46, task: 1 };
        assert_eq!("46".parse(), Ok(JobName::Id(46)));
        assert_eq!("46_1".parse(), Ok(JobName::Task(task)));
        assert_eq!(
            (task.to_string(), serde_json::to_string(&task).expect("text")),
            ("46_1".into(), "\"46_1\"".into())
        );
        for text in ["", "dev", "046", "46_", "_1", "46_01", "46_1_2", "46_[1-2]", "4294967296"] {
            assert!(text.parse::<JobName>().is_err(), "{text}");
        }
        let of = |array: Option<&str>| {
            ArrayTask::from_variables(|name| match name {
                "SLURM_ARRAY_JOB_ID" => array.map(String::from),
                _ => Some("1".into()),
            })
        };
        assert_eq!((of(Some("46")), of(None), of(Some("x"))), (Some(task), None, None));
    }
}
