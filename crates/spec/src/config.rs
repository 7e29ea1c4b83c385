//! Configuration: what the site and the user have written down, merged by precedence.
//!
//! Later texts win over earlier ones, table by table; what the administrator lists in `lock` (dotted names) is taken from
//! his texts alone.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// The administrator's main file; `conf.d/*.toml` beside it follows in order of names.
pub const SITE_FILE: &str = "/etc/skiff/config.toml";
/// The directory of further files of the administrator.
pub const SITE_DIR: &str = "/etc/skiff/conf.d";

/// The merged configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where environments live; `%u` is the user's name, `%U` his uid. Must be on a local file system. Empty:
    /// `$XDG_DATA_HOME/skiff`, else `~/.local/share/skiff`.
    pub state: String,
    /// Where snapshots for jobs go; must be on a file system all nodes share. Empty: `depot` beside the home's
    /// `.local/share/skiff`.
    pub depot: String,
    /// Mounted in every environment if they exist: `SOURCE[:TARGET[:ro]]`.
    pub mounts: Vec<String>,
    /// Parts of the host's `/run` and of other service directories that programs inside need, if they exist.
    pub services: Vec<String>,
    /// Dotted names that the user's own configuration cannot change.
    pub lock: Vec<String>,
    /// The way to the helper; `none` for the rootless way.
    pub helper: String,
    /// Throw-away environments.
    pub run: Run,
    /// The host's root.
    pub base: BaseConfig,
    /// Jobs.
    pub slurm: Slurm,
    /// Clusters over several hosts.
    pub cluster: Cluster,
    /// Moving instances.
    pub migrate: Migrate,
}

/// Clusters over several hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Seconds without a word after which a host is lost.
    pub silence_seconds: u32,
}

/// Moving instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Migrate {
    /// The port at which the machines' agents are asked to take one; 0: there are no agents, and it goes by ssh.
    pub port: u16,
}

/// Throw-away environments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// The limit of a throw-away upper in memory, as tmpfs takes it.
    pub memory: String,
    /// Seconds an environment stays when its last session has gone.
    pub linger: u64,
}

/// What to do where a node's base is another one than the environment was built on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mismatch {
    /// Say so on stderr and go on.
    #[default]
    Warn,
    /// End the job.
    Refuse,
    /// Nothing.
    Ignore,
}

/// The host's root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BaseConfig {
    /// See [`Mismatch`].
    pub mismatch: Mismatch,
}

/// Jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// Commands that inside an environment run with the user's own identity.
    pub commands: Vec<String>,
    /// `SlurmdSpoolDir`: batch scripts lie there. Empty: read from Slurm's configuration.
    pub spool: String,
    /// Where nodes keep unpacked snapshots: a directory per user below it.
    pub cache: String,
    /// How many bytes of them each user may keep on a node.
    pub cache_bytes: u64,
    /// Seconds a node may take to fetch a snapshot; 570 at most count, as Slurm itself waits ten minutes.
    pub fetch_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state: String::new(),
            depot: String::new(),
            mounts: vec![],
            services: [
                "/etc/slurm",
                "/run/munge",
                "/run/slurm",
                "/run/slurmctld",
                "/run/nscd",
                "/run/nslcd",
                "/var/lib/sss/pipes",
                "/run/systemd/resolve",
                "/run/dbus/system_bus_socket",
            ]
            .map(String::from)
            .to_vec(),
            lock: vec![],
            helper: String::new(),
            run: Run::default(),
            base: BaseConfig::default(),
            slurm: Slurm::default(),
            cluster: Cluster::default(),
            migrate: Migrate::default(),
        }
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self { silence_seconds: 30 }
    }
}

impl Default for Run {
    fn default() -> Self {
        Self { memory: "50%".into(), linger: 10 }
    }
}

impl Default for Slurm {
    fn default() -> Self {
        let commands = "srun sbatch salloc squeue scancel sinfo sacct scontrol sstat sprio sshare sreport sacctmgr sbcast \
                        sattach strigger scrontab sdiag";
        Self {
            commands: commands.split_whitespace().map(String::from).collect(),
            spool: String::new(),
            cache: "/var/cache/skiff".into(),
            cache_bytes: 20 << 30,
            fetch_seconds: 300,
        }
    }
}

impl Slurm {
    /// Where the host's commands that shims stand for may be.
    #[must_use]
    pub fn shims(&self) -> Vec<PathBuf> {
        self.commands
            .iter()
            .flat_map(|command| match command.starts_with('/') {
                true => vec![PathBuf::from(command)],
                false => {
                    ["/usr/bin", "/usr/local/bin"].iter().map(|dir| Path::new(dir).join(command)).collect()
                }
            })
            .collect()
    }
}

