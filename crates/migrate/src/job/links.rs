//! The coordinator's connections to the receivers of all instances.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::peer::wait;
use crate::talk::{DestinationMessage, SourceMessage};
use crate::way::ReceiverLink;

/// So many receivers are started at a time.
const AT_ONCE: usize = 32;
/// How long receivers may take to end.
const ENDING: Duration = Duration::from_secs(20);
/// How long one step may take; a connection that is lost shows before that.
pub const PATIENCE: Duration = Duration::from_secs(3600);

/// An instance, and where it is or is to be.
#[derive(Clone, Debug)]
pub struct MemberPlace {
    /// Name of the instance.
    pub instance: EnvName,
    /// The node.
    pub node: String,
    /// Number of its part of the checkpoint.
    pub part: usize,
}

/// The connection to the receiver for an instance.
pub struct MemberLink {
    /// What it is for.
    pub place: MemberPlace,
    link: ReceiverLink,
}

impl MemberPlace {
    fn about(&self, e: Error) -> Error {
        e.about(&format!("instance {} on {}", self.instance, self.node))
    }
}

impl MemberLink {
    /// Starts a receiver for each, several at a time.
    pub fn open_all(context: &UserContext, places: &[MemberPlace]) -> Result<Vec<Self>> {
        let open = |place: &MemberPlace| {
            let link = ReceiverLink::open_anywhere(context, &place.node);
            link.map(|link| Self { place: place.clone(), link })
        };
        let mut all = vec![];
        for some in places.chunks(AT_ONCE) {
            let opened: Vec<Result<Self>> = std::thread::scope(|scope| {
                let threads: Vec<_> = some.iter().map(|place| scope.spawn(move || open(place))).collect();
                let lost = |_| Err(Error::new("a thread that starts receivers has failed"));
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
            });
            for one in opened {
                all.push(one?);
            }
        }
        Ok(all)
    }

    /// Says something to its receiver.
    pub fn tell(&mut self, message: &SourceMessage) -> Result<()> {
        self.link.peer.tell(message).map_err(|e| self.place.about(e))
    }

    /// Lets its receiver go on by itself.
    pub fn leave(self) {
        self.link.leave();
    }
}

/// Says the same to all, also if one does not hear it; the first error.
pub fn tell_all(members: &mut [MemberLink], message: &SourceMessage) -> Result<()> {
    members.iter_mut().map(|member| member.tell(message)).fold(Ok(()), Result::and)
}

/// Waits until each has said something that `take` takes. The first that fails ends it: the others are not waited for.
pub fn hear_all<T>(
    members: &mut [MemberLink],
    take: impl FnMut(DestinationMessage) -> Result<T>,
) -> Result<Vec<T>> {
    hear_all_until(members, Some(Instant::now() + PATIENCE), take)
}

/// The same, however long that takes.
pub fn hear_all_without_limit<T>(
    members: &mut [MemberLink],
    take: impl FnMut(DestinationMessage) -> Result<T>,
) -> Result<Vec<T>> {
    hear_all_until(members, None, take)
}

fn hear_all_until<T>(
    members: &mut [MemberLink],
    until: Option<Instant>,
    mut take: impl FnMut(DestinationMessage) -> Result<T>,
) -> Result<Vec<T>> {
    let mut heard: Vec<Option<T>> = members.iter().map(|_| None).collect();
    loop {
        let mut silent = vec![];
        for (at, member) in members.iter_mut().enumerate() {
            let MemberLink { place, link } = member;
            if heard[at].is_some() {
                continue;
            }
            match link.peer.heard().map_err(|e| place.about(e))? {
                Some(DestinationMessage::Failed(message, hint)) => {
                    return Err(place.about(Error { message, hint }));
                }
                Some(message) => heard[at] = Some(take(message).map_err(|e| place.about(e))?),
                None => silent.push(at),
            }
        }
        if silent.is_empty() {
            return Ok(heard.into_iter().flatten().collect());
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(members[silent[0]].place.about(Error::new("it does not answer")));
        }
        let fds: Vec<_> = silent.iter().map(|at| (members[*at].link.peer.as_fd(), PollFlags::IN)).collect();
        let ready = wait(&fds, left)?;
        for (at, ready) in silent.into_iter().zip(ready) {
            if !ready.is_empty() {
                let MemberLink { place, link } = &mut members[at];
                link.peer.read().map_err(|e| place.about(e))?;
            }
        }
    }
}

/// Has all take back what they did, and waits until that is done.
pub fn give_up(mut members: Vec<MemberLink>) {
    for member in &mut members {
        member.tell(&SourceMessage::Abort).ignore_error("who is not there any more has nothing to take back");
    }
    end(members);
}

/// Hangs up, and waits until all receivers have ended.
pub fn end(members: Vec<MemberLink>) {
    let until = Instant::now() + ENDING;
    // All hear it at once, before any is waited for.
    let launchers: Vec<_> = members.into_iter().map(|member| member.link.hang_up()).collect();
    launchers.into_iter().for_each(|launcher| launcher.wait_until(until));
}

/// What is no answer to what was asked.
pub fn strange(message: &DestinationMessage) -> Error {
    Error::new(format!("unexpected message: {message:?}"))
}
