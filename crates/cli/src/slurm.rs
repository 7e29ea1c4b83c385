//! The words by which Slurm's plug-in calls Skiff.

use std::ffi::OsString;

use clap::Subcommand;

use crate::container::SubmitArgs;

#[derive(Subcommand)]
pub enum SlurmCommand {
    /// At submission: take the snapshot or find the image, print the job spec
    Submit(Box<SubmitArgs>),
    /// On a node before a job: create its directories
    Prolog,
    /// On a node after a job: remove everything of it
    Epilog,
    /// On a node before a step: create its namespaces
    StepBegin,
    /// On a node: run a task in its step
    Task {
        /// Command of the task
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}
