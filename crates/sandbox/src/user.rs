//! Who a command is inside, if neither root nor the user: an account of that root's own, as an image's maker names it.

use std::io::{self, Read};

use rustix::io::Errno;
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// More than this no password file holds.
const MOST: u64 = 16 << 20;

/// An account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// User name, or the number where there is none.
    pub name: String,
    /// Home directory; `/` if none is known.
    pub home: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Account {
    /// Looks up `USER[:GROUP]`, names or numbers, in the files of the root that this process is in. As in Docker a number need not
    /// stand there, and groups count that they are a member of, unless one is named.
    ///
    /// # Errors
    /// `ENOENT`: no such name.
    pub fn find(text: &str) -> io::Result<Self> {
        look_up(text, &read("/etc/passwd")?, &read("/etc/group")?).ok_or_else(|| Errno::NOENT.into())
    }

    /// Becomes it, for good: whoever is not root keeps no capability.
    ///
    /// # Errors
    /// `EINVAL`: there is no such id in this user namespace.
    pub fn enter(&self) -> io::Result<()> {
        // Whoever becomes another is root, and where there is one id only, the kernel lets nobody choose groups.
        if (self.uid, self.gid) == (0, 0) {
            return Ok(());
        }
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        Ok(set_thread_res_uid(uid, uid, uid)?)
    }
}

/// The file's text; none if there is no file.
fn read(path: &str) -> io::Result<String> {
    let mut bytes = vec![];
    match std::fs::File::open(path) {
        Ok(file) => file.take(MOST).read_to_end(&mut bytes)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
        Err(e) => return Err(e),
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn look_up(text: &str, passwd: &str, group: &str) -> Option<Account> {
    let (user, wanted_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (text, None),
    };
    let found = line_of(user, passwd);
    let field = |at: usize| found.as_ref().and_then(|fields| fields.get(at).copied());
    let uid = field(2).map_or_else(|| number(user), number)?;
    let own_group = field(3).and_then(number).unwrap_or(0);
    let name = field(0).unwrap_or(user);
    let (gid, groups) = match wanted_group {
        Some(group_text) => {
            let gid = line_of(group_text, group).map_or_else(|| number(group_text), |f| number(f.get(2)?))?;
            (gid, vec![gid])
        }
        None => (own_group, groups_of(name, own_group, group)),
    };
    let home = field(5).filter(|home| home.starts_with('/')).unwrap_or("/");
    Some(Account { name: name.into(), home: home.into(), uid, gid, groups })
}

/// The fields of the line that has this name, or this number.
fn line_of<'a>(text: &str, file: &'a str) -> Option<Vec<&'a str>> {
    let lines = || file.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let by_name = lines().find(|fields| fields[0] == text && !text.is_empty());
    by_name.or_else(|| {
        let wanted = number(text)?;
        lines().find(|fields| fields.get(2).copied().and_then(number) == Some(wanted))
    })
}

fn groups_of(name: &str, own: u32, group: &str) -> Vec<u32> {
    let is_member = |fields: &Vec<&str>| fields.get(3).is_some_and(|all| all.split(',').any(|m| m == name));
    let lines = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let others =
        lines.filter(is_member).filter_map(|fields| number(fields.get(2)?)).filter(|gid| *gid != own);
    std::iter::once(own).chain(others).collect()
}

/// All ones stands for no id.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::look_up;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\napp:x:999:998::/srv/app:/bin/sh\nodd\n7:x:50:51::relative:\n";
    const GROUP: &str = "root:x:0:\napp:x:998:\nvideo:x:44:other,app\ndata:x:70:app\nodd\n";

    #[test]
    fn users_as_docker_reads_them() {
        for (text, uid, gid, groups, home) in [
            ("app", 999, 998, &[998, 44, 70][..], "/srv/app"),
            ("999", 999, 998, &[998, 44, 70], "/srv/app"),
            ("app:video", 999, 44, &[44], "/srv/app"),
            ("app:5000", 999, 5000, &[5000], "/srv/app"),
            ("app:", 999, 998, &[998, 44, 70], "/srv/app"),
            ("1234", 1234, 0, &[0], "/"),
            ("1234:70", 1234, 70, &[70], "/"),
            ("7", 50, 51, &[51], "/"),
            ("root", 0, 0, &[0], "/root"),
        ] {
            let found = look_up(text, PASSWD, GROUP).unwrap_or_else(|| panic!("{text} is not found"));
            assert_eq!(
                (found.uid, found.gid, &*found.groups, &*found.home),
                (uid, gid, groups, home),
                "{text}"
            );
        }
        assert_eq!(look_up("999", PASSWD, GROUP).map(|found| found.name).as_deref(), Some("app"));
        for text in ["", ":", "nobody", "app:nogroup", "-1", "4294967295", "odd", ":video"] {
            assert_eq!(look_up(text, PASSWD, GROUP), None, "{text}");
        }
        assert!(look_up("5:6", "", "").is_some() && look_up("x", "", "").is_none());
    }
}
