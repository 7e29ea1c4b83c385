//! How agents get onto a cluster's hosts: which hosts those are, what starts programs on them, and how they call back.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use skiff_launch::address;
use skiff_launch::handshake::Call;
use skiff_launch::hosts;
use skiff_launch::hosts::Host;
use skiff_launch::launcher::Door;
use skiff_launch::manager::{self, Launch, Manager, Surroundings, Way};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::network::{Kind, Net};

use skiff_output as output;
use skiff_runtime::network;
use skiff_user::context::Context;
use skiff_user::dirs::{make_private, own_dir_in};

/// The hosts of a cluster, and what starts agents on them.
#[derive(Serialize)]
pub struct Launching {
    /// Who manages them.
    pub manager: Manager,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// This host, by the name that it gives itself.
    #[serde(skip)]
    pub here: String,
    /// What network the agents are to be in.
    #[serde(skip)]
    pub net: Net,
    /// Whether these are not just this host, as often as one likes.
    #[serde(skip)]
    pub is_elsewhere: bool,
    #[serde(skip)]
    agent: Vec<OsString>,
    #[serde(skip)]
    call_file: PathBuf,
}

/// The way in for agents that call back, as long as it is open.
pub struct Entrance {
    /// Where they come.
    pub door: Option<Door>,
    /// What they need to know for that.
    pub call: Call,
    _file: Option<CallFile>,
}

impl Launching {
    /// Finds the hosts: those of a file, or of the allocation that this is.
    pub fn find(context: &Context, file: Option<&Path>, nodes: Option<u32>, net: &Net) -> Result<Self> {
        refuse_useless(net)?;
        let here = hosts::own_name().context(|| "name of this host")?;
        let (manager, mut hosts) = surrounded(&here, |around| manager::find(around, file))?;
        if let Some(nodes) = nodes {
            let there = hosts.len();
            hosts.truncate(nodes as usize);
            if hosts.len() < nodes as usize {
                return Err(Error::new(format!(
                    "--nodes {nodes}: there are only {there} ({})",
                    manager.name()
                )));
            }
        }
        refuse_apart(net, hosts.len())?;
        let call_file = call_file(context, &here)?;
        let agent = agent_words(manager, net, &call_file)?;
        Ok(Self { manager, hosts, here, net: net.clone(), is_elsewhere: true, agent, call_file })
    }

    /// This host alone, so many times.
    pub fn here(context: &Context, times: u16, net: &Net) -> Result<Self> {
        refuse_useless(net)?;
        let here = hosts::own_name().context(|| "name of this host")?;
        let call_file = call_file(context, &here)?;
        let manager = Manager::Ssh;
        let agent = agent_words(manager, net, &call_file)?;
        let hosts = vec![Host { name: here.clone(), slots: None }; times.into()];
        Ok(Self { manager, hosts, here, net: net.clone(), is_elsewhere: false, agent, call_file })
    }

    /// What starts the agents.
    pub fn launches(&self) -> Vec<Launch> {
        surrounded(&self.here, |around| self.manager.launches(around, &self.hosts, &self.agent))
    }

    /// What starts the agent of one of the hosts.
    pub fn launch(&self, at: usize) -> Vec<Launch> {
        let host = &self.hosts[at..=at];
        let mut launches = surrounded(&self.here, |around| self.manager.launches(around, host, &self.agent));
        launches.iter_mut().for_each(|launch| launch.hosts = vec![at]);
        launches
    }

    /// What starts another agent on this host, after all of these.
    pub fn one_more_here(&self) -> Result<Launch> {
        let argv = agent_words(Manager::Ssh, &self.net, &self.call_file)?;
        Ok(Launch { argv, without: vec![], way: Way::Pipes, hosts: vec![self.hosts.len()] })
    }

    /// Opens the way in that these need.
    pub fn open(&self, launches: &[Launch]) -> Result<Entrance> {
        let calls = launches.iter().any(|launch| launch.way != Way::Pipes);
        let door = if calls { Some(Door::open()?) } else { None };
        let call = match &door {
            Some(door) => door.call(own_addresses(&self.hosts)?)?,
            None => Call { hosts: vec![], port: 0, secret: None, word: String::new() },
        };
        let by_file = launches.iter().any(|launch| launch.way == Way::CallBackByFile);
        let _file = by_file.then(|| CallFile::write(&self.call_file, &call)).transpose()?;
        Ok(Entrance { door, call, _file })
    }

