//! The directory of an ssh agent's socket. sshd and ssh-agent make it in the host's `/tmp`, of which an environment shows nothing.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use skiff_sandbox::command::{CommandSpec, own_variable};
use skiff_spec::plan::{Mount, Plan, Source};
use skiff_user::context::UserContext;

use crate::inside::ProcessArgs;

/// The variable by which programs find the agent.
pub const VARIABLE: &str = "SSH_AUTH_SOCK";

/// Where sockets of agents are, inside and outside.
pub const PLACE: &str = "/tmp";

/// The directory in `/tmp` and the name in that, as sshd and ssh-agent choose them. What is elsewhere is shown inside, or not meant to be.
#[must_use]
pub fn parts(agent: &Path) -> Option<(&OsStr, &OsStr)> {
    let mut parts = agent.strip_prefix(PLACE).ok()?.components();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Component::Normal(dir)), Some(Component::Normal(name)), None) => Some((dir, name)),
        _ => None,
    }
}

/// The directory of the agent that a command is told of, if nobody but the user can have made what is in it. The user must have said which:
/// an image has variables, too, and its maker could name any directory.
#[must_use]
pub fn directory(context: &UserContext, command: &CommandSpec, inside: &ProcessArgs) -> Option<PathBuf> {
    let agent = OsString::from(command.var(VARIABLE)?);
    let is_users = own_variable(OsStr::new(VARIABLE)).is_some_and(|own| own == agent)
        || inside.settings().iter().any(|(name, value)| name == VARIABLE && *value == agent);
    let agent = PathBuf::from(agent);
    let (dir, name) = parts(&agent)?;
    let dir = Path::new(PLACE).join(dir);
    let (meta, socket) = (dir.symlink_metadata().ok()?, dir.join(name).symlink_metadata().ok()?);
    let is_own = meta.is_dir() && meta.uid() == context.uid && meta.mode() & 0o077 == 0;
    (is_users && is_own && socket.file_type().is_socket() && socket.uid() == context.uid).then_some(dir)
}

/// The same of a plan, as far as it shows one. By words it is said by the variable.
#[must_use]
pub fn shown(plan: &Plan) -> Option<PathBuf> {
    let is_one = |mount: &&Mount| {
        let is_same = matches!(&mount.source, Source::Bind(path) if *path == mount.target);
        is_same && mount.optional && mount.target.parent() == Some(Path::new(PLACE))
    };
    plan.mounts.iter().find(is_one).map(|mount| mount.target.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_as_agents_make_them_are_led_to() {
        let found = |path: &str| parts(Path::new(path)).is_some();
        assert!(found("/tmp/ssh-XXXXabc/agent.123"));
        for other in [
            "/tmp/x",
            "/tmp/../etc/x",
            "/tmp/a/../x",
            "/tmp/a/b/c",
            "/run/user/1/keyring/ssh",
            "tmp/a/b",
            "",
            "/home/a/b",
        ] {
            assert!(!found(other), "{other}");
        }
    }
}
