//! The record of a whole job's checkpoint: which instances are in it, and where each was. A directory beside other checkpoints:
//!
//! ```text
//! job                 one line with the format's name, its number and the digest of the rest; then JSON: `JobCheckpoint`
//! images/             empty: what tells a checkpoint from other directories
//! members/NUMBER/     a checkpoint of one instance (`record.rs`)
//! ```

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::name::EnvName;
use skiff_sys::small_file;

use crate::record::{self, Checkpoint};

/// The record's file.
pub const FILE: &str = "job";
/// Where the parts are.
const MEMBERS: &str = "members";
/// What the record begins with.
pub const MAGIC: &str = "skiff-job-checkpoint";

/// All that is known of a whole job's checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobCheckpoint {
    /// Seconds since 1970.
    pub created: u64,
    /// By which this save is known to those who took part in it.
    pub token: String,
    /// Whether the instances went on afterwards.
    pub left_running: bool,
    /// The instances, in the order of their parts.
    pub members: Vec<SavedMember>,
}

/// An instance of a whole job's checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedMember {
    /// Name of the instance.
    pub instance: EnvName,
    /// Node where it was saved.
    pub node: String,
    /// Number of its part.
    pub part: usize,
    /// How many processes it has.
    pub processes: usize,
    /// Bytes of its files.
    pub bytes: u64,
    /// Digest of its record (BLAKE3, hexadecimal).
    pub record: String,
}

impl JobCheckpoint {
    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.members.iter().map(|member| member.bytes).fold(0, u64::saturating_add)
    }

    /// Processes of all instances.
    pub fn processes(&self) -> usize {
        self.members.iter().map(|member| member.processes).fold(0, usize::saturating_add)
    }

    /// Writes the record into `dir`, as its last file, and flushes the directory.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let about = || path.display().to_string();
        let body = serde_json::to_vec_pretty(self).map_err(|e| Fault::new(format!("{}: {e}", about())))?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path).context(about)?;
        file.write_all(&record::sealed((MAGIC, record::WHOLE), &body))
            .and_then(|()| file.sync_all())
            .context(about)?;
        [&dir.join(MEMBERS), dir].into_iter().try_for_each(record::flush)
    }

    /// Reads the record in `dir`; nothing if that is not a whole job's checkpoint.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let bytes =
            small_file::read_below(CWD, &*path, record::LONGEST).context(|| path.display().to_string())?;
        let damaged = |why: String| {
            Fault::new(format!("checkpoint {}: {why}", record::place_of(dir).display()))
                .hint("it is not restored, as it would come back wrong")
        };
        Self::parse(&bytes).map(Some).map_err(damaged)
    }

    /// From the record's bytes.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let body = record::body_of((MAGIC, record::WHOLE), bytes)?;
        serde_json::from_slice(body).map_err(|e| format!("its record: {e}"))
    }
}

impl SavedMember {
    /// Checks that its part's record is the one that was saved.
    pub fn check(&self, dir: &Path) -> Result<()> {
        let is = digest(&part(dir, self.part))?;
        match is == self.record {
            true => Ok(()),
            false => Err(Fault::new(format!(
                "{}: its record is damaged",
                part(&record::place_of(dir), self.part).display()
            ))
            .hint("nothing is restored, as it would come back wrong")),
        }
    }
}

/// Directory of a part.
pub fn part(dir: &Path, number: usize) -> PathBuf {
    dir.join(MEMBERS).join(number.to_string())
}

/// Directory of the checkpoint that the part in `part` belongs to.
pub fn whole(part: &Path) -> &Path {
    part.ancestors().nth(2).unwrap_or(part)
}

/// Digest of the record of the part in `dir`.
pub fn digest(dir: &Path) -> Result<String> {
    let path = dir.join(record::FILE);
    let bytes =
        small_file::read_below(CWD, &*path, record::LONGEST).context(|| path.display().to_string())?;
    Ok(record::digest(&bytes))
}

/// The checkpoints of instances in `dir`: that of one, or all of a whole job's. What cannot be read is left out.
pub fn instances(dir: &Path) -> Vec<Checkpoint> {
    match JobCheckpoint::read(dir) {
        Ok(Some(job)) => {
            job.members.iter().filter_map(|member| Checkpoint::read(&part(dir, member.part)).ok()).collect()
        }
        _ => Checkpoint::read(dir).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(JobCheckpoint::read(dir.path()), Ok(None));
        std::fs::create_dir_all(part(dir.path(), 0)).unwrap();
        std::fs::write(part(dir.path(), 0).join(record::FILE), "one").unwrap();
        let record = digest(&part(dir.path(), 0)).unwrap();
        let member = SavedMember {
            instance: "rank".parse().unwrap(),
            node: "n1".into(),
            part: 0,
            processes: 3,
            bytes: 10,
            record,
        };
        let job = JobCheckpoint {
            created: 1,
            token: "t".into(),
            left_running: false,
            members: vec![member.clone(), SavedMember { part: 1, ..member.clone() }],
        };
        job.write(dir.path()).unwrap();
        assert_eq!(JobCheckpoint::read(dir.path()).unwrap().as_ref(), Some(&job));
        assert_eq!((job.size(), job.processes()), (20, 6));
        assert_eq!(member.check(dir.path()), Ok(()));
        std::fs::write(part(dir.path(), 0).join(record::FILE), "two").unwrap();
        assert!(member.check(dir.path()).unwrap_err().message.contains("damaged"));
        let path = dir.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"n1\"", "\"n9\"")).unwrap();
        assert!(JobCheckpoint::read(dir.path()).unwrap_err().message.contains("its record is damaged"));
        std::fs::write(&path, text.replace("skiff-job-checkpoint 1", "skiff-job-checkpoint 2")).unwrap();
        assert!(JobCheckpoint::read(dir.path()).unwrap_err().message.contains("it is of format 2"));
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_read_is_a_record_or_refused(body in "\\PC{0,60}", head in "\\PC{0,30}") {
            // With a head that fits, as somebody writes one who means it.
            for bytes in [record::sealed((MAGIC, record::WHOLE), body.as_bytes()), format!("{head}\n{body}").into_bytes()] {
                if let Ok(read) = JobCheckpoint::parse(&bytes) {
                    std::hint::black_box((read.size(), read.processes()));
                }
            }
        }
    }
}
