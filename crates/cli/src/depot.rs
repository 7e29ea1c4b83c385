//! The words of `skiff depot`.

use clap::Subcommand;

use crate::show::{ListArgs, OutputArgs};

#[derive(Subcommand)]
pub enum DepotCommand {
    /// List the snapshots in your depot, and what needs each
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Show disk usage
    Du(OutputArgs),
    /// Remove snapshots that nothing needs and nobody has used for a week (depot_keep_days)
    Gc {
        /// Size to shrink the depot to: 20G, 500M ... [default: depot_bytes]
        #[arg(long, value_name = "SIZE")]
        budget: Option<String>,
        /// Remove what was unused for so many days [default: depot_keep_days]
        #[arg(long, value_name = "DAYS")]
        days: Option<u64>,
        /// Also remove what queued and running jobs need
        #[arg(long)]
        ignore_jobs: bool,
        /// Print what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Say nothing, and end within a minute: after a submission
        #[arg(long, hide = true)]
        background: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Check snapshots [default: all files]; exit code 1 if one is damaged
    Verify {
        /// Snapshot to check: the first digits of its id, or NAME@REF
        #[arg(value_name = "SNAPSHOT")]
        snapshot: Option<String>,
        /// Remove damaged files; the next submission writes them again
        #[arg(long)]
        remove: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
}
