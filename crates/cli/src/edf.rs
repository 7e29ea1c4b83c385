//! The words of `skiff edf`.

use clap::Subcommand;

use crate::show::OutputArgs;

#[derive(Subcommand)]
pub enum EdfCommand {
    /// List the definitions that are found by their names
    #[command(alias = "ls")]
    List(OutputArgs),
    /// Check definitions, and whether what they mount is there; exit code 1 if something is wrong
    Check {
        /// Files, or names that are looked up [default: all that are found]
        definitions: Vec<String>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print a definition with all that it builds upon, and with its variables filled in
    Show {
        /// File, or a name that is looked up
        definition: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print a definition to start from
    New {
        /// Image that it is for
        #[arg(default_value = "debian:12")]
        image: String,
    },
}
