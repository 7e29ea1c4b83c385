//! How a snapshot gets to many nodes: by each of them from the depot, or from node to node.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat, statfs};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};
use skiff_launch::handshake::SharedSecret;
use skiff_launch::manager::slurm_hosts;
use skiff_relay::{RelayReader, RelaySetup, has_receivers};
use skiff_sandbox::start::detach_stdio;
use skiff_site::TrustedDir;
use skiff_snapshot::Depot;
use skiff_spec::config::FanOut;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::names;
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, Fork, close_all_except, exit_now, fork, positive_pid};
use skiff_sys::small_file;
use skiff_user::context::UserContext;

use crate::snapshot_fault::ours;

/// In a depot: from this the keys follow by which the nodes of a job know each other.
const SECRET: &str = "relay.key";
/// Bytes of that text.
const SECRET_BYTES: usize = 64;
/// In the directory of a job's root on a node: the number of the relay's process.
const PROCESS: &str = "relay.pid";
/// How its name begins.
const NAME: &str = "skiff: relay";
/// So that nothing else that is derived from it is the same.
const PURPOSE: &str = "skiff 2026-11-26 the secret of a job's relay";
/// Each node reads the depot if all nodes but one would spare it no more than this, in bytes. It is what they read meanwhile by a fast network.
const NOT_WORTH: u64 = 64 << 20;
/// With as many nodes parallel file systems are still faster than their network (docs/scale.md).
const FEW_FOR_PARALLEL: usize = 128;
/// Lustre, GPFS, BeeGFS and CephFS, by statfs(2).
const PARALLEL: [i64; 4] = [0x0BD0_0BD0, 0x4750_4653, 0x1983_0326, 0x00C3_6400];

/// The relay of a job on this node.
pub struct JobRelay {
    local: UnixStream,
    /// Whoever holds it keeps the relay alive.
    alive: OwnedFd,
    wish: FanOut,
    nodes: usize,
}

/// The nodes of a job, and which of them this one is.
struct JobNodes {
    /// By name; and whether the step that is beginning has it.
    names: Vec<(String, bool)>,
    here: usize,
}

/// Makes what nodes know each other by, unless it is there: before a job is submitted.
pub fn make_secret(depot: &Path) -> Result<()> {
    let Some(dir) = TrustedDir::find(depot, getuid().as_raw())? else { return Ok(()) };
    if dir.stat(SECRET)?.is_some_and(|stat| stat.st_size == SECRET_BYTES as i64) {
        return Ok(());
    }
    // Two submissions at once: one's is the depot's then, and a job that has read the other's on some nodes has them read the depot.
    Ok(dir.write(SECRET, SharedSecret::generate()?.to_hex().as_bytes(), 0o600)?)
}

/// Begins the relay of a job on the node of this name, on which the job's root has this directory; nothing where there is none to be, or it cannot be: then each node
/// reads the depot.
pub fn begin(context: &UserContext, (dir, node): (&Path, &str), depot: &Path, job: u32) -> Option<JobRelay> {
    let wish = context.config.slurm.fan_out;
    let nodes = JobNodes::from_variables(node).filter(|nodes| nodes.names.len() > 1)?;
    if !may_be_wanted(wish, nodes.names.len(), depot) {
        return None;
    }
    try_begin(context, (dir, depot), job, (wish, nodes)).default_on_error("each node reads the depot then")
}

fn try_begin(
    context: &UserContext,
    (dir, path): (&Path, &Path),
    job: u32,
    (wish, nodes): (FanOut, JobNodes),
) -> Result<Option<JobRelay>> {
    let Some(secret) = secret(path, job)? else { return Ok(None) };
    let count = nodes.names.len();
    let (local, remote) = UnixStream::pair().context(|| "socket of the relay")?;
    let (waiting, alive) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe of the relay")?;
    match fork(CloneFlags::NONE).context(|| "relay")? {
        Fork::Parent(child) => {
            small_file::write(&dir.join(PROCESS), child.pid.to_string().as_bytes())
                .ignore_error("it ends by itself, unless it is stopped");
            Ok(Some(JobRelay { local, alive, wish, nodes: count }))
        }
        Fork::Child => {
            close_all_except(&[remote.as_fd(), waiting.as_fd()]);
            let setup = || -> Result<RelaySetup> {
                let JobNodes { names, here } = nodes;
                let spool = if has_receivers(here, count) { unnamed_file(context) } else { None };
                let ports = context.config.slurm.relay_ports.of_job(job);
                let depot = Depot::open_existing(path).map_err(ours)?;
                Ok(RelaySetup { nodes: names, here, secret, ports, depot, spool })
            };
            let served = setup().and_then(|setup| stay(setup, remote, &waiting, job));
            exit_now(i32::from(served.is_err()))
        }
    }
}

