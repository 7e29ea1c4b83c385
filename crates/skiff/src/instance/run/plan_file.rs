//! What `skiff run --dry-run --json` prints, and `skiff run --plan` carries out: a plan, the process in it, and for whom they were made.
//! The file may come from anybody. So its plan must be one that `skiff run` makes here, for this user, out of words; of the process, all
//! can be said by words, but whom it may be is checked.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::getgid;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skiff_sandbox::command::Command;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::{Base, Identity, Mount, Plan, Source};

use crate::plan::replay::{AGAIN, asked_for, refuse_missing};
use crate::plan::resolve::{MainProcess, RunFacts};
use crate::plan::{Facts, RootOptions, base};
use crate::store::index::{Entry, Names};
use skiff_user::context::Context;
use skiff_user::scratch;

const ZERO: &str = "a text of its process holds a zero byte";
const HIDDEN: &str = "a text of its process is written as numbers";

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
    process: Described,
}

/// The process. Variables are written as `--env` has them: `NAME=VALUE`, or the name of one that is passed on.
#[derive(Serialize, Deserialize)]
struct Described {
    argv: Vec<Text>,
    env: Vec<Text>,
    cwd: Text,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    only_there: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    identity: Identity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen_as: Option<[u32; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stop: Option<String>,
}

/// Text, or its bytes where these are not UTF-8.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl From<&OsStr> for Text {
    fn from(text: &OsStr) -> Self {
        text.to_str().map_or_else(|| Self::Bytes(text.as_bytes().into()), |text| Self::Utf8(text.into()))
    }
}

impl Text {
    fn into_bytes(self) -> Result<Vec<u8>> {
        let bytes = match self {
            Self::Utf8(text) => text.into_bytes(),
            // Whoever looks at the file reads text, not numbers.
            Self::Bytes(bytes) if std::str::from_utf8(&bytes).is_ok() => return Err(bad(HIDDEN)),
            Self::Bytes(bytes) => bytes,
        };
        match bytes.contains(&0) {
            true => Err(bad(ZERO)),
            false => Ok(bytes),
        }
    }

    fn into_os(self) -> Result<OsString> {
        self.into_bytes().map(OsString::from_vec)
    }
}

fn bad(why: &str) -> Fault {
    // What is quoted of the file is not to steer a terminal.
    Fault::new(format!("plan: {}", why.replace(char::is_control, "?"))).hint(AGAIN)
}

impl PlanFile {
    /// For this user.
    pub fn new(context: &Context, plan: Plan, process: MainProcess) -> Self {
        let MainProcess { command, identity, stop } = process;
        // What is untrusted is so by the plan, and only login shells have another name than their program's.
        let Command { argv, argv0: _, env, cwd, only_there, user, untrusted: _, seen_as } = command;
        let setting = |(name, value): &(OsString, OsString)| {
            let mut text = name.clone();
            // A value that is passed on may be a secret, and is there anyway.
            if std::env::var_os(name).as_ref() != Some(value) {
                text.push("=");
                text.push(value);
            }
            Text::from(&*text)
        };
        let process = Described {
            argv: argv.iter().map(|word| Text::from(&**word)).collect(),
            env: env.iter().map(setting).collect(),
            cwd: cwd.as_os_str().into(),
            only_there,
            user,
            identity,
            seen_as,
            stop,
        };
        let (uid, gid) = (context.uid, getgid().as_raw());
        Self { version: VERSION.into(), uid, gid, plan, process }
    }

