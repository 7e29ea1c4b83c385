//! What the administrator has decided: subordinate ids, groups that nobody leaves, where images are. Read only from files that nobody but root can write.

use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::ids::{Range, is_subordinate, subordinate};
use skiff_spec::site::{BadLine, FILE, Site};

use crate::files::read_if_exists;
use crate::names;

/// Whose the subordinate ids are.
const SUBUID: &str = "/etc/subuid";
const SUBGID: &str = "/etc/subgid";

/// What every request needs to know, read once.
pub struct HelperConfig {
    /// The helper's own configuration.
    pub site: Site,
    /// The text of [`SUBUID`].
    subuid: Option<String>,
}

impl HelperConfig {
    /// Reads it. While it is broken nobody is served, as nobody knows then whose ids are whose.
    pub fn read() -> Result<Self> {
        let text = read_if_exists(FILE)?.unwrap_or_default();
        let site = Site::parse(&text).map_err(|e| Error::new(e.to_string()).hint(BadLine::HINT))?;
        Ok(Self { site, subuid: read_if_exists(SUBUID)? })
    }

    /// The subordinate user and group ids of a caller.
    pub fn ranges(&self, uid: u32) -> Result<(Range, Range)> {
        let subgid = read_if_exists(SUBGID)?;
        let lists = [self.subuid.as_deref(), subgid.as_deref()];
        let by_number = |text: Option<&str>| text.and_then(|text| subordinate(text, None, uid)).is_some();
        let is_listed = lists.into_iter().all(by_number);
        let name = names::user_name(uid, lists.into_iter().flatten().filter(|_| !is_listed))?;
        let one = |file: &str, text: Option<&str>| -> Result<Range> {
            let listed = text.and_then(|text| subordinate(text, name.as_deref(), uid));
            listed.or_else(|| self.site.range(uid)).ok_or_else(|| {
                Error::new(format!("user {uid}: no subordinate ids in {file}")).hint(format!(
                    "administrator: `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`, or range_base in {FILE}"
                ))
            })
        };
        Ok((one(SUBUID, self.subuid.as_deref())?, one(SUBGID, subgid.as_deref())?))
    }

    /// Refuses a subordinate id as a caller: root inside an environment can give any of theirs to a setuid program, and each would have limits
    /// of its own.
    pub fn refuse_subordinate(&self, uid: u32) -> Result<()> {
        let listed = self.subuid.as_ref().is_some_and(|text| is_subordinate(text, uid));
        if !listed && !self.site.is_subordinate(uid) {
            return Ok(());
        }
        Err(Error::new(format!("user {uid}: a subordinate id, whose user the helper does not know"))
            .hint("run skiff as yourself, not by a setuid program; administrator: no person's uid may lie in a range of /etc/subuid"))
    }
}
