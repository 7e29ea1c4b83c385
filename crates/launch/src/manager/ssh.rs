//! Nobody manages the hosts: a file lists them, and one logs in as usual.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use skiff_spec::fault::{Context, Fault, Result};

use super::{Surroundings, words_of};
use crate::hosts::{self, Host};

pub fn hosts(around: &Surroundings<'_>, file: &Path) -> Result<Vec<Host>> {
    let about = || format!("host file {}", file.display());
    let text = (around.read)(file).context(about)?;
    let hosts = hosts::parse(&text).map_err(|junk| {
        Fault::new(format!("{}: {junk}", about())).hint("a line is HOST, `HOST slots=N` or HOST:N")
    })?;
    if hosts.is_empty() {
        return Err(Fault::new(format!("{}: no host in it", about())));
    }
    Ok(hosts)
}

/// Where the user has to type something, or the host is dead, it fails; and it ends when the other side is lost.
pub fn words(host: &Host, agent: &[OsString]) -> Vec<OsString> {
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
