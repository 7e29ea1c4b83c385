//! What a user is called who may be listed by name: by root's file, else by the name services. Those are asked by a process of an id that nobody has, as what
//! they load is not ours, and one of the caller's could be told by the caller what to answer.

use skiff_sandbox::{Error, Result};
use skiff_site::account;
use skiff_spec::account::User;

use crate::site;

/// An id that nobody has: whoever has processes of the system's `nobody` could trace one of it.
const NOBODY: u32 = u32::MAX - 1;

/// The name of a user for looking it up in `lists`, texts like `/etc/subuid`.
pub fn user_name<'a>(uid: u32, lists: impl Iterator<Item = &'a str>) -> Result<Option<String>> {
    let passwd = site::read_if_exists("/etc/passwd")?.unwrap_or_default();
    if let Some(user) = User::with_uid(&passwd, uid) {
        return Ok(Some(user.name));
    }
    // It takes milliseconds at the least, so only where it may be of use.
    let is_unknown = |name: &str| name.parse::<u32>().is_err() && User::named(&passwd, name).is_none();
    if !lists.flat_map(str::lines).filter_map(|line| line.split(':').next()).any(is_unknown) {
        return Ok(None);
    }
    let line = account::ask("passwd", &uid.to_string(), Some(NOBODY)).map_err(|why| {
        Error::new(why).hint(format!("administrator: check that `getent passwd {uid}` answers"))
    })?;
    Ok(line.as_deref().and_then(User::parse).filter(|user| user.uid == uid).map(|user| user.name))
}
