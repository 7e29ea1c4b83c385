//! The process of a plan as text: as `skiff run --dry-run --json` prints it, and as it goes to who carries the plan out elsewhere.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};
use skiff_sandbox::command::{CommandSpec, own_variable};
use skiff_sandbox::limits::refuse_above_own;
use skiff_spec::fault::{Fault, Result};
use skiff_spec::limit::ResourceLimit;
use skiff_spec::plan::{Identity, Plan};

use crate::replay::AGAIN;
use crate::resolve::MainProcess;

const ZERO: &str = "a text of its process holds a zero byte";
const HIDDEN: &str = "a text of its process is written as numbers";

/// The process. Variables are written as `--env` has them: `NAME=VALUE`, or the name of one that is passed on.
#[derive(Serialize, Deserialize)]
pub struct DescribedProcess {
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ulimits: Vec<ResourceLimit>,
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
            Self::Bytes(bytes) if std::str::from_utf8(&bytes).is_ok() => return Err(bad_plan(HIDDEN)),
            Self::Bytes(bytes) => bytes,
        };
        match bytes.contains(&0) {
            true => Err(bad_plan(ZERO)),
            false => Ok(bytes),
        }
    }

    fn into_os(self) -> Result<OsString> {
        self.into_bytes().map(OsString::from_vec)
    }
}

/// The refusal of a plan that is not as it was printed.
pub fn bad_plan(why: &str) -> Fault {
    // What is quoted of the file is not to steer a terminal.
    Fault::new(format!("plan: {}", why.replace(char::is_control, "?"))).hint(AGAIN)
}

impl DescribedProcess {
    /// As text.
    pub fn of(process: MainProcess) -> Self {
        let MainProcess { command, identity, stop } = process;
        // What is untrusted or gets no descriptors is so by the plan, only tasks of jobs are without a filter, and only login shells have another name than their program's.
        let CommandSpec {
            argv,
            argv0: _,
            env,
            cwd,
            only_there,
            user,
            close_descriptors: _,
            unfiltered: _,
            untrusted: _,
            seen_as,
            limits,
        } = command;
        let setting = |(name, value): &(OsString, OsString)| {
            let mut text = name.clone();
            // A value that is passed on may be a secret, and is there anyway.
            if own_variable(name).as_ref() != Some(value) {
                text.push("=");
                text.push(value);
            }
            Text::from(&*text)
        };
        Self {
            argv: argv.iter().map(|word| Text::from(&**word)).collect(),
            env: env.iter().map(setting).collect(),
            cwd: cwd.as_os_str().into(),
            only_there,
            user,
            identity,
            seen_as,
            ulimits: limits,
            stop,
        }
    }

    /// From a text that may be anybody's.
    pub fn check(self, plan: &Plan, own: [u32; 2]) -> Result<MainProcess> {
        let Self { argv, env, cwd, only_there, user, identity, seen_as, ulimits, stop } = self;
        let argv: Vec<OsString> = argv.into_iter().map(Text::into_os).collect::<Result<_>>()?;
        let cwd = std::path::PathBuf::from(cwd.into_os()?);
        if user.as_ref().is_some_and(|user| user.contains('\0')) {
            return Err(bad_plan(ZERO));
        }
        let untrusted = plan.untrusted;
        // Who is untrusted is root of a namespace without power, seen as the user or not; who is the user is nobody else.
        let is_somebody = match identity {
            Identity::Me => !untrusted && user.is_none() && seen_as.is_none(),
            Identity::Root => seen_as.is_none_or(|seen| untrusted && user.is_none() && seen == own),
        };
        match (argv.is_empty(), cwd.is_absolute(), is_somebody) {
            (true, ..) => return Err(bad_plan("it has no command")),
            (_, false, _) => return Err(bad_plan("its working directory is not an absolute path")),
            (.., false) => return Err(bad_plan("no words make its process who it is to be")),
            _ => {}
        }
        let limits = ResourceLimit::last_of_each(&ulimits);
        refuse_above_own(&limits)?;
        let env = env.into_iter().map(setting).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        let command = CommandSpec {
            argv,
            env,
            cwd,
            only_there,
            user,
            close_descriptors: plan.closes_descriptors(),
            untrusted,
            seen_as,
            limits,
            ..CommandSpec::default()
        };
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
        None => own_variable(&name),
    };
    Ok(value.map(|value| (name, value)))
}
