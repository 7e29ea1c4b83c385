//! Ssh agents that a user gives to a build (`--ssh`), and the way of one command to them. A Dockerfile may be a stranger's: without the option
//! no command gets any, and with it a command may list keys and have things signed, not add, remove or lock keys.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::net::SocketType;
use skiff_plan::ssh_agent::VARIABLE;
use skiff_runtime::agent_relay::{AgentRelay, Requests};
use skiff_runtime::control::listen_at;
use skiff_sandbox::command::own_variable;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_spec::caller::FOR_CALLER;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::Base;
use skiff_user::context::UserContext;

/// What the agent is called that is meant if none is named.
pub const DEFAULT: &str = "default";
const HINT: &str = "--ssh default is the agent of your SSH_AUTH_SOCK; --ssh ID=SOCKET another one";
/// The socket's name in its directory.
const SOCKET: &str = "socket";

/// Reads `ID[=SOCKET]`.
///
/// # Errors
/// There is no such agent; or a program inside an environment asks, which may not be the user.
pub fn read(texts: &[String]) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    if let Some(text) = texts.first()
        && std::env::var_os(FOR_CALLER).is_some()
    {
        return Err(Fault::new(format!("--ssh {text}: not from inside an environment"))
            .hint("call skiff build outside: programs inside would reach every agent of yours by its path"));
    }
    for text in texts {
        let (id, socket) = text.split_once('=').unwrap_or((text, ""));
        if id.is_empty() {
            return Err(Fault::new(format!("--ssh {text}: no name")).hint(HINT));
        }
        let socket = match socket {
            "" => own_variable(VARIABLE.as_ref()).map(PathBuf::from).filter(|path| path.is_absolute()),
            path => Some(std::path::absolute(path).context(|| format!("--ssh {text}"))?),
        };
        let socket = socket.ok_or_else(|| {
            Fault::new(format!("--ssh {text}: {VARIABLE} is not set")).hint("eval $(ssh-agent); ssh-add")
        })?;
        let about = || format!("--ssh {text}: {}", socket.display());
        let metadata = socket.metadata().context(about).map_err(|fault| fault.hint(HINT))?;
        if !metadata.file_type().is_socket() {
            return Err(Fault::new(format!("{}: not the socket of an agent", about()))
                .hint("ssh-add FILE gives a key to your agent"));
        }
        found.insert(id.to_owned(), socket);
    }
    Ok(found)
}

/// The agent of this name, if the user gives one.
///
/// # Errors
/// None is given, but there must be one.
pub fn given<'a>(
    agents: &'a BTreeMap<String, PathBuf>,
    id: &str,
    is_required: bool,
) -> Result<Option<&'a PathBuf>> {
    match agents.get(id) {
        None if is_required => Err(Fault::new(format!("--mount=type=ssh: the agent {id} is missing"))
            .hint(format!("skiff build --ssh {id} lets the command use yours"))),
        found => Ok(found),
    }
}

/// Opens a way to an agent by a socket in `place`, a directory of the user's alone. Whoever inside may write to the socket may use it.
///
/// # Errors
/// The system's; or the owner is none of the user's ids.
pub fn open_agent_socket(
    context: &UserContext,
    agent: &Path,
    place: &Path,
    mode: u16,
    (user, group): (u32, u32),
) -> Result<(PathBuf, AgentRelay)> {
    let socket = place.join(SOCKET);
    let listener = listen_at(place, SOCKET, SocketType::STREAM)?;
    as_root_of_ids(context.helper.as_deref(), Base::Host, |_| {
        let about = || format!("--mount=type=ssh: owner {user}:{group}");
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(mode.into())).context(about)?;
        chown(&socket, Some(user), Some(group)).context(about)
    })?;
    Ok((socket, AgentRelay::start(listener, agent, Requests::ToSign)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_sockets_and_come_by_their_names() {
        let dir = tempfile::tempdir().expect("made");
        let (socket, file) = (dir.path().join("socket"), dir.path().join("file"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        std::fs::write(&file, "").expect("written");
        let read = |text: String| super::read(&[text]);
        let agents = read(format!("work={}", socket.display())).expect("an agent");
        assert_eq!(given(&agents, "work", true).expect("given"), Some(&socket));
        assert_eq!(given(&agents, "other", false).expect("not required"), None);
        assert!(given(&agents, "other", true).is_err());
        for (text, part) in [
            (format!("={}", socket.display()), "no name"),
            (format!("a={}", file.display()), "not the socket of an agent"),
            (format!("a={}/nosuch", dir.path().display()), "nosuch"),
        ] {
            let fault = read(text.clone()).expect_err(&text);
            assert!(fault.message.contains(part) && !fault.hint.is_empty(), "{text}: {fault}");
        }
    }
}
