//! Accounts as this machine knows them: from its files, which takes microseconds, else from its name services (SSSD, LDAP, NIS ...). A
//! static program cannot load their modules, so `getent` asks them, and what it says about the caller is kept for a while.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::geteuid;
use skiff_spec::account::{Group, User};

/// Only this one: root's processes ask, too.
const GETENT: &str = "/usr/bin/getent";
/// How long a name service may take; SSSD gives an unreachable server up after about as long.
const PATIENCE: Duration = Duration::from_secs(6);
/// More than this is no answer.
const LONGEST: u64 = 1 << 20;
/// How long an answer about the caller is good for.
const FRESH: Duration = Duration::from_mins(10);

/// The user of that number.
#[must_use]
pub fn user(uid: u32) -> Option<User> {
    in_file("/etc/passwd", |text| User::with_uid(text, uid)).or_else(|| served_user(uid))
}

/// The user of that number, if the name services know one.
fn served_user(uid: u32) -> Option<User> {
    let kept = (uid == geteuid().as_raw()).then(|| Kept::of_caller("passwd")).flatten();
    let found = kept.as_ref().and_then(Kept::read).and_then(|text| User::with_uid(&text, uid));
    found.or_else(|| {
        let answer = getent("passwd", &[uid.to_string()], None)?;
        let user = User::with_uid(&answer, uid)?;
        if let Some(kept) = kept {
            kept.write(&format!("{}\n", user.to_line()));
        }
        Some(user)
    })
}

/// The groups of those numbers that have a name, in the order of the numbers.
#[must_use]
pub fn groups(gids: &[u32]) -> Vec<Group> {
    let all = |text: &str| Group::with_gids(text, gids);
    let mut found = in_file("/etc/group", |text| Some(all(text))).unwrap_or_default();
    if !missing(gids, &found).is_empty() {
        let kept = Kept::of_caller("group");
        found.extend(kept.as_ref().and_then(Kept::read).iter().flat_map(|text| all(text)));
        let asked = missing(gids, &found);
        if !asked.is_empty()
            && let Some(answer) = getent("group", &asked, None)
        {
            found.extend(all(&answer));
            if let Some(kept) = kept {
                kept.write(&found.iter().map(|group| format!("{}\n", group.to_line())).collect::<String>());
            }
        }
    }
    found.sort_by_key(|group| group.gid);
    found.dedup_by_key(|group| group.gid);
    found
}

/// The numbers that belong to none of these groups, as `getent` takes them.
fn missing(gids: &[u32], found: &[Group]) -> Vec<String> {
    let is_missing = |gid: &&u32| !found.iter().any(|group| group.gid == **gid);
    gids.iter().filter(is_missing).map(u32::to_string).collect()
}

/// The line that the name services have for one key, asked with the rights of `uid` (of the caller: nothing): `Err` where they do not
/// answer, which is not the same as not knowing it.
///
/// # Errors
/// They do not answer, or not in time.
pub fn ask(database: &str, key: &str, uid: Option<u32>) -> Result<Option<String>, String> {
    let answer = getent(database, &[key.to_owned()], uid)
        .ok_or_else(|| format!("getent {database} {key}: no answer (it has {} s)", PATIENCE.as_secs()))?;
    Ok(answer.lines().next().map(str::to_owned))
}

fn in_file<T>(path: &str, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    // Names may be in any encoding: a line that cannot be read is not to hide the others.
    find(&String::from_utf8_lossy(&fs::read(path).ok()?))
}

/// What `getent` prints; nothing when it cannot say.
fn getent(database: &str, keys: &[String], uid: Option<u32>) -> Option<String> {
    let mut command = Command::new(GETENT);
    command.arg("--").arg(database).args(keys).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let answer = read_until(&mut child, Instant::now() + PATIENCE);
    if answer.is_none() {
        // It has ended by itself, or ends now.
        let (Ok(()) | Err(_)) = child.kill();
    }
    let status = child.wait().ok()?;
    // 2: some of the keys are not known.
    answer.filter(|_| matches!(status.code(), Some(0 | 2)))
}

fn read_until(child: &mut Child, deadline: Instant) -> Option<String> {
    let mut from = child.stdout.take()?;
    let (mut all, mut piece) = (vec![], [0; 4096]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
        }
        match from.read(&mut piece).ok()? {
            0 => return Some(String::from_utf8_lossy(&all).into_owned()),
            n => all.extend_from_slice(&piece[..n]),
        }
        if all.len() as u64 > LONGEST {
            return None;
        }
    }
}

/// An answer about the caller, in the directory that the login has made for them. It decides about nobody but the caller, whose file it is.
struct Kept(PathBuf);

impl Kept {
    fn of_caller(database: &str) -> Option<Self> {
        let uid = geteuid().as_raw();
        let dir = PathBuf::from(format!("/run/user/{uid}"));
        let meta = fs::symlink_metadata(&dir).ok()?;
        let is_private = meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0;
        is_private.then(|| Self(dir.join(format!("skiff-{database}"))))
    }

    fn read(&self) -> Option<String> {
        let age = fs::symlink_metadata(&self.0).ok()?.modified().ok()?.elapsed().ok()?;
        let mut text = String::new();
        let file = fs::File::open(&self.0).ok().filter(|_| age < FRESH)?;
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Best effort: without it the name services are asked again.
    fn write(&self, text: &str) {
        let new = self.0.with_extension(std::process::id().to_string());
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        if written.and_then(|()| fs::rename(&new, &self.0)).is_err() {
            // Who reads it finds out anew without it, and the next one has another name.
            let (Ok(()) | Err(_)) = fs::remove_file(&new);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn of_the_files_and_of_nobody() {
        assert_eq!(user(0).unwrap().name, "root");
        assert_eq!(user(4_000_000_123), None);
        let names = |gids: &[u32]| groups(gids).into_iter().map(|g| g.name).collect::<Vec<_>>();
        assert_eq!(names(&[0, 4_000_000_123]), ["root"]);
        assert_eq!(names(&[]), [""; 0]);
        assert_eq!(ask("passwd", "no-such-user", None), Ok(None));
        let unknown = ask("no-such-database", "x", None).unwrap_err();
        assert!(unknown.starts_with("getent no-such-database x: no answer"), "{unknown}");
    }
}