    /// Prints the hosts.
    pub fn show_hosts(&self) -> Result<()> {
        let slots =
            |host: &Host| host.slots.map_or_else(|| "its processors".into(), |slots| slots.to_string());
        output::line(&format!("manager      {}", self.manager.name()))?;
        for host in &self.hosts {
            output::line(&format!("host         {} (slots: {})", host.name, slots(host)))?;
        }
        Ok(())
    }

    /// Prints what starts the agents.
    pub fn show_launches(&self) -> Result<()> {
        for launch in self.launches() {
            let words: Vec<_> = launch.argv.iter().map(|word| word.to_string_lossy()).collect();
            output::line(&format!("start        {}", words.join(" ")))?;
        }
        Ok(())
    }
}

/// Whether this is an allocation of a manager that we know.
pub fn is_allocation() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    manager::is_allocation(&is_set)
}

/// Asks the manager's part, which looks at this process's variables and the host's files.
fn surrounded<T>(here: &str, ask: impl FnOnce(&Surroundings<'_>) -> T) -> T {
    ask(&Surroundings {
        var: &|name| std::env::var(name).ok(),
        read: &|path| fs::read_to_string(path),
        here: here.into(),
    })
}

fn refuse_useless(net: &Net) -> Result<()> {
    match net {
        Net::None | Net::Private => {
            Err(Error::new(format!("--net {net}: the hosts of a cluster must reach each other"))
                .hint("--net takes host, or one of the site's networks: `skiff net list`"))
        }
        Net::Host | Net::Named(_) => Ok(()),
    }
}

/// Refuses a network whose members on one host do not reach those on another. Whatever else is wrong with it, the hosts will say.
fn refuse_apart(net: &Net, hosts: usize) -> Result<()> {
    let network = match net {
        Net::Named(name) if hosts > 1 => network::read(name).ok(),
        _ => None,
    };
    match network {
        Some(network) if network.kind == Kind::Bridge && network.parent.is_none() => {
            Err(Error::new(format!("--net {net}: its bridge stays on each host, and there are {hosts}"))
                .hint("administrator: a bridge joins hosts by its `parent`; other kinds do always"))
        }
        _ => Ok(()),
    }
}

fn agent_words(manager: Manager, net: &Net, call_file: &Path) -> Result<Vec<OsString>> {
    let exe = std::env::current_exe().context(|| "own program")?;
    let mut words: Vec<OsString> = vec![exe.into(), "cluster".into(), "agent".into()];
    if let Net::Named(name) = net {
        words.extend(["--net".into(), name.as_str().into()]);
    }
    match manager {
        Manager::Slurm => words.extend(["--call".into(), "-".into()]),
        Manager::Pbs => words.extend(["--call".into(), call_file.into()]),
        Manager::Lsf | Manager::GridEngine | Manager::Ssh => {}
    }
    Ok(words)
}

/// Where agents that get no input find how to call back: on a file system that all hosts share.
fn call_file(context: &Context, here: &str) -> Result<PathBuf> {
    let dir = own_dir_in(context.data().join("clusters"))?;
    Ok(dir.join(format!("{here}.{}.call", std::process::id())))
}

/// By which this host may be reached from the others: the address it has towards the first that is known, and its name.
pub fn own_addresses(hosts: &[Host]) -> Result<Vec<String>> {
    let found = hosts.iter().filter_map(|host| address::towards(&host.name).ok());
    let mut all: Vec<String> = found.take(2).map(|address| address.to_string()).collect();
    all.push(hosts::own_name().context(|| "name of this host")?);
    all.dedup();
    Ok(all)
}

/// The file by which agents call back. What it says is worth nothing when all have called; then it goes.
struct CallFile(PathBuf);

impl CallFile {
    fn write(path: &Path, call: &Call) -> Result<Self> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let about = || path.display().to_string();
        let dir = path.parent().unwrap_or(Path::new("/"));
        make_private(dir)?;
        // One of a process that was killed and had our number.
        fs::remove_file(path).unwrap_or_default();
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let guard = Self(path.into());
        let text = serde_json::to_string(call).map_err(|e| Error::new(format!("{}: {e}", about())))?;
        let written = file.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.context(about).map_err(|e| e.hint("your home must take a small file: is it full?"))?;
        Ok(guard)
    }
}

impl Drop for CallFile {
    fn drop(&mut self) {
        // If it is gone, so much the better.
        fs::remove_file(&self.0).unwrap_or_default();
    }
}
