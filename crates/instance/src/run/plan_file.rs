//! What `skiff run --dry-run --json` prints, and `skiff run --plan` carries out: a plan, the process in it, and for whom they were made.
//! The file may come from anybody. So its plan must be one that `skiff run` makes here, for this user, out of words; of the process, all
//! can be said by words, but whom it may be is checked.

use std::io::Read;
use std::path::Path;

use rustix::process::getgid;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skiff_plan::described::{DescribedProcess, bad_plan};
use skiff_plan::replay::{AGAIN, asked_for, refuse_missing, working_dir};
use skiff_plan::resolve::{MainProcess, RunFacts};
use skiff_plan::{Facts, RootOptions, base, data, named_file, ssh_agent};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::{Base, Mount, Plan, Source};
use skiff_store::index::{ImageName, Names};
use skiff_user::context::UserContext;
use skiff_user::scratch;

/// A plan means the same only to one version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// In the place of a file's name: standard input.
pub const STDIN: &str = "-";

/// The longest file: words and variables may be as long as the kernel takes them, and each byte may be written as a number.
const MOST_BYTES: u64 = 64 << 20;

/// All of it.
#[derive(Serialize, Deserialize)]
pub struct PlanFile {
    version: String,
    uid: u32,
    gid: u32,
    #[serde(flatten)]
    plan: Plan,
    process: DescribedProcess,
}

impl PlanFile {
    /// For this user.
    pub fn new(context: &UserContext, plan: Plan, process: MainProcess) -> Self {
        let process = DescribedProcess::of(process);
        let (uid, gid) = (context.uid, getgid().as_raw());
        Self { version: VERSION.into(), uid, gid, plan, process }
    }

    /// Reads a file, or standard input for `-`.
    pub fn read(file: &Path) -> Result<Vec<u8>> {
        let what = || format!("plan {}", file.display());
        let too_long = || Fault::new(format!("{}: longer than {} MiB", what(), MOST_BYTES >> 20)).hint(AGAIN);
        if file == Path::new(STDIN) {
            let mut text = vec![];
            std::io::stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut text).context(what)?;
            return if text.len() as u64 <= MOST_BYTES { Ok(text) } else { Err(too_long()) };
        }
        // A named pipe to which nobody writes is not waited for without end.
        match named_file::read_at_most(file, MOST_BYTES) {
            Err(e) if e.kind() == std::io::ErrorKind::FileTooLarge => Err(too_long()),
            text => text.context(what),
        }
    }

    /// Understands all of it, or nothing.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let given: Value = serde_json::from_slice(text).map_err(|e| bad_plan(&format!("not JSON: {e}")))?;
        match given.get("version").and_then(Value::as_str) {
            Some(VERSION) => {}
            Some(other) => return Err(bad_plan(&format!("of Skiff {other:?}, and this is {VERSION}"))),
            None => return Err(bad_plan("not one of `skiff run`: it has no version")),
        }
        // From the text: a key that is there twice is one to `given`.
        let read: Self = serde_json::from_slice(text).map_err(|e| bad_plan(&e.to_string()))?;
        refuse_control_characters(&read.plan)?;
        // What is not understood might be what keeps something from the process.
        match serde_json::to_value(&read) {
            Ok(known) if known == given => Ok(read),
            _ => Err(bad_plan("parts of it are missing or not known")),
        }
    }

    /// What was asked for, and of what the plan and its process are made again, if it is for this user and would be made here.
    pub fn check(self, context: &UserContext) -> Result<(RootOptions, RunFacts<'_>)> {
        let Self { version: _, uid, gid, plan, process } = self;
        let own = [context.uid, getgid().as_raw()];
        if [uid, gid] != own {
            let [own_uid, own_gid] = own;
            return Err(Fault::new(format!(
                "plan: made for user {uid} of group {gid}, and you are user {own_uid} of group {own_gid}"
            ))
            .hint(AGAIN));
        }
        let (upper, _) = scratch::of_a_command(context, true)?;
        let (facts, entry) = facts(context, plan.base)?;
        let mut facts = facts.with_devices(&plan.devices.asked, plan.contain)?;
        facts.data = data::of_plan(context, &plan)?;
        facts.working_dir = working_dir(&plan);
        facts.agent_dir = ssh_agent::shown(&plan);
        let asked = asked_for(&plan, &facts, &upper)?;
        refuse_missing(&plan)?;
        let process = process.check(&plan, own)?;
        Ok((asked, RunFacts { facts, process, entry }))
    }
}

/// In the lists that show a mount such a character could hide what else there is.
fn refuse_control_characters(plan: &Plan) -> Result<()> {
    let has_some = |path: &Path| path.to_string_lossy().contains(char::is_control);
    let is_odd = |mount: &&Mount| {
        has_some(&mount.target) || matches!(&mount.source, Source::Bind(path) if has_some(path))
    };
    match plan.mounts.iter().find(is_odd) {
        Some(mount) => {
            Err(bad_plan(&format!("mount {}: a control character in a path", mount.target.display())))
        }
        None => Ok(()),
    }
}

fn facts(context: &UserContext, base: Base) -> Result<(Facts<'_>, Option<ImageName>)> {
    match base {
        Base::Host => Ok((Facts::of_host(context)?, None)),
        Base::Image(id) => {
            let entry = Names::of(context)?.all()?.into_iter().find(|entry| entry.id == id);
            let entry = entry.ok_or_else(|| {
                let why = format!("plan: image {id}: you have not pulled it, or have removed it");
                Fault::new(why).hint(format!("pull it again, or {AGAIN}"))
            })?;
            let facts = base::facts(context, id, entry.exec()?.volumes)?;
            Ok((facts, Some(entry)))
        }
        Base::Directory => Err(bad_plan("its base is a directory, which `skiff run` does not take")),
    }
}