/// The relay's process.
fn stay(setup: RelaySetup, remote: UnixStream, waiting: &OwnedFd, job: u32) -> Result<()> {
    rustix::process::setsid().context(|| "session")?;
    detach_stdio();
    skiff_sys::title::set(&format!("{NAME} of job {job}"));
    skiff_relay::serve(setup, remote, waiting).context(|| "relay")
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
    pub fn read_for(&self, depot: Depot, missing: u64) -> Result<Depot> {
        let spared = missing.saturating_mul(self.nodes as u64 - 1);
        if self.wish == FanOut::Auto && spared < NOT_WORTH {
            return Ok(depot);
        }
        let local = self.local.try_clone().context(|| "socket of the relay")?;
        let reader = RelayReader::new(local).context(|| "socket of the relay")?;
        Ok(depot.read_by(Box::new(reader)))
    }

    /// What a process needs that is to read by it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.local.as_fd()
    }

    /// As long as this is open, and no longer, other nodes are served.
    pub fn into_hold(self) -> OwnedFd {
        self.alive
    }
}

impl JobNodes {
    fn from_variables(node: &str) -> Option<Self> {
        let list = |name: &str| slurm_hosts(&std::env::var(name).ok()?);
        let (job, step) = (list(names::JOB_NODES)?, list(names::STEP_NODES).unwrap_or_default());
        let here = job.iter().position(|name| *name == node)?;
        let begins: BTreeSet<&String> = step.iter().collect();
        let names = job.iter().map(|name| (name.clone(), begins.contains(name))).collect();
        Some(Self { names, here })
    }
}

/// Whether a relay may be wanted, whatever is missing.
fn may_be_wanted(wish: FanOut, nodes: usize, depot: &Path) -> bool {
    match wish {
        FanOut::Depot => false,
        FanOut::Relay => true,
        FanOut::Auto => {
            let is_parallel = statfs(depot).is_ok_and(|found| PARALLEL.contains(&found.f_type));
            nodes > if is_parallel { FEW_FOR_PARALLEL } else { 1 }
        }
    }
}

/// What the nodes of a job know, and nobody else; nothing if the depot has nothing that it follows from.
fn secret(depot: &Path, job: u32) -> Result<Option<SharedSecret>> {
    let dir = TrustedDir::open(depot, getuid().as_raw())?.private()?;
    let bytes = match small_file::read_below(dir.as_fd(), SECRET, SECRET_BYTES as u64) {
        Ok(bytes) if bytes.len() == SECRET_BYTES => bytes,
        Ok(_) => return Ok(None),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(Error::new(format!("{}: {e}", dir.path_of(SECRET).display()))),
    };
    let derived = blake3::derive_key(PURPOSE, &[&bytes[..], &job.to_le_bytes()].concat());
    Ok(Some(SharedSecret::from(derived)))
}

/// A file that goes with its last user, on the disk of the user's cache.
fn unnamed_file(context: &UserContext) -> Option<OwnedFd> {
    let dir = Path::new(&context.config.slurm.cache).join(context.uid.to_string());
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    openat(CWD, &dir, flags, Mode::RUSR | Mode::WUSR).ok()
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
        assert_eq!(secret(&dir, 1), Ok(None));
        make_secret(&dir).expect("made");
        let first = secret(&dir, 1).expect("read").expect("there");
        make_secret(&dir).expect("it is there");
        assert_eq!(secret(&dir, 1), Ok(Some(first.clone())));
        assert_ne!(secret(&dir, 2), Ok(Some(first.clone())));
        // A half of one is none, and is replaced.
        std::fs::write(dir.join(SECRET), b"half").expect("written");
        assert_eq!(secret(&dir, 1), Ok(None));
        make_secret(&dir).expect("made");
        assert_ne!(secret(&dir, 1), Ok(Some(first)));
        let mode = std::fs::metadata(dir.join(SECRET)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_dir_all(dir).expect("gone");
    }

    #[test]
    fn few_nodes_and_the_wish_of_none_need_no_relay() {
        let here = std::env::temp_dir();
        assert!(!may_be_wanted(FanOut::Depot, 1000, &here));
        assert!(may_be_wanted(FanOut::Relay, 1, &here));
        assert!(may_be_wanted(FanOut::Auto, 2, &here) && !may_be_wanted(FanOut::Auto, 1, &here));
    }
}
