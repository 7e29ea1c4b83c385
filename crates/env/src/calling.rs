//! Skiff called inside an environment runs outside, and what it does may be about the very environment in which its caller is.

use std::io::{IsTerminal as _, Write as _};

use rustix::process::{Signal, set_parent_process_death_signal};
use skiff_spec::caller::{CALLED_FROM, FOR_CALLER};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::JobSpec;
use skiff_spec::job::names::JOB;
use skiff_spec::name::EnvName;
use skiff_sys::signal::block_one;

/// What the user says of the environment in which they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// The environment may end.
    Yes,
    /// The environment may not end.
    No,
    /// There is nothing to ask, or nobody.
    NotAsked,
}

/// Asks the user at a terminal whether the environment may end, if they are in it.
pub fn confirm_if_inside(name: &EnvName, what: &str) -> Result<Confirmation> {
    let is_caller_there = std::env::var_os(CALLED_FROM).is_some_and(|from| from == name.as_str());
    if !is_caller_there {
        return Ok(Confirmation::NotAsked);
    }
    Ok(match ask_at_terminal(&format!("You are in environment {name}. {what}"))? {
        Some(true) => Confirmation::Yes,
        Some(false) => Confirmation::No,
        None => Confirmation::NotAsked,
    })
}

/// Asks the user a question; nothing where there is no terminal.
pub fn ask_at_terminal(question: &str) -> Result<Option<bool>> {
    if !std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut terminal = std::io::stderr().lock();
    write!(terminal, "{question} [y/N] ").and_then(|()| terminal.flush()).context(|| "question")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context(|| "answer")?;
    Ok(Some(["y", "yes"].contains(&answer.trim().to_lowercase().as_str())))
}

/// What is said where the answer is no.
pub fn declined(name: &EnvName) -> Error {
    Error::new(format!("environment {name}: left as it is"))
}

/// Keeps what is to be done to an environment or instance from ending half-way, with the caller inside who has asked for it.
pub fn outlive() -> Result<()> {
    if std::env::var_os(FOR_CALLER).is_some() {
        set_parent_process_death_signal(None).context(|| "signal at the supervisor's end")?;
        // What comes when the caller is gone, and when the terminal is.
        [Signal::TERM, Signal::HUP].iter().for_each(|signal| block_one(signal.as_raw()));
    }
    Ok(())
}

/// The environment that is named, else the one that the caller is in, also in a job, else the default one.
pub fn named_or_own(name: Option<&EnvName>) -> Result<EnvName> {
    match (name, std::env::var(CALLED_FROM)) {
        (Some(name), _) => Ok(name.clone()),
        (None, Ok(from)) => from.parse().map_err(|e| Error::new(format!("{e}"))),
        (None, Err(_)) => {
            let of_job = std::env::var(JOB).ok().and_then(|spec| JobSpec::environment_of(&spec));
            Ok(of_job.unwrap_or_else(EnvName::default_name))
        }
    }
}
