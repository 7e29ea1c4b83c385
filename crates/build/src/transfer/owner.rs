//! Owners of files, looked up in the lists of accounts of the root that this process is in.

use std::fs::File;
use std::io::{ErrorKind, Read as _};

use skiff_spec::account::{Group, User};
use skiff_spec::fault::{Context as _, Fault, Result};

const ROOT: (u32, u32) = (0, 0);
const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// More than this no list of accounts has, in bytes.
const LONGEST: u64 = 16 << 20;

/// The numbers of the `USER[:GROUP]` of `--chown`.
///
/// # Errors
/// A name is not in the lists.
pub fn of_chown(text: &str) -> Result<(u32, u32)> {
    look_up(text, &read(PASSWD)?, &read(GROUP)?).map_err(|(name, file)| {
        Fault::new(format!("--chown={text}: {name} is not in the stage's {file}"))
            .hint("numbers need not be there")
    })
}

/// The same of USER. As in BuildKit a name that is not there yet is no fault: who it is counts when something runs, and until then it is root's.
///
/// # Errors
/// The lists cannot be read.
pub fn of_user(text: &str) -> Result<(u32, u32)> {
    Ok(as_far_as_known(text, &read(PASSWD)?, &read(GROUP)?))
}

fn as_far_as_known(text: &str, passwd: &str, groups: &str) -> (u32, u32) {
    let user = text.split(':').next().unwrap_or_default();
    look_up(text, passwd, groups).or_else(|_| look_up(user, passwd, groups)).unwrap_or(ROOT)
}

/// A user's number alone is the group's, too. Otherwise the name that is not known, and the file that lacks it.
fn look_up<'a>(
    text: &'a str,
    passwd: &str,
    groups: &str,
) -> std::result::Result<(u32, u32), (&'a str, &'static str)> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let number = |name: &str| name.parse::<u32>().ok().filter(|number| *number != u32::MAX);
    let (user, own_group) = match number(user) {
        Some(number) => (number, number),
        None => User::named(passwd, user).map(|user| (user.uid, user.gid)).ok_or((user, PASSWD))?,
    };
    let group = match group.filter(|group| !group.is_empty()) {
        None => own_group,
        Some(name) => match number(name) {
            Some(number) => number,
            None => Group::named(groups, name).ok_or((name, GROUP))?.gid,
        },
    };
    Ok((user, group))
}

fn read(path: &str) -> Result<String> {
    let mut bytes = vec![];
    match File::open(path) {
        Ok(file) => {
            file.take(LONGEST).read_to_end(&mut bytes).context(|| path)?;
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e).context(|| path),
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_as_buildkit_reads_them() {
        let passwd = "root:x:0:0::/root:/bin/sh\napp:x:500:600::/srv/app:/bin/sh\n";
        let group = "root:x:0:\napp:x:600:\nvideo:x:44:app\n";
        for (text, want) in [
            ("app", Ok((500, 600))),
            ("app:", Ok((500, 600))),
            ("app:video", Ok((500, 44))),
            ("app:7", Ok((500, 7))),
            // A number is not looked up.
            ("500", Ok((500, 500))),
            ("500:app", Ok((500, 600))),
            ("0", Ok((0, 0))),
            ("new", Err(("new", PASSWD))),
            ("app:new", Err(("new", GROUP))),
            ("4294967295", Err(("4294967295", PASSWD))),
        ] {
            assert_eq!(look_up(text, passwd, group), want, "{text}");
        }
        for (text, want) in [("app:video", (500, 44)), ("app:new", (500, 600)), ("new:video", (0, 0))] {
            assert_eq!(as_far_as_known(text, passwd, group), want, "{text}");
        }
    }
}
