//! Whose the files of a kept environment are: on disk they belong to the user and to their subordinate ids, so they mean the
//! same only as long as they have the same ids. The environment's directory says which they were.

use std::io::ErrorKind;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use skiff_spec::fault::{Context, Fault, Result};
use skiff_sys::small_file;

/// In the environment's directory: the map of user ids, as the kernel shows it.
const FILE: &str = "ids";
/// A map has at most 340 lines of three numbers.
const LONGEST: u64 = 64 << 10;

/// Refuses ids under which files made earlier would be somebody else's; remembers them otherwise.
pub fn fit(kept: BorrowedFd<'_>) -> Result<()> {
    let now = lines(&std::fs::read_to_string("/proc/self/uid_map").context(|| "own ids")?);
    let before = match small_file::read_below(kept, FILE, LONGEST) {
        Err(e) if e.kind() == ErrorKind::NotFound => vec![],
        text => lines(&String::from_utf8_lossy(&text.context(|| FILE)?)),
    };
    if before == now {
        return Ok(());
    }
    // More of them than before do no harm.
    if let Some(gone) = before.iter().find(|line| !now.contains(line)) {
        return Err(Fault::new(format!("the environment's files belong to other ids: it was made with {}, now there are {}", show(gone), count(&now)))
            .hint("the administrator has changed /etc/subuid, or removed the helper or uidmap; put that back, or make a new environment"));
    }
    let text: String =
        now.iter().map(|[inside, outside, count]| format!("{inside} {outside} {count}\n")).collect();
    write(kept, &text).context(|| FILE)
}

fn write(kept: BorrowedFd<'_>, text: &str) -> rustix::io::Result<()> {
    let new = "ids.new";
    // Whatever has been put there: to open a named pipe would wait for its reader.
    match unlinkat(kept, new, AtFlags::empty()) {
        Err(Errno::NOENT) => {}
        removed => removed?,
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(kept, new, flags, Mode::from_raw_mode(0o644))?;
    rustix::io::write(&file, text.as_bytes())?;
    renameat(kept, new, kept, FILE)
}

/// Inside, outside, count of each line.
fn lines(text: &str) -> Vec<[u32; 3]> {
    let number = |words: &mut std::str::SplitWhitespace<'_>| words.next().and_then(|w| w.parse().ok());
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some([number(&mut words)?, number(&mut words)?, number(&mut words)?])
    };
    text.lines().filter_map(line).collect()
}

fn count(lines: &[[u32; 3]]) -> String {
    match lines.iter().map(|[_, _, count]| count).sum() {
        1u32 => "only one".into(),
        n => format!("{n}"),
    }
}

fn show([_, outside, count]: &[u32; 3]) -> String {
    match count {
        1 => format!("id {outside}"),
        n => format!("ids {outside}-{}", outside.saturating_add(n - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn own_ids_fit_again_and_others_do_not() {
        let dir = std::env::temp_dir().join(format!("skiff-owners.{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        let fd = crate::mounts::open_dir(rustix::fs::CWD, &dir).expect("it opens");
        let outcome = |text: Option<&str>| {
            if let Some(text) = text {
                std::fs::write(dir.join(FILE), text).expect("a file");
            }
            fit(fd.as_fd())
        };
        let now = std::fs::read_to_string("/proc/self/uid_map").expect("a map");
        assert_eq!(outcome(None), Ok(()), "the first time");
        assert_eq!(lines(&std::fs::read_to_string(dir.join(FILE)).expect("remembered")), lines(&now));
        assert_eq!(outcome(None), Ok(()), "the same ids");
        assert_eq!(outcome(Some("")), Ok(()), "fewer before");
        let other = outcome(Some("0 1 1\n1 77777 65535\n")).expect_err("other ids");
        assert!(other.message.contains("id") && !other.hint.is_empty(), "{other:?}");
        std::fs::remove_dir_all(&dir).expect("it goes");
    }
}
