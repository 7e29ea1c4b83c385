//! Whose fault it is that there is no cluster, or none any more: the host, and what was said there.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_launch::launcher::Launcher;
use skiff_spec::fault::Fault;

use super::{Fleet, Remote, RemoteState};

/// How to mend it where no agent comes up.
const NOT_THERE: &str =
    "skiff must be installed at the same place on all hosts; `--dry-run` shows what is run";

/// Who has been silent for so many nanoseconds has said all, and so has whoever talks for longer than that.
const SILENCE: i64 = 300_000_000;
const LONGEST_WORDS: Duration = Duration::from_secs(2);

impl Fleet {
    /// A launcher has ended: with its agents, or instead of them.
    ///
    /// # Errors
    /// For which host it was, if it has started nothing there.
    pub fn bury(&mut self, at: usize) -> std::result::Result<(), (usize, Fault)> {
        let launcher = &mut self.launchers[at];
        let status = launcher.bury();
        let without = launcher.hosts.iter().find(|host| self.remotes[**host].channel.is_none());
        let Some(host) = without.copied() else { return Ok(()) };
        let program = launcher.program.clone();
        let what = format!("{program} could not start anything there ({status})");
        Err((host, self.blame(host, &what, NOT_THERE)))
    }

    /// An agent has gone without being told to: what to say of that.
    pub fn lost(&mut self, at: usize, what: &str, hint: &str) -> Fault {
        match self.remotes[at].place() {
            None => self.blame(at, "nothing could be started there", NOT_THERE),
            Some(_) => self.blame(at, what, hint),
        }
    }

    /// An agent has not said a word for too long, and is none of ours any more: what to say of that.
    pub fn silent(&mut self, at: usize, what: &str) -> Fault {
        let hint = format!("nothing came from it for {} s: check its network", self.wanted.silence);
        let e = self.lost(at, what, &hint);
        self.has_silent = true;
        self.dismiss(at);
        e
    }

    /// With what was said there: by ourselves, if so, and then that is all there is to say.
    fn blame(&mut self, at: usize, what: &str, hint: &str) -> Fault {
        let host = format!("host {}", self.remotes[at].name);
        let Some(launcher) = self.launchers.iter_mut().find(|launcher| launcher.hosts.contains(&at)) else {
            return Fault::new(format!("{host}: {what}")).hint(hint);
        };
        hear_out(launcher);
        if let Some(own) = words_of_ours(&launcher.said) {
            return own.about(&host);
        }
        let said = launcher.last_words();
        let said = if said.is_empty() { said } else { format!(": {said}") };
        Fault::new(format!("{host}: {what}{said}")).hint(hint)
    }

    /// Whoever has not done what all are at.
    pub(super) fn all_late(&self) -> Fault {
        let all_prepared = self.remotes.iter().all(|remote| remote.place().is_some());
        let is_late = |remote: &Remote| match &remote.stage {
            RemoteState::Started(_) => false,
            RemoteState::Prepared(_) => all_prepared,
            RemoteState::Launched => true,
        };
        let late: Vec<usize> = (0..self.remotes.len()).filter(|at| is_late(&self.remotes[*at])).collect();
        match all_prepared {
            true => self.late(&late, "start", self.limits.start),
            false => self.late(&late, "answer", self.limits.answer),
        }
    }

    /// These hosts have not done it within the limit: what to say of that.
    #[must_use]
    pub fn late(&self, late: &[usize], what: &str, limit: Duration) -> Fault {
        let launcher = self.launchers.iter().find(|l| late.first().is_some_and(|at| l.hosts.contains(at)));
        let said = launcher.map(Launcher::last_words).filter(|said| !said.is_empty());
        let said = said.map_or_else(String::new, |said| format!(": {said}"));
        let names: Vec<&str> = late.iter().map(|at| self.remotes[*at].name.as_str()).collect();
        let (hosts, does) = if late.len() > 1 { ("hosts", "do") } else { ("host", "does") };
        Fault::new(format!(
            "{hosts} {}: {does} not {what} within {} s{said}",
            names.join(", "),
            limit.as_secs()
        ))
        .hint("check that it is up and can connect to this host; --timeout SECONDS gives it more time")
    }
}

/// Reads all that a launcher still has to say: its words may come behind the end of what it has started.
fn hear_out(launcher: &mut Launcher) {
    let until = Instant::now() + LONGEST_WORDS;
    while let Some(errors) = launcher.errors.as_ref().filter(|_| Instant::now() < until) {
        let limit = Timespec { tv_sec: 0, tv_nsec: SILENCE };
        match poll(&mut [PollFd::new(errors, PollFlags::IN)], Some(&limit)) {
            Ok(1) => drop(launcher.hear()),
            Ok(_) => return,
            Err(_) => {}
        }
    }
}

/// The last of our own messages in what was said.
fn words_of_ours(said: &[u8]) -> Option<Fault> {
    let text = String::from_utf8_lossy(said);
    let mut found = None;
    for line in text.lines() {
        if let Some(message) = line.strip_prefix("skiff: ") {
            found = Some(Fault::new(message));
        } else if let (Some(hint), Some(error)) = (line.strip_prefix("hint: "), &mut found) {
            error.hint = hint.into();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_words_are_found_among_others() {
        let said =
            b"srun: warning\nskiff: a: first\nskiff: b: second\nhint: mend it\nsrun: error: n1: Exited\n";
        let own = words_of_ours(said).expect("there are some");
        assert_eq!((own.message.as_str(), own.hint.as_str()), ("b: second", "mend it"));
        assert_eq!(words_of_ours(b"ssh: no\nhint: not ours\n"), None);
    }
}