    /// Reads a file, or standard input for `-`.
    pub fn read(file: &Path) -> Result<Vec<u8>> {
        let what = || format!("plan {}", file.display());
        let mut text = vec![];
        match file == Path::new(STDIN) {
            true => std::io::stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut text),
            false => {
                std::fs::File::open(file).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut text))
            }
        }
        .context(what)?;
        match u64::try_from(text.len()).is_ok_and(|length| length <= MOST_BYTES) {
            true => Ok(text),
            false => Err(Fault::new(format!("{}: longer than {} MiB", what(), MOST_BYTES >> 20)).hint(AGAIN)),
        }
    }

    /// Understands all of it, or nothing.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let given: Value = serde_json::from_slice(text).map_err(|e| bad(&format!("not JSON: {e}")))?;
        match given.get("version").and_then(Value::as_str) {
            Some(VERSION) => {}
            Some(other) => return Err(bad(&format!("of Skiff {other:?}, and this is {VERSION}"))),
            None => return Err(bad("not one of `skiff run`: it has no version")),
        }
        // From the text: a key that is there twice is one to `given`.
        let read: Self = serde_json::from_slice(text).map_err(|e| bad(&e.to_string()))?;
        refuse_control_characters(&read.plan)?;
        // What is not understood might be what keeps something from the process.
        match serde_json::to_value(&read) {
            Ok(known) if known == given => Ok(read),
            _ => Err(bad("parts of it are missing or not known")),
        }
    }

    /// What was asked for, and of what the plan and its process are made again, if it is for this user and would be made here.
    pub fn check(self, context: &Context) -> Result<(RootOptions, RunFacts<'_>)> {
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
        let asked = asked_for(&plan, &facts, &upper)?;
        refuse_missing(&plan)?;
        let process = process.check(plan.untrusted, own)?;
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
        Some(mount) => Err(bad(&format!("mount {}: a control character in a path", mount.target.display()))),
        None => Ok(()),
    }
}

fn facts(context: &Context, base: Base) -> Result<(Facts<'_>, Option<Entry>)> {
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
        Base::Directory => Err(bad("its base is a directory, which `skiff run` does not take")),
    }
}

impl Described {
    fn check(self, untrusted: bool, own: [u32; 2]) -> Result<MainProcess> {
        let Self { argv, env, cwd, only_there, user, identity, seen_as, stop } = self;
        let argv: Vec<OsString> = argv.into_iter().map(Text::into_os).collect::<Result<_>>()?;
        let cwd = std::path::PathBuf::from(cwd.into_os()?);
        if user.as_ref().is_some_and(|user| user.contains('\0')) {
            return Err(bad(ZERO));
        }
        // Who is untrusted is root of a namespace without power, seen as the user or not; who is the user is nobody else.
        let is_somebody = match identity {
            Identity::Me => !untrusted && user.is_none() && seen_as.is_none(),
            Identity::Root => seen_as.is_none_or(|seen| untrusted && user.is_none() && seen == own),
        };
        match (argv.is_empty(), cwd.is_absolute(), is_somebody) {
            (true, ..) => return Err(bad("it has no command")),
            (_, false, _) => return Err(bad("its working directory is not an absolute path")),
            (.., false) => return Err(bad("no words make its process who it is to be")),
            _ => {}
        }
        let env = env.into_iter().map(setting).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        let command = Command { argv, env, cwd, only_there, user, untrusted, seen_as, ..Command::default() };
        Ok(MainProcess { command, identity, stop })
    }
}

/// Reads `NAME[=VALUE]`; nothing if there is no such variable to be passed on.
fn setting(text: Text) -> Result<Option<(OsString, OsString)>> {
    let bytes = text.into_bytes()?;
    // As the standard library takes the process's own: a name may begin with the sign.
    let at = bytes.iter().skip(1).position(|byte| *byte == b'=').map(|at| at + 1);
    let name = OsString::from_vec(bytes[..at.unwrap_or(bytes.len())].to_vec());
    let value = match at {
        Some(at) => Some(OsString::from_vec(bytes[at + 1..].to_vec())),
        None => std::env::var_os(&name),
    };
    Ok(value.map(|value| (name, value)))
}

/// Makes this what standard input holds, as before it was read.
pub fn be_stdin(text: &[u8]) -> Result<()> {
    let what = || "plan: standard input";
    let file = std::fs::File::from(memfd_create("skiff-plan", MemfdFlags::CLOEXEC).context(what)?);
    file.write_all_at(text, 0).context(what)?;
    rustix::stdio::dup2_stdin(&file).context(what)
}
