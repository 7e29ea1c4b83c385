//! The process outside that a cluster belongs to: it holds the group of machines, hears which of them have ended, and answers the user's
//! commands. When it ends, all machines do.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketFlags, SocketType, accept_with};
use skiff_cluster::local::hub::{self, Ask, Pattern, Say};
use skiff_cluster::local::members::Member;
use skiff_sandbox::group::{self, Group, Network};
use skiff_sandbox::start::detach_stdio;
use skiff_sandbox::{Context as _, Error, Result};
use skiff_spec::instance::End;
use skiff_spec::plan::Plan;
use skiff_sys::signal::Signals;

use super::inside::Errand;
use super::record::Record;
use super::wire::{Answer, Node, Want};
use crate::context::Context;
use crate::control::{CONTROL, listen_at};
use crate::instance::record::now;
use crate::supervisor::apart;

struct Supervisor {
    group: Group,
    listener: OwnedFd,
    signals: Signals,
    nodes: BTreeMap<Member, Machine>,
    /// What is being told to the cluster's Slurm.
    errands: Vec<Errand>,
}

struct Machine {
    init: OwnedFd,
    since: u64,
    lost: Option<End>,
}

/// Starts it; returns when it takes commands, or why it does not.
pub fn launch(
    context: &Context,
    record: &Record,
    plan: &Plan,
    pattern: &Pattern<'_>,
    lock: &OwnedFd,
) -> Result<()> {
    let begin = || match Supervisor::begin(context, record, plan, pattern) {
        Ok(supervisor) => Ok((supervisor, vec![])),
        Err(e) => Err(e.to_bytes()),
    };
    match apart(&[lock.as_fd()], begin, Supervisor::serve)? {
        Some(Ok(_)) => Ok(()),
        Some(Err(why)) => Err(Error::from_bytes(&why)),
        None => Err(Error::new(format!("cluster {}: its supervisor ended without a word", record.name))),
    }
}

impl Supervisor {
    fn begin(context: &Context, record: &Record, plan: &Plan, pattern: &Pattern<'_>) -> Result<Self> {
        rustix::process::setsid().context(|| "session")?;
        detach_stdio();
        let signals = Signals::block(&[]).context(|| "signals")?;
        let helper = context.helper.as_deref();
        let group =
            group::start(plan.base, plan.unpacked.as_deref(), helper, Network::Own, |ground, control| {
                // Its end is the cluster's, which the supervisor sees.
                hub::serve(ground, control, pattern).unwrap_or_default();
            })?;
        skiff_sys::title::set(&format!("skiff-cluster {}", record.name));
        if group.ids < 2 {
            group.end();
            return Err(Error::new("a cluster needs more ids than your own: its daemons become other users").hint(
                "administrator: install uidmap, usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER",
            ));
        }
        // Last: whoever can connect finds it running.
        let listener = listen_at(&record.dir, CONTROL, SocketType::SEQPACKET)?;
        Ok(Self { group, listener, signals, nodes: BTreeMap::new(), errands: vec![] })
    }

    fn serve(mut self) {
        loop {
            let mut fds = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&self.group.control, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            // Interrupted or not: what is ready shows.
            poll(&mut fds, None).unwrap_or_default();
            let ready = fds.map(|fd| !fd.revents().is_empty());
            while let Ok(Some(_)) = self.signals.next() {}
            self.errands.retain_mut(|errand| matches!(errand.wait(Duration::ZERO), Ok(None)));
            let go_on = (!ready[1] || self.hear().is_ok()) && (!ready[2] || self.answer_one());
            // Without its controller a cluster is none.
            let headless = self.nodes.get(&Member::Controller).is_some_and(|node| node.lost.is_some());
            if !go_on || headless {
                return self.group.end();
            }
        }
    }

    /// Takes what the hub says by itself; gives what else it says.
    fn hear(&mut self) -> Result<Option<(Say, Vec<OwnedFd>)>> {
        match hub::receive(self.group.control.as_fd())? {
            (Say::Ended(member, end), _) => {
                if let Some(node) = self.nodes.get_mut(&member) {
                    node.lost = Some(end);
                    self.tell_lost(member);
                }
                Ok(None)
            }
            other => Ok(Some(other)),
        }
    }

