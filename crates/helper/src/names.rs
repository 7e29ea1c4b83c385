//! Names of users, for lists that have names: from root's file, else from the name services. These load code that is not ours, so an
//! unprivileged process asks them; not one of the caller's, who could make it answer anything.

use skiff_site::account;
use skiff_spec::account::User;
use skiff_spec::fault::{Fault as Error, Result};

use crate::files::{self, NOBODY};

/// The name of a user for looking it up in `lists`, texts like `/etc/subuid`.
pub fn user_name<'a>(uid: u32, lists: impl Iterator<Item = &'a str>) -> Result<Option<String>> {
    let passwd = files::read_accounts("/etc/passwd")?;
    if let Some(user) = User::with_uid(&passwd, uid) {
        return Ok(Some(user.name));
    }
    // It takes milliseconds at the least, so only where it may be of use.
    let is_unknown = |name: &str| name.parse::<u32>().is_err() && User::named(&passwd, name).is_none();
    if !lists.flat_map(str::lines).filter_map(|line| line.split(':').next()).any(is_unknown) {
        return Ok(None);
    }
    // Not as the system's `nobody`: whoever has processes of that could trace this one.
    let line = account::ask("passwd", &uid.to_string(), Some(NOBODY)).map_err(|why| {
        Error::new(why).hint(format!("administrator: check that `getent passwd {uid}` answers"))
    })?;
    Ok(line.as_deref().and_then(User::parse).filter(|user| user.uid == uid).map(|user| user.name))
}
