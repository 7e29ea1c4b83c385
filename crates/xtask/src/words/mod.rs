//! Asserts that names and sentences can be understood where they stand: no type's name given twice, no doc comment that opens with
//! a pronoun, no sentence that is too long.
//!
//! Today's exceptions are listed in `exceptions.list`, which may only shrink.

#[cfg(test)]
mod glossary;
mod names;
mod openings;
mod sentences;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// A line each: what is wrong, in what, and how often; sorted.
const LIST: &str = "crates/xtask/src/words/exceptions.list";

/// What is wrong and in what, and each place where it is.
type Found = BTreeMap<String, Vec<String>>;

/// Where sources are, where documents are, and where manual pages are, each with the ends of their files' names.
const CODE: (&str, &[&str]) = ("crates", &["rs"]);
const DOCUMENTS: (&str, &[&str]) = ("docs", &["md"]);
const PAGES: (&str, &[&str]) = ("packaging/man", &["1", "5", "7", "8"]);
/// Doc comments here are the help texts.
const HELP: &str = "crates/cli/src";

#[derive(clap::Args)]
pub struct Args {
    /// Take from the list what is better by now
    #[arg(long)]
    shrink: bool,
}

/// Prints each difference from the list, then fails if there was one.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Found::new();
    for file in files(&root, CODE)? {
        let text = read(&root, &file)?;
        if file.contains("/src/") {
            names::find(&file, &text, &mut found);
        }
        openings::find(&file, &text, &mut found);
        if file.starts_with(HELP) {
            sentences::find_in_help(&file, &text, &mut found);
        }
    }
    names::keep_repeated(&mut found);
    let documents = files(&root, DOCUMENTS)?.into_iter().chain(["README.md".into()]);
    for file in documents {
        sentences::find_in_markdown(&file, &read(&root, &file)?, &mut found);
    }
    for file in files(&root, PAGES)? {
        sentences::find_in_roff(&file, &read(&root, &file)?, &mut found);
    }
    let mut listed = parse(&read(&root, LIST)?)?;
    if args.shrink {
        listed = shrunk(&found, listed);
        let lines: String = listed.iter().map(|(what, count)| format!("{what} {count}\n")).collect();
        std::fs::write(root.join(LIST), lines).with_context(|| format!("writing {LIST}"))?;
    }
    let wrong = differences(&found, &listed);
    for line in &wrong {
        eprintln!("words: {line}");
    }
    ensure!(wrong.is_empty(), "{} differences from {LIST}", wrong.len());
    let exceptions: usize = found.values().map(Vec::len).sum();
    println!(
        "words: no new duplicate type names, openings with a pronoun or long sentences; {exceptions} old ones"
    );
    Ok(())
}

fn read(root: &Path, file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"))
}

/// Files below a directory, as paths from `root`; none if there is no such directory.
fn files(root: &Path, (directory, ends): (&str, &[&str])) -> anyhow::Result<Vec<String>> {
    let mut all = vec![];
    let mut todo: Vec<PathBuf> = vec![directory.into()];
    while let Some(directory) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(root.join(&directory)) else { continue };
        for entry in entries {
            let entry = entry.with_context(|| format!("listing {}", directory.display()))?;
            let path = directory.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|end| ends.iter().any(|known| end == *known)) {
                all.push(path.to_str().context("a file's name is not UTF-8")?.to_owned());
            }
        }
    }
    all.sort();
    Ok(all)
}

fn parse(list: &str) -> anyhow::Result<BTreeMap<String, usize>> {
    let line = |line: &str| {
        let (what, count) = line.rsplit_once(' ')?;
        Some((what.to_owned(), count.parse().ok()?))
    };
    list.lines().map(|text| line(text).with_context(|| format!("{LIST}: {text:?}"))).collect()
}

fn shrunk(found: &Found, mut listed: BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    listed.retain(|what, count| {
        *count = found.get(what).map_or(0, Vec::len).min(*count);
        *count > 0
    });
    listed
}

fn differences(found: &Found, listed: &BTreeMap<String, usize>) -> Vec<String> {
    let mut wrong = vec![];
    for (what, places) in found {
        let (now, before) = (places.len(), listed.get(what).copied().unwrap_or(0));
        if now > before {
            wrong.push(format!("{what}: {now} instead of {before}\n    {}", places.join("\n    ")));
        } else if now < before {
            wrong.push(format!("{what}: better than listed; hint: `cargo xtask words --shrink`"));
        }
    }
    for what in listed.keys().filter(|what| !found.contains_key(*what)) {
        wrong.push(format!("{what}: gone; hint: `cargo xtask words --shrink`"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_may_only_shrink() {
        let listed = parse("long a 2\nname B 3\n").unwrap();
        let differ = |counts: &[(&str, usize)]| {
            let found = counts.iter().map(|(what, n)| ((*what).into(), vec!["here".into(); *n])).collect();
            differences(&found, &listed)
        };
        assert!(differ(&[("long a", 2), ("name B", 3)]).is_empty());
        let cases: &[(&[(&str, usize)], &str)] = &[
            (&[("long a", 3), ("name B", 3)], "long a: 3 instead of 2\n    here"),
            (&[("long a", 1), ("name B", 3)], "long a: better than listed"),
            (&[("name B", 3)], "long a: gone"),
            (&[("long a", 2), ("long c", 1), ("name B", 3)], "long c: 1 instead of 0"),
        ];
        for (counts, part) in cases {
            let wrong = differ(counts);
            assert!(wrong.len() == 1 && wrong[0].contains(part), "{counts:?}: {wrong:?}");
        }
        assert_eq!(parse("long a").unwrap_err().to_string(), format!("{LIST}: \"long a\""));
        let found =
            Found::from([("long a".into(), vec!["here".into()]), ("long c".into(), vec!["here".into()])]);
        assert_eq!(shrunk(&found, listed), parse("long a 1").unwrap());
    }
}
