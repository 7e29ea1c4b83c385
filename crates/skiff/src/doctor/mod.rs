//! `skiff doctor`: tries each thing that environments need, and says how to mend what is missing.

mod checkpoints;
mod kernel;
mod site;

use serde::Serialize;
use skiff_output as output;
use skiff_spec::fault::Result;
use skiff_user::context::{UserContext, is_inside};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// What is needed is there.
    Pass,
    /// Something will not work, or only in another way.
    Warn,
    /// Environments do not work without it.
    Fail,
}

/// One check.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it came out.
    pub status: CheckStatus,
    /// What was found.
    pub found: String,
    /// How to mend it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mend: String,
}

impl Check {
    fn pass(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Pass, found: found.into(), mend: String::new() }
    }
    fn warn(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Warn, found: found.into(), mend: mend.into() }
    }
    fn fail(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Fail, found: found.into(), mend: mend.into() }
    }
}

/// Checks everything; the exit code: 1 if anything fails.
pub fn doctor(json: bool) -> Result<i32> {
    let checks = all();
    if json {
        output::json(&checks)?;
    } else {
        for check in &checks {
            let word = match check.status {
                CheckStatus::Pass => ("pass", 32),
                CheckStatus::Warn => ("warn", 33),
                CheckStatus::Fail => ("FAIL", 31),
            };
            output::line_with_colour(word, &format!("  {:<18} {}", check.name, check.found))?;
            if !check.mend.is_empty() {
                output::line(&format!("      {:<18} mend: {}", "", check.mend))?;
            }
        }
    }
    Ok(i32::from(checks.iter().any(|c| c.status == CheckStatus::Fail)))
}

fn all() -> Vec<Check> {
    if is_inside() {
        // What is missing here was not given, and nothing can be judged by that.
        let mend =
            "call it outside, or in an environment that stays (`skiff env enter`), where it is run outside";
        return vec![Check::warn(
            "place",
            "inside a job or a throw-away environment: nothing is checked",
            mend,
        )];
    }
    let context = match UserContext::load() {
        Ok(context) => context,
        // Nothing else can be judged without it.
        Err(e) => return vec![Check::fail("configuration", e.message, e.hint)],
    };
    let mut checks = vec![Check::pass("configuration", site::configuration())];
    checks.extend(kernel::checks(&context));
    checks.push(checkpoints::check(&context));
    checks.extend(site::checks(&context));
    checks
}
