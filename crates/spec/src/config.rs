//! Configuration: what the site and the user have written down, merged by precedence.
//!
//! Later texts win over earlier ones, table by table. What decides about privilege, about what runs outside of an environment or about a
//! node's share ([`SITE_ONLY`]), and what the administrator lists in `lock` (dotted names), is taken from the administrator's texts alone.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

mod fan_out;
mod job_tmp;
mod merge;

pub use fan_out::{FanOut, PortRange};
pub use job_tmp::{JobTmp, TmpQuota};
pub use merge::{ConfigError, ConfigText, Ignored, Merged, merge, place};

/// The administrator's main file; `conf.d/*.toml` beside it follows in order of names.
pub const SITE_FILE: &str = "/etc/skiff/config.toml";
/// The directory of further files of the administrator.
pub const SITE_DIR: &str = "/etc/skiff/conf.d";

/// The helper's path that means: without it. It gives up privilege, so that users may say it, too, unless the site locks `helper`.
pub const NO_HELPER: &str = "none";

/// What only the administrator's texts can set (dotted names), and why.
pub const SITE_ONLY: [(&str, &str); 10] = [
    // `skiff login` runs it on the host for users who are to land in an environment.
    ("helper", "it runs on the host"),
    // The supervisor runs them outside of an environment.
    ("slurm.commands", "they run outside of environments"),
    ("inside.commands", "they run outside of environments"),
    // What root's prolog uses, and a user's share of a node's disk.
    ("slurm.spool", "root's prolog uses it"),
    ("slurm.cache", "root's prolog uses it"),
    ("slurm.cache_bytes", "it limits a user's share of the disk"),
    ("slurm.tmp", "root's prolog uses it"),
    ("slurm.tmp_quota", "it limits a job's share of the disk"),
    ("slurm.commit_seconds", "root's epilog waits so long"),
    ("slurm.metrics", "root writes there"),
];

/// The merged configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where environments live; `%u` is the user's name, `%U` their uid. Must be on a local file system. Empty:
    /// `$XDG_DATA_HOME/skiff`, else `~/.local/share/skiff`.
    pub state: String,
    /// Where snapshots for jobs go; must be on a file system all nodes share. Empty: `depot` beside the home's
    /// `.local/share/skiff`.
    pub depot: String,
    /// Days for which the depot keeps a snapshot that nothing needs and nobody uses.
    pub depot_keep_days: u64,
    /// How many bytes the depot may take up; beyond that, what nothing needs goes earlier. 0: as many as there is room for.
    pub depot_bytes: u64,
    /// Mounted in every environment if they exist: `SOURCE[:TARGET[:ro]]`.
    pub mounts: Vec<String>,
    /// Directories with descriptions of devices (CDI); of two that describe one device, that in the later directory counts.
    pub cdi_dirs: Vec<String>,
    /// Directories with the site's modules.
    pub module_dirs: Vec<String>,
    /// Parts of the host's `/run` and of other service directories that programs inside need, if they exist.
    pub services: Vec<String>,
    /// Dotted names that the user's own configuration cannot change.
    pub lock: Vec<String>,
    /// The path of the helper; [`NO_HELPER`] for the rootless way.
    pub helper: String,
    /// Throw-away environments.
    pub run: Run,
    /// The host's root.
    pub base: BaseConfig,
    /// Histories of environments.
    pub history: HistoryConfig,
    /// Jobs.
    pub slurm: Slurm,
    /// Skiff called inside an environment.
    pub inside: InsideConfig,
    /// Clusters over several hosts.
    pub cluster: Cluster,
    /// Moving instances.
    pub migrate: Migrate,
    /// Saving instances.
    pub checkpoint: CheckpointConfig,
}

/// Skiff called inside an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InsideConfig {
    /// Skiff's own commands that the environment's supervisor runs outside for those who call them inside.
    pub commands: Vec<String>,
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

/// Saving instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Hours that pass on average until a node fails, or what runs on it is lost for another reason.
    pub mtbf_hours: u32,
    /// What `restore` does with files outside of an instance that have changed since: `PATH:WAY`, for what is at or below the path.
    pub files: Vec<String>,
    /// Of files outside that are open to be written anywhere, up to this size each, a checkpoint has a copy, in bytes.
    pub copied_file_bytes: u64,
    /// Whether a save reads only memory that was written to since the last one, where the kernel can tell.
    pub track: bool,
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

/// What a node makes of a snapshot's layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeLayers {
    /// A file each in the image store, which the helper mounts; where that cannot be, as the next.
    #[default]
    Mounted,
    /// A directory each in the user's cache.
    Unpacked,
}

