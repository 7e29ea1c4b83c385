//! How a snapshot or an image gets to many nodes: by each of them from where it is, or from node to node.

mod image;
mod registry;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat, statfs};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};
use skiff_launch::handshake::SharedSecret;
use skiff_launch::manager::slurm_hosts;
use skiff_relay::{Mirror, MirrorAddress, RelayPatience, RelayReader, RelaySetup};
use skiff_sandbox::start::detach_stdio;
use skiff_site::TrustedDir;
use skiff_snapshot::{Depot, PieceCounts};
use skiff_spec::config::FanOut;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::names;
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, Fork, close_all_except, exit_now, fork, positive_pid};
use skiff_sys::small_file;
use skiff_user::context::UserContext;

use crate::snapshot_fault::ours;
use crate::time_limit::until;

use self::image::RelayedImage;

pub use self::image::{RelayImage, room_for};

/// In a depot: from this the keys follow by which the nodes of a job know each other.
const SECRET: &str = "relay.key";
/// Bytes of that text.
const SECRET_BYTES: u64 = 64;
/// In the directory of a job's root on a node: the number of the relay's process.
const PROCESS: &str = "relay.pid";
/// The start of that process's name.
const NAME: &str = "skiff: relay";
/// So that nothing else that is derived from it is the same.
const PURPOSE: &str = "skiff 2026-11-26 the secret of a job's relay";
/// Each node reads the depot if all nodes but one would spare it no more than this, in bytes. It is what they read meanwhile by a fast network.
const MIN_SPARED: u64 = 64 << 20;
/// With as many nodes parallel file systems are still faster than their network (docs/scale.md).
const MOST_OF_PARALLEL: usize = 128;
/// Lustre, GPFS, BeeGFS and CephFS, by statfs(2).
const PARALLEL: [i64; 4] = [0x0BD0_0BD0, 0x4750_4653, 0x1983_0326, 0x00C3_6400];
/// Ext4, XFS, Btrfs, ZFS, tmpfs and overlays: a disk of this machine, which a relay reads no faster.
const LOCAL: [i64; 6] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x2FC1_2FC1, 0x0102_1994, 0x794C_7630];

/// How long it may take to learn what the relay needs of the depot, whose file system may hang.
const TO_LOOK: Duration = Duration::from_secs(5);

/// The relay of a job on this node.
pub struct JobRelay {
    local: UnixStream,
    /// Whoever holds it keeps the relay alive.
    holder_end: OwnedFd,
    /// Where an image is asked for.
    mirror: Option<MirrorAddress>,
    fan_out: FanOut,
    /// Whether the depot may be better read by it than by each node.
    is_for_depot: bool,
    /// How many nodes begin at the same time.
    begin_now: usize,
    /// What has come of an image's file.
    came_of_file: Cell<PieceCounts>,
}

/// A job's root that is being made on a node.
pub struct RelayPlace<'a> {
    /// The job.
    pub job: u32,
    /// The directory of the root.
    pub dir: &'a Path,
    /// The user's depot.
    pub depot: &'a Path,
    /// What image is below it.
    pub image: RelayImage,
}

/// The nodes of a job, and which of them this one is.
struct JobNodes {
    /// By name; and whether the step that is beginning has it.
    names: Vec<(String, bool)>,
    here: usize,
}

/// Makes what nodes know each other by, unless it is there: before a job is submitted.
pub fn make_secret(depot: &Path) -> Result<()> {
    Depot::open(depot).map_err(ours)?;
    let dir = TrustedDir::open(depot, getuid().as_raw())?.private()?;
    if read_secret(&dir)?.is_some() {
        return Ok(());
    }
    // Two submissions at once: one's is the depot's then, and a job that has read the other's on some nodes has them read the depot.
    Ok(dir.write(SECRET, SharedSecret::generate()?.to_hex().as_bytes(), 0o600)?)
}

