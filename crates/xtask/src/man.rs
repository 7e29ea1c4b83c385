//! Writes the man pages and the shells' completions. `skiff` itself prints both, from the definitions it parses its
//! arguments with, so this only calls it and looks at what came.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

/// Shell, and the name under which it looks for completions.
const COMPLETIONS: &[(&str, &str)] = &[("bash", "skiff.bash"), ("zsh", "_skiff"), ("fish", "skiff.fish")];

#[derive(clap::Args)]
pub struct Args {
    /// The program to ask
    #[arg(long, default_value = "target/release/skiff")]
    skiff: PathBuf,
    /// Where to write `man/` and `completion/`
    #[arg(long, default_value = "target/generated")]
    out: PathBuf,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let pages = fresh(&args.out.join("man"))?;
    call(&args.skiff, &["man", pages.to_str().context("--out is not UTF-8")?])?;
    let count = check_pages(&pages)?;

    let completions = fresh(&args.out.join("completion"))?;
    for (shell, name) in COMPLETIONS {
        let text = call(&args.skiff, &["completion", shell])?;
        ensure!(!text.is_empty(), "{} completion {shell}: printed nothing", args.skiff.display());
        let path = completions.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    println!("man: {count} pages and {} completions in {}", COMPLETIONS.len(), args.out.display());
    Ok(())
}

/// Empty, so that the page of a command that is gone does not stay.
fn fresh(directory: &Path) -> anyhow::Result<PathBuf> {
    match std::fs::remove_dir_all(directory) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("emptying {}", directory.display()));
        }
        _ => {}
    }
    std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory.to_path_buf())
}

fn call(skiff: &Path, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output = Command::new(skiff)
        .args(arguments)
        .output()
        .with_context(|| format!("running {} (hint: make build)", skiff.display()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{} {}: {}\n{stderr}", skiff.display(), arguments.join(" "), output.status);
    }
    Ok(output.stdout)
}

/// A page without a name line is not found by `apropos`, and one that is all name says that generating it went wrong.
fn check_pages(directory: &Path) -> anyhow::Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        for section in [".TH", ".SH NAME", ".SH SYNOPSIS"] {
            ensure!(text.contains(section), "{}: has no {section}", path.display());
        }
        count += 1;
    }
    ensure!(directory.join("skiff.1").exists(), "{}: has no skiff.1", directory.display());
    Ok(count)
}
