//! An instance in the foreground: somebody waits for its end, sees what it writes meanwhile, and passes on that it is to end.

use std::os::fd::AsFd;

use rustix::process::Signal;
use skiff_cli::{RunArgs, StartArgs};
use skiff_output as output;
use skiff_plan::{RootOptions, RootSource};
use skiff_runtime::lock;
use skiff_runtime::record::{InstanceDir, State};
use skiff_sandbox::session::CommandExit as HowEnded;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::{End, Ended};
use skiff_spec::name::EnvName;
use skiff_sys::signal::Signals;
use skiff_user::context::UserContext;

use crate::logs::Follow;
use crate::look::{not_running, stop};
use crate::start;

/// How long its command may take to end when it is asked to, in seconds.
const PATIENCE: u64 = 10;
/// How many instances are named after one image.
const MOST_OF_A_NAME: u32 = 999;
/// How many characters of an image's name become a part of its instances'.
const LONGEST_STEM: usize = 48;
/// What asks us to end, and with us the instance.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
/// What is between the terminal and us.
const OURS: [Signal; 5] = [Signal::TSTP, Signal::CONT, Signal::TTIN, Signal::TTOU, Signal::WINCH];

/// `skiff run --detach`: starts an instance, and prints its name; the exit code.
/// `taken` has the names that a new one must not get.
pub fn detach(run: &RunArgs, taken: fn(&UserContext) -> Result<Vec<EnvName>>) -> Result<i32> {
    let name = match run.checkpoint.as_ref().or(run.name.as_ref()) {
        Some(name) => name.clone(),
        None => free_name(&taken(&UserContext::load()?)?, run)?,
    };
    if run.habit.remove {
        output::note(&format!(
            "--rm: the output of {name} is kept until `skiff instance rm {name}`, or the next of this name"
        ));
    }
    match start::start(&of_run(run, &name)?)? {
        0 if !run.show.dry_run => output::line(name.as_str()).map(|()| 0),
        code => Ok(code),
    }
}

/// A name after the image, by which commands find nothing else.
fn free_name(taken: &[EnvName], run: &RunArgs) -> Result<EnvName> {
    let image = match run.options()?.source {
        RootSource::Image(image) => image,
        RootSource::Host => "host".into(),
    };
    let stem = stem(&image);
    let names = std::iter::once(stem.clone()).chain((2..=MOST_OF_A_NAME).map(|n| format!("{stem}-{n}")));
    let mut free = names.filter_map(|name| name.parse().ok()).filter(|name| !taken.contains(name));
    free.next().ok_or_else(|| Error::new("--detach: no name is free").hint("--name NAME gives one"))
}

/// What of an image's name, or of the path of a file or directory, can begin an instance's.
fn stem(image: &str) -> String {
    let last = image.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let begin = last.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let fits = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    let stem: String = begin.chars().take_while(fits).take(LONGEST_STEM).collect();
    if stem.is_empty() { "instance".into() } else { stem }
}

/// `skiff run --checkpoint`: starts one of this name, and waits for its end; the exit code.
pub fn run(run: &RunArgs, instance: &EnvName) -> Result<i32> {
    match start::start(&of_run(run, instance)?)? {
        0 if !run.show.dry_run => {
            let context = UserContext::load()?;
            match attend(&context, &InstanceDir::named(&context, instance)?, 0, |_| Ok(false))? {
                Attended::Ended(ended) | Attended::Stopped(ended) => Ok(output::exit_as(ended)),
                Attended::Left => Ok(0),
            }
        }
        code => Ok(code),
    }
}

