//! The coordinator's connections to the receivers of all instances.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use skiff_launch::launcher::Launcher;
use skiff_output as output;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use super::beats::{BEAT, SILENCE};
use crate::peer::wait;
use crate::talk::{DestinationMessage, SourceMessage};
use crate::way::ReceiverLink;

/// So many receivers are started at a time.
const AT_ONCE: usize = 32;
/// How long receivers may take to end.
const ENDING: Duration = Duration::from_secs(20);
/// How long one step may take; who is lost shows before that.
const PATIENCE: Duration = Duration::from_secs(3600);

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
    /// By which all commands that save instances have one order among these, whatever they call a node.
    pub fn turn(&self) -> (String, EnvName) {
        let short = self.node.split('.').next().unwrap_or_default();
        (short.to_ascii_lowercase(), self.instance.clone())
    }

    fn about(&self, e: Error) -> Error {
        e.about(&format!("instance {} on {}", self.instance, self.node))
    }
}

impl AsFd for MemberLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.peer.as_fd()
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

    /// Closes the connection; what has started its receiver, which ends soon.
    pub fn hang_up(self) -> Launcher {
        self.link.hang_up()
    }

    /// Lets its receiver go on by itself.
    pub fn leave(self) {
        self.link.leave();
    }

    /// Reads what its receiver says.
    pub fn read(&mut self) -> Result<()> {
        self.link.peer.read().map_err(|e| self.place.about(e))
    }

    /// What has come of an answer, if it has come.
    pub fn answer<T>(&mut self, take: &mut impl FnMut(DestinationMessage) -> Result<T>) -> Result<Option<T>> {
        let Self { place, link } = self;
        loop {
            match link.peer.heard().map_err(|e| place.about(e))? {
                None => return Ok(None),
                Some(DestinationMessage::Beat) => {}
                Some(DestinationMessage::Busy) => output::note(&format!(
                    "instance {} on {}: it is being saved or moved; waiting for the end of that",
                    place.instance, place.node
                )),
                Some(DestinationMessage::Failed(message, hint)) => {
                    return Err(place.about(Error::new(message).hint(hint)));
                }
                Some(message) => return take(message).map(Some).map_err(|e| place.about(e)),
            }
        }
    }
}

/// Says the same to all, also if one does not hear it; the first error.
pub fn tell_all(members: &mut [MemberLink], message: &SourceMessage) -> Result<()> {
    members.iter_mut().map(|member| member.tell(message)).fold(Ok(()), Result::and)
}

/// Waits until each has said something that `take` takes, and lets all know meanwhile that the coordinator is there. The first that fails,
/// or is silent for too long, ends it: the others are not waited for.
pub fn hear_all<T>(
    members: &mut [MemberLink],
    take: impl FnMut(DestinationMessage) -> Result<T>,
) -> Result<Vec<T>> {
    let asked: Vec<usize> = (0..members.len()).collect();
    Hearing { members, asked: &asked, beats: true, bounded: true }.carry_out(take)
}

/// The same of one of them.
pub fn hear_one<T>(
    members: &mut [MemberLink],
    asked: usize,
    take: impl FnMut(DestinationMessage) -> Result<T>,
) -> Result<()> {
    Hearing { members, asked: &[asked], beats: true, bounded: true }.carry_out(take).map(drop)
}

/// The same of all, none of whom waits for the coordinator any more.
pub fn hear_all_at_last<T>(
    members: &mut [MemberLink],
    take: impl FnMut(DestinationMessage) -> Result<T>,
) -> Result<Vec<T>> {
    let asked: Vec<usize> = (0..members.len()).collect();
    Hearing { members, asked: &asked, beats: false, bounded: true }.carry_out(take)
}

/// The same, however long that takes.
pub fn hear_all_without_limit<T>(
    members: &mut [MemberLink],
    take: impl FnMut(DestinationMessage) -> Result<T>,
) -> Result<Vec<T>> {
    let asked: Vec<usize> = (0..members.len()).collect();
    Hearing { members, asked: &asked, beats: false, bounded: false }.carry_out(take)
}

/// A wait for an answer of some members.
struct Hearing<'a> {
    members: &'a mut [MemberLink],
    asked: &'a [usize],
    /// Whether all members want to know that the coordinator is there.
    beats: bool,
    /// Whether whoever is silent for too long is lost.
    bounded: bool,
}

impl Hearing<'_> {
    fn carry_out<T>(mut self, mut take: impl FnMut(DestinationMessage) -> Result<T>) -> Result<Vec<T>> {
        let (until, mut beat) = (Instant::now() + PATIENCE, Instant::now() + BEAT);
        let mut heard: Vec<Option<T>> = self.asked.iter().map(|_| None).collect();
        let mut last = vec![Instant::now(); self.asked.len()];
        loop {
            for (at, heard) in heard.iter_mut().enumerate().filter(|(_, heard)| heard.is_none()) {
                *heard = self.member(at).answer(&mut take)?;
            }
            let silent: Vec<usize> = (0..heard.len()).filter(|at| heard[*at].is_none()).collect();
            if silent.is_empty() {
                return Ok(heard.into_iter().flatten().collect());
            }
            for at in self.wait(&silent)? {
                self.member(at).read()?;
                last[at] = Instant::now();
            }
            let now = Instant::now();
            if let Some(lost) =
                silent.iter().find(|at| self.bounded && now >= until.min(last[**at] + SILENCE))
            {
                return Err(self.member(*lost).place.about(Error::new("it does not answer")));
            }
            if self.beats && now >= beat {
                tell_all(self.members, &SourceMessage::Beat).ignore_error("who is lost does not answer");
                beat = now + BEAT;
            }
        }
    }

    fn member(&mut self, at: usize) -> &mut MemberLink {
        &mut self.members[self.asked[at]]
    }

    /// Waits for a while; who of these has said something.
    fn wait(&self, silent: &[usize]) -> Result<Vec<usize>> {
        let peer = |at: &usize| (self.members[self.asked[*at]].as_fd(), PollFlags::IN);
        let ready = wait(&silent.iter().map(peer).collect::<Vec<_>>(), Some(BEAT / 5))?;
        let ready = silent.iter().zip(ready).filter(|(_, ready)| !ready.is_empty());
        Ok(ready.map(|(at, _)| *at).collect())
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
    // All hear it at once, before any is waited for.
    wait_for_ends(members.into_iter().map(MemberLink::hang_up).collect());
}

/// Waits until receivers have ended whose connections were closed.
pub fn wait_for_ends(launchers: Vec<Launcher>) {
    let until = Instant::now() + ENDING;
    launchers.into_iter().for_each(|launcher| launcher.wait_until(until));
}

/// What is no answer to what was asked.
pub fn strange(message: &DestinationMessage) -> Error {
    Error::new(format!("unexpected message: {message:?}"))
}
