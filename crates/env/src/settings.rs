//! What an environment is called and made of: shown, copied, and given another name.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use skiff_output as output;
use skiff_runtime::environments::Environment;
use skiff_runtime::{control, lock, package_database};
use skiff_spec::fault::{Context as _, Fault as Error, NO_ROOM, Result};
use skiff_spec::image::ImageId;
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_spec::plan::Base;
use skiff_spec::revision::{EnvRevision, Revision};
use skiff_sys::IgnoreError as _;
use skiff_user::context::UserContext;

use crate::elapsed::as_root_of_ids_shown;
use crate::live::ListedEnvironment;
use crate::snapshot_copy::{delete_if_failed, fill};
use crate::{calling, history, latest};

/// The directories of an environment that hold files of its user's: its changes, and its own `/tmp` and `/var/tmp`.
const KEPT: [&str; 3] = ["upper", "tmp", "vartmp"];
/// More of what cp says of a file is not passed on.
const LONGEST_LINE: u64 = 16 << 10;

/// An environment with what it was made with.
#[derive(Serialize)]
struct ShownEnvironment<'a> {
    #[serde(flatten)]
    listed: ListedEnvironment,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<ImageId>,
    mounts: &'a [String],
    net: &'a Net,
}

/// Prints what an environment was made with, and whether it is running.
pub fn show(context: &UserContext, name: &EnvName, json: bool) -> Result<()> {
    let env = Environment::existing(context, name.clone())?;
    let settings = env.settings()?;
    let listed = ListedEnvironment::of(&env)?;
    if json {
        let (image, mounts, net) = (settings.image, &settings.mounts[..], &settings.net);
        return output::json(&ShownEnvironment { listed, image, mounts, net });
    }
    output::line(&format!("environment  {name}"))?;
    output::line(&format!("base         {}", settings.base))?;
    settings.image.iter().try_for_each(|id| output::line(&format!("image        sha256:{id}")))?;
    output::line(&format!("created      {}", output::time(listed.created)))?;
    output::line(&format!("running      {}", listed.state()))?;
    output::line(&format!("network      {}", settings.net))?;
    settings.mounts.iter().try_for_each(|mount| output::line(&format!("mount        {mount}")))?;
    output::line(&format!("directory    {}", env.dir.display()))
}

/// Copies an environment that is not running, with all changes made in it; or makes one that is as a snapshot of it.
pub fn copy(context: &UserContext, of: &EnvRevision, new: &EnvName) -> Result<()> {
    let name = &calling::named_or_own(of.name.as_ref())?;
    let env = Environment::existing(context, name.clone())?;
    refuse_same(name, new)?;
    if let Some(revision) = &of.revision {
        return copy_snapshot(context, &env, revision, new);
    }
    let _held = lock_ended(&env)?;
    Environment::named(context, new.clone())?.create_like(&env, |dir| {
        let what = format!("copying environment {name}");
        let copied = as_root_of_ids_shown(context, Base::Host, what, |_| {
            KEPT.iter().try_for_each(|part| copy_files(&env.dir.join(part), &dir.join(part)))
        });
        delete_if_failed(context, copied, dir)
            .and_then(|()| package_database::copy_ancestor(&env.dir, dir))?;
        // A damaged history is no reason not to copy what there is.
        history::copy(&env.dir, dir).unwrap_or_else(|e| output::complain(&e));
        Ok(())
    })
}

/// The environment itself may be running. Its own `/tmp` and `/var/tmp` are in no snapshot.
fn copy_snapshot(context: &UserContext, env: &Environment, revision: &Revision, new: &EnvName) -> Result<()> {
    // Before anything else: a snapshot that is gone is told at once.
    let (depot, id) = history::find_whole(context, (&env.name, revision))?;
    Environment::named(context, new.clone())?.create_like(env, |dir| {
        fill(context, (env, &depot), (revision, id), dir)?;
        history::copy_until(&env.dir, dir, (&env.name, revision))
    })
}

/// Copies what is in a directory: holes, hard links, owners, attributes and the marks of what was deleted included.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let about = || format!("copying {}", from.display());
    let mut command = Command::new("/bin/cp");
    command.args(["--archive", "--reflink=auto", "--"]).arg(from.join(".")).arg(to);
    let mut copying =
        command.env_clear().stdin(Stdio::null()).stderr(Stdio::piped()).spawn().context(about)?;
    let mut why = vec![];
    let complaint =
        copying.stderr.take().map(|said| BufReader::new(said.take(LONGEST_LINE)).read_until(b'\n', &mut why));
    complaint.transpose().context(about)?;
    let why = String::from_utf8_lossy(&why);
    // It would go on, and say the same of each of the other files.
    if !why.is_empty() {
        copying.kill().ignore_error("it may have ended by itself");
    }
    let status = copying.wait().context(about)?;
    match (why.trim(), status.success()) {
        ("", true) => Ok(()),
        ("", false) => Err(Error::new(format!("{}: cp has failed: {status}", about()))
            .hint("check that there is room, and `ulimit -f`")),
        (why, _) => {
            let is_full =
                ["No space left on device", "Disk quota exceeded"].iter().any(|of| why.ends_with(of));
            Err(Error::new(format!("{}: {why}", about())).hint(if is_full { NO_ROOM } else { "" }))
        }
    }
}

/// Gives an environment that is not running another name.
pub fn rename(context: &UserContext, name: &EnvName, new: &EnvName) -> Result<()> {
    let env = Environment::existing(context, name.clone())?;
    refuse_same(name, new)?;
    let held = lock_ended(&env)?;
    env.rename(&Environment::named(context, new.clone())?)?;
    drop(held);
    // The next submission notes it under the new name.
    latest::unset(&context.depot()?, name)
}

/// Of what is there under both names, none is in the way of the other.
fn refuse_same(name: &EnvName, new: &EnvName) -> Result<()> {
    match name == new {
        true => {
            Err(Error::new(format!("environment {name}: both names are the same"))
                .hint("choose another name"))
        }
        false => Ok(()),
    }
}

/// The lock of an environment that is not running. One that only waits for its next session is ended.
pub(crate) fn lock_ended(env: &Environment) -> Result<OwnedFd> {
    control::end_if_idle(&env.dir)?;
    lock::try_lock(&env.dir)?.ok_or_else(|| lock::is_held(env.name.as_str(), &env.dir, ""))
}
