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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, CommandFactory};

    const PAGE: &str = include_str!("../../../docs/json.md");
    const SCHEMA: &str = include_str!("../../../docs/json.schema.json");

    /// The lines of the page's table: words behind `skiff`, and the definition.
    fn rows() -> Vec<(&'static str, &'static str)> {
        let row =
            |line: &'static str| line.strip_prefix("| `skiff ")?.strip_suffix("` |")?.split_once("` | `");
        PAGE.lines().filter_map(row).collect()
    }

    /// The names of a command and of that below it, which stand in front of options and of what the page calls NAME.
    fn path(words: &str) -> String {
        let is_name = |word: &&str| !word.starts_with('-') && word.chars().any(|c| c.is_ascii_lowercase());
        words.split(' ').take_while(is_name).collect::<Vec<_>>().join(" ")
    }

    fn collect_paths(command: &Command, above: &str, found: &mut BTreeSet<String>) {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            let path = format!("{above} {}", below.get_name()).trim().to_owned();
            collect_paths(below, &path, found);
            if below.get_arguments().any(|arg| arg.get_id() == "json") {
                found.insert(path);
            }
        }
    }

    #[test]
    fn each_command_with_json_has_a_definition_on_the_page() {
        let mut with_json = BTreeSet::new();
        collect_paths(&crate::Cli::command(), "", &mut with_json);
        let on_page: BTreeSet<String> = rows().iter().map(|(words, _)| path(words)).collect();
        assert_eq!(with_json, on_page);
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
        for (words, definition) in rows() {
            assert!(schema["$defs"][definition].is_object(), "skiff {words}: the schema has no {definition}");
        }
    }
}
