//! `skiff job`: what a batch script wants of instances. A job that comes to the end of its time, or has to make room, is asked by a signal
//! beforehand: its instance is saved, Slurm starts the job again, there or on another node, and the instance goes on from where it was.

use std::io::stdout;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FileType, fstat};
use skiff_cli::{OnSignalArgs, OutputArgs, RestoreArgs, SaveArgs};
use skiff_instance::foreground::{self, Attended};
use skiff_instance::{look, start};
use skiff_output as output;
use skiff_plan::stop;
use skiff_runtime::record::InstanceDir;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::names::JOB_ID;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::save::{self, SaveOutcome};
use crate::{place, restore};

/// How long Slurm may take to end a job that is to start again.
const ENDING: Duration = Duration::from_secs(120);

/// Runs an instance, and saves it at a signal; the exit code.
pub fn run(mut words: OnSignalArgs) -> Result<i32> {
    words.start.checkpoint.get_or_insert_default();
    checkpoint_on_signal(&words)
}

fn checkpoint_on_signal(words: &OnSignalArgs) -> Result<i32> {
    let context = UserContext::load()?;
    let signal = signal_number(&words.signal).map_err(|e| e.about("--signal"))?;
    let job = job_of_script()?;
    if words.start.root.inside.me {
        return Err(Error::new("--me: what is to be saved is root inside"));
    }
    // It may come while the instance is being made, and counts all the same.
    skiff_sys::signal::hold(signal);
    let instance = &words.start.instance;
    let slot =
        CheckpointName::newest(words.start.checkpoint.as_ref().and_then(Option::as_ref).unwrap_or(instance));
    let skipped = match place::is_saved(&context, &slot)? {
        true => go_on(&context, words, slot.clone())?,
        false => match start::start(&words.start)? {
            0 if !words.start.show.dry_run => Some(0),
            code => return Ok(code),
        },
    };
    let Some(skipped) = skipped else { return Ok(0) };
    let record = InstanceDir::named(&context, instance)?;
    let ended = foreground::attend(&context, &record, skipped, |number| {
        if number != signal {
            return Ok(false);
        }
        let saved = try_to_save(&context, words);
        if let Err(why) = &saved {
            // It goes on as it was, for as long as the job does.
            output::complain(why);
        }
        Ok(saved.is_ok())
    })?;
    // Whoever is just saving it would else publish a checkpoint of a computation that has ended, from which the next job would go on.
    let _saving = save::alone(&record)?;
    look::remove(&context, instance, false)?;
    match ended {
        // Whoever ends the job without a word may let it begin again: Slurm does, for a job that makes room or whose node is drained.
        Attended::Stopped(ended) => {
            if place::is_saved(&context, &slot)? {
                output::note(&format!("checkpoint {slot} stays: a job with the same line goes on from it"));
            }
            Ok(output::exit_as(ended))
        }
        Attended::Ended(ended) => {
            // Its next job would else go on from before its end.
            place::remove_all(&context, &slot.name)?;
            Ok(output::exit_as(ended))
        }
        Attended::Left if words.no_requeue => Ok(0),
        Attended::Left => requeue(&job, &slot),
    }
}

/// Makes it again; how many bytes of its output need not be shown, nothing if that was only to be shown.
fn go_on(context: &UserContext, words: &OnSignalArgs, checkpoint: CheckpointName) -> Result<Option<u64>> {
    let (dry_run, output) = (words.start.show.dry_run, OutputArgs { json: words.start.show.json });
    let restore = RestoreArgs { files: words.files, dry_run, output, checkpoint, instance: None };
    let restored = restore::carry_out(context, &restore)?;
    let Some(restored) = restored else { return Ok(None) };
    output::note(&format!("instance {} goes on from its checkpoint", words.start.instance));
    // Where Slurm appends to the job's file, it has that already.
    let there = fstat(stdout()).context(|| "standard output")?;
    let file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
    let has_it = file
        && u64::try_from(there.st_size).default_on_error("no file has a negative size") >= restored.written;
    Ok(Some(if has_it { restored.written } else { 0 }))
}

fn try_to_save(context: &UserContext, words: &OnSignalArgs) -> Result<()> {
    let save = SaveArgs {
        name: None,
        leave_running: false,
        keep: words.keep,
        dry_run: false,
        output: OutputArgs { json: false },
        instance: words.start.instance.clone(),
    };
    if let SaveOutcome::Saved(saved) = save::carry_out(context, &save)? {
        saved.lost.iter().for_each(|lost| output::note(lost));
    }
    output::note(&format!("instance {} is saved", words.start.instance));
    Ok(())
}

/// Number of the job that this process is in, which must be one of Slurm's.
pub fn job_of_script() -> Result<String> {
    std::env::var(JOB_ID).map_err(|_| {
        Error::new(format!("{JOB_ID} is not set: this is for batch scripts of Slurm's"))
            .hint("elsewhere: `skiff run --checkpoint`, `skiff checkpoint save`, `skiff checkpoint restore`")
    })
}

/// Number of the signal at which a job's instances are saved.
pub fn signal_number(name: &str) -> Result<i32> {
    stop::number(name).ok_or_else(|| Error::new(format!("{name}: there is no such signal")))
}

/// Has Slurm start the job again, and waits until it ends this one.
pub fn requeue(job: &str, slot: &CheckpointName) -> Result<i32> {
    let about = || format!("scontrol requeue {job}");
    let said = Command::new("scontrol").args(["requeue", job]).output().context(about)?;
    let hint = format!("checkpoint {slot} is there: a job with the same line goes on from it");
    if !said.status.success() {
        let words = String::from_utf8_lossy(&said.stderr);
        return Err(Error::new(format!("{}: {}", about(), words.trim())).hint(hint));
    }
    std::thread::sleep(ENDING);
    Err(Error::new(format!("{}: Slurm has not ended the job after that", about())).hint(hint))
}
