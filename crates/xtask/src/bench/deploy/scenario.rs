//! What is new in the environment, and the same files for the copies it is compared with.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::ways::RSYNC;
use crate::bench::live::RunningEnvironment;
use crate::bench::people::{self, UserDir};

/// What a submission has to bring to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Nothing: all small files are there
    Unchanged,
    /// One byte in the middle of a file of 30 MB
    OneByte,
    /// A file of 5 MB
    New,
    /// Many small files
    Small,
    /// Many files of 1 MB
    Tree,
}

/// Where a benchmark has its files.
pub struct Workplace<'a> {
    pub live: &'a RunningEnvironment,
    /// On a file system that all nodes see.
    pub home: &'a UserDir,
    pub small_files: usize,
    pub tree_mb: usize,
}

/// In the environment.
const INSIDE: &str = "/opt/bench";
/// `files.py DIRECTORY COUNT BYTES SEED`: that many files that cannot be compressed, a hundred in each directory.
const FILES: &str = "import os, random, sys\n\
    top, count, size, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])\n\
    random.seed(seed)\n\
    for at in range(count):\n    \
        directory = f'{top}/{at // 100}'\n    \
        if at % 100 == 0: os.makedirs(directory)\n    \
        with open(f'{directory}/{at}', 'wb') as file: file.write(random.randbytes(size))\n";

impl Scenario {
    pub const ALL: [Self; 5] = [Self::Unchanged, Self::OneByte, Self::New, Self::Small, Self::Tree];

    pub fn title(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::OneByte => "one byte in 30 MB",
            Self::New => "5 MB new",
            Self::Small => "small files",
            Self::Tree => "a large tree",
        }
    }

    /// Whether this way is measured. Of nothing, only one that finds that out; a plain copy of all is measured as [`Scenario::Small`].
    pub fn has(self, way: &str) -> bool {
        self != Self::Unchanged || way == RSYNC
    }

    /// Whether nodes have the state before the change, as an environment's have.
    pub fn knows_before(self) -> bool {
        matches!(self, Self::Unchanged | Self::OneByte)
    }
}

impl Workplace<'_> {
    /// The files that copies bring to the nodes.
    pub fn source(&self, scenario: Scenario) -> PathBuf {
        self.home.path.join(match scenario {
            Scenario::Unchanged | Scenario::Small => "small",
            Scenario::OneByte => "byte",
            Scenario::New => "new",
            Scenario::Tree => "tree",
        })
    }

    /// Makes what is there before the first round.
    pub fn begin(&self, scenario: Scenario) -> anyhow::Result<()> {
        self.home.write("files.py", FILES)?;
        match scenario {
            Scenario::Unchanged => self.files(scenario, self.small_files, 1_900, 1),
            Scenario::OneByte => self.files(scenario, 1, 30_000_000, 1),
            Scenario::New | Scenario::Small | Scenario::Tree => Ok(()),
        }
    }

    /// Makes what is new in a round, in the environment and for the copies.
    pub fn change(&self, scenario: Scenario, round: usize) -> anyhow::Result<()> {
        // Never the bytes of another round, nor of another number of nodes.
        let seed =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.subsec_nanos() as usize;
        match scenario {
            Scenario::Unchanged => Ok(()),
            Scenario::OneByte => self.inside(&format!(
                "for file in {INSIDE}/byte/0/0 {}/0/0; do \
                 printf '\\{:03o}' | dd of=$file bs=1 seek={} conv=notrunc status=none; done",
                self.source(scenario).display(),
                1 + (seed + round) % 255,
                10_000_000 + seed % 10_000_000,
            )),
            Scenario::New => self.files(scenario, 1, 5_000_000, seed),
            Scenario::Small => self.files(scenario, self.small_files, 1_900, seed),
            Scenario::Tree => self.files(scenario, self.tree_mb, 1_000_000, seed),
        }
    }

    /// How many bytes are new in a round.
    pub fn new_bytes(&self, scenario: Scenario) -> usize {
        match scenario {
            Scenario::Unchanged => 0,
            // A chunk or two.
            Scenario::OneByte => 200_000,
            Scenario::New => 5_000_000,
            Scenario::Small => self.small_files * 1_900,
            Scenario::Tree => self.tree_mb * 1_000_000,
        }
    }

    /// Removes the files of a scenario, so that they are not in the way of the next.
    pub fn end(&self, scenario: Scenario) -> anyhow::Result<()> {
        let source = self.source(scenario);
        self.inside(&format!("rm -rf {} {INSIDE}", source.display()))
    }

    /// Bytes of the user's depot.
    pub fn depot_bytes(&self) -> anyhow::Result<u64> {
        let home = self.home.path.parent().context("the home directory")?;
        let depot = home.join(".local/share/skiff/depot");
        let printed = people::output(
            Command::new("du").args(["-s", "--apparent-size", "-B1"]).arg(Path::new(&depot)),
            "du",
        )?;
        printed.split_whitespace().next().and_then(|word| word.parse().ok()).context("what du prints")
    }

    fn files(&self, scenario: Scenario, count: usize, size: usize, seed: usize) -> anyhow::Result<()> {
        let (source, home) = (self.source(scenario), self.home.path.display());
        let source = source.display();
        self.inside(&format!(
            "rm -rf {source} {INSIDE}; mkdir {INSIDE}; python3 {home}/files.py {source} {count} {size} {seed}; \
             cp -a {source} {INSIDE}/"
        ))
    }

    fn inside(&self, script: &str) -> anyhow::Result<()> {
        self.live.bash(&format!("set -e; {script}")).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ways::COPY;
    use super::*;

    #[test]
    fn only_what_can_find_out_that_nothing_is_new_is_compared_with_that() {
        assert!(Scenario::Unchanged.has(RSYNC) && !Scenario::Unchanged.has(COPY));
        assert!(Scenario::ALL[1..].iter().all(|scenario| scenario.has(COPY)));
    }
}
