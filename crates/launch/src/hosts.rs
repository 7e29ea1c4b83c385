//! Hosts, their names, and the files in which people list them.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use skiff_sys::IgnoreError;

/// A host, by the name that its manager knows it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The name.
    pub name: String,
    /// How many processes are meant to run there; nothing if nobody says so.
    pub slots: Option<u32>,
}

/// A line of a list of hosts that names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLine {
    /// The line, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
    /// Why it was not taken.
    pub why: &'static str,
}

impl fmt::Display for InvalidLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {:?}: {}", self.line, self.text, self.why)
    }
}

/// More than any process can run on one host: a number beyond is a mistake.
const MOST_SLOTS: u32 = 65_536;

/// Reads a file of hosts, one a line: `HOST`, `HOST slots=N` as Open MPI has it, or `HOST:N` as MPICH has it. A host that stands there
/// several times, as in a node file of PBS, has as many slots more. `#` begins a comment.
///
/// # Errors
/// The first line that makes no sense.
pub fn parse(text: &str) -> Result<Vec<Host>, InvalidLine> {
    let mut found: Vec<(String, u32, bool)> = vec![];
    for (at, line) in text.lines().enumerate() {
        let junk = |why| InvalidLine { line: at + 1, text: line.chars().take(60).collect(), why };
        let plain = line.split('#').next().unwrap_or("").trim();
        if plain.is_empty() {
            continue;
        }
        let (name, slots) = parse_line(plain).map_err(junk)?;
        match found.iter_mut().find(|(known, ..)| known == name) {
            Some((_, sum, counted)) => {
                *sum = sum.saturating_add(slots.unwrap_or(1)).min(MOST_SLOTS);
                *counted = true;
            }
            None => found.push((name.into(), slots.unwrap_or(1), slots.is_some())),
        }
    }
    let host = |(name, slots, counted): (String, u32, bool)| Host { name, slots: counted.then_some(slots) };
    Ok(found.into_iter().map(host).collect())
}

fn parse_line(line: &str) -> Result<(&str, Option<u32>), &'static str> {
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let (name, mut slots) = match first.split_once(':') {
        Some((name, count)) => (name, Some(number(count)?)),
        None => (first, None),
    };
    if !is_name(name) {
        return Err("not a valid host name");
    }
    for word in words {
        match word.split_once('=') {
            Some(("slots", count)) => slots = Some(number(count)?),
            // What Open MPI may not exceed is none of ours.
            Some(("max_slots" | "max-slots", count)) => number(count).map(drop)?,
            _ => return Err("after the host only slots=N is understood"),
        }
    }
    Ok((name, slots))
}

fn number(text: &str) -> Result<u32, &'static str> {
    match text.parse() {
        Ok(count) if (1..=MOST_SLOTS).contains(&count) => Ok(count),
        _ => Err("the number of slots is from 1 to 65536"),
    }
}

/// Whether this can be the name or the IPv4 address of a host, and nothing that a program takes for an option or a shell for a word
/// of its own.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'-' || b == b'_';
    (1..=253).contains(&name.len())
        && name.bytes().all(plain)
        && name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
}

/// Whether a name means this host, which calls itself `here`.
#[must_use]
pub fn is_here(name: &str, here: &str) -> bool {
    name == "localhost" || same(name, here)
}

/// Whether two names are those of one host, of which one may be without its domain.
#[must_use]
pub fn same(a: &str, b: &str) -> bool {
    let short = |name: &str| name.split('.').next().map(str::to_ascii_lowercase);
    a.eq_ignore_ascii_case(b) || (a.contains('.') != b.contains('.') && short(a) == short(b))
}

/// `/etc/hosts` with these addresses, and names that mean nothing else in it any more.
#[must_use]
pub fn hosts_with(all: impl IntoIterator<Item = (String, Vec<String>)>, own: &str) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    let mut taken: Vec<String> = vec!["localhost".into(), "ip6-localhost".into(), "ip6-loopback".into()];
    for (address, called) in all {
        if !called.is_empty() {
            writeln!(text, "{address} {}", called.join(" "))
                .ignore_error("writing to a string does not fail");
        }
        taken.extend(called.into_iter().map(|name| name.to_ascii_lowercase()));
    }
    for line in own.lines() {
        let mut words = line.split('#').next().unwrap_or("").split_whitespace();
        let Some(address) = words.next() else { continue };
        let left: Vec<&str> = words.filter(|name| !taken.contains(&name.to_ascii_lowercase())).collect();
        if !left.is_empty() {
            writeln!(text, "{address} {}", left.join(" ")).ignore_error("writing to a string does not fail");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> String {
        match parse(text) {
            Ok(hosts) => {
                let shown =
                    |h: &Host| format!("{}={}", h.name, h.slots.map_or("?".into(), |s| s.to_string()));
                hosts.iter().map(shown).collect::<Vec<_>>().join(" ")
            }
            Err(junk) => format!("{}", junk.line),
        }
    }

    #[test]
    fn files_of_all_kinds() {
        for (text, want) in [
            ("", ""),
            ("n1\nn2\n", "n1=? n2=?"),
            ("n1 slots=4 max_slots=8\nn2 slots=2 # the old one\n", "n1=4 n2=2"),
            ("n1:4\nn2:1\n", "n1=4 n2=1"),
            ("n1\nn1\nn2\nn1\n", "n1=3 n2=?"),
            ("# all\n\n 10.0.0.1 \r\nnode-1.site.example:2", "10.0.0.1=? node-1.site.example=2"),
            ("n1\n-oProxyCommand=x", "2"),
            ("n1 4", "1"),
            ("n1 slots=0", "1"),
            ("n1:x", "1"),
            ("n1;reboot", "1"),
            ("\0\u{1}", "1"),
        ] {
            assert_eq!(hosts(text), want, "{text:?}");
        }
    }

    #[test]
    fn names_with_and_without_a_domain() {
        assert!(same("n1", "N1") && same("n1.site", "n1") && same("n1", "n1.site"));
        assert!(!same("n1.a", "n1.b") && !same("n1", "n10") && !same("n1", "n2.n1"));
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_read_is_safe_to_hand_on(text in "\\PC{0,40}|[a-z0-9:=# .\\n-]{0,60}") {
            for host in parse(&text).default_on_error("what is refused has no hosts") {
                assert!(is_name(&host.name) && host.slots.is_none_or(|s| s <= MOST_SLOTS));
            }
        }
    }
}
