//! The command line: parses, plans, has it done, prints, exits.

mod cli;
mod context;
mod control;
mod environments;
mod inside;
mod output;
mod planner;
mod proxy;
mod run;
mod supervisor;

use clap::Parser;

fn main() {
    let cli = cli::Cli::parse();
    let code = match cli.command {
        cli::Command::Run(run) => run::run(&run),
        _ => Ok(125),
    };
    let code = code.unwrap_or_else(|e| {
        output::complain(&e);
        output::FAILURE
    });
    std::process::exit(code);
}
