//! All that is read inside an instance while its processes stand still, but for their memory and for POSIX messages: by one process. Where it can, it has entered
//! before, as a save has it; `migrate` starts it while they stand still.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};
use skiff_runtime::record::InstanceDir;
use skiff_sandbox::enter::EnterTarget;
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::plan::Plan;

use crate::criu::CriuProcess;
use crate::files::{self, FoundFile};
use crate::hidden;
use crate::mappings::Placeholders;
use crate::obstacles::{self, SavedProcess};
use crate::posix_queues::{self, PosixQueues};
use crate::record::{POSIX_QUEUES, SYSV, SavedTree};
use crate::sysv::{SystemV, SystemVFile};
use crate::trees::{self, TreeFiles};
use crate::waiting::WaitingProcess;
use crate::watch::{BegunWatch, Watch};

/// What is to be read.
#[derive(Serialize, Deserialize)]
struct ReadRequest {
    processes: Vec<SavedProcess>,
    /// Number inside of CRIU, which has stopped them.
    tracer: Option<i32>,
    /// Files to be looked for.
    /// Each with whether it is open to be written.
    paths: BTreeMap<String, bool>,
    /// Whether the memory of the processes is to be watched from now on.
    watches: bool,
}

/// What has been read, as far as it is not in files.
#[derive(Serialize, Deserialize)]
struct ReadReport {
    sysv: Option<SystemV>,
    has_posix_queues: bool,
    files: Vec<FoundFile>,
    trees: Vec<Option<String>>,
    watched: Option<BegunWatch>,
}

/// What has been read.
pub struct InsideContents {
    /// System V objects, if there are any.
    pub sysv: Option<SystemV>,
    /// POSIX message queues, if there are any.
    pub posix_queues: Option<PosixQueues>,
    /// The instance's own directories.
    pub trees: Vec<SavedTree>,
    /// How many bytes its command had written to its output.
    pub written: u64,
    /// The files that were looked for, as far as they are there.
    pub(crate) files: Vec<FoundFile>,
}

/// A process inside that waits until it can read them, with the new files of a checkpoint.
pub struct InsideReader<'a> {
    process: WaitingProcess<ReadRequest, ReadReport>,
    inside: EnterTarget<'a>,
    sysv: SystemVFile,
    /// Where messages of POSIX queues go.
    queues: PathBuf,
    /// The instance's directory.
    instance: &'a Path,
    trees: TreeFiles<'a>,
    /// By which it sends descriptors of what it watches.
    watched: OwnedFd,
}

impl<'a> InsideReader<'a> {
    /// Starts it, for the instance in `record` that was started with this plan, and makes files in the directory `dir` of a new checkpoint.
    ///
    /// # Errors
    /// When there are no processes or files to be had.
    pub fn begin(
        inside: EnterTarget<'a>,
        plan: &'a Plan,
        record: &'a InstanceDir,
        dir: &Path,
    ) -> Result<Self> {
        Self::begin_with(inside, (plan, record, dir), &Watch::default())
    }

    /// The same, where memory is watched that may go on being watched.
    pub(crate) fn begin_with(
        inside: EnterTarget<'a>,
        (plan, record, dir): (&'a Plan, &'a InstanceDir, &Path),
        watch: &Watch,
    ) -> Result<Self> {
        let sysv = SystemVFile::new(dir.join(SYSV))?;
        let trees = TreeFiles::new(plan, record, dir)?;
        let (watched, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context(|| "connection for memory that is watched")?;
        let placeholders = Placeholders::of(plan);
        let kept = [sysv.as_fd(), theirs.as_fd()].into_iter();
        let kept: Vec<_> = kept.chain(trees.descriptors()).chain(watch.descriptors()).collect();
        let process = WaitingProcess::begin(inside, &kept, |request: ReadRequest| {
            let ReadRequest { processes, tracer, paths, watches } = request;
            hidden::refuse(&processes, tracer)?;
            Ok(ReadReport {
                sysv: sysv.read(&processes, tracer, &placeholders)?,
                has_posix_queues: posix_queues::are_there()?,
                files: files::find(&paths, &trees::own_places(plan)),
                trees: trees.write()?,
                watched: watches.then(|| watch.begin(&processes, tracer, theirs.as_fd())),
            })
        })?;
        drop(kept);
        let (queues, instance) = (dir.join(POSIX_QUEUES), &*record.dir);
        Ok(Self { process, inside, sysv, queues, instance, trees, watched })
    }

    /// Reads all of it: of these processes, which CRIU has stopped. CRIU waits for a word.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn read(self, processes: &[SavedProcess], criu: &CriuProcess) -> Result<InsideContents> {
        self.read_with(processes, criu, &BTreeMap::new(), None)
    }

    /// The same, and looks for these files. If there is a `watch`, it is what begins then.
    pub(crate) fn read_with(
        self,
        processes: &[SavedProcess],
        criu: &CriuProcess,
        paths: &BTreeMap<String, bool>,
        watch: Option<&mut Watch>,
    ) -> Result<InsideContents> {
        let Self { process, inside, sysv, queues, instance, trees, watched } = self;
        let written = trees.hold_output()?;
        let request = ReadRequest {
            processes: processes.to_vec(),
            tracer: obstacles::number_inside(criu.number()?.as_raw_nonzero().get()),
            paths: paths.clone(),
            watches: watch.is_some(),
        };
        let read = process.ask(&request)?;
        if let Some(watch) = watch {
            watch.forget();
            if let Some(begun) = read.watched {
                watch.take_begun(begun, watched.as_fd());
            }
        }
        // Nobody inside takes messages out: root inside could end who has them.
        let posix_queues =
            posix_queues::keep((inside, criu.news()), &queues, instance, read.has_posix_queues)?;
        Ok(InsideContents {
            sysv: sysv.close(read.sysv)?,
            posix_queues,
            trees: trees.written(read.trees),
            written,
            files: read.files,
        })
    }
}
