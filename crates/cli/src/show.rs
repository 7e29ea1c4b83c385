//! How something is printed, and whether it is only printed.

use clap::Args;
use skiff_output::ListFormat;

#[derive(Args)]
pub struct OutputArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How a list is printed.
#[derive(Args, Default)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long, conflicts_with_all = ["format", "quiet"])]
    pub json: bool,
    /// Print each entry by a template: json, '{{.Name}}', 'table {{.Name}}\t{{.State}}' ...
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "quiet")]
    pub format: Option<String>,
    /// Print names only; of images, their digests
    #[arg(short, long)]
    pub quiet: bool,
}

impl ListArgs {
    /// For whoever prints the list.
    pub fn format(&self) -> ListFormat<'_> {
        let Self { json, format, quiet } = self;
        ListFormat { json: *json, template: format.as_deref(), quiet: *quiet }
    }
}

/// Whether something is only shown.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRunArgs {
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
}
