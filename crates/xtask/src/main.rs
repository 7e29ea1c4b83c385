//! Everything around the product that is not the product: the test bed, the benchmarks, the generated pages, the
//! checks of the workspace itself. Run as `cargo xtask COMMAND`.

mod bench;
mod browser;
mod graph;
mod man;
mod packages;
mod programs;
mod protocols;
mod random;
mod simulate;
mod soak;
mod start_order;
mod testbed;
mod words;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Skiff's development tasks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// A real Slurm of several nodes in namespaces of its own, with users and a shared directory
    Testbed(testbed::Args),
    /// Paired measurements against the floor and the peers
    Bench(bench::Args),
    /// `skiff app` in a real browser, which CI has none of
    BrowserTest(browser::Args),
    /// Assert that crates depend on each other only downwards, and modules in no new circle
    Graph,
    /// Write man pages and shell completions
    Man(man::Args),
    /// Install, reinstall, remove and purge packages of Debian's in a user's environment
    Packages(packages::Args),
    /// Try by every way of saving and moving what comes back of programs, each with one kernel feature
    Programs(programs::Args),
    /// Write the page of all protocols from their declarations
    Protocols(protocols::Args),
    /// Models of what no test bed is large enough for
    Simulate(simulate::Args),
    /// Jobs of several users while processes of every step are killed at random: nothing may be left of them
    Soak(soak::Args),
    /// Watch starts, and write down for the linker which functions they run through
    StartOrder(start_order::Args),
    /// Assert that names, comments and documents can be understood where they stand
    Words(words::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Testbed(args) => testbed::run(args),
        Task::Bench(args) => bench::run(args),
        Task::BrowserTest(args) => browser::run(&args),
        Task::Graph => graph::run(),
        Task::Man(args) => man::run(args),
        Task::Packages(args) => packages::run(&args),
        Task::Programs(args) => programs::run(&args),
        Task::Protocols(args) => protocols::run(&args),
        Task::Simulate(args) => simulate::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::StartOrder(args) => start_order::run(&args),
        Task::Words(args) => words::run(&args),
    }
}
