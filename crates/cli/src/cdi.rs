//! The words of `skiff cdi`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::show::{ListArgs, OutputArgs};

#[derive(Subcommand)]
pub enum CdiCommand {
    /// List the devices that --device and --gpus can add
    List(ListArgs),
    /// Check descriptions of devices: syntax, keys, missing files, hooks that are not run
    Check {
        /// Files to check [default: all of this host]
        #[arg(value_name = "FILE")]
        described: Vec<PathBuf>,
        #[command(flatten)]
        output: OutputArgs,
    },
}
