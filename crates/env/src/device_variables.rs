//! The variables of the devices and modules that an environment was started with. They are noted for later sessions: what has become of the
//! descriptions since does not matter to an environment that is running.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use skiff_plan::devices;
use skiff_plan::inside::ProcessArgs;
use skiff_sandbox::command::CommandSpec;
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::plan::Plan;
use skiff_sys::{IgnoreError, small_file};

/// In an environment's directory: the variables, each with a zero byte behind.
const VARIABLES: &str = "device-variables";

/// Notes what a plan sets, by which the environment in this directory is being started.
pub fn note(dir: &Path, plan: &Plan) -> Result<()> {
    let (file, new) = (dir.join(VARIABLES), dir.join("device-variables.new"));
    if plan.devices.variables.is_empty() {
        fs::remove_file(&file).ignore_error("none were noted when it started before");
        return Ok(());
    }
    let text: String = plan.devices.variables.iter().map(|setting| format!("{setting}\0")).collect();
    // A session that begins in this moment may read it.
    small_file::write(&new, text.as_bytes())
        .and_then(|()| fs::rename(&new, &file))
        .context(|| file.display().to_string())
}

/// Sets what was noted, but for what the user or a definition has named.
pub fn set(dir: &Path, command: &mut CommandSpec, inside: &ProcessArgs) -> Result<()> {
    let file = dir.join(VARIABLES);
    let text = match small_file::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).context(|| file.display().to_string()),
    };
    let settings: Vec<String> = text.split_terminator('\0').map(String::from).collect();
    devices::set(&settings, command, inside);
    Ok(())
}
