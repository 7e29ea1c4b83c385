//! What there is in the bed, counted by kinds; what is there afterwards and was not before has leaked.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::kill::step_of;

/// Kilobytes that a daemon may grow: its allocator keeps what it has had once.
const GROWTH: i64 = 32 << 10;
/// Descriptors that a daemon may have more for a moment: connections.
const CONNECTIONS: i64 = 4;
/// Images and layers that stay mounted on a node for whoever needs them next: the helper keeps no more of them.
const KEPT_MOUNTED: i64 = 200;
const IMAGES: &str = "/run/skiff/images/";
/// The bed's users have these ids, and subordinate ones above; `nobody` is a daemon's.
const FIRST_USER: u32 = 1000;
const NOBODY: u32 = 65534;

/// Things of one kind at one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    count: i64,
    /// What they are, to be shown where there are too many.
    names: Vec<String>,
}

/// All kinds, by place and name.
#[derive(Debug, Default)]
pub struct Census(BTreeMap<String, Amount>);

impl Census {
    pub fn take() -> anyhow::Result<Self> {
        let mut census = Self::default();
        let (mut places, mut daemons) = (vec![("ctl".to_owned(), 1)], vec![]);
        let bed = std::env::var_os("SKIFF_TESTBED_DIR").map(PathBuf::from).context("SKIFF_TESTBED_DIR")?;
        for node in std::env::var("SKIFF_TESTBED_NODES").context("SKIFF_TESTBED_NODES")?.split_whitespace() {
            let pid = fs::read_to_string(bed.join("nodes").join(node).join("pid"))?;
            places.push((node.to_owned(), pid.trim().parse()?));
        }
        census.processes(&places, &mut daemons);
        for (place, pid) in &places {
            census.place(place, *pid);
        }
        census.daemons(&daemons);
        census.depots();
        Ok(census)
    }

    fn add(&mut self, kind: String, names: Vec<String>) {
        self.0.insert(kind, Amount { count: names.len() as i64, names });
    }

    /// Processes of users and of jobs, by the node that they are on. Daemons are put aside.
    fn processes(&mut self, places: &[(String, u32)], daemons: &mut Vec<(String, u32)>) {
        let spaces: BTreeMap<PathBuf, &str> = places
            .iter()
            .filter_map(|(place, pid)| {
                Some((fs::read_link(format!("/proc/{pid}/ns/uts")).ok()?, place.as_str()))
            })
            .collect();
        let mut found: BTreeMap<&str, Vec<String>> =
            places.iter().map(|(place, _)| (place.as_str(), vec![])).collect();
        for process in processes() {
            let space = fs::read_link(format!("/proc/{}/ns/uts", process.pid)).ok();
            // One in a network of its own may have another name for the host.
            let place = space.and_then(|space| spaces.get(&space).copied()).unwrap_or("ctl");
            if ["slurmd", "slurmctld", "munged"].contains(&process.name.as_str()) {
                daemons.push((format!("{place}: {}", process.name), process.pid));
            } else if process.is_of_a_user() || step_of(&process.command, &process.name).is_some() {
                let shown = process.command.replace('\0', " ");
                found.entry(place).or_default().push(format!("{} {shown}({})", process.pid, process.name));
            }
        }
        for (place, names) in found {
            self.add(format!("{place}: processes of users and jobs"), names);
        }
    }

    fn place(&mut self, place: &str, pid: u32) {
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_else(|_| String::new());
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned);
        let (kept, others) = points.partition(|point| point.starts_with(IMAGES));
        self.add(format!("{place}: mounts"), others);
        self.add(format!("{place}: images kept mounted"), kept);
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        for (what, directory, deep) in [
            ("files in /run/skiff", "run/skiff", 6),
            ("job directories", "var/cache/skiff/jobs", 2),
            ("files of users in /tmp and /dev/shm", "tmp", 2),
            ("files of users in /run", "run/user", 4),
            ("unfinished files of the store", "var/lib/skiff/store/tmp", 1),
        ] {
            let mut names = vec![];
            list(&root.join(directory), deep, &mut names);
            // The places of helpers, one file for each that a user may have at once, stay; and what the host has, which others may change.
            let stay = ["/run/skiff/callers/", "/run/skiff/base/layers/", IMAGES];
            names.retain(|name| !stay.iter().any(|part| name.contains(part)));
            if directory == "tmp" {
                list(&root.join("dev/shm"), 2, &mut names);
                names.retain(|name| fs::symlink_metadata(name).is_ok_and(|file| is_users(file.uid())));
            }
            self.add(format!("{place}: {what}"), names);
        }
        let mut names = vec![];
        list(&root.join("var/cache/skiff"), 3, &mut names);
        names.retain(|name| is_unfinished(name));
        self.add(format!("{place}: unfinished files of the cache"), names);
    }

    /// Locks of processes in the bed, and what the long-living ones hold.
    fn daemons(&mut self, daemons: &[(String, u32)]) {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_else(|_| String::new());
        // What is outside of the bed has no number here.
        let of_bed = |line: &&str| {
            line.split_whitespace().nth(4).is_some_and(|pid| pid.parse::<i64>().is_ok_and(|pid| pid > 0))
        };
        self.add("locks".into(), locks.lines().filter(of_bed).map(str::to_owned).collect());
        for (name, pid) in daemons {
            let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
            let count = Amount { count: descriptors as i64, names: vec![] };
            self.0.insert(format!("{name}: descriptors"), count);
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_else(|_| String::new());
            let memory = status
                .lines()
                .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
            self.0
                .insert(format!("{name}: memory, kB"), Amount { count: memory.unwrap_or(0), names: vec![] });
        }
    }

    /// What is half made in the users' depots, and beside their environments.
    fn depots(&mut self) {
        for user in crate::testbed::USERS {
            let mut names = vec![];
            list(Path::new(&format!("/home/{user}/.local/share/skiff")), 5, &mut names);
            names.retain(|name| is_unfinished(name));
            self.add(format!("{user}: unfinished files"), names);
        }
    }

    /// Whether nothing is there that was not there `before`.
    pub fn is_within(&self, before: &Self) -> bool {
        self.0.iter().all(|(kind, now)| !is_leak(kind, before.count(kind), now.count))
    }

    pub fn is_same(&self, other: &Self) -> bool {
        self.is_within(other) && other.is_within(self)
    }

    fn count(&self, kind: &str) -> i64 {
        self.0.get(kind).map_or(0, |amount| amount.count)
    }
}

