//! Makes the user and their groups known in a root that was not made for them, such as an image's.

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use skiff_spec::fault::{Context, Fault, Result};
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
            let (file, mut bytes) = (std::fs::File::from(file), vec![]);
            if !file.metadata().context(|| path)?.is_file() {
                return Err(Fault::new(format!("/{path} of the image: not a regular file")).hint(
                    "the user's name is added there: build the image with a regular file, or without one",
                ));
            }
            file.take(MOST).read_to_end(&mut bytes).context(|| path)?;
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

/// What a list of accounts would be without the lines that [`add`] has put there, over a root that has `base`. What else was changed stays.
#[must_use]
pub fn without_added(base: &str, now: &str, lines: &[String]) -> String {
    let added = missing(base, lines);
    if let Some(rest) = now.strip_prefix(base).and_then(|rest| rest.strip_prefix(&*added)) {
        let ended = if !rest.is_empty() && added.starts_with('\n') { "\n" } else { "" };
        return [base, ended, rest].concat();
    }
    let is_added =
        |line: &str| added.lines().any(|own| !own.is_empty() && own == line.trim_end_matches('\n'));
    now.split_inclusive('\n').filter(|line| !is_added(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::{missing, without_added};

    #[test]
    fn what_was_added_is_taken_out_and_nothing_else() {
        let root = "root:x:0:0::/:/bin/sh";
        let own = ["alice:x:1001:1001::/home/alice:/bin/sh".to_owned()];
        let alice = &own[0];
        for (base, now, want) in [
            (format!("{root}\n"), format!("{root}\n{alice}\n"), format!("{root}\n")),
            (root.into(), format!("{root}\n{alice}\n"), root.into()),
            (String::new(), format!("{alice}\n"), String::new()),
            // Nothing was added: the base has the number.
            (format!("{alice}\n"), format!("{alice}\n"), format!("{alice}\n")),
            (
                "bob:x:1001:1::/:/bin/sh\n".into(),
                format!("bob:x:1001:1::/:/bin/sh\n{alice}\n"),
                format!("bob:x:1001:1::/:/bin/sh\n{alice}\n"),
            ),
            // More was changed.
            (
                format!("{root}\n"),
                format!("{root}\n{alice}\napp:x:5:5::/:/bin/sh\n"),
                format!("{root}\napp:x:5:5::/:/bin/sh\n"),
            ),
            (
                root.into(),
                format!("{root}\n{alice}\napp:x:5:5::/:/bin/sh\n"),
                format!("{root}\napp:x:5:5::/:/bin/sh\n"),
            ),
            (
                format!("{root}\n"),
                format!("root:x:0:0::/root:/bin/bash\n{alice}\n"),
                "root:x:0:0::/root:/bin/bash\n".into(),
            ),
            (format!("{root}\n"), format!("{root}\n{alice}x\n"), format!("{root}\n{alice}x\n")),
        ] {
            assert_eq!(without_added(&base, &now, &own), want, "{base:?} {now:?}");
        }
    }

    #[test]
    fn only_unknown_numbers_are_added() {
        let alice = ["alice:x:1001:1001::/home/alice:/bin/sh".to_owned()];
        assert_eq!(missing("root:x:0:0::/:/bin/sh\n", &alice), format!("{}\n", alice[0]));
        assert_eq!(missing("root:x:0:0::/:/bin/sh", &alice), format!("\n{}\n", alice[0]));
        assert_eq!(missing("bob:x:1001:1::/:/bin/sh\n", &alice), "");
        assert_eq!(missing("", &["nonsense".to_owned()]), "");
    }
}
