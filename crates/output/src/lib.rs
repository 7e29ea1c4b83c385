//! What the user gets to see: data on stdout, everything else on stderr; errors with a hint; exit codes.

mod readable;
mod table;
mod template;

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::ffi::OsStrExt;

use serde::{Serialize, Serializer};
use skiff_sandbox::join::Failed;
use skiff_sandbox::session::CommandExit;
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_sys::IgnoreError;
pub use skiff_sys::size::size;

use readable::{readable, shortened};
pub use table::{line_and_rest, table, whole_table};
pub use template::formatted;

/// Our own failure, as opposed to that of the command we run.
pub const FAILURE: i32 = 125;

/// Says what went wrong, and how to mend it.
pub fn complain(e: &Error) {
    let hint = if e.hint.is_empty() { String::new() } else { format!("hint: {}\n", e.hint) };
    say(&readable(&shortened(&format!("skiff: {}\n{hint}", e.message))));
}

/// Acts on each of several: what fails for one keeps nothing from being done for the others. Of several faults the last is the caller's to tell.
///
/// # Errors
/// The last of `act`.
pub fn each<T>(all: &[T], act: impl Fn(&T) -> Result<()>) -> Result<()> {
    let mut last = Ok(());
    for one in all {
        if let Err(e) = act(one)
            && let Err(before) = std::mem::replace(&mut last, Err(e))
        {
            complain(&before);
        }
    }
    last
}

/// A line on stderr that is no error.
pub fn note(text: &str) {
    say(&readable(&format!("skiff: {text}\n")));
}

/// At once: srun mixes what the tasks of a job say wherever one of them stops to think.
fn say(text: &str) {
    io::stderr()
        .lock()
        .write_all(text.as_bytes())
        .ignore_error("if stderr is gone there is nobody to tell; the exit code still says it");
}

/// Writes progress to standard error, unchanged: lines, or bars with the escape sequences that redraw them.
pub fn draw(text: &str) {
    say(text);
}

/// Whether standard error is a terminal on which a line can be drawn again.
#[must_use]
pub fn can_redraw() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Says what may have been meant.
pub fn hint_at(commands: &[String]) {
    if !commands.is_empty() {
        let shown: Vec<_> = commands.iter().map(|c| format!("`{c}`")).collect();
        say(&readable(&format!("hint: {}?\n", shown.join(" or "))));
    }
}

/// Prints data as JSON.
pub fn json<T: Serialize>(data: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(data).map_err(|e| Error::new(format!("JSON: {e}")))?;
    line(&text)
}

/// What a list is to look like.
pub struct ListFormat<'a> {
    /// Whether it is JSON.
    pub json: bool,
    /// A template, if one was given.
    pub template: Option<&'a str>,
    /// Whether only names are printed.
    pub quiet: bool,
}

/// Prints a list: as JSON, by a template, as names, or as a table.
pub fn list<T: Serialize>(
    format: &ListFormat<'_>,
    entries: &[T],
    name: impl Fn(&T) -> String,
    as_table: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match (format.json, format.template) {
        (true, _) => json(&entries),
        (false, Some(template)) => {
            let values = entries.iter().map(serde_json::to_value).collect::<std::result::Result<Vec<_>, _>>();
            formatted(template, &values.map_err(|e| Error::new(format!("JSON: {e}")))?)
        }
        (false, None) if format.quiet => entries.iter().try_for_each(|entry| line(&name(entry))),
        (false, None) => as_table(),
    }
}

/// Prints a line of data, or several. Characters in it that a terminal would obey are shown.
pub fn line(text: &str) -> Result<()> {
    bytes(readable(&format!("{text}\n")).as_bytes())
}

/// Prints data as it is. A reader that has had enough (`| head`) is no failure.
pub fn bytes(data: &[u8]) -> Result<()> {
    match io::stdout().lock().write_all(data) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context(|| "standard output"),
    }
}

