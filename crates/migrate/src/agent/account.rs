//! Whether the account that munge vouches for may start anything here. The decision is PAM's, where it can be had for a service of the agent's own
//! (`skiff`); what is checked here before that has been forgotten in many a site's `su`, and errors of PAM do not say why.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use skiff_site::account;
use skiff_spec::account::User;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_sys::clock::now;

/// Files that close a host to all but root (pam_nologin).
const NOLOGIN: [&str; 2] = ["/run/nologin", "/etc/nologin"];

/// A user, as the name services know them.
#[derive(Debug, PartialEq, Eq)]
pub struct TargetAccount {
    pub name: String,
    pub uid: u32,
    shell: PathBuf,
}

impl TargetAccount {
    /// By uid, if nothing is wrong with it.
    pub fn fit(uid: u32) -> Result<Self> {
        let passwd = entry("passwd", &uid.to_string())?;
        let account = passwd.as_deref().and_then(|line| Self::parse(line, uid));
        let account = account.ok_or_else(|| Error::new(format!("uid {uid}: no account on this host")))?;
        account.refuse_closed_host()?;
        account.refuse_shell()?;
        if let Some(shadow) = entry("shadow", &account.name)? {
            let today = now() / 86400;
            if let Some(why) = closed(&shadow, today) {
                return Err(account.refused(why));
            }
        }
        Ok(account)
    }

    fn parse(line: &str, uid: u32) -> Option<Self> {
        let user = User::parse(line).filter(|user| user.uid == uid)?;
        Some(Self { name: user.name, uid, shell: user.shell })
    }

    #[cfg(test)]
    pub fn named(name: &str, uid: u32) -> Self {
        Self { name: name.into(), uid, shell: "/bin/sh".into() }
    }

    fn refused(&self, why: impl std::fmt::Display) -> Error {
        Error::new(format!("account {}: {why}", self.name)).hint("ask the administrator of that host")
    }

    fn refuse_closed_host(&self) -> Result<()> {
        match NOLOGIN.iter().find(|path| Path::new(path).exists()) {
            Some(path) => Err(self.refused(format!("nobody can log in while {path} exists"))),
            None => Ok(()),
        }
    }

    /// No shell, no programs: `/usr/sbin/nologin`, `/bin/false`, or one that is not there.
    fn refuse_shell(&self) -> Result<()> {
        // An empty field is /bin/sh: passwd(5).
        let shell = if self.shell.as_os_str().is_empty() { Path::new("/bin/sh") } else { &self.shell };
        let is_none = shell.file_name().is_none_or(|name| name == "nologin" || name == "false");
        let is_program =
            shell.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        if is_none || !is_program {
            return Err(self.refused(format!("its shell is {}", shell.display())));
        }
        Ok(())
    }
}

/// A line of a database, if it has one for this key.
fn entry(database: &str, key: &str) -> Result<Option<String>> {
    account::ask(database, key, None).map_err(Error::new)
}

/// Why an account is closed by its line in the shadow file, if it is. One that never had a password (`!` or `*` alone) is not: its user
/// logs in by keys.
fn closed(shadow: &str, today: u64) -> Option<&'static str> {
    let fields: Vec<&str> = shadow.trim_end().split(':').collect();
    let password = fields.get(1).copied().unwrap_or_default();
    let hash = password.trim_start_matches('!');
    if hash.len() < password.len() && !matches!(hash, "" | "*") {
        return Some("it is locked (usermod --lock)");
    }
    let day = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    if day(7).is_some_and(|expires| expires <= today) {
        return Some("it has expired (chage --expiredate)");
    }
    // Day 0: chage -d 0.
    (day(2) == Some(0)).then_some("its password must be changed first")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_accounts() {
        for (line, want) in [
            ("bob:!:19000:0:99999:7:::", None),
            ("bob:!!:19000:0:99999:7:::", None),
            ("bob:*:19000:0:99999:7:::", None),
            ("bob:!*:19000:0:99999:7:::", None),
            ("bob:$y$j9T$x:19000:0:99999:7:::", None),
            ("bob::19000:0:99999:7:::", None),
            ("bob:!$y$j9T$x:19000:0:99999:7:::", Some("locked")),
            ("bob:!!$6$x:19000:0:99999:7:::", Some("locked")),
            ("bob:$6$x:19000:0:99999:7::20000:", Some("expired")),
            ("bob:$6$x:19000:0:99999:7::0:", Some("expired")),
            ("bob:$6$x:19000:0:99999:7::20001:", None),
            ("bob:$6$x:0:0:99999:7:::", Some("changed")),
            ("bob:*", None),
            ("", None),
        ] {
            let why = closed(line, 20000);
            assert_eq!(why.is_some(), want.is_some(), "{line}: {why:?}");
            assert!(want.is_none_or(|part| why.is_some_and(|why| why.contains(part))), "{line}: {why:?}");
        }
    }

    #[test]
    fn accounts_that_are_no_answer() {
        let shell = |line| TargetAccount::parse(line, 7).map(|account| account.shell);
        assert_eq!(shell("bob:x:7:7::/home/bob:/bin/bash").as_deref(), Some(Path::new("/bin/bash")));
        for line in
            ["bob:x:8:7::/home/bob:/bin/bash", "-bob:x:7:7::/:/bin/sh", ":x:7:7::/:/bin/sh", "bob:x:7", ""]
        {
            assert_eq!(shell(line), None, "{line}");
        }
    }

    #[test]
    fn shells_that_are_none() {
        let account = |shell: &str| TargetAccount { shell: shell.into(), ..TargetAccount::named("bob", 7) };
        for shell in ["/usr/sbin/nologin", "/sbin/nologin", "/bin/false", "/nowhere/bash", "/etc/passwd", "/"]
        {
            let refused = account(shell).refuse_shell().expect_err(shell);
            assert_eq!(refused.message, format!("account bob: its shell is {shell}"));
        }
        for shell in ["", "/bin/sh"] {
            assert!(account(shell).refuse_shell().is_ok(), "{shell}");
        }
    }
}
