//! `skiff login`: what sshd's ForceCommand runs instead of the user's shell.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;

use skiff_cli::LoginArgs;
use skiff_env as env;
use skiff_spec::caller::FOR_LOGIN;
use skiff_spec::fault::{Context as _, Result};
use skiff_user::context::UserContext;

/// The client's command, or a login shell, in the user's environment; the exit code.
pub fn login(login: &LoginArgs) -> Result<i32> {
    if let Some(words) = outside() {
        return run_outside(&words);
    }
    let context = UserContext::load_for_login()?;
    env::enter_default(&context, &login.environment, asked())
}

/// What only a shell understands. There is one inside, where `skiff` finds its way out by itself.
const OF_SHELL: [char; 16] =
    ['|', '&', ';', '<', '>', '(', ')', '$', '`', '*', '?', '[', '{', '~', '#', '\n'];

/// `ssh host skiff env rm default` must work however broken that environment is: Skiff's own commands run outside.
fn outside() -> Option<Vec<String>> {
    let command = std::env::var("SSH_ORIGINAL_COMMAND").ok()?;
    if command.contains(OF_SHELL) {
        return None;
    }
    // As a shell would split it; but no shell, so that nothing else can be run outside.
    let words = shlex::split(&command)?;
    (words.first()? == "skiff" && !words.iter().any(|w| w == "login")).then(|| words[1..].to_vec())
}

fn run_outside(words: &[String]) -> Result<i32> {
    let program = std::env::current_exe().context(|| "own program")?;
    let mut command = std::process::Command::new(&program);
    // What the client has sshd set is no word of the site's.
    for name in
        std::env::vars_os().map(|(name, _)| name).filter(|name| name.as_bytes().starts_with(b"SKIFF_"))
    {
        command.env_remove(name);
    }
    command.env(FOR_LOGIN, "1");
    let status = command.args(words).status().context(|| program.display().to_string())?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
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