/// Whether there are nodes that a relay could be for, as far as this node knows without looking at anything.
pub fn has_others(context: &UserContext) -> bool {
    context.config.slurm.fan_out != FanOut::Depot && other_nodes().is_some()
}

/// The nodes of a job that has several.
fn other_nodes() -> Option<JobNodes> {
    JobNodes::from_variables(|name| std::env::var(name).ok()).filter(|nodes| nodes.names.len() > 1)
}

/// Begins the relay of a job's root on this node; nothing where there is none to be, or it cannot be: then each node reads the depot, or asks
/// the registry.
pub fn begin(context: &UserContext, place: &RelayPlace<'_>) -> Option<JobRelay> {
    let fan_out = context.config.slurm.fan_out;
    let nodes = other_nodes()?;
    if fan_out == FanOut::Depot {
        return None;
    }
    let looked_up = until("depot reader", Instant::now() + TO_LOOK, || {
        let is_for_depot = may_be_wanted(fan_out, nodes.names.len(), || type_of(place.depot));
        Ok((is_for_depot, derive_secret(place)?.map(|secret| secret.to_hex())))
    });
    let (is_for_depot, secret) = looked_up.ok()??;
    let known = (is_for_depot, secret?.parse().ok()?);
    try_begin(context, place, (fan_out, nodes), known).default_on_error("each node asks for itself then")
}

fn try_begin(
    context: &UserContext,
    place: &RelayPlace<'_>,
    (fan_out, nodes): (FanOut, JobNodes),
    (is_for_depot, secret): (bool, SharedSecret),
) -> Result<Option<JobRelay>> {
    let begin_now = nodes.names.iter().filter(|(_, begins)| *begins).count().max(1);
    let (local, remote) = UnixStream::pair().context(|| "socket of the relay")?;
    let (relay_end, holder_end) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe of the relay")?;
    let mirror = Mirror::open().map(Some).default_on_error("each node asks the registry then");
    // One of an attempt before, which may have been stopped.
    end(place.dir);
    match fork(CloneFlags::NONE).context(|| "relay")? {
        Fork::Parent(child) => {
            small_file::write(&place.dir.join(PROCESS), child.pid.to_string().as_bytes())
                .ignore_error("a relay without this file ends when the supervisor does");
            let mirror = mirror.map(|mirror| mirror.address().clone());
            let came_of_file = Cell::default();
            Ok(Some(JobRelay { local, holder_end, mirror, fan_out, is_for_depot, begin_now, came_of_file }))
        }
        Fork::Child => {
            let kept = [remote.as_fd(), relay_end.as_fd()];
            close_all_except(
                &kept.into_iter().chain(mirror.iter().map(Mirror::descriptor)).collect::<Vec<_>>(),
            );
            let served = run_relay(context, place, (nodes, secret), (remote, &relay_end, mirror));
            exit_now(i32::from(served.is_err()))
        }
    }
}

/// The relay's process.
fn run_relay(
    context: &UserContext,
    RelayPlace { job, depot, image, .. }: &RelayPlace<'_>,
    (nodes, secret): (JobNodes, SharedSecret),
    (remote, relay_end, mirror): (UnixStream, &OwnedFd, Option<Mirror>),
) -> Result<()> {
    rustix::process::setsid().context(|| "session")?;
    detach_stdio();
    skiff_sys::title::set(&format!("{NAME} of job {job}"));
    let JobNodes { names, here } = nodes;
    let image = Arc::new(RelayedImage::new(context, depot, image));
    let setup = RelaySetup {
        nodes: names,
        here,
        secret,
        ports: context.config.slurm.relay_ports.of_job(*job),
        depot: Depot::open_existing(depot).map_err(ours)?,
        image_files: image::opener(&image),
        spool: open_unnamed_file(context),
        patience: RelayPatience::default(),
        image: mirror.map(|mirror| (mirror, registry::readers(&image))),
    };
    skiff_relay::serve(setup, remote, relay_end).context(|| "relay")
}

