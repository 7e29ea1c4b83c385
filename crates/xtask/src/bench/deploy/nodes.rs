//! What the nodes are like: with image stores, and with links of a limited speed if asked for.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::ways;
use crate::bench::people::{self, RunAs};

/// The administrator's word in the bed.
const CONFIG: &str = "/etc/skiff/conf.d/bench-deploy.toml";

/// What is changed on the nodes, as long as this is there.
pub struct Nodes {
    limited: Vec<String>,
}

impl Nodes {
    /// Gives each of so many nodes an image store and, if asked for, a link of so many megabits in both directions.
    pub fn prepare(nodes: usize, fan_out: &str, layers: &str, link: Option<u32>) -> anyhow::Result<Self> {
        let text = format!("[slurm]\nfan_out = \"{fan_out}\"\nlayers = \"{layers}\"\n");
        std::fs::create_dir_all(Path::new(CONFIG).parent().unwrap_or(Path::new("/")))
            .context("making conf.d")?;
        std::fs::write(CONFIG, text).with_context(|| format!("writing {CONFIG}"))?;
        let mut prepared = Self { limited: vec![] };
        for node in ways::names(nodes) {
            let store = "install -d -m 755 /var/lib/skiff && install -d -m 755 -o daemon -g daemon /var/lib/skiff/store";
            people::output(Command::new("on").args([&node, "sh", "-c", store]), store)?;
            if let Some(megabits) = link {
                let limit = format!("root tbf rate {megabits}mbit burst 256k latency 50ms");
                RunAs::Root.bash(&format!(
                    "tc qdisc add dev v-{node} {limit} && on {node} tc qdisc add dev e-{node} {limit}"
                ))?;
                prepared.limited.push(node);
            }
        }
        Ok(prepared)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &self.limited {
            let script = format!("tc qdisc del dev v-{node} root; on {node} tc qdisc del dev e-{node} root");
            if let Err(e) = RunAs::Root.bash(&script) {
                eprintln!("bench: the link of {node} stays slow: {e}");
            }
        }
        if let Err(e) = std::fs::remove_file(CONFIG) {
            eprintln!("bench: {CONFIG}: {e}");
        }
    }
}