/// Prints a line of data that begins with a word, coloured on a terminal that wants colours. Of the rest nothing colours anything.
pub fn line_with_colour((word, colour): (&str, u8), rest: &str) -> Result<()> {
    let is_wanted = io::stdout().is_terminal()
        && colours_wanted(std::env::var_os("NO_COLOR").as_deref(), std::env::var_os("TERM").as_deref());
    let rest = readable(rest);
    let text =
        if is_wanted { format!("\x1b[{colour}m{word}\x1b[0m{rest}\n") } else { format!("{word}{rest}\n") };
    bytes(text.as_bytes())
}

/// Whether a terminal of this type shows colours, and its user has not refused them (<https://no-color.org>).
fn colours_wanted(no_color: Option<&OsStr>, terminal: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && terminal.is_some_and(|name| !name.is_empty() && name != "dumb")
}

/// Ends as the command ended.
pub fn exit_as(ended: CommandExit) -> i32 {
    match ended {
        CommandExit::Code(code) => code,
        // The shell that waits for us sees the signal itself, and shows what it would have shown.
        CommandExit::Signal(number) => skiff_sys::signal::die_by(number),
    }
}

/// Says why a command does not run; the exit code for it.
pub fn failed(why: Failed) -> i32 {
    match why {
        Failed::Skiff(e) => {
            complain(&e);
            FAILURE
        }
        Failed::Command(name, errno) => {
            let e = io::Error::from_raw_os_error(errno);
            complain(&Error::new(format!("{}: {e}", name.display())).hint(match e.kind() {
                io::ErrorKind::NotFound if name.as_bytes().contains(&b'/') => {
                    "there is no such file inside, or the interpreter in its first line is missing"
                }
                io::ErrorKind::NotFound => "it is not in the environment's PATH",
                io::ErrorKind::PermissionDenied => "is it executable, and for whom?",
                _ => "",
            }));
            skiff_sandbox::command::exit_code(&e)
        }
    }
}

/// A number of things for people: `1 change`, `2 changes`.
pub fn count(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// A time (seconds since 1970, UTC) for people.
pub fn time(seconds: u64) -> String {
    let (day, rest) = day(seconds);
    format!("{day} {:02}:{:02}", rest / 3600, rest / 60 % 60)
}

/// A time (seconds since 1970, UTC) for programs: RFC 3339.
pub fn rfc3339(seconds: u64) -> String {
    let (day, rest) = day(seconds);
    format!("{day}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Writes such a time into JSON: `#[serde(serialize_with = "skiff_output::as_time")]`.
pub fn as_time<S: Serializer>(seconds: &u64, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_str(&rfc3339(*seconds))
}

/// Writes a time that may be missing into JSON.
pub fn as_time_if_any<S: Serializer>(seconds: &Option<u64>, to: S) -> std::result::Result<S::Ok, S::Error> {
    seconds.map(rfc3339).serialize(to)
}

/// The date, and the seconds of that day.
fn day(seconds: u64) -> (String, u64) {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to a date by the proleptic Gregorian calendar, counting from 1 March of year 0.
    let days = days as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (format!("{year:04}-{month:02}-{day:02}"), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_show_them_and_users_who_have_not_refused_them() {
        for (no_color, terminal, want) in [
            (None, Some("xterm"), true),
            (Some(""), Some("xterm"), true),
            (Some("1"), Some("xterm"), false),
            (None, Some("dumb"), false),
            (None, Some(""), false),
            (None, None, false),
        ] {
            let got = colours_wanted(no_color.map(OsStr::new), terminal.map(OsStr::new));
            assert_eq!(got, want, "NO_COLOR={no_color:?} TERM={terminal:?}");
        }
    }

    #[test]
    fn times_and_sizes() {
        assert_eq!(time(0), "1970-01-01 00:00");
        assert_eq!(time(951_827_696), "2000-02-29 12:34");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(time(1_795_249_000), "2026-11-21 08:16");
        let counted = [0, 1, 2].map(|number| count(number, "entry", "entries"));
        assert_eq!(counted, ["0 entries", "1 entry", "2 entries"]);
        assert_eq!((size(0), size(1023), size(1536)), ("0 B".into(), "1023 B".into(), "1.5 KiB".into()));
    }
}
