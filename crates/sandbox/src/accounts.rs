//! Makes the user and their groups known in a root that was not made for them, such as an image's.

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use skiff_spec::fault::{Context, Result};
use skiff_spec::plan::Accounts;

use crate::mounts::{open_in_root, resolve_or_make};

/// More than this no password file holds.
const MOST: u64 = 16 << 20;

/// Adds to `/etc/passwd` and `/etc/group` of `root` the lines whose numbers they lack.
pub fn add(root: BorrowedFd<'_>, accounts: &Accounts) -> Result<()> {
    add_to(root, "etc/passwd", &accounts.users)?;
    add_to(root, "etc/group", &accounts.groups)
}

fn add_to(root: BorrowedFd<'_>, path: &str, lines: &[String]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let open = |flags: OFlags| open_in_root(root, Path::new(path), flags | OFlags::NONBLOCK);
    let mut text = String::new();
    match open(OFlags::RDONLY) {
        // What is no text has no lines that say otherwise.
        Ok(file) => {
            let mut bytes = vec![];
            std::fs::File::from(file).take(MOST).read_to_end(&mut bytes).context(|| path)?;
            text = String::from_utf8_lossy(&bytes).into_owned();
        }
        Err(Errno::NOENT) => {
            resolve_or_make(root, Path::new(path), false).context(|| path)?;
        }
        Err(e) => return Err(e).context(|| path),
    }
    let missing = missing(&text, lines);
    if missing.is_empty() {
        return Ok(());
    }
    let mut file = std::fs::File::from(open(OFlags::WRONLY | OFlags::APPEND).context(|| path)?);
    file.write_all(missing.as_bytes()).context(|| path)
}

/// The lines whose number (the third field) stands in none of `text`.
fn missing(text: &str, lines: &[String]) -> String {
    let number = |line: &str| line.split(':').nth(2).map(str::to_owned);
    let known: Vec<_> = text.lines().filter_map(number).collect();
    let start = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let added: String = lines
        .iter()
        .filter(|line| number(line).is_some_and(|n| !known.contains(&n)))
        .map(|line| format!("{line}\n"))
        .collect();
    if added.is_empty() { added } else { format!("{start}{added}") }
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn only_unknown_numbers_are_added() {
        let alice = ["alice:x:1001:1001::/home/alice:/bin/sh".to_owned()];
        assert_eq!(missing("root:x:0:0::/:/bin/sh\n", &alice), format!("{}\n", alice[0]));
        assert_eq!(missing("root:x:0:0::/:/bin/sh", &alice), format!("\n{}\n", alice[0]));
        assert_eq!(missing("bob:x:1001:1::/:/bin/sh\n", &alice), "");
        assert_eq!(missing("", &["nonsense".to_owned()]), "");
    }
}
