//! `skiff login`: what sshd's ForceCommand runs instead of the user's shell.

use std::ffi::OsString;

use skiff_sandbox::Result;

use crate::cli::Login;
use crate::context::Context;
use crate::env;

/// The client's command, or a login shell, in the user's environment; the exit code.
pub fn login(login: &Login) -> Result<i32> {
    let context = Context::load()?;
    env::enter_default(&context, &login.environment, asked())
}

/// What the client asked for. A subsystem that sshd would run within itself has a program that does the same.
fn asked() -> Option<OsString> {
    let command = std::env::var_os("SSH_ORIGINAL_COMMAND").filter(|c| !c.is_empty())?;
    if command == "internal-sftp" {
        let server =
            ["/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server"];
        let server = server.into_iter().find(|path| std::path::Path::new(path).exists());
        return Some(server.unwrap_or("sftp-server").into());
    }
    Some(command)
}
