//! What the administrator has decided: subordinate ids, where images are. Read only from files that nobody but root can write.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use skiff_sandbox::{Context, Error, Result};
use skiff_spec::ids::{COUNT, Range, subordinate};
use skiff_spec::image::STORE;

use crate::caller::Caller;

/// The helper's own configuration: `range_base = N` and `range_first_uid = N` give ids by rule, where there is no entry in
/// `/etc/subuid`; `store = /PATH` says where images are.
const FILE: &str = "/etc/skiff/helper.conf";

/// The subordinate user and group ids of a caller.
pub fn ranges(caller: &Caller) -> Result<(Range, Range)> {
    let rule = Settings::read()?.rule;
    let name = user_name(caller.uid)?;
    let one = |file: &str| -> Result<Range> {
        let listed = read_if_exists(file)?.and_then(|text| subordinate(&text, name.as_deref(), caller.uid));
        listed.or_else(|| rule.range(caller.uid)).ok_or_else(|| {
            Error::new(format!("user {}: no subordinate ids in {file}", caller.uid)).hint(format!(
                "administrator: `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`, or range_base in {FILE}"
            ))
        })
    };
    Ok((one("/etc/subuid")?, one("/etc/subgid")?))
}

/// Where images are.
pub fn store() -> Result<String> {
    Ok(Settings::read()?.store)
}

/// What [`FILE`] says.
struct Settings {
    rule: Rule,
    store: String,
}

/// Ranges without a list: each uid from `first_uid` on has its own 64 Ki from `base` on.
struct Rule {
    base: Option<u32>,
    first_uid: u32,
}

impl Settings {
    fn read() -> Result<Self> {
        let rule = Rule { base: None, first_uid: 1000 };
        let mut settings = Self { rule, store: STORE.into() };
        for line in read_if_exists(FILE)?.unwrap_or_default().lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bad = || {
                Error::new(format!("{FILE}: line {line:?}"))
                    .hint("it takes `range_base = N`, `range_first_uid = N` and `store = /PATH`")
            };
            let (key, value) = line.split_once('=').ok_or_else(bad)?;
            let value = value.trim();
            let number = || value.parse().map_err(|_| bad());
            match key.trim() {
                "range_base" => settings.rule.base = Some(number()?),
                "range_first_uid" => settings.rule.first_uid = number()?,
                "store" if value.starts_with('/') => settings.store = value.into(),
                _ => return Err(bad()),
            }
        }
        Ok(settings)
    }
}

impl Rule {
    fn range(&self, uid: u32) -> Option<Range> {
        let index = uid.checked_sub(self.first_uid)?;
        let first = self.base?.checked_add(index.checked_mul(COUNT)?)?;
        // Ids of people must stay theirs.
        (first > uid.max(65535) && first.checked_add(COUNT).is_some())
            .then_some(Range { first, count: COUNT - 1 })
    }
}

fn user_name(uid: u32) -> Result<Option<String>> {
    let uid = uid.to_string();
    let passwd = read_if_exists("/etc/passwd")?.unwrap_or_default();
    Ok(passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    }))
}

/// A file of the administrator's, refused if anybody else could have written it.
fn read_if_exists(path: &str) -> Result<Option<String>> {
    // No symbolic links: all of these are plain files below directories of root's.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let fd = match opened {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        other => other.context(|| path)?,
    };
    check_parents(path)?;
    let stat = rustix::fs::fstat(&fd).context(|| path)?;
    refuse_unless_roots(&stat, Path::new(path))?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(Error::new(format!("{path}: not a plain file")));
    }
    let mut text = String::new();
    File::from(fd).take(4 << 20).read_to_string(&mut text).context(|| path)?;
    Ok(Some(text))
}

/// Refuses a path that anybody but root could lead elsewhere.
pub fn check_parents(path: &str) -> Result<()> {
    for part in Path::new(path).ancestors().skip(1) {
        refuse_unless_roots(&rustix::fs::stat(part).context(|| part.display().to_string())?, part)?;
    }
    Ok(())
}

fn refuse_unless_roots(stat: &rustix::fs::Stat, path: &Path) -> Result<()> {
    if stat.st_uid == 0 && stat.st_mode & 0o022 == 0 {
        return Ok(());
    }
    Err(Error::new(format!(
        "{}: belongs to uid {} with mode {:o}",
        path.display(),
        stat.st_uid,
        stat.st_mode & 0o7777
    ))
    .hint("configuration must belong to root and not be writable by others: chown root, chmod go-w"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_by_rule_never_touch_people() {
        let rule = Rule { base: Some(1_000_000), first_uid: 1000 };
        assert_eq!(rule.range(1000), Some(Range { first: 1_000_000, count: 65535 }));
        assert_eq!(rule.range(1002), Some(Range { first: 1_131_072, count: 65535 }));
        for uid in [0, 999, 70_000, u32::MAX] {
            assert_eq!(rule.range(uid), None, "uid {uid}: too low, or past the end of the numbers");
        }
        assert_eq!(Rule { base: Some(500), first_uid: 1000 }.range(1000), None, "a base among people's ids");
    }
}