/// Ends the relay of a job's root that has this directory, for one that does not see that its time is over.
pub fn end(dir: &Path) {
    let noted = small_file::read_below(CWD, dir.join(PROCESS), 32)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(pid) = noted.and_then(|number| number.parse().ok()).and_then(positive_pid) else { return };
    // Before it is looked at: what is found is of this process then, not of a later one of its number.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let comm = format!("/proc/{}/comm", pid.as_raw_nonzero());
    if std::fs::read(comm).is_ok_and(|name| name.starts_with(NAME.as_bytes())) {
        pidfd_send_signal(process, Signal::KILL).ignore_error("it has ended by itself");
    }
}

impl JobRelay {
    /// The depot as it is to be read, if so many bytes are missing here.
    #[must_use]
    pub fn read_for(&self, depot: Depot, missing: u64) -> Depot {
        match self.reader_for(missing) {
            Some(reader) => depot.read_by(Box::new(reader)),
            None => depot,
        }
    }

    /// A reader for so many bytes of files, if that is better than that each node reads these.
    fn reader_for(&self, missing: u64) -> Option<RelayReader> {
        let spared = missing.saturating_mul(self.begin_now as u64 - 1);
        let is_wanted = match self.fan_out {
            FanOut::Relay => true,
            FanOut::Auto => self.is_for_depot && spared >= MIN_SPARED,
            FanOut::Depot => false,
        };
        is_wanted.then(|| self.local.try_clone().and_then(RelayReader::new).ok())?
    }

    /// What a process needs that is to read by it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.local.as_fd()
    }

    /// As long as this is open, and no longer, other nodes are served.
    pub fn into_holder_end(self) -> OwnedFd {
        self.holder_end
    }
}

impl JobNodes {
    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let list = |name: &str| slurm_hosts(&variable(name)?);
        let job = list(names::JOB_NODES)?;
        let step = list(names::STEP_NODES).unwrap_or_else(Vec::new);
        // A batch script has no list, and runs on the first node.
        let number = variable(names::STEP_NODE)?.parse::<usize>().ok()?;
        let own = if step.is_empty() { &job } else { &step }.get(number)?.clone();
        let begins: BTreeSet<&String> = step.iter().collect();
        let here = job.iter().position(|name| *name == own)?;
        let names = job.iter().map(|name| (name.clone(), begins.contains(name))).collect();
        Some(Self { names, here })
    }
}

/// Whether a relay may be wanted, whatever is missing.
fn may_be_wanted(fan_out: FanOut, nodes: usize, file_system: impl FnOnce() -> Option<i64>) -> bool {
    match fan_out {
        FanOut::Depot => false,
        FanOut::Relay => true,
        FanOut::Auto => {
            let found = file_system();
            let is_among = |known: &[i64]| found.is_some_and(|found| known.contains(&found));
            !is_among(&LOCAL) && nodes > if is_among(&PARALLEL) { MOST_OF_PARALLEL } else { 1 }
        }
    }
}

fn type_of(depot: &Path) -> Option<i64> {
    statfs(depot).ok().map(|found| found.f_type)
}

/// What the relays of a job's root know, and nobody else; nothing if the depot has nothing that it follows from. Those of its other roots have other
/// images, and would ask their registries for this one's in vain.
fn derive_secret(place: &RelayPlace<'_>) -> Result<Option<SharedSecret>> {
    let dir = TrustedDir::open(place.depot, getuid().as_raw())?.private()?;
    let root = match &place.image {
        RelayImage::Named(reference) => ["image", reference],
        RelayImage::OfSnapshot(snapshot) => ["snapshot", snapshot],
    };
    let derive = |secret: SharedSecret| {
        let secret = secret.to_hex();
        let parts =
            [secret.as_bytes(), &place.job.to_le_bytes(), root[0].as_bytes(), b" ", root[1].as_bytes()];
        blake3::derive_key(PURPOSE, &parts.concat()).into()
    };
    Ok(read_secret(&dir)?.map(derive))
}

