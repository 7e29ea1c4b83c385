//! Keys in the kernel's keyrings. Nobody can give one its number again, by which programs know it. The instance has a session's keyring of
//! its own, and its user namespace those of its users. Which keyring another process has made for itself the kernel does not say.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::keyring::{self, KeySerial};

/// What is in the way, and what may be.
pub(super) type KeyReport = (Vec<String>, Vec<String>);

/// Looks at the keyrings of an instance, in a process inside that has its session's.
pub(super) fn look() -> Result<KeyReport> {
    let mut found = held(KeySerial::SESSION, "its session's");
    found.extend(keyring::persistent().into_iter().flat_map(|of| held(of, "its persistent")));
    for user in users() {
        as_user(user, &mut || {
            found.extend(held(KeySerial::USER, "the user's"));
            found.extend(held(KeySerial::USER_SESSION, "the user's session"));
        })?;
    }
    let table = fs::read("/proc/keys").default_on_error("without keyrings there are no keys");
    let of_maker = keyring::keys(KeySerial::SESSION).default_on_error("without keyrings there are no keys");
    let apart = others(&String::from_utf8_lossy(&table), |keyring| {
        let has_keys = || keyring::keys(keyring).map_or(true, |keys| keys.into_iter().any(is_of_its_own));
        !of_maker.contains(&keyring) && has_keys()
    });
    Ok((found, apart))
}

/// The users that have processes inside, by their numbers there.
fn users() -> BTreeSet<u32> {
    let status = |entry: fs::DirEntry| fs::read(entry.path().join("status")).ok();
    let uid = |status: Vec<u8>| {
        let text = String::from_utf8_lossy(&status).into_owned();
        text.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(status).filter_map(uid).collect()
}

fn as_user(user: u32, act: &mut dyn FnMut()) -> Result<()> {
    let about = || format!("user {user} inside");
    let become_one = |user| set_thread_res_uid(user, user, Uid::ROOT);
    become_one(Uid::from_raw(user)).context(about)?;
    act();
    become_one(Uid::ROOT).context(about)
}

/// The keys in a keyring that are there for no other reason than that a program has put them there.
fn held(of: KeySerial, whose: &str) -> Vec<String> {
    let keys = keyring::keys(of).default_on_error("a keyring that does not exist has no keys");
    let mut found = vec![];
    for (kind, name) in keys.into_iter().filter_map(|key| keyring::describe(key).ok()) {
        if !is_given(&kind, &name) {
            let (kind, name) = (kind.escape_debug(), name.escape_debug());
            found.push(format!(
                "key {name} ({kind}) in {whose} keyring, which could not have its number again"
            ));
        }
    }
    found
}

fn is_of_its_own(key: KeySerial) -> bool {
    keyring::describe(key).is_ok_and(|(kind, name)| !is_given(&kind, &name))
}

/// Whether it is one of the keyrings that a session's begins with, or a look at the persistent one has linked there.
fn is_given(kind: &str, name: &str) -> bool {
    let starts = ["_uid.", "_uid_ses.", "_persistent."];
    kind == "keyring" && (name == "_ses" || starts.iter().any(|start| name.starts_with(start)))
}

/// From lines of `/proc/keys`, such as `16916a51 I--Q---     2 perm 3f030000     0     0 keyring   _ses: 1`: the keyrings of sessions, processes
/// and threads that have keys in them. Those that cannot be read have.
fn others(table: &str, has_keys: impl Fn(KeySerial) -> bool) -> Vec<String> {
    let keyring = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [serial, _, used, _, _, _, _, "keyring", name, count] = words[..] else { return None };
        let name = name.trim_end_matches(':');
        // One that nobody has any more is about to go.
        let is_one = used != "0" && ["_ses", "_pid", "_tid"].contains(&name) && count.parse::<u32>().is_ok();
        (is_one && has_keys(KeySerial::parse(serial)?)).then(|| {
            format!(
                "keyring {serial} ({name}) of yours on this host has keys; if a program of the instance has made it, they are \
                 not saved (the kernel does not say whose it is)"
            )
        })
    };
    table.lines().filter_map(keyring).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyrings_with_keys_of_somebody_are_told_from_others() {
        let table = "16916a51 I--Q---     2 perm 3f030000     0     0 keyring   _ses: 1\n\
            34deb3ac I--Q---     1 perm 3f010000     0     0 keyring   _pid: 2\n\
            34deb3ad I--Q---     1 perm 3f010000     0     0 keyring   _pid: empty\n\
            266fcce1 I--Q---     1 perm 1f3f0000     0 65534 keyring   _uid_ses.1001: 1\n\
            3ed966c0 I--Q---     1 perm 3f010000     0     0 user      _ses: 6\n";
        let of = |has: fn(KeySerial) -> bool| others(table, has);
        assert_eq!(of(|_| true).len(), 2);
        assert!(of(|_| false).is_empty());
        let first = of(|serial| serial.text() == "16916a51");
        assert!(matches!(&first[..], [only] if only.contains("16916a51 (_ses)")), "{first:?}");
    }

    #[test]
    fn what_a_session_begins_with_is_nobodys_key() {
        for (kind, name, given) in [
            ("keyring", "_uid.0", true),
            ("keyring", "_ses", true),
            ("keyring", "mine", false),
            ("user", "_ses", false),
        ] {
            assert_eq!(is_given(kind, name), given, "{kind} {name}");
        }
    }
}