/// Which tasks of jobs get the system call filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskFilter {
    /// Tasks that it keeps from something.
    #[default]
    Auto,
    /// All.
    Always,
}

/// The host's root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BaseConfig {
    /// See [`Mismatch`].
    pub mismatch: Mismatch,
}

/// Histories of environments: for how long snapshots without a tag are kept. The newest of each environment, and those with tags, always are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryConfig {
    /// How many of each environment.
    pub snapshots: u32,
    /// For how many days; 0: for as long as there are not too many.
    pub days: u32,
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
    /// How many bytes of snapshots each user may keep on a node.
    pub cache_bytes: u64,
    /// In which form nodes keep them.
    pub layers: NodeLayers,
    /// How snapshots reach a job's nodes.
    pub fan_out: FanOut,
    /// See [`TaskFilter`].
    pub filter: TaskFilter,
    /// Ports by which a job's relays find each other.
    pub relay_ports: PortRange,
    /// Seconds a node may take to fetch a snapshot; 570 at most count, as Slurm itself waits ten minutes.
    pub fetch_seconds: u64,
    /// How often a batch job whose root cannot be made on its node goes back into the queue before it fails.
    pub requeue: u32,
    /// Seconds a node may take to keep what a job has changed; 240 at most count, as Slurm's controller waits for the epilog.
    pub commit_seconds: u64,
    /// Where the `/tmp` of a job is.
    pub tmp: JobTmp,
    /// How much a job may write to its directory there, if the file system has project quotas.
    pub tmp_quota: TmpQuota,
    /// Where a node counts, for node_exporter, what jobs have needed. Empty: nowhere.
    pub metrics: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state: String::new(),
            depot: String::new(),
            depot_keep_days: 7,
            depot_bytes: 0,
            mounts: vec![],
            cdi_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
            module_dirs: vec!["/etc/skiff/modules.d".into()],
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
            history: HistoryConfig::default(),
            slurm: Slurm::default(),
            inside: InsideConfig::default(),
            cluster: Cluster::default(),
            migrate: Migrate::default(),
            checkpoint: CheckpointConfig::default(),
        }
    }
}

impl Default for InsideConfig {
    fn default() -> Self {
        let commands = "run shell env instance checkpoint migrate drain ps exec logs stop kill rm cp commit build app cluster cdi module edf net pull push import export images tag history rmi \
                        inspect login logout store depot doctor sweep config complete";
        Self { commands: commands.split_whitespace().map(String::from).collect() }
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self { silence_seconds: 30 }
    }
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { mtbf_hours: 720, files: vec![], copied_file_bytes: 64 << 20, track: true }
    }
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self { snapshots: 100, days: 90 }
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
            layers: NodeLayers::Mounted,
            fan_out: FanOut::Auto,
            filter: TaskFilter::Auto,
            relay_ports: PortRange::default(),
            fetch_seconds: 300,
            requeue: 0,
            commit_seconds: 120,
            tmp: JobTmp::Disk,
            tmp_quota: TmpQuota::default(),
            metrics: String::new(),
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
    /// Whether only the site can set what a dotted name stands for.
    #[must_use]
    pub fn is_locked(&self, key: &str) -> bool {
        self.lock.iter().any(|name| name == key)
    }

    /// As a file would hold it.
    ///
    /// # Errors
    /// None in practice: all fields are plain.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

#[cfg(test)]
mod tests {
    use toml::{Table, Value};

    use super::*;

    fn texts(list: &[(&str, bool)]) -> Vec<ConfigText> {
        list.iter()
            .enumerate()
            .map(|(i, (text, site))| ConfigText {
                origin: format!("t{i}"),
                text: (*text).into(),
                site: *site,
            })
            .collect()
    }

    #[test]
    fn later_wins_and_locks_hold() {
        let c = merge(&texts(&[
            ("mounts=['/a']\nlock=['base.mismatch']\n[base]\nmismatch='refuse'\n[run]\nmemory='1G'", true),
            ("mounts=['/b']\nlock=[]\n[base]\nmismatch='ignore'\n[run]\nlinger=7", false),
        ]))
        .expect("both are sound")
        .config;
        assert_eq!(c.mounts, ["/b"]);
        assert_eq!(c.base.mismatch, Mismatch::Refuse);
        assert_eq!((c.run.memory.as_str(), c.run.linger), ("1G", 7));
    }

