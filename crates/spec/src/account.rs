//! Accounts, as lines of `passwd(5)` and `group(5)`: of the files, or of `getent`.

use std::path::PathBuf;

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// What the user is called.
    pub name: String,
    /// The number.
    pub uid: u32,
    /// Of the group that the user always is in.
    pub gid: u32,
    /// The user's full name, and whatever else a site puts there.
    pub comment: String,
    /// The home directory.
    pub home: PathBuf,
    /// The login shell; nothing: `/bin/sh`.
    pub shell: PathBuf,
}

impl User {
    /// A line of `passwd(5)`.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.trim_end_matches(['\n', '\r']).split(':').collect();
        let [name, _, uid, gid, comment, home, shell] = fields[..] else { return None };
        Some(Self {
            name: checked(name)?.into(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            comment: comment.into(),
            home: home.into(),
            shell: shell.into(),
        })
    }

    /// The user of that number in a text of such lines.
    #[must_use]
    pub fn with_uid(passwd: &str, uid: u32) -> Option<Self> {
        let has_uid = |line: &&str| number_of(line) == Some(uid);
        passwd.lines().filter(has_uid).find_map(Self::parse)
    }

    /// The user of that name in a text of such lines.
    #[must_use]
    pub fn named(passwd: &str, name: &str) -> Option<Self> {
        passwd.lines().filter(|line| has_name(line, name)).find_map(Self::parse)
    }

    /// The line, without a password.
    #[must_use]
    pub fn to_line(&self) -> String {
        let Self { name, uid, gid, comment, home, shell } = self;
        format!("{name}:x:{uid}:{gid}:{comment}:{}:{}", home.display(), shell.display())
    }
}

/// A group, without its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What it is called.
    pub name: String,
    /// The number.
    pub gid: u32,
}

impl Group {
    /// A line of `group(5)`.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut fields = line.trim_end_matches(['\n', '\r']).split(':');
        let (name, gid) = (fields.next()?, fields.nth(1)?);
        Some(Self { name: checked(name)?.into(), gid: gid.parse().ok()? })
    }

    /// The group of that name in a text of such lines.
    #[must_use]
    pub fn named(group: &str, name: &str) -> Option<Self> {
        group.lines().filter(|line| has_name(line, name)).find_map(Self::parse)
    }

    /// The groups of these numbers in a text of such lines.
    #[must_use]
    pub fn with_gids(group: &str, gids: &[u32]) -> Vec<Self> {
        let has_gid = |line: &&str| number_of(line).is_some_and(|gid| gids.contains(&gid));
        group.lines().filter(has_gid).filter_map(Self::parse).collect()
    }

    /// The line, without a password and members.
    #[must_use]
    pub fn to_line(&self) -> String {
        format!("{}:x:{}:", self.name, self.gid)
    }
}

/// Whether that is the line of this name. A whole line is parsed only when it is the one that is looked for: a site may have many.
fn has_name(line: &str, name: &str) -> bool {
    line.split(':').next() == Some(name)
}

/// The uid or gid of a line.
fn number_of(line: &str) -> Option<u32> {
    line.split(':').nth(2)?.parse().ok()
}

/// What can be a name: not the `+` and `-` lines of NIS, and nothing that a program takes for an option.
fn checked(name: &str) -> Option<&str> {
    (!name.is_empty() && !name.starts_with(['+', '-'])).then_some(name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n+@staff::::::\n# a comment\nbob:x:1001:100:Bob, of room 5:/home/bob:\n\
                          cut:x:1002\nodd:x:-5:0::/:\nlong:x:1003:1003::/home/long:/bin/sh:more\n";

    #[test]
    fn users_of_a_file() {
        let bob = User::with_uid(PASSWD, 1001).unwrap();
        assert_eq!((bob.name.as_str(), bob.gid, bob.shell.as_os_str().len()), ("bob", 100, 0));
        assert_eq!(bob.to_line(), "bob:x:1001:100:Bob, of room 5:/home/bob:");
        assert_eq!(User::named(PASSWD, "bob"), Some(bob));
        for (name, uid) in [("cut", 1002), ("long", 1003), ("odd", 4_294_967_291), ("+@staff", 0)] {
            assert_eq!(User::named(PASSWD, name), None, "{name}");
            assert!(User::with_uid(PASSWD, uid).is_none_or(|user| user.name == "root"), "{uid}");
        }
    }

    #[test]
    fn names_that_are_none() {
        for line in ["", ":x:1:1::/:/bin/sh", "-option:x:1:1::/:/bin/sh", "+::::::"] {
            assert_eq!(User::parse(line), None, "{line}");
        }
        for line in ["", ":x:1:", "+:::", "-g:x:1:", "g:x:many:", "g:x"] {
            assert_eq!(Group::parse(line), None, "{line}");
        }
    }

    #[test]
    fn groups_lose_their_members() {
        let group = Group::named("a:x:5:bob,eve\nb:!:6:\n", "a").unwrap();
        assert_eq!((group.gid, group.to_line().as_str()), (5, "a:x:5:"));
        let found = Group::with_gids("a:x:5:bob,eve\n+:::\nb:!:6\r\nc:x:7:\n-d:x:5:\n", &[6, 5, 8]);
        assert_eq!(found.iter().map(Group::to_line).collect::<Vec<_>>(), ["a:x:5:", "b:x:6:"]);
    }
}
