//! Instances that are saved while they run: a process in the background beside each, which ends with it.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use skiff_output as output;
use skiff_runtime::record::InstanceDir;
use skiff_spec::checkpoint::CheckpointInterval;
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::instance::Started;
use skiff_user::context::UserContext;

/// In an instance's directory: what is said of its checkpoints.
pub const LOG: &str = "checkpoints.log";

/// Begins to save an instance, if that was asked for when it was started. It runs, whatever fails here, and may be the only one that does.
pub fn begin(context: &UserContext, record: &InstanceDir, started: &Started) {
    let Some(interval) = started.checkpoint_every else { return };
    if let Err(why) = spawn(context, record, interval) {
        let (name, again) = (&record.name, format!("skiff checkpoint every {interval} {}", record.name));
        output::complain(
            &why.about(&format!("instance {name} runs, and is not saved"))
                .hint(format!("`{again}` does that")),
        );
    }
}

fn spawn(context: &UserContext, record: &InstanceDir, interval: CheckpointInterval) -> Result<()> {
    let path = record.dir.join(LOG);
    let about = || path.display().to_string();
    let log = File::options().create(true).append(true).mode(0o600).open(&path).context(about)?;
    let errors = log.try_clone().context(about)?;
    let program = std::env::current_exe().context(|| "own program")?;
    Command::new(program)
        .arg0("skiff")
        .args(["checkpoint", "every", &interval.to_string(), record.name.as_str()])
        .env_clear()
        .envs(context.own_variables())
        .current_dir("/")
        // The keys of the caller's terminal are not for it.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map(drop)
        .context(|| format!("instance {}: `skiff checkpoint every`", record.name))
}
