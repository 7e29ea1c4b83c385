//! How the receiver gets started on another machine, and calls back: by srun where that is a node of the job that we are in, else by the
//! agent there if the site has agents, else by ssh.
//! Who starts it there is the user, so it has no rights but theirs.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use skiff_launch::channel::Channel;
use skiff_launch::hosts::{self, Host};
use skiff_launch::launcher::{Door, Launcher};
use skiff_launch::manager::{self, Launch, Manager, Surroundings, Way as How};
use skiff_spec::fault::{Context as _, Fault as Error, Result};

use crate::cluster::launching::own_addresses;
use crate::migrate::peer::{Peer, wait};
use crate::migrate::talk::{CONTROL, GOODS};
use skiff_user::context::Context;

/// How long the other machine may take to start the receiver, and that to call.
const PATIENCE: Duration = Duration::from_secs(60);

/// A receiver that has called.
pub struct Way {
    launcher: Launcher,
    /// The talk with it.
    pub peer: Peer,
    /// The connection for pages and files.
    pub goods: OwnedFd,
}

/// What starts it.
pub fn launch(context: &Context, node: &str) -> Result<Launch> {
    let exe = std::env::current_exe().context(|| "own program")?;
    let agent = Some(context.config.migrate.port).filter(|port| *port != 0).map(|port| {
        let argv = vec![exe.clone().into(), "agent-call".into(), node.into(), port.to_string().into()];
        Launch { argv, without: vec![], way: How::CallBack, hosts: vec![0] }
    });
    let launch = launch_words(node, &[exe.into(), "migrate-receive".into()], agent)?;
    Ok(Launch { way: How::CallBack, ..launch })
}

/// What starts a program on another machine: the manager of the job that we are in, if it is a node of that; else `otherwise`, or ssh.
pub fn launch_words(node: &str, words: &[OsString], otherwise: Option<Launch>) -> Result<Launch> {
    if !hosts::is_name(node) {
        return Err(Error::new(format!("{node:?}: no name of a machine")));
    }
    let here = hosts::own_name().context(|| "name of this machine")?;
    if hosts::is_here(node, &here) {
        return Err(
            Error::new(format!("{node}: that is this machine")).hint("name the one that it is to go to")
        );
    }
    let hosts = [Host { name: node.into(), slots: None }];
    let by = |manager: Manager| manager.launches(&around(here.clone()), &hosts, words).into_iter().next();
    // Of a job's nodes its manager has the say. One that hands no input on cannot tell the receiver whom to call.
    let ours = |(_, list): &(Manager, Vec<Host>)| list.iter().any(|host| hosts::same(&host.name, node));
    let found = manager::find(&around(here.clone()), None).ok();
    let managed = found.filter(ours).and_then(|(manager, _)| by(manager));
    let managed = managed.filter(|launch| launch.way != How::CallBackByFile);
    let launch = managed.or(otherwise).or_else(|| by(Manager::Ssh));
    launch.ok_or_else(|| Error::new(format!("{node}: no way to start anything there")))
}

/// The other machines of the job that we are in.
pub fn others(node: &str) -> Result<Vec<String>> {
    let here = hosts::own_name().context(|| "name of this machine")?;
    let (_, list) = manager::find(&around(here), None)
        .map_err(|e| e.hint("name the machines that they are to go to: --to"))?;
    let others: Vec<String> =
        list.into_iter().map(|host| host.name).filter(|name| !hosts::same(name, node)).collect();
    match others.is_empty() {
        true => Err(Error::new(format!("{node}: the job has no other node"))
            .hint("name the machines that they are to go to: --to")),
        false => Ok(others),
    }
}

fn around(here: String) -> Surroundings<'static> {
    Surroundings { var: &|name| std::env::var(name).ok(), read: &|path| fs::read_to_string(path), here }
}

impl Way {
    /// Starts it and waits for its call.
    pub fn open(context: &Context, node: &str) -> Result<Self> {
        let launch = launch(context, node)?;
        let mut door = Door::open()?;
        let call = door.call(own_addresses(&[Host { name: node.into(), slots: None }])?)?;
        let (mut launcher, _) = Launcher::start(&launch, &call)?;
        let [control, goods] = called(node, &mut launcher, &mut door)?;
        let goods = goods.into_connection().context(|| node.to_owned())?;
        Ok(Self { launcher, peer: Peer::new(control, node), goods })
    }

    /// The receiver stays as long as the instance does, where it must.
    pub fn leave(self) {
        self.launcher.leave();
    }
}

/// Waits until it has called by both names.
fn called(node: &str, launcher: &mut Launcher, door: &mut Door) -> Result<[Channel; 2]> {
    let until = Instant::now() + PATIENCE;
    let (mut control, mut goods) = (None, None);
    loop {
        for (name, channel) in door.serve() {
            match name.as_str() {
                CONTROL => control = Some(channel),
                GOODS => goods = Some(channel),
                _ => {}
            }
        }
        if let (Some(control), Some(goods)) = (control.take_if(|_| goods.is_some()), goods.take()) {
            return Ok([control, goods]);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(format!(
                "{node}: it has not called back within {} s",
                PATIENCE.as_secs()
            ))
            .hint("a firewall? it must be able to connect to this machine"));
        }
        attend(node, launcher, door, left)?;
    }
}

/// Waits for any news, and hears the launcher's.
fn attend(node: &str, launcher: &mut Launcher, door: &Door, left: Duration) -> Result<()> {
    let mut fds = vec![(launcher.pidfd.as_fd(), PollFlags::IN)];
    fds.extend(door.descriptors().map(|fd| (fd, PollFlags::IN)));
    fds.extend(launcher.errors.as_ref().map(|fd| (fd.as_fd(), PollFlags::IN)));
    let ready = wait(&fds, Some(left))?;
    let ended = !ready[0].is_empty();
    let said = launcher.errors.is_some() && ready.last().is_some_and(|ready| !ready.is_empty());
    if said {
        launcher.hear();
    } else if ended {
        let how = launcher.bury();
        let why = Some(launcher.last_words()).filter(|words| !words.is_empty()).unwrap_or(how);
        return Err(Error::new(format!("{node}: skiff could not be started there: {why}")).hint(
            "is it a node of this job, or one that `ssh NODE skiff --version` reaches without a question?",
        ));
    }
    Ok(())
}
