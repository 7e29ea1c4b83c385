//! Running things as an ordinary user: what is promised is promised to them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// An ordinary user of this machine.
#[derive(Clone)]
pub struct TestUser {
    pub name: String,
    pub home: PathBuf,
}

impl TestUser {
    /// Looks the user up.
    pub fn find(name: &str) -> anyhow::Result<Self> {
        let output = Command::new("getent").args(["passwd", name]).output().context("running getent")?;
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some(home) = line.split(':').nth(5) else { bail!("user {name}: unknown (hint: --user)") };
        Ok(Self { name: name.into(), home: home.into() })
    }

    /// `program`, to be run by the user, in their home, with nothing of our environment.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            &self.name,
            "--regid",
            &self.name,
            "--init-groups",
            "--reset-env",
            "--",
            program,
        ]);
        command.current_dir(&self.home);
        command
    }
}

/// The user that a command runs as.
#[derive(Clone, Copy)]
pub enum RunAs<'a> {
    Root,
    User(&'a TestUser),
}

impl RunAs<'_> {
    pub fn command(self, program: &str) -> Command {
        match self {
            RunAs::Root => Command::new(program),
            RunAs::User(user) => user.command(program),
        }
    }

    /// What a bash script prints; a failure of it is ours.
    pub fn bash(self, script: &str) -> anyhow::Result<String> {
        output(self.command("bash").args(["-c", script]), script)
    }
}

/// Stdout of a command that has to succeed.
pub fn output(command: &mut Command, what: &str) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {what}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what}: {}\n{}", output.status, stderr.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Fails with what to install where a program is missing.
pub fn require(programs: &[&str]) -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there =
        |name: &str| name.contains('/') || std::env::split_paths(&path).any(|dir| dir.join(name).exists());
    let missing: Vec<_> = programs.iter().copied().filter(|name| !there(name)).collect();
    ensure!(missing.is_empty(), "not installed: {} (hint: make deps)", missing.join(", "));
    Ok(())
}

/// A directory of the user's own, removed at the end.
pub struct UserDir {
    pub path: PathBuf,
    user: TestUser,
}

impl UserDir {
    pub fn new(user: &TestUser, name: &str) -> anyhow::Result<Self> {
        let path = user.home.join(name);
        ensure!(!path.exists(), "{}: is there already (hint: remove it)", path.display());
        output(user.command("mkdir").arg(&path), "mkdir")?;
        Ok(Self { path, user: user.clone() })
    }

    /// A directory of the user's below this one.
    pub fn make(&self, directory: &Path) -> anyhow::Result<()> {
        output(self.user.command("mkdir").arg(directory), "mkdir").map(drop)
    }

    pub fn write(&self, name: &str, content: &str) -> anyhow::Result<()> {
        let path = self.path.join(name);
        std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        output(Command::new("chown").arg(&self.user.name).arg(&path), "chown").map(drop)
    }
}

impl Drop for UserDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// For use at the end, where there is nobody left to hand an error to.
pub fn remove(path: &Path) {
    if let Err(e) = std::fs::remove_dir_all(path) {
        eprintln!("bench: {} not removed: {e}", path.display());
    }
}
