//! The head of a cluster: has agents started on all hosts at once, brings them together, has the program run on the first, and
//! sees to it that nothing is left at the end, whatever that was.

mod outlet;
mod talk;
pub mod terminal;
mod waiting;

use skiff_launch::frame::Stream;
use skiff_launch::handshake::Call;
use skiff_launch::hosts::Host;
use skiff_launch::listener::CallbackListener;
use skiff_launch::manager::Launch;
use skiff_spec::fault::Result;
use skiff_sys::signal::Signals;

use crate::fleet::{self, Fleet, Limits};
use crate::wire::{ContainerSpec, HeadMessage, Program, ProgramEnd};
use outlet::Outlet;
use terminal::Raw;
use waiting::HeadEvent;

/// So much of the program's output may wait for whoever reads it.
const MOST_WAITING: usize = 1 << 20;

/// What the loss of a host means.
const ENDS: &str = "lost; the cluster ends with it";

/// What is to be done.
pub struct ProgramRun<'a> {
    /// The hosts.
    pub hosts: &'a [Host],
    /// What starts the agents.
    pub launches: &'a [Launch],
    /// What the containers are to be.
    pub wanted: &'a ContainerSpec,
    /// What runs in the first.
    pub program: Program,
    /// How long the hosts may take.
    pub limits: Limits,
    /// Where words for the user go that are no data.
    pub note: &'a dyn Fn(&str),
}

/// Carries it out; how the program ended.
///
/// # Errors
/// Why there was no cluster, or is none any more. In any case nothing of it is left.
pub fn run(
    task: &ProgramRun<'_>,
    listener: Option<CallbackListener>,
    call: &Call,
    signals: &Signals,
) -> Result<ProgramEnd> {
    let mut head = Head::new(task, listener, signals);
    let outcome = head.fleet.launch(task.launches, call).and_then(|()| head.serve());
    head.fleet.end();
    outcome
}

struct Head<'a> {
    task: &'a ProgramRun<'a>,
    signals: &'a Signals,
    fleet: Fleet,
    running: bool,
    output: Outlet,
    errors: Outlet,
    /// Bytes of input that have not been passed on yet; nothing when there is no more.
    input: Option<usize>,
    ended: Option<ProgramEnd>,
    /// As long as the program has a terminal.
    raw: Option<Raw>,
}

impl<'a> Head<'a> {
    fn new(task: &'a ProgramRun<'a>, listener: Option<CallbackListener>, signals: &'a Signals) -> Self {
        Self {
            task,
            signals,
            fleet: Fleet::new(task.hosts, task.wanted, task.limits, listener),
            running: false,
            output: Outlet::stdout(),
            errors: Outlet::stderr(),
            input: Some(0),
            ended: None,
            raw: None,
        }
    }

    fn serve(&mut self) -> Result<ProgramEnd> {
        loop {
            let ready = self.wait();
            for of in ready {
                self.attend(of)?;
            }
            self.fleet.keep_time(self.deaf(), ENDS)?;
            if let Some(end) = self.ended {
                self.drain();
                return Ok(end);
            }
        }
    }

    fn attend(&mut self, of: HeadEvent) -> Result<()> {
        match of {
            HeadEvent::Signals => self.hear_signals()?,
            HeadEvent::Input => self.pass_input(),
            HeadEvent::Outlet => {
                self.output.flush();
                self.errors.flush();
            }
            HeadEvent::Fleet(fleet::FleetEvent::Listener) => self.fleet.accept()?,
            HeadEvent::Fleet(fleet::FleetEvent::Launcher(at)) => self.fleet.bury(at).map_err(|(_, e)| e)?,
            HeadEvent::Fleet(fleet::FleetEvent::Said(at)) => {
                let said = self.fleet.words(at);
                if self.running {
                    self.errors.push(&said);
                }
            }
            HeadEvent::Fleet(fleet::FleetEvent::To(at)) => self.fleet.flush(at),
            HeadEvent::Fleet(fleet::FleetEvent::From(at)) => self.hear(at)?,
        }
        Ok(())
    }

    fn hear_signals(&mut self) -> Result<()> {
        while let Ok(Some(signal)) = self.signals.next() {
            let number = signal.number;
            match on_signal(number, self.running) {
                OnSignal::End => self.ended = Some(ProgramEnd::Signal(number)),
                OnSignal::Pass => self.fleet.tell(0, &HeadMessage::Signal(number)),
                OnSignal::Resize => {
                    let size = terminal::size().filter(|_| self.raw.is_some());
                    size.into_iter().for_each(|size| self.fleet.tell(0, &HeadMessage::Resize(size)));
                }
                OnSignal::Nothing => {}
            }
        }
        Ok(())
    }

    fn pass_input(&mut self) {
        let mut buffer = [0; 32 << 10];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) => {
                self.input = None;
                self.fleet.tell(0, &HeadMessage::InputEnd);
            }
            Ok(n) => {
                self.input = self.input.map(|under_way| under_way + n);
                let channel = self.fleet.remotes[0].channel.iter_mut();
                channel.for_each(|channel| channel.pass(Stream::Input, &buffer[..n]));
            }
        }
    }

    /// Whom we do not listen to, as whoever reads what the program says is slower than that.
    fn deaf(&self) -> Option<usize> {
        (self.output.waiting() + self.errors.waiting() > MOST_WAITING).then_some(0)
    }

    /// Has what the program has said written, as far as whoever reads it takes it.
    fn drain(&mut self) {
        self.output.finish();
        self.errors.finish();
    }
}

/// What the head does on a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnSignal {
    /// Ends the cluster, as it would end by that signal.
    End,
    /// Passes it on to the program.
    Pass,
    /// Tells the program the new size of its terminal.
    Resize,
    /// Nothing.
    Nothing,
}

/// What a signal leads to, given whether the program runs: from then on what would end us is for the program.
fn on_signal(number: i32, running: bool) -> OnSignal {
    use rustix::process::Signal;
    let ends = [Signal::HUP, Signal::INT, Signal::TERM, Signal::QUIT].map(Signal::as_raw);
    let passes = [Signal::USR1, Signal::USR2, Signal::CONT].map(Signal::as_raw);
    match number {
        number if ends.contains(&number) && !running => OnSignal::End,
        number if number == Signal::WINCH.as_raw() => OnSignal::Resize,
        number if ends.contains(&number) || passes.contains(&number) => OnSignal::Pass,
        _ => OnSignal::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Signal;

    #[test]
    fn what_ends_us_is_for_the_program_as_soon_as_that_runs() {
        use OnSignal::{End, Nothing, Pass, Resize};
        for (signal, before, running) in [
            (Signal::INT, End, Pass),
            (Signal::TERM, End, Pass),
            (Signal::HUP, End, Pass),
            (Signal::QUIT, End, Pass),
            // Slurm's warning before a job's end.
            (Signal::USR1, Pass, Pass),
            (Signal::CONT, Pass, Pass),
            (Signal::WINCH, Resize, Resize),
            (Signal::CHILD, Nothing, Nothing),
            (Signal::TSTP, Nothing, Nothing),
        ] {
            let number = signal.as_raw();
            assert_eq!((on_signal(number, false), on_signal(number, true)), (before, running), "{signal:?}");
        }
    }
}
