//! `skiff drain`: all instances that can be moved leave a host for others, one after the other.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use clap::ValueEnum as _;
use rustix::process::{WaitOptions, wait};
use serde::{Deserialize, Serialize};
use skiff_checkpoint::obstacles::IN_THE_WAY;
use skiff_cli::{Compress, DrainArgs, MigrateArgs, Mode, OutputArgs};
use skiff_launch::hosts;
use skiff_output as output;
use skiff_runtime::record::{InstanceDir, State};
use skiff_sandbox::start::detach_stdio;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_sys::kernel::host_name;
use skiff_user::context::UserContext;

use crate::sender::{self, MovePreflight};
use crate::{in_step, way};

/// How long what a launcher says before its end may take to arrive.
const LAST_WORDS: Duration = Duration::from_millis(100);
const NO_ANSWER: &str = "an answer that does not come cannot be read, which is said";

/// What has become of an instance.
#[derive(Debug, Serialize, Deserialize)]
struct Left {
    instance: String,
    /// Where it is now; nothing if it has stayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Why it has stayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Does it; the exit code: whether any has stayed, or would.
pub fn drain(context: &UserContext, words: &DrainArgs) -> Result<i32> {
    let here = host_name();
    let is_here = hosts::same(&words.node, &here);
    let targets = match words.to.is_empty() {
        false => words.to.clone(),
        true => way::others(&words.node)?,
    };
    if targets.iter().any(|target| hosts::same(target, &words.node)) {
        return Err(Error::new(format!("--to {}: that is the one to be drained", words.node)));
    }
    let all = match is_here {
        true => leave(context, words, &targets)?,
        false => there(words, &targets)?,
    };
    say(words, &all)?;
    if is_here && in_step() {
        stay_for_children();
    }
    Ok(match all.iter().any(|one| one.why.is_some()) {
        true if words.dry_run => IN_THE_WAY,
        true => output::FAILURE,
        false => 0,
    })
}

/// Moves the instances of this host.
fn leave(context: &UserContext, words: &DrainArgs, targets: &[String]) -> Result<Vec<Left>> {
    let mut all = vec![];
    let mut turn = 0;
    for record in InstanceDir::all(context)? {
        if !matches!(record.state()?, State::Running(_)) {
            continue;
        }
        let started = record.started()?;
        let mut left = Left { instance: record.name.to_string(), node: None, why: None };
        if !started.checkpoint {
            left.why = Some("it was not started with --checkpoint".into());
        } else {
            // The next one begins with the next: the first would else have to take all.
            for step in 0..targets.len() {
                let node = &targets[(turn + step) % targets.len()];
                match move_or_ask(context, words, &record, node) {
                    Ok(()) => {
                        (left.node, left.why) = (Some(node.clone()), None);
                        turn += step + 1;
                        break;
                    }
                    Err(why) => left.why = Some(why.message),
                }
            }
        }
        all.push(left);
    }
    Ok(all)
}

/// Moves an instance, or only asks whether it could be moved.
fn move_or_ask(context: &UserContext, words: &DrainArgs, record: &InstanceDir, node: &str) -> Result<()> {
    let moving = moving(record, node, words.mode);
    match words.dry_run {
        true => MovePreflight::look(context, &moving)?.refuse(),
        false => sender::carry_out(context, &moving).map(drop),
    }
}

fn moving(record: &InstanceDir, node: &str, mode: Mode) -> MigrateArgs {
    let output = OutputArgs { json: false };
    let compress = Compress::Auto;
    MigrateArgs { mode, compress, dry_run: false, output, instance: record.name.clone(), node: node.into() }
}

/// Moves the instances of another host, by running this program there.
fn there(words: &DrainArgs, targets: &[String]) -> Result<Vec<Left>> {
    let node = &words.node;
    let exe = std::env::current_exe().context(|| "own program")?;
    let mode = words.mode.to_possible_value().map_or_else(String::new, |mode| mode.get_name().to_owned());
    let mut argv = vec![exe.into(), "drain".into(), "--json".into(), "--mode".into(), mode.into()];
    argv.extend(words.dry_run.then(|| "--dry-run".into()));
    argv.extend(["--to".into(), targets.join(",").into(), node.into()]);
    let launch = way::launch_words(node, &argv, None)?;
    let (program, rest) = launch.argv.split_first().ok_or_else(|| Error::new("nothing to start"))?;
    let about = || format!("{node}: {}", program.display());
    let mut command = Command::new(program);
    command.args(rest).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in &launch.without {
        command.env_remove(name);
    }
    let mut child = command.spawn().context(about)?;
    let (said, answered) = (channel(), channel());
    let (errors, stdout) = (child.stderr.take(), child.stdout.take());
    errors.map(|errors| std::thread::spawn(move || hand_on(errors, &said.0)));
    stdout.map(|stdout| std::thread::spawn(move || hand_on(stdout, &answered.0)));
    let (line, why) = hear(&answered.1, &said.1);
    // What it says is all that we want of it: in a job it goes on as long as those that it has moved.
    serde_json::from_str(&line).map_err(|_| {
        let why = why.unwrap_or_else(|| "it gives no answer".into());
        Error::new(format!("{node}: skiff could not be started there: {why}")).hint(
            "is it a node of this job, or one that `ssh NODE skiff --version` reaches without a question?",
        )
    })
}

/// Hands on each line as it comes, until nobody can say anything more.
fn hand_on(from: impl Read, to: &Sender<String>) {
    for line in BufReader::new(from).split(b'\n').map_while(std::result::Result::ok) {
        to.send(String::from_utf8_lossy(&line).trim().to_owned()).ignore_error("nobody needs it any more");
    }
}

/// The answer, a line, and the last that others said, as ssh does; prints what Skiff says there. What was said last may arrive after the
/// answer, and who else has the pipe, as ssh's master, may keep it open.
fn hear(answer: &Receiver<String>, said: &Receiver<String>) -> (String, Option<String>) {
    let (mut others, mut line) = (None, None);
    loop {
        match said.recv_timeout(LAST_WORDS) {
            Ok(text) if text.starts_with("skiff: ") || text.starts_with("hint: ") => {
                output::draw(&format!("{text}\n"));
            }
            Ok(text) if text.is_empty() => {}
            Ok(text) => others = Some(text),
            Err(_) if line.is_some() => return (line.unwrap_or_default(), others),
            Err(RecvTimeoutError::Timeout) => match answer.try_recv() {
                Err(TryRecvError::Empty) => {}
                answered => line = Some(answered.default_on_error(NO_ANSWER)),
            },
            // Nobody says anything any more.
            Err(RecvTimeoutError::Disconnected) => line = Some(answer.recv().default_on_error(NO_ANSWER)),
        }
    }
}

fn say(words: &DrainArgs, all: &[Left]) -> Result<()> {
    if words.output.json {
        // In one line: whoever has started us on another host waits for its end.
        let text = serde_json::to_string(all).map_err(|e| Error::new(format!("JSON: {e}")))?;
        return output::line(&text);
    }
    for Left { instance, node, why } in all {
        match (node, why) {
            (Some(node), _) => output::line(&format!("{instance}\t{node}"))?,
            (None, why) => {
                let why = why.as_deref().unwrap_or("it has ended meanwhile");
                output::note(&format!("instance {instance} stays on {}: {why}", words.node));
            }
        }
    }
    Ok(())
}

/// With our step of Slurm's what we have started in it would end, and with that the instances on the other side.
fn stay_for_children() {
    detach_stdio();
    while wait(WaitOptions::empty()).is_ok() {}
}
