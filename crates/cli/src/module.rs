//! The words of `skiff module`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::show::{ListArgs, OutputArgs};

#[derive(Subcommand)]
pub enum ModuleCommand {
    /// List the modules of this site's that --module and --mpi can add, and those that every container gets
    List(ListArgs),
    /// Check modules: syntax, keys, missing files, libraries that are not found
    Check {
        /// Files to check [default: all of this host]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: OutputArgs,
    },
}
