//! What is noted of a running one in the user's home, so that they find it again from any host: how to reach it, its token included.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use skiff_output as output;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_sys::kernel::host_name;
use skiff_user::context::UserContext;
use skiff_user::dirs::{find, make_private};

use crate::listener::Listener;
use crate::variable;

/// By which a node of a cluster is told its name, and how one gets to the host that it is on, as [`reached_as`] says it; nothing of the
/// latter if the node is in no host's network.
pub const REACHED_AS: &str = "SKIFF_REACHED_AS";

/// One of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunningApp {
    /// `notebook` or `desktop`.
    pub kind: String,
    /// The host that it runs on.
    pub host: String,
    /// The port of 127.0.0.1 where the browser is, that is forwarded to it.
    pub port: u16,
    /// The Unix socket that it listens on; without one, it listens on the same port of 127.0.0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// What forwards it, to be typed on the host that has the browser.
    pub forward: String,
    /// Where the browser finds it then.
    pub url: String,
    /// The job that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

impl RunningApp {
    /// Of the one that this process serves.
    pub fn new(kind: &str, (port, listener): (u16, &Listener), url: String, reached: &str) -> Self {
        let (there, by_way) = reached.split_once(' ').unwrap_or((reached, ""));
        let host = there.split_once('@').map_or(there, |(_, host)| host).to_owned();
        let by_way = if by_way.is_empty() { String::new() } else { format!("-J {by_way} ") };
        // Addresses are numbers: `localhost` is two of them, and somebody else may listen on the other one. If the port is taken where the
        // browser is, ssh would go on without it, and the browser send the token to whoever has taken it.
        let forward = format!(
            "ssh {by_way}-N -o ExitOnForwardFailure=yes -L 127.0.0.1:{port}:{} {there}",
            listener.target()
        );
        let socket = match listener {
            Listener::Socket(path) => Some(path.clone()),
            Listener::Port(_) => None,
        };
        let job = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"].into_iter().find_map(variable);
        Self { kind: kind.into(), host, port, socket, forward, url, job }
    }

    /// Says how to reach it.
    pub fn tell(&self) -> Result<()> {
        output::line(&format!("{} on {}. Where your browser is:", self.kind, self.host))?;
        output::line(&format!("    {}", self.forward))?;
        output::line(&format!("    {}", self.url))
    }

    /// Whether nobody of this host holds its file any more. (Of another's, only that one knows; and a process's number would mean
    /// something else in here than where it was noted.)
    fn is_gone(&self, file: &fs::File) -> bool {
        self.host == host_name() && flock(file, FlockOperation::NonBlockingLockShared).is_ok()
    }
}

/// The ssh destination of the host that this process runs on.
pub fn reached(context: &UserContext) -> Result<String> {
    let Some(told) = variable(REACHED_AS) else { return Ok(reached_as(&context.user(), &host_name())) };
    let node = host_name();
    match told.split_once(' ') {
        Some((known, reached)) if known == node => Ok(reached.into()),
        Some(_) => Err(Error::new(format!("node {node}: it is not known here how your browser gets there"))
            .hint(format!("start it by `skiff cluster exec --node {node} NAME -- ...`"))),
        None => Err(Error::new(format!("node {node}: your browser cannot reach its network"))
            .hint("a cluster made with --net host is in its hosts' network")),
    }
}

/// The ssh destination of a host: `USER@HOST`, followed by a space and the host to jump through, if there is one. Compute nodes are
/// usually reached through the host that the job was submitted from.
pub fn reached_as(user: &str, host: &str) -> String {
    let login =
        variable("SLURM_SUBMIT_HOST").or_else(|| variable("PBS_O_HOST")).or_else(|| variable("SGE_O_HOST"));
    match login.filter(|login| login != host) {
        Some(login) => format!("{user}@{host} {user}@{login}"),
        None => format!("{user}@{host}"),
    }
}

/// A record in its place, locked; removed when this is.
pub struct PublishedApp {
    dir: TrustedDir,
    name: String,
    _lock: OwnedFd,
}

impl PublishedApp {
    /// Writes it where only its user looks.
    pub fn write(context: &UserContext, record: &RunningApp) -> Result<Self> {
        let dir = make_private(&dir(context))?;
        let stem = record.socket.as_deref().and_then(Path::file_stem).map(|name| name.to_string_lossy());
        let stem = stem.unwrap_or_else(|| record.port.to_string().into());
        let name = format!("{}.{stem}.json", record.host);
        let text = serde_json::to_vec_pretty(record).map_err(|e| Error::new(format!("{name}: {e}")))?;
        let new = format!("{name}.new");
        // What a killed one has left.
        dir.remove_file(&new)?;
        let file = dir.file(&new, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, 0o600)?;
        let mut file = fs::File::from(file);
        file.write_all(&text).context(|| dir.path_of(&new).display().to_string())?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ignore_error(
            "where the home's file system has no locks, it stays listed until it ends by itself",
        );
        dir.rename(&new, &dir, &name)?;
        Ok(Self { dir, name, _lock: file.into() })
    }
}

impl Drop for PublishedApp {
    fn drop(&mut self) {
        self.dir
            .remove_file(&self.name)
            .ignore_error("the next `skiff app list` removes a record that nobody has locked");
    }
}

/// Prints all that run.
pub fn list(context: &UserContext, json: bool) -> Result<()> {
    let all = all(context)?;
    if json {
        return output::json(&all);
    }
    all.iter().try_for_each(RunningApp::tell)
}

fn all(context: &UserContext) -> Result<Vec<RunningApp>> {
    let Some(dir) = find(&dir(context))? else { return Ok(vec![]) };
    let mut all = vec![];
    for name in
        dir.names()?.into_iter().filter(|name| Path::new(name).extension().is_some_and(|e| e == "json"))
    {
        // Gone meanwhile, or somebody else's idea of a file.
        let Ok(file) = dir.file(&name, OFlags::RDONLY | OFlags::NONBLOCK, 0).map(fs::File::from) else {
            continue;
        };
        let Ok(record) = serde_json::from_reader::<_, RunningApp>(&file) else { continue };
        if record.is_gone(&file) {
            dir.remove_file(&name).ignore_error("what cannot be removed is looked at again the next time");
            let socket = record.socket.as_deref().and_then(Path::file_name);
            socket.into_iter().for_each(|name| {
                dir.remove_file(name).ignore_error("what cannot be removed is looked at again the next time")
            });
        } else {
            all.push(record);
        }
    }
    all.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
    Ok(all)
}

/// The directory of records and sockets.
pub fn dir(context: &UserContext) -> PathBuf {
    context.data().join("apps")
}

/// The same, made if there is none, for its user alone.
pub fn make_dir(context: &UserContext) -> Result<PathBuf> {
    make_private(&dir(context)).map(|dir| dir.path().to_owned())
}
