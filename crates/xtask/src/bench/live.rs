//! A running environment for a benchmark to work in.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::Setting;
use super::people::{self, TestUser};

/// An environment of the user, kept alive by a sleeping session, removed at the end.
pub struct RunningEnvironment {
    pub name: &'static str,
    skiff: String,
    user: TestUser,
    session: Child,
}

impl RunningEnvironment {
    /// Makes it and waits until it runs.
    pub fn start(setting: &Setting, name: &'static str) -> anyhow::Result<Self> {
        let Setting { skiff, user, .. } = setting;
        people::output(user.command(skiff).args(["env", "create", name]), "skiff env create")?;
        let session = user
            .command(skiff)
            .args(["env", "exec", name, "--", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .context("skiff env exec")?;
        let mut live = Self { name, skiff: skiff.clone(), user: user.clone(), session };
        live.wait()?;
        Ok(live)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(10) {
            if let Some(status) = self.session.try_wait().context("waiting for skiff env exec")? {
                bail!("skiff env exec {} -- sleep infinity: {status}", self.name);
            }
            let list = people::output(self.user.command(&self.skiff).args(["ps", "--json"]), "skiff ps")?;
            if list.contains(&format!("\"{}\"", self.name)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("environment {}: not in `skiff ps` 10 s after its start", self.name)
    }

    /// The words that run a command in it, for a shell.
    pub fn exec_words(&self) -> String {
        format!("{} env exec {} --", self.skiff, self.name)
    }

    /// Runs a bash script in it.
    pub fn bash(&self, script: &str) -> anyhow::Result<String> {
        let mut command = self.user.command(&self.skiff);
        people::output(command.args(["env", "exec", self.name, "--", "bash", "-c", script]), script)
    }
}

impl Drop for RunningEnvironment {
    fn drop(&mut self) {
        let removal: &mut Command = &mut self.user.command(&self.skiff);
        if let Err(e) = people::output(removal.args(["env", "rm", "--force", self.name]), "skiff env rm") {
            eprintln!("bench: {e:#}");
        }
        if let Err(e) = self.session.kill().and_then(|()| self.session.wait()) {
            eprintln!("bench: session of {}: {e}", self.name);
        }
    }
}
