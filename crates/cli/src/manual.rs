//! Manual pages: what the parser knows of each command, and its examples.

use std::io::Write;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::examples;

/// Writes a page for each command into a directory.
pub fn write(root: Command, dir: &Path) -> std::io::Result<()> {
    let mut root = root;
    root.build();
    write_below(&root, "", dir)
}

fn write_below(command: &Command, path: &str, dir: &Path) -> std::io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_below(sub, format!("{path} {}", sub.get_name()).trim(), dir)?;
    }
    let man = Man::new(command.clone()).manual("Skiff");
    let page = page(&man, command, path)?;
    std::fs::write(dir.join(man.get_filename()), page)
}

fn page(man: &Man, command: &Command, path: &str) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if command.get_after_help().is_some() {
        let mut notes = Vec::new();
        man.render_extra_section(&mut notes)?;
        page.write_all(String::from_utf8_lossy(&notes).replacen(".SH EXTRA", ".SH NOTES", 1).as_bytes())?;
    }
    examples_section(path).to_writer(&mut page)?;
    see_also(path).to_writer(&mut page)?;
    Ok(page)
}

fn examples_section(path: &str) -> Roff {
    let mut roff = Roff::default();
    let examples = examples::of(path);
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for (what, line) in examples {
        if !what.is_empty() {
            roff.control("PP", []).text([roman(*what)]);
        }
        // An indented line that is not filled.
        roff.control("RS", ["4"]).control("nf", []).text([bold(*line)]).control("fi", []).control("RE", []);
    }
    roff
}

fn see_also(path: &str) -> Roff {
    let mut roff = Roff::default();
    roff.control("SH", ["SEE ALSO"]);
    match path {
        "" => roff.text([bold("skiff-config"), roman("(5)")]),
        _ => roff.text([bold("skiff"), roman("(1), "), bold("skiff-config"), roman("(5)")]),
    };
    roff
}
