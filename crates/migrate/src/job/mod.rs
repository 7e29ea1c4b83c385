//! `skiff job save` and `skiff job restore`: all instances of a job that spans nodes, as one checkpoint.
//!
//! One command, the *coordinator*, has a receiver on the node of each instance, as a move has one on its destination. It leads all of
//! them from step to step, and no receiver takes a step before all have taken the one before. So there is a moment at which the
//! networks of all instances are shut and all processes stand still: what has been sent and not acknowledged then is with the sender, whose
//! kernel sends it again.

mod attend;
pub mod beats;
mod links;
pub mod member;
mod preflight;
mod restore;
mod save;

use skiff_cli::{JobMoveArgs, JobRestoreArgs, JobSaveArgs, OutputArgs, Retention};
use skiff_output as output;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_user::context::UserContext;

use save::{DestinationRefusal, MemberFound};

/// Saves a job's instances; the exit code.
pub fn save(words: &JobSaveArgs) -> Result<i32> {
    let context = UserContext::load()?;
    match words.every.is_some() || words.on_signal.is_some() || words.drain_on_signal.is_some() {
        true => attend::attend(&context, words),
        false => save::save(&context, words),
    }
}

/// Restores a job's instances; the exit code.
pub fn restore(words: &JobRestoreArgs) -> Result<i32> {
    restore::restore(&UserContext::load()?, words)
}

/// Moves a job's instances to other nodes; the exit code.
pub fn move_to(words: &JobMoveArgs) -> Result<i32> {
    let context = UserContext::load()?;
    let saving = JobSaveArgs {
        on: words.on.clone(),
        leave_running: false,
        every: None,
        on_signal: None,
        no_requeue: false,
        drain_on_signal: None,
        keep: Retention::default(),
        dry_run: words.dry_run,
        output: OutputArgs { json: words.output.json },
        checkpoint: words.checkpoint.clone(),
        instances: words.instances.clone(),
    };
    let mut found = save::look(&context, &saving)?;
    let refusals = save::ask_destinations(&context, &mut found, &words.to);
    if words.dry_run {
        let asked = refusals.map(|refusals| DestinationRefusal::note(refusals, &mut found));
        let code = save::show_all(&saving, &found)?;
        return asked.map(|()| code);
    }
    // As long as all go on. What is in the way where they are shows when nobody else saves them any more.
    save::refuse_missing(&saving, found.iter().map(MemberFound::instance))?;
    let nothing = |e: Error| e.about("nothing is moved, and all instances go on");
    refusals.and_then(|refusals| DestinationRefusal::refuse(&refusals)).map_err(nothing)?;
    // While one may run on, nothing is restored: it would be there twice.
    let former = save::carry_out(&context, &saving)?.refuse_unknown()?.nodes();
    let restoring = |on: Vec<String>| JobRestoreArgs {
        on,
        files: None,
        wait: words.wait,
        dry_run: false,
        output: OutputArgs { json: words.output.json },
        checkpoint: CheckpointName::newest(&words.checkpoint),
    };
    let why = match restore::hold(&context, &restoring(words.to.clone())) {
        Ok(held) => return held.run(),
        Err(why) => why,
    };
    output::note("the instances are restored where they were");
    match restore::hold(&context, &restoring(former)).and_then(restore::HeldJob::run) {
        Ok(_) => Err(why),
        Err(e) => {
            output::complain(&why);
            Err(e)
        }
    }
}
