//! Nobody manages the hosts: a file lists them, and one logs in as usual.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::{ConnectMethod, ManagerEntry, Surroundings, one_each, words_of};
use crate::error::{Error, OfSystem as _, Result};
use crate::hosts::{self, Host};

pub const ENTRY: ManagerEntry = ManagerEntry {
    name: "ssh",
    variables: &[],
    // Only a file lists them.
    hosts: |_| Ok(vec![]),
    launches: |around, hosts, program| one_each(around, hosts, program, words),
    way: ConnectMethod::Pipes,
    leads_session: false,
    tells_programs: None,
};

/// The hosts of a file.
pub fn hosts_of(around: &Surroundings<'_>, file: &Path) -> Result<Vec<Host>> {
    let text = (around.read)(file).of(|| format!("host file {}", file.display()))?;
    let hosts = hosts::parse(&text).map_err(|line| Error::InvalidHostFile { path: file.into(), line })?;
    if hosts.is_empty() { Err(Error::EmptyHostFile(file.into())) } else { Ok(hosts) }
}

/// Where the user has to type something, or the host is dead, it fails; and it ends when the other side is lost.
fn words(host: &Host, agent: &[OsString]) -> Vec<OsString> {
    let options = [
        "ssh",
        "-T",
        "-x",
        "-oBatchMode=yes",
        "-oConnectTimeout=15",
        "-oServerAliveInterval=10",
        "-oServerAliveCountMax=3",
        "--",
        &host.name,
    ];
    // The other side's shell takes the words apart again.
    let quoted = agent.iter().map(|word| quote(word)).collect::<Vec<_>>();
    words_of(options, [OsString::from_vec(quoted.join(&b' '))])
}

fn quote(word: &OsStr) -> Vec<u8> {
    // A zero byte is in no word of a command.
    shlex::bytes::try_quote(word.as_bytes()).map_or_else(|_| vec![], |quoted| quoted.into_owned())
}
