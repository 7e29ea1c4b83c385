//! What comes back of running programs: the corpus of `tests/programs`, one kernel feature in each, by every way in which an instance can be
//! saved, restored and moved. `make test` tries a part of it (`programs-moves`, `programs-migrate`, `programs-image`).

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// The ways, each a function of `tests/programs/lib.sh`.
const WAYS: [&str; 7] = [
    "saved_and_restored",
    "restored_elsewhere",
    "left_running_twice",
    "migrated_diskless",
    "migrated_precopy",
    "migrated_disk",
    "migrated_ten_times",
];
/// The test that has two nodes with disks of their own.
const TEST: &str = "programs-migrate";
const PAGE: &str = "docs/checkpoint-support.md";

/// The command line of `cargo xtask programs`.
#[derive(clap::Args)]
pub struct Args {
    /// Ways to try; without any, all of them
    #[arg(value_name = "WAY", value_parser = WAYS)]
    ways: Vec<String>,
    /// Try only this program
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// What instances have as their root; an image is made of this machine's packages, and its root is read-only
    #[arg(long, value_name = "ROOT", value_parser = ["host", "image"], default_value = "host")]
    over: String,
    /// Write the page of what a checkpoint keeps
    #[arg(long, conflicts_with_all = ["only", "ways", "over"])]
    write: bool,
}

/// Tries them in a test bed, prints what each has come to, and fails if any came back wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let logs = tempfile::tempdir().context("making a directory")?;
    let chosen: Vec<&str> = args.ways.iter().map(String::as_str).collect();
    let ways = if chosen.is_empty() { WAYS.to_vec() } else { chosen };
    let status = Command::new("tests/run")
        .arg(TEST)
        .env("SKIFF_PROGRAMS", ways.join(" "))
        .env("SKIFF_PROGRAMS_OVER", &args.over)
        .env("ONLY", args.only.join(" "))
        .env("KEEP_LOGS", logs.path())
        .status()
        .context("running tests/run")?;
    let log = logs.path().join(format!("log.{TEST}"));
    let log = fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
    for line in log.lines().filter(|line| line.matches('\t').count() == 4) {
        println!("{line}");
    }
    ensure!(status.success(), "not every program has come back right or been refused: {status}");
    if args.write {
        fs::write(PAGE, page(&log)?).with_context(|| format!("writing {PAGE}"))?;
    }
    Ok(())
}

fn page(log: &str) -> anyhow::Result<Vec<u8>> {
    use std::io::Write;
    let table = Command::new("tests/programs/table").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut table = table.context("running tests/programs/table")?;
    let mut input = table.stdin.take().context("tests/programs/table: no input")?;
    input.write_all(log.as_bytes()).context("writing to tests/programs/table")?;
    drop(input);
    let output = table.wait_with_output().context("waiting for tests/programs/table")?;
    ensure!(output.status.success(), "tests/programs/table: {}", output.status);
    Ok(output.stdout)
}