fn read_secret(dir: &TrustedDir) -> Result<Option<SharedSecret>> {
    match small_file::read_below(dir.as_fd(), SECRET, SECRET_BYTES) {
        // One that a crash has left half written is none.
        Ok(bytes) => Ok(std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok())),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NOENT) => Ok(None),
        Err(e) => Err(Error::new(format!("{}: {e}", dir.path_of(SECRET).display()))),
    }
}

/// A file that goes with its last user, on the disk of the user's cache.
fn open_unnamed_file(context: &UserContext) -> Option<OwnedFd> {
    let parent = TrustedDir::open(Path::new(&context.config.slurm.cache), getuid().as_raw()).ok()?;
    let dir = parent.make_dir(context.uid.to_string(), 0o700).ok()?;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    openat(&dir, ".", flags, Mode::RUSR | Mode::WUSR).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn each_job_has_a_secret_of_its_own_which_stays() {
        let dir = std::env::temp_dir().join(format!("skiff-relay.{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).expect("one's own");
        let secret = |job, image| {
            let image = RelayImage::Named(String::from(image));
            derive_secret(&RelayPlace { job, dir: &dir, depot: &dir, image })
        };
        assert_eq!(secret(1, "a"), Ok(None));
        make_secret(&dir).expect("made");
        let first = secret(1, "a").expect("read").expect("there");
        make_secret(&dir).expect("it is there");
        assert_eq!(secret(1, "a"), Ok(Some(first.clone())));
        for other in [secret(2, "a"), secret(1, "b")] {
            assert_ne!(other, Ok(Some(first.clone())));
        }
        // What is none is replaced: a half of one, or zeros where a server has crashed.
        for wrong in [&b"half"[..], &[0; 64]] {
            std::fs::write(dir.join(SECRET), wrong).expect("written");
            assert_eq!(secret(1, "a"), Ok(None));
            make_secret(&dir).expect("made");
        }
        assert_ne!(secret(1, "a"), Ok(Some(first)));
        let mode = std::fs::metadata(dir.join(SECRET)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_dir_all(dir).expect("gone");
    }

    #[test]
    fn few_nodes_and_parallel_and_local_file_systems_need_no_relay() {
        let nfs = || Some(0x6969);
        assert!(!may_be_wanted(FanOut::Depot, 1000, nfs));
        assert!(may_be_wanted(FanOut::Relay, 2, nfs));
        assert!(may_be_wanted(FanOut::Auto, 2, nfs) && !may_be_wanted(FanOut::Auto, 1, nfs));
        let lustre = || Some(PARALLEL[0]);
        assert!(!may_be_wanted(FanOut::Auto, 128, lustre) && may_be_wanted(FanOut::Auto, 129, lustre));
        let ext4 = || Some(LOCAL[0]);
        assert!(!may_be_wanted(FanOut::Auto, 1000, ext4) && may_be_wanted(FanOut::Relay, 2, ext4));
        assert!(may_be_wanted(FanOut::Auto, 2, || None));
    }

    #[test]
    fn a_node_knows_itself_by_its_number() {
        let of = |step: Option<&str>, number: &str| {
            JobNodes::from_variables(|name| match name {
                names::JOB_NODES => Some("n[1-4]".into()),
                names::STEP_NODES => step.map(str::to_owned),
                names::STEP_NODE => Some(number.into()),
                _ => None,
            })
        };
        let step = of(Some("n[3-4]"), "1").expect("a node");
        assert_eq!(step.here, 3);
        assert_eq!(
            step.names.iter().map(|(_, begins)| *begins).collect::<Vec<_>>(),
            [false, false, true, true]
        );
        let batch = of(None, "0").expect("a node");
        assert_eq!((batch.here, batch.names.iter().any(|(_, begins)| *begins)), (0, false));
        assert!(of(Some("n9"), "0").is_none() && of(Some("n3"), "1").is_none() && of(None, "x").is_none());
    }
}