/// The words of `skiff instance start` that `skiff run --checkpoint` or `--detach` stands for.
pub fn of_run(run: &RunArgs, instance: &EnvName) -> Result<StartArgs> {
    let RunArgs {
        root,
        entrypoint,
        show,
        // What lies below and the command are read as without --checkpoint, which --untrusted excludes.
        base: _,
        command: _,
        over_host: _,
        untrusted: _,
        checkpoint,
        checkpoint_every,
        plan: _,
        detach: _,
        name: _,
        habit: _,
    } = run;
    let RootOptions { source, argv, .. } = run.options()?;
    let of = match source {
        RootSource::Image(image) => format!("{}{image}", skiff_store::PREFIX),
        RootSource::Host if argv.is_empty() => {
            let (why, hint) = match checkpoint {
                Some(_) => (
                    "--checkpoint: a shell on a terminal cannot be saved",
                    "name the command: skiff run --checkpoint NAME -- COMMAND",
                ),
                None => (
                    "--detach: a shell in the background has no terminal",
                    "name the command: skiff run --detach -- COMMAND",
                ),
            };
            return Err(Error::new(why).hint(hint));
        }
        RootSource::Host => "host".into(),
    };
    Ok(StartArgs {
        root: root.clone(),
        checkpoint: checkpoint.as_ref().map(|_| None),
        checkpoint_every: *checkpoint_every,
        entrypoint: entrypoint.clone(),
        show: show.clone(),
        of,
        instance: instance.clone(),
        command: argv,
    })
}

/// What has come of waiting for an instance's end.
pub enum Attended {
    /// The command has ended by itself.
    Ended(HowEnded),
    /// The command has ended after a signal asked us to end.
    Stopped(HowEnded),
    /// Nobody waits any longer.
    Left,
}

/// Waits for its end. `skipped` bytes of its output are not shown. Other signals than those that end
/// things are for `heard`; when that says so, nobody waits any longer.
pub fn attend(
    context: &UserContext,
    record: &InstanceDir,
    skipped: u64,
    mut heard: impl FnMut(i32) -> Result<bool>,
) -> Result<Attended> {
    let mut told = false;
    let signals = Signals::block(&OURS.map(Signal::as_raw)).context(|| "signals")?;
    let mut follow = Follow::begin(record, skipped)?;
    while !follow.until(Some(signals.as_fd()))? {
        while let Some(signal) = signals.next().context(|| "signals")? {
            if heard(signal.number)? {
                follow.rest()?;
                signals.end();
                return Ok(Attended::Left);
            }
            if ENDING.iter().any(|ending| ending.as_raw() == signal.number) {
                told = true;
                // It may be ending by itself.
                stop(context, &record.name, PATIENCE).or_else(|why| match record.state()? {
                    State::Running(_) => Err(why),
                    _ => Ok(()),
                })?;
            }
        }
    }
    lock::wait(&record.dir)?;
    signals.end();
    ended(record).map(if told { Attended::Stopped } else { Attended::Ended })
}

fn ended(record: &InstanceDir) -> Result<HowEnded> {
    match record.state()? {
        State::Ended(Ended { end: Some(End::Exited(code)), .. }) => Ok(HowEnded::Code(code)),
        State::Ended(Ended { end: Some(End::Killed(number)), .. }) => Ok(HowEnded::Signal(number)),
        State::Ended(Ended { end: Some(End::Saved), .. }) => {
            Err(Error::new(format!("instance {} was saved, and ended with that", record.name))
                .hint("`skiff checkpoint list` shows as what; `skiff checkpoint restore` lets it go on, or with its whole job `skiff job restore`"))
        }
        _ => Err(not_running(record)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_gives_a_name() {
        for (image, name) in [
            ("debian:12", "debian"),
            ("registry.example:5000/tools/env:1", "env"),
            ("./rootfs/", "rootfs"),
            ("/srv/root.d//", "root"),
            ("./x.sif", "x"),
            (".hidden", "hidden"),
            ("_build", "build"),
            ("-x", "x"),
            (".", "instance"),
            ("/", "instance"),
            ("é", "instance"),
            (&"a".repeat(200), &"a".repeat(LONGEST_STEM)),
        ] {
            assert_eq!(stem(image), name, "{image}");
            assert!(format!("{name}-{MOST_OF_A_NAME}").parse::<EnvName>().is_ok(), "{name}");
        }
    }
}
