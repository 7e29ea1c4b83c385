//! Skiff called inside an environment runs outside, and what it does may be about the very environment in which its caller is.

use std::io::{IsTerminal as _, Write as _};

use rustix::process::{Signal, set_parent_process_death_signal};
use skiff_spec::caller::{CALLED_FROM, FOR_CALLER};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_sys::signal::block_one;

/// Asks the user at a terminal whether the environment in which they are may end. Gives what they said; nothing if there is nothing to ask,
/// or nobody.
pub fn asked(name: &EnvName, what: &str) -> Result<Option<bool>> {
    let is_caller_there = std::env::var_os(CALLED_FROM).is_some_and(|from| from == name.as_str());
    if !is_caller_there || !std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut terminal = std::io::stderr().lock();
    write!(terminal, "You are in environment {name}. {what} [y/N] ")
        .and_then(|()| terminal.flush())
        .context(|| "question")?;
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
