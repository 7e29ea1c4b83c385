//! Writes `packaging/start.ld`: which functions a start runs through, for the linker to lay side by side.
//!
//! A start touches 130 KB of code, which would be spread over nine megabytes; and for every 64 KB of a program that a process touches
//! the kernel must be asked (docs/decisions/010). What is run through is not guessed but watched, instruction by instruction, on a test
//! bed. The list may lag behind the code: a function that it does not know lies elsewhere, and that is all.

mod script;
mod steps;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::bench::{Setting, live::RunningEnvironment, people};
use crate::testbed;

#[derive(clap::Args)]
pub struct Args {
    /// Where the linker script goes
    #[arg(long, default_value = "packaging/start.ld")]
    out: PathBuf,
}

/// Where the test bed has the programs, which were built with their symbols.
const PROGRAMS: [&str; 2] = ["/usr/bin/skiff", "/usr/libexec/skiff/skiff-helper"];

pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(rustix::process::getuid().is_root(), "start-order needs root, for the test bed");
    if !testbed::is_inside() {
        return testbed::run_again_inside(&["--nodes", "1"], &[("KEEP_SYMBOLS", "1")]);
    }
    let setting = Setting {
        rounds: 1,
        asked_rounds: None,
        user: people::TestUser::find("alice")?,
        skiff: PROGRAMS[0].into(),
    };
    let live = RunningEnvironment::start(&setting, "start-order")?;
    let starts = [
        format!("{} run -- /bin/true", setting.skiff),
        format!("{} run --me -- /bin/true", setting.skiff),
        format!("{} /bin/true", live.exec_words()),
    ];
    let mut touched = vec![];
    for start in starts {
        // The first start makes what later ones find.
        people::output(setting.user.command("sh").args(["-c", &start]), &start)?;
        let mut command: Command = setting.user.command("sh");
        command.args(["-c", &format!("read go; exec {start}")]);
        let watched = steps::watch(command, &PROGRAMS).with_context(|| format!("watching `{start}`"))?;
        eprintln!("{start}: {} instructions that were not run before", watched.len());
        touched.extend(watched);
    }
    let text = script::write(&PROGRAMS, &touched)?;
    std::fs::write(&args.out, text).with_context(|| format!("writing {}", args.out.display()))
}
