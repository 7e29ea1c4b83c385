//! How the receiver gets started on another host, and calls back: by srun where that is a node of the job that we are in, else by the
//! agent there if the site has agents, else by ssh.
//! Who starts it there is the user, so it has no rights but theirs.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use skiff_launch::address;
use skiff_launch::channel::Channel;
use skiff_launch::hosts::{self, Host};
use skiff_launch::launcher::Launcher;
use skiff_launch::listener::CallbackListener;
use skiff_launch::manager::{self, ConnectMethod, Launch, Surroundings};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_sys::kernel::host_name;
use skiff_user::context::UserContext;

use crate::peer::ControlChannel;
use crate::talk::{CONTROL, GOODS};

/// How long the other host may take to start the receiver, and that to call.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a receiver may take to remove what it has made of an instance that does not come.
const TAKING_BACK: Duration = Duration::from_secs(10);

/// A receiver that has called.
pub struct ReceiverLink {
    launcher: Launcher,
    /// The talk with it.
    pub peer: ControlChannel,
    /// The connection for pages and files.
    pub goods: OwnedFd,
}

/// What starts it.
pub fn launch(context: &UserContext, node: &str) -> Result<Launch> {
    let exe = std::env::current_exe().context(|| "own program")?;
    let agent = Some(context.config.migrate.port).filter(|port| *port != 0).map(|port| {
        let argv = vec![exe.clone().into(), "agent-call".into(), node.into(), port.to_string().into()];
        Launch { argv, without: vec![], way: ConnectMethod::CallBack, hosts: vec![0] }
    });
    let launch = launch_words(node, &[exe.into(), "migrate-receive".into()], agent)?;
    Ok(Launch { way: ConnectMethod::CallBack, ..launch })
}

/// What starts a program on another host: the manager of the job that we are in, if it is a node of that; else `otherwise`, or ssh.
pub fn launch_words(node: &str, words: &[OsString], otherwise: Option<Launch>) -> Result<Launch> {
    let launch = manager::launch_on(&Surroundings::of_this_process(), node, words, otherwise);
    launch.map_err(|e| match e {
        skiff_launch::Error::InvalidName(_) => Error::new(format!("{node:?}: not a valid host name")),
        skiff_launch::Error::OwnHost(_) => {
            Error::new(format!("{node}: that is this host")).hint("name the one that it is to go to")
        }
        e => Error::from(e).about(node),
    })
}

/// The other hosts of the job that we are in.
pub fn others(node: &str) -> Result<Vec<String>> {
    let (_, list) = manager::find(&Surroundings::of_this_process(), None)
        .map_err(|e| Error::from(e).hint("name the hosts that they are to go to: --to"))?;
    let others: Vec<String> =
        list.into_iter().map(|host| host.name).filter(|name| !hosts::same(name, node)).collect();
    match others.is_empty() {
        true => Err(Error::new(format!("{node}: the job has no other node"))
            .hint("name the hosts that they are to go to: --to")),
        false => Ok(others),
    }
}

/// The hosts of the job that we are in.
pub fn hosts_of_job() -> Result<Vec<String>> {
    let (_, list) = manager::find(&Surroundings::of_this_process(), None)
        .map_err(|e| Error::from(e).hint("name the hosts: --on"))?;
    Ok(list.into_iter().map(|host| host.name).collect())
}

impl ReceiverLink {
    /// Starts it and waits for its call.
    pub fn open(context: &UserContext, node: &str) -> Result<Self> {
        Self::open_by(launch(context, node)?, node)
    }

    /// The same, where the host may also be this one.
    pub fn open_anywhere(context: &UserContext, node: &str) -> Result<Self> {
        if !hosts::is_here(node, &host_name()) {
            return Self::open(context, node);
        }
        let exe = std::env::current_exe().context(|| "own program")?;
        let argv = vec![exe.into(), "migrate-receive".into()];
        Self::open_by(Launch { argv, without: vec![], way: ConnectMethod::CallBack, hosts: vec![0] }, node)
    }

    fn open_by(launch: Launch, node: &str) -> Result<Self> {
        let mut listener = CallbackListener::open()?;
        let call = listener.call(address::of_this_host(&[Host { name: node.into(), slots: None }]))?;
        let (mut launcher, _) = Launcher::start(&launch, &call)?;
        let [control, goods] = called(node, &mut launcher, &mut listener)?;
        let goods = goods.into_connection().context(|| node.to_owned())?;
        Ok(Self { launcher, peer: ControlChannel::new(control, node), goods })
    }

    /// Hangs up; what has started the receiver, which ends soon.
    pub fn hang_up(self) -> Launcher {
        self.launcher
    }

    /// Gives the move up: what the receiver has made it takes back, and that is waited for.
    pub fn give_up(self) {
        let Self { launcher: _launcher, peer, goods } = self;
        shutdown(&goods, Shutdown::Both).ignore_error("a connection that is lost has ended already");
        peer.hang_up(TAKING_BACK);
    }

    /// The receiver stays as long as the instance does, where it must.
    pub fn leave(self) {
        self.launcher.leave();
    }
}

/// Waits until it has called by both names.
fn called(node: &str, launcher: &mut Launcher, listener: &mut CallbackListener) -> Result<[Channel; 2]> {
    let called = listener.accept([CONTROL, GOODS], launcher, PATIENCE).map_err(|e| match e {
        skiff_launch::Error::LauncherEnded(why) => Error::new(format!(
            "{node}: skiff could not be started there: {why}"
        ))
        .hint("is it a node of this job, or one that `ssh NODE skiff --version` reaches without a question?"),
        e => Error::from(e).about(node),
    })?;
    called.ok_or_else(|| {
        Error::new(format!("{node}: it has not called back within {} s", PATIENCE.as_secs()))
            .hint(format!("check that no firewall keeps {node} from connecting to this host"))
    })
}
