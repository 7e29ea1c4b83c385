//! Debian's docker-registry, over a storage that has the image.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bench::people::RunAs;

/// A running registry; ended when dropped.
pub struct Registry {
    process: Child,
    storage: PathBuf,
    /// What the image is called in it.
    pub reference: String,
}

impl Registry {
    /// Over `DIR/registry`.
    pub fn start(dir: &Path) -> anyhow::Result<Self> {
        let storage = std::path::absolute(dir.join("registry"))?;
        let address = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).context("a free port")?;
        let config = dir.join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nhttp: {{addr: \"{address}\"}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}}}\n",
            storage.display()
        );
        std::fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "docker-registry", "serve"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("running docker-registry")?;
        let mut registry = Self { process, storage, reference: format!("{address}/big:latest") };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = registry.process.try_wait().context("waiting for docker-registry")? {
                bail!("docker-registry: {status}");
            }
            if began.elapsed() > Duration::from_secs(10) {
                bail!("docker-registry: does not listen on {address} 10 s after its start");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(registry)
    }

    /// Has the kernel read all that it will send. What was pulled before may have driven it out of memory, and a disk that is read from
    /// beside is not what is measured.
    pub fn warm(&self) -> anyhow::Result<()> {
        let script = format!("find '{}' -name data -exec cat {{}} + >/dev/null", self.storage.display());
        RunAs::Root.bash(&script).map(drop)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Err(e) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("bench: docker-registry: {e}");
        }
    }
}