    /// Its Slurm would notice only when it asks the node the next time, and jobs would wait for that.
    fn tell_lost(&mut self, member: Member) {
        let Some(controller) = self.nodes.get(&Member::Controller).filter(|node| node.lost.is_none()) else {
            return;
        };
        let node = format!("NodeName={member}");
        let words = ["scontrol", "update", &node, "State=DOWN", "Reason=lost"];
        // If it cannot be told, it will notice.
        self.errands.extend(Errand::start_at(&controller.init, &words).ok());
    }

    /// Has the hub do something, and waits for it.
    fn order(&mut self, ask: &Ask) -> Result<Vec<OwnedFd>> {
        hub::send(self.group.control.as_fd(), ask, &[])?;
        loop {
            match self.hear()? {
                Some((Say::Failed { message, hint }, _)) => return Err(Error { message, hint }),
                Some((_, fds)) => return Ok(fds),
                None => {}
            }
        }
    }

    /// Answers a command; whether to go on.
    fn answer_one(&mut self) -> bool {
        let Ok(connection) = accept_with(&self.listener, SocketFlags::CLOEXEC) else { return true };
        // One that says nothing for a second wants nothing.
        let limit = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&connection, PollFlags::IN)], Some(&limit)) != Ok(1) {
            return true;
        }
        let Ok((want, _)) = hub::receive::<Want>(connection.as_fd()) else { return true };
        let (answer, handle) = match self.act(&want) {
            Ok(answer) => answer,
            Err(Error { message, hint }) => (Answer::Failed { message, hint }, None),
        };
        let handle: Vec<BorrowedFd<'_>> = handle.iter().map(AsFd::as_fd).collect();
        // If the command is gone there is nobody to tell.
        hub::send(connection.as_fd(), &answer, &handle).unwrap_or_default();
        !matches!(want, Want::Down)
    }

    fn act(&mut self, want: &Want) -> Result<(Answer, Option<OwnedFd>)> {
        match want {
            Want::Status => return Ok((Answer::Nodes(self.nodes()), None)),
            Want::Enter(member) => {
                let node = self.nodes.get(member).filter(|node| node.lost.is_none()).ok_or_else(|| {
                    Error::new(format!("node {member}: it is not there"))
                        .hint("`skiff cluster status NAME` shows those that are")
                })?;
                let handle = node.init.try_clone().context(|| format!("node {member}"))?;
                return Ok((Answer::Done, Some(handle)));
            }
            Want::Make(members) => self.make(members)?,
            Want::End(members) => members.iter().try_for_each(|member| self.end(*member))?,
            Want::Down => {}
        }
        Ok((Answer::Done, None))
    }

    fn make(&mut self, members: &[Member]) -> Result<()> {
        for (at, member) in members.iter().enumerate() {
            let made = match self.nodes.contains_key(member) {
                true => Err(Error::new(format!("node {member}: it is there already"))),
                false => self.order(&Ask::Make(*member)),
            };
            let init = made.and_then(|fds| {
                fds.into_iter()
                    .next()
                    .ok_or_else(|| Error::new(format!("node {member}: made without a handle")))
            });
            match init {
                Ok(init) => self.nodes.insert(*member, Machine { init, since: now(), lost: None }),
                Err(e) => {
                    members[..at].iter().try_for_each(|member| self.end(*member))?;
                    return Err(e);
                }
            };
        }
        Ok(())
    }

    fn end(&mut self, member: Member) -> Result<()> {
        self.order(&Ask::End(member))?;
        self.nodes.remove(&member);
        Ok(())
    }

    fn nodes(&self) -> Vec<Node> {
        let known = self.nodes.iter().map(|(name, machine)| Node {
            name: *name,
            pid: number(&machine.init).filter(|_| machine.lost.is_none()),
            since: machine.since,
            lost: machine.lost,
        });
        known.collect()
    }
}

/// The process's number, as we know it.
fn number(pidfd: &OwnedFd) -> Option<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).filter(|pid| *pid > 0)
}
