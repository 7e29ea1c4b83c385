//! Whether processes can be saved and made again here: it is done with one.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::rand::{GetRandomFlags, getrandom};
use skiff_checkpoint::installed_criu;
use skiff_checkpoint::probe::{CriuFeatures, probe};
use skiff_plan::{self as plan, Facts, PlanOptions, RootOptions};
use skiff_sandbox::enter::EnterTarget;
use skiff_sandbox::join::NetSpace;
use skiff_sandbox::start::{StartOptions, start};
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::network::Net;
use skiff_spec::plan::Upper;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::doctor::Check;

const NAME: &str = "checkpoints";

/// The check.
pub fn check(context: &UserContext) -> Check {
    let Some(folder) = installed_criu() else {
        let mend = "administrator: packaging/get-criu makes the folder PREFIX/libexec/skiff/criu";
        return Check::warn(NAME, "no CRIU: instances cannot be saved", mend);
    };
    let begun = Instant::now();
    match try_in_new(context, |inside, scratch| probe(&folder, inside, scratch)) {
        Ok(found) => Check::pass(NAME, shown(&found, begun)),
        Err(e) => {
            let mend = if e.hint.is_empty() {
                "administrator: CRIU needs a kernel with CONFIG_CHECKPOINT_RESTORE, Linux 5.9 or newer"
            } else {
                &e.hint
            };
            Check::warn(NAME, e.message, mend)
        }
    }
}

fn shown(found: &CriuFeatures, begun: Instant) -> String {
    let took = begun.elapsed().as_secs_f64();
    let yes = |there| if there { "yes" } else { "no" };
    format!(
        "CRIU {}: a process saved and made again ({took:.1} s); pages written since: {}, pages on demand: {}",
        found.version,
        yes(found.dirty_pages),
        yes(found.lazy_pages)
    )
}

/// In an environment made for this, with a network of its own, as instances have it that take their connections along.
fn try_in_new(
    context: &UserContext,
    act: impl FnOnce(EnterTarget<'_>, &Path) -> Result<CriuFeatures>,
) -> Result<CriuFeatures> {
    let upper = Upper::Memory { size: context.config.run.memory.clone() };
    let asked = RootOptions { net: Some(Net::None), dumpable: true, ..RootOptions::default() };
    let options = PlanOptions::new("doctor", upper, asked);
    let plan = plan::build(options, Facts::of_host(context)?)?;
    let scratch = new_dir(&std::env::temp_dir())?;
    let found = start(&plan, StartOptions { helper: context.helper.as_deref(), ..StartOptions::default() })
        .and_then(|instance| {
            let inside = EnterTarget { init: instance.init.pidfd.as_fd(), net: NetSpace::Its, number: None };
            let found = act(inside, &scratch);
            instance.end();
            found
        });
    fs::remove_dir_all(&scratch).ignore_error("the check is what counts");
    found
}

/// A new directory there. Everybody may write there, and nobody is to be able to take its name first.
fn new_dir(all: &Path) -> Result<PathBuf> {
    let mut random = [0; 16];
    getrandom(&mut random, GetRandomFlags::empty()).context(|| "random bytes")?;
    let dir = all.join(format!("skiff-doctor.{:032x}", u128::from_le_bytes(random)));
    fs::DirBuilder::new().mode(0o700).create(&dir).context(|| dir.display().to_string())?;
    Ok(dir)
}