    #[test]
    fn nothing_written_is_the_default() {
        assert_eq!(merge(&[]).expect("nothing is sound").config, Config::default());
    }

    #[test]
    fn unknown_keys_are_named() {
        let e = merge(&texts(&[("monuts=[]", true)])).expect_err("a typing error").to_string();
        assert!(e.contains("monuts") && e.contains("t0"), "{e}");
    }

    #[test]
    fn an_error_names_file_line_and_column() {
        let sound = ("mounts = []", true);
        for (text, place, word) in [
            ("mounts = [", "t1:1:11: ", "array"),
            ("\n\n  linger = 1", "t1:3:3: ", "linger"),
            ("[run]\nlinger = -1", "t1:2:10: ", "-1"),
            ("[run]\nlinger = 'ü'\nmemory = 1", "t1:2:10: ", "string"),
            ("# ü\nmounts = '/shared'", "t1:2:10: ", "string"),
            ("[base]\nmismatch = 'perhaps'", "t1:2:12: ", "perhaps"),
            ("run = 1", "t1:1:7: ", "struct Run"),
            ("a = 1\na = 2", "t1:2:1: ", "duplicate"),
        ] {
            for site in [true, false] {
                let e = merge(&texts(&[sound, (text, site)])).expect_err(text);
                assert!(e.to_string().starts_with(place) && e.to_string().contains(word), "{text}: {e}");
                assert!(!e.to_string().contains('\n'), "{e}");
                assert_eq!(e.site, site, "{text}");
            }
        }
    }

    #[test]
    fn a_place_for_tmp_that_makes_no_sense_is_an_error() {
        let e = merge(&texts(&[("[slurm]\ntmp = 'ram'", true)])).expect_err("no place").to_string();
        assert!(e.starts_with("t0:2:7: must be `disk`, `memory` or an absolute path"), "{e}");
    }

    #[test]
    fn what_decides_about_privilege_is_the_sites() {
        let own = "helper = '/home/mallory/helper'\nmounts = ['/x']\n[slurm]\ncommands = ['sh']\nspool = '/'\ncache='/tmp'\n\
                   cache_bytes = 1\nfetch_seconds = 7\ntmp = 'memory'\ntmp_quota = '1T'\ncommit_seconds = 9\nmetrics = '/'\n[inside]\ncommands = ['run']";
        let merged = merge(&texts(&[("helper='/site'", true), (own, false)])).expect("it is ignored");
        let want = Config {
            helper: "/site".into(),
            mounts: vec!["/x".into()],
            slurm: Slurm { fetch_seconds: 7, ..Slurm::default() },
            ..Config::default()
        };
        assert_eq!(merged.config, want);
        let lines: Vec<_> = merged.ignored.iter().map(|i| (i.key.as_str(), i.line)).collect();
        let names = [
            "helper",
            "slurm.commands",
            "inside.commands",
            "slurm.spool",
            "slurm.cache",
            "slurm.cache_bytes",
            "slurm.tmp",
            "slurm.tmp_quota",
            "slurm.commit_seconds",
            "slurm.metrics",
        ];
        assert_eq!(lines, names.into_iter().zip([1, 4, 14, 5, 6, 7, 9, 10, 11, 12]).collect::<Vec<_>>());
        assert!(
            merged.ignored[0].to_string().starts_with("t1:1: `helper` is ignored: "),
            "{:?}",
            merged.ignored
        );
        // In whatever form of TOML, of whatever type, and whichever text comes last.
        for own in ["slurm.commands = 5", "slurm = { commands = ['sh'] }", "\"slurm\".'commands' = ['sh']"] {
            for list in [[(own, false), ("", true)], [("", true), (own, false)]] {
                let merged = merge(&texts(&list)).expect(own);
                assert_eq!((merged.config, merged.ignored.len()), (Config::default(), 1), "{own}");
            }
        }
    }

    #[test]
    fn users_may_do_without_the_helper_unless_that_is_locked() {
        let helper = |site: &str, own: &str| {
            let merged = merge(&texts(&[(site, true), (own, false)])).expect("sound");
            (merged.config.helper, merged.ignored.len())
        };
        assert_eq!(helper("", "helper = 'none'"), ("none".into(), 0));
        assert_eq!(helper("lock = ['helper']", "helper = 'none'"), (String::new(), 1));
        assert_eq!(helper("helper = 'none'", "helper = ''"), ("none".into(), 1));
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
        let config = merge(&[ConfigText { origin: "sample".into(), text: text.clone(), site: true }])
            .expect("it parses")
            .config;
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