/// Prints all three; how many kinds of things have leaked, which not even a sweep has removed.
pub fn compare(before: &Census, after: &Census, swept: &Census) -> usize {
    println!("\n{:44} {:>8} {:>8} {:>8}", "what there is", "before", "after", "swept");
    let mut leaks = 0;
    for (kind, now) in &after.0 {
        let then = before.0.get(kind).cloned().unwrap_or_else(Amount::default);
        let last = swept.count(kind);
        let remark = match [now.count, last].map(|count| is_leak(kind, then.count, count)) {
            [_, true] => "  leaked",
            [true, false] => "  removed by a sweep",
            [false, false] => "",
        };
        println!("{kind:44} {:8} {:8} {last:8}{remark}", then.count, now.count);
        leaks += usize::from(remark.ends_with("leaked"));
        if !remark.is_empty() {
            now.names
                .iter()
                .filter(|name| !then.names.contains(name))
                .take(20)
                .for_each(|name| println!("    {name}"));
        }
    }
    leaks
}

fn is_users(uid: u32) -> bool {
    uid >= FIRST_USER && uid != NOBODY
}

fn is_leak(kind: &str, before: i64, after: i64) -> bool {
    let more = match kind {
        // No code of Skiff's runs in slurmctld. It keeps jobs for minutes after their end: 2,100 took 34 MB on a bed where none used Skiff.
        "ctl: slurmctld: memory, kB" => i64::MAX - before,
        _ if kind.ends_with("memory, kB") => GROWTH,
        _ if kind.ends_with("descriptors") => CONNECTIONS,
        _ if kind.ends_with("images kept mounted") => KEPT_MOUNTED - before,
        _ => 0,
    };
    after > before + more
}

/// Names of files that are not finished, or on their way out.
fn is_unfinished(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    [".new", ".gone-", ".trash.", ".spill.", ".skiff-bcast."].iter().any(|begin| name.starts_with(begin))
}

/// Everything below a directory, so many levels deep; symbolic links are not followed.
fn list(directory: &Path, deep: usize, into: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        into.push(entry.path().display().to_string());
        if deep > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), deep - 1, into);
        }
    }
}

struct Process {
    pid: u32,
    name: String,
    command: String,
    uid: u32,
}

impl Process {
    fn is_of_a_user(&self) -> bool {
        is_users(self.uid)
    }
}

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return vec![] };
    let process = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let uid = field("Uid:")?.split_whitespace().next()?.parse().ok()?;
        let command = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_else(|_| String::new());
        Some(Process { pid, name: field("Name:")?.to_owned(), command, uid })
    };
    entries.flatten().filter_map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_growth_that_no_daemon_has_by_itself_is_a_leak() {
        for (kind, before, after, leak) in [
            ("n1: mounts", 7, 7, false),
            ("n1: mounts", 7, 6, false),
            ("n1: mounts", 7, 8, true),
            ("n1: slurmd: descriptors", 9, 13, false),
            ("n1: slurmd: descriptors", 9, 14, true),
            ("n1: images kept mounted", 2, 200, false),
            ("n1: images kept mounted", 2, 201, true),
            ("ctl: slurmctld: memory, kB", 5000, 90_000, false),
            ("n1: slurmd: memory, kB", 5000, 36_000, false),
            ("n1: slurmd: memory, kB", 5000, 40_000, true),
        ] {
            assert_eq!(is_leak(kind, before, after), leak, "{kind} {before} {after}");
        }
    }

    #[test]
    fn all_below_a_directory_is_listed_so_deep() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        let count = |deep| {
            let mut names = vec![];
            list(dir.path(), deep, &mut names);
            names.len()
        };
        assert_eq!([count(1), count(2), count(9)], [1, 2, 3]);
        assert!(
            is_unfinished("/x/.new-host-1") && !is_unfinished("/x/.new-1/whole") && !is_unfinished("/x/news")
        );
    }
}