impl Config {
    /// As a file would hold it.
    ///
    /// # Errors
    /// None in practice: all fields are plain.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

/// Why a configuration was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A text is no TOML.
    #[error("{origin}: {error}")]
    Syntax {
        /// The file.
        origin: String,
        /// Where and why.
        error: Box<toml::de::Error>,
    },
    /// The whole has something that Skiff does not know, or of another type.
    #[error("configuration ({origins}): {error}")]
    Content {
        /// The files it was merged from.
        origins: String,
        /// Which key and why.
        error: Box<toml::de::Error>,
    },
}

/// One text of configuration.
pub struct Text {
    /// The file, for messages.
    pub origin: String,
    /// Its content.
    pub text: String,
    /// Whether the administrator wrote it.
    pub site: bool,
}

/// Merges texts, the later the stronger.
///
/// # Errors
/// Names the file and the place.
pub fn merge(texts: &[Text]) -> Result<Config, ConfigError> {
    let mut whole = Table::new();
    let mut locked: Vec<String> = vec![];
    for text in texts {
        let mut table: Table = text
            .text
            .parse()
            .map_err(|error| ConfigError::Syntax { origin: text.origin.clone(), error: Box::new(error) })?;
        if text.site {
            if let Some(Value::Array(names)) = table.get("lock") {
                locked.extend(names.iter().filter_map(|n| n.as_str().map(String::from)));
            }
        } else {
            table.remove("lock");
            for name in &locked {
                remove(&mut table, name);
            }
        }
        overlay(&mut whole, table);
    }
    let origins = || texts.iter().map(|t| t.origin.as_str()).collect::<Vec<_>>().join(", ");
    let mut config: Config = Value::Table(whole)
        .try_into()
        .map_err(|error| ConfigError::Content { origins: origins(), error: Box::new(error) })?;
    config.lock = locked;
    Ok(config)
}

fn overlay(below: &mut Table, above: Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Table(b)), Value::Table(a)) => overlay(b, a),
            (_, value) => {
                below.insert(key, value);
            }
        }
    }
}

fn remove(table: &mut Table, dotted: &str) {
    match dotted.split_once('.') {
        None => {
            table.remove(dotted);
        }
        Some((head, rest)) => {
            if let Some(Value::Table(inner)) = table.get_mut(head) {
                remove(inner, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[(&str, bool)]) -> Vec<Text> {
        list.iter()
            .enumerate()
            .map(|(i, (text, site))| Text { origin: format!("t{i}"), text: (*text).into(), site: *site })
            .collect()
    }

    #[test]
    fn later_wins_and_locks_hold() {
        let c = merge(&texts(&[
            ("mounts=['/a']\nlock=['base.mismatch']\n[base]\nmismatch='refuse'\n[run]\nmemory='1G'", true),
            ("mounts=['/b']\nlock=[]\n[base]\nmismatch='ignore'\n[run]\nlinger=7", false),
        ]))
        .expect("both are sound");
        assert_eq!(c.mounts, ["/b"]);
        assert_eq!(c.base.mismatch, Mismatch::Refuse);
        assert_eq!((c.run.memory.as_str(), c.run.linger), ("1G", 7));
    }

    #[test]
    fn nothing_written_is_the_default() {
        assert_eq!(merge(&[]).expect("nothing is sound"), Config::default());
    }

    #[test]
    fn unknown_keys_are_named() {
        let e = merge(&texts(&[("monuts=[]", true)])).expect_err("a typing error").to_string();
        assert!(e.contains("monuts") && e.contains("t0"), "{e}");
    }

    /// The sample that is installed, as if the administrator had taken away every `# ` before a setting.
    #[test]
    fn every_line_of_the_sample_is_a_setting_and_the_default() {
        let sample = include_str!("../../../packaging/config.toml");
        let mut text = String::new();
        let mut open = false;
        for line in sample.lines() {
            let Some(bare) = line.strip_prefix("# ").or_else(|| line.strip_prefix('[').map(|_| line)) else {
                continue;
            };
            let setting = bare
                .split_once(" = ")
                .is_some_and(|(key, _)| key.chars().all(|c| c == '_' || c.is_ascii_lowercase()));
            if open || setting || bare.starts_with('[') {
                open = (open || bare.ends_with('[')) && bare != "]";
                text += &format!("{bare}\n");
            }
        }
        let config =
            merge(&[Text { origin: "sample".into(), text: text.clone(), site: true }]).expect("it parses");
        assert_eq!(config, Config::default());
        // And it has them all.
        let keys = |table: Table| {
            table
                .into_iter()
                .flat_map(|(key, value)| match value {
                    Value::Table(inner) => inner.into_iter().map(|(k, _)| format!("{key}.{k}")).collect(),
                    _ => vec![key],
                })
                .collect::<std::collections::BTreeSet<_>>()
        };
        let written: Table = text.parse().expect("it parses");
        let all = Config::default().to_toml().expect("plain").parse().expect("our own");
        assert_eq!(keys(written), keys(all));
    }
}
