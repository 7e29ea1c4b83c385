//! What a record of a job is called: by that it is found, and what it is of is known before it is read.

use skiff_spec::array_task::{ArrayTask, JobName};

/// Where a job ran.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobPlace {
    /// Id of the job.
    pub job: u32,
    /// Name of the node.
    pub node: String,
    /// The root of the job there, as its directory is called.
    pub root: String,
}

impl JobPlace {
    /// The job as its user names it.
    pub fn job_name(&self, array_task: Option<ArrayTask>) -> JobName {
        array_task.map_or(JobName::Id(self.job), JobName::Task)
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKind {
    /// How the root came to be.
    Start,
    /// What became of the changes in it.
    End,
    /// The same, when the environment's history has it.
    Noted,
}

const KINDS: [(RecordKind, &str); 3] =
    [(RecordKind::Start, ".start"), (RecordKind::End, ".end"), (RecordKind::Noted, ".noted")];

impl RecordKind {
    fn suffix(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, suffix)| suffix)
    }
}

/// The name of the file of a record.
pub(super) fn name(JobPlace { job, node, root }: &JobPlace, kind: RecordKind) -> String {
    format!("{job}@{node}@{root}{}", kind.suffix())
}

/// What a file of this name is a record of; nothing if it is no record's.
pub(super) fn parse(name: &str) -> Option<(JobPlace, RecordKind)> {
    let harmless = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let (name, kind) = KINDS.iter().find_map(|(kind, suffix)| Some((name.strip_suffix(suffix)?, *kind)))?;
    let (job, rest) = name.split_once('@')?;
    let (node, root) = rest.split_once('@')?;
    let is_number = job.bytes().all(|byte| byte.is_ascii_digit());
    let place = JobPlace { job: job.parse().ok()?, node: node.into(), root: root.into() };
    (is_number && harmless(node) && harmless(root)).then_some((place, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(job: u32, node: &str, root: &str) -> JobPlace {
        JobPlace { job, node: node.into(), root: root.into() }
    }

    #[test]
    fn names_come_back_and_what_is_not_one_is_left_alone() {
        for place in [place(1, "n1", "0123abcd"), place(u32::MAX, "gpu-1.site", "container.3")] {
            for (kind, _) in KINDS {
                assert_eq!(parse(&name(&place, kind)), Some((place.clone(), kind)));
            }
        }
        for text in
            ["", ".end", "1@n.end", "1@@r.end", "1@n@.end", "x@n@r.end", "+1@n@r.end", "1@n@r", "1@n@r.new"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("1@n\x1b[2J@r.end"), None);
        assert_eq!(parse("1@n@r@s.end"), None);
        assert_eq!(parse("4294967296@n@r.end"), None);
    }
}
