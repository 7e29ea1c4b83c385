//! Writes docs/protocols.md from the declarations of protocols, and sees to it that all of them are fuzzed and tested.

mod declared;
mod doc;
mod page;
mod sources;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use declared::Declared;
use sources::{Sources, text};

const PAGE: &str = "docs/protocols.md";
/// The fuzz target, and a test which takes its seeds in every run of the tests.
const FUZZED: &str = "fuzz/fuzz_targets/protocols.rs";
const TESTED: &str = "crates/skiff/src/protocols.rs";

#[derive(clap::Args)]
pub struct Args {
    /// Only assert that the page is as it would be written
    #[arg(long)]
    check: bool,
}

/// Writes the page, or checks it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = Sources::read(&root, &files(&root)?)?;
    let protocols = declared::all(&sources)?;
    for list in [FUZZED, TESTED] {
        let missing = missing(&sources, &protocols, &read(&root, list)?);
        ensure!(missing.is_empty(), "{list}: no `check::<...>` of {}", missing.join(", "));
    }
    let page = page::write(&sources, &protocols);
    if args.check {
        ensure!(
            read(&root, PAGE)? == page,
            "{PAGE} is not what the sources declare; hint: `cargo xtask protocols`"
        );
    } else {
        std::fs::write(root.join(PAGE), page).with_context(|| format!("writing {PAGE}"))?;
    }
    println!("protocols: {} declared, all fuzzed or tested, and described in {PAGE}", protocols.len());
    Ok(())
}

fn read(root: &Path, file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"))
}

/// Protocols whose message a list does not name in `check::<...>`.
fn missing(sources: &Sources, protocols: &[Declared], list: &str) -> Vec<String> {
    let checked: Vec<(String, String)> = list
        .split("check::<")
        .skip(1)
        .filter_map(|rest| syn::parse_str::<syn::Path>(path_of(rest)).ok())
        .filter_map(|path| Some((text(&path.segments.first()?.ident), text(&path.segments.last()?.ident))))
        .collect();
    let is_missing = |protocol: &&Declared| {
        let (number, name) = &protocol.question.place;
        let krate = format!("skiff_{}", sources.source(*number).krate);
        !checked.contains(&(krate, name.clone()))
    };
    protocols.iter().filter(is_missing).map(|protocol| protocol.name.clone()).collect()
}

/// A path, up to where it or its parameters end.
fn path_of(text: &str) -> &str {
    text.split(['<', '>']).next().unwrap_or_default()
}

/// Source files of all crates but this one, as paths from `root`.
fn files(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = vec![];
    let mut todo: Vec<PathBuf> = vec!["crates".into()];
    while let Some(directory) = todo.pop() {
        let shown = directory.display().to_string();
        for entry in std::fs::read_dir(root.join(&directory)).with_context(|| format!("listing {shown}"))? {
            let path = directory.join(entry.with_context(|| format!("listing {shown}"))?.file_name());
            let name = path.to_str().context("a file's name is not UTF-8")?.to_owned();
            if root.join(&path).is_dir() {
                todo.push(path);
            } else if name.ends_with(".rs") && name.contains("/src/") && !name.starts_with("crates/xtask/") {
                found.push(name);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_that_is_not_checked_is_named() {
        let declaration = |name: &str| {
            format!(
                "enum {name} {{}} impl Message for {name} {{ const LONGEST: usize = 1; }}
                 impl Protocol for {name} {{ type Answer = Unanswered; const NAME: &str = \"{name}\";
                 const SIDES: [&str; 2] = [\"x\", \"y\"]; const FRAMING: Framing = Framing::Stream; }}"
            )
        };
        let [one, two] = [declaration("One"), declaration("Two")];
        let sources = Sources::of(&[("crates/a/src/lib.rs", &one), ("crates/b/src/lib.rs", &two)]);
        let protocols = declared::all(&sources).unwrap();
        for (list, expected) in [
            ("check::<skiff_a::One>, check::<skiff_b::b::Two<'static>>,", &[][..]),
            ("check::<skiff_b::One>, check::<skiff_b::Two>", &["One"]),
            ("check::<skiff_a::c::One>,", &["Two"]),
        ] {
            assert_eq!(missing(&sources, &protocols, list), expected, "{list}");
        }
    }
}
