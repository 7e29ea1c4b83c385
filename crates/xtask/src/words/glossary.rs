//! The glossary names modules, which must exist.

use std::path::Path;

/// The modules that a glossary's last column names as `CRATE/PATH` (or `CRATE` alone) and that are not there.
fn missing(text: &str, root: &Path) -> Vec<String> {
    let last_columns = text
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| line.trim_end_matches('|').rsplit('|').next());
    let named = last_columns.flat_map(|column| column.split('`').skip(1).step_by(2));
    named.filter(|module| !exists(module, root)).map(str::to_owned).collect()
}

fn exists(module: &str, root: &Path) -> bool {
    let (name, path) = module.split_once('/').unwrap_or((module, ""));
    let sources = root.join("crates").join(name).join("src");
    sources.join(path).is_dir() || sources.join(format!("{path}.rs")).is_file()
}

#[test]
fn the_glossary_names_modules_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/glossary.md")).unwrap();
    assert!(text.matches('`').count() > 60);
    assert_eq!(missing(&text, &root), [""; 0]);
    let made_up =
        "| a | b | `spec/plan`, `spec/nowhere` |\n| a | b | `nothing` |\n| a | `not/this` | `helper` |";
    assert_eq!(missing(made_up, &root), ["spec/nowhere", "nothing"]);
}
