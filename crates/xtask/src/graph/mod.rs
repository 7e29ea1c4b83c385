//! Asserts what the compiler does not, since a shortcut through the layers would be noticed only when it hurts.
//!
//! Crates of the workspace use each other only along the design's arrows, and sibling modules in no new circle; `unsafe` stays
//! behind its fence; places that others may reach are used by descriptor; each crate from outside has its reason written down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

mod by_path;
mod forgotten;
mod lex;
mod modules;

/// Crate, and what it uses, with spaces between: exactly that. `cdi`, `erofs`, `oci`, `registry`, `criu` and `tar` stand alone, or over each other, for others to use.
const ARROWS: &[(&str, &str)] = &[
    ("sys", ""),
    ("slurm-names", ""),
    ("spec", "slurm-names"),
    ("erofs", ""),
    ("packages", ""),
    ("nearest", ""),
    ("edf", "nearest"),
    ("cdi", "nearest"),
    ("modules", "cdi nearest spec"),
    ("oci", ""),
    ("criu", ""),
    ("tar", ""),
    ("copy", "sys spec tar"),
    ("site", "spec"),
    ("ipc", "sys spec"),
    ("registry", "sys oci"),
    ("image", "sys erofs oci tar"),
    ("spank", "slurm-names"),
    ("launch", "sys spec ipc"),
    ("snapshot", "site sys"),
    ("relay", "sys oci ipc launch snapshot"),
    ("sandbox", "sys cdi spec site ipc"),
    ("net", "sys spec ipc"),
    ("output", "sys spec sandbox"),
    ("helper", "sys spec site sandbox net"),
    ("user", "sys spec site sandbox output"),
    ("store", "sys spec site erofs oci tar ipc registry image snapshot sandbox output user"),
    ("runtime", "sys packages spec site ipc launch snapshot sandbox output user store"),
    ("plan", "sys nearest cdi modules edf spec oci site ipc launch sandbox output user store runtime"),
    ("oci-runtime", "sys spec site sandbox output plan"),
    ("cli", "nearest spec output plan oci-runtime"),
    ("app", "sys spec site sandbox output user store cli"),
    (
        "env",
        "sys packages spec oci site ipc registry image launch snapshot relay sandbox output user store runtime plan cli",
    ),
    ("cluster", "sys spec ipc launch sandbox net output user store runtime plan cli app"),
    ("build", "sys spec oci tar copy site ipc registry image sandbox output user store runtime plan cli"),
    ("instance", "sys spec snapshot sandbox output user store runtime plan cli env"),
    (
        "checkpoint",
        "sys spec criu site ipc snapshot sandbox net output user store runtime plan cli env instance",
    ),
    ("migrate", "sys spec criu site ipc launch sandbox output user store runtime plan cli env checkpoint"),
    ("slurm", "sys edf spec site ipc image launch sandbox output user store runtime plan cli env"),
    (
        "skiff",
        "sys cdi modules edf spec oci copy site ipc registry image launch relay sandbox net output user store runtime plan oci-runtime cli app env build cluster instance checkpoint migrate slurm",
    ),
    // Runs the binaries, as users do, and so must not share code with them.
    ("xtask", ""),
];

/// The only crates with `unsafe` in them, and with the bindings that need it.
const MAY_BE_UNSAFE: &[&str] = &["sys", "spank"];

/// The fuzz targets. They may use every crate, their allocator needs `unsafe`, and no release contains them.
const FUZZ: &str = "skiff-fuzz";

/// A table with a line for every crate from outside: | `name` | why |
const REASONS: &str = "docs/dependencies.md";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

/// Prints every violation, then fails if there was one.
pub fn run() -> anyhow::Result<()> {
    let Metadata { packages, workspace_root } = workspace()?;
    let mut wrong = wrong_arrows(&packages);
    wrong.extend(unused_arrows(&packages));
    for package in &packages {
        let files = sources(package)?;
        wrong.extend(wrong_unsafe(package, &files));
        let roots: Vec<_> = package.targets.iter().map(|target| target.src_path.as_path()).collect();
        let forgotten = forgotten::find(&files, &roots).into_iter();
        wrong.extend(
            forgotten.map(|path| format!("{path}: no module declares this file, so nothing compiles it")),
        );
    }
    wrong.extend(by_path::wrong(&workspace_root)?);
    wrong.extend(modules::wrong(&workspace_root, &roots(&packages, &workspace_root))?);
    let reasons = workspace_root.join(REASONS);
    let text = std::fs::read_to_string(&reasons).with_context(|| format!("reading {}", reasons.display()))?;
    wrong.extend(wrong_reasons(&packages, &text));
    for line in &wrong {
        eprintln!("graph: {line}");
    }
    ensure!(wrong.is_empty(), "{} rules of the workspace are broken", wrong.len());
    let (count, fence) = (packages.len(), MAY_BE_UNSAFE.join(" and "));
    println!(
        "graph: {count} crates, only downward arrows, no new circle of modules, unsafe only in {fence}, trusted directories by descriptor, every dependency explained"
    );
    Ok(())
}

fn workspace() -> anyhow::Result<Metadata> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps"])
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("output of cargo metadata")?;
    metadata.packages.retain(|package| package.name != FUZZ);
    Ok(metadata)
}

/// The first file of each library and program.
fn roots(packages: &[Package], workspace: &Path) -> Vec<(String, PathBuf)> {
    let product = |target: &&Target| {
        target
            .kind
            .iter()
            .any(|kind| matches!(kind.as_str(), "lib" | "bin" | "cdylib" | "rlib" | "proc-macro"))
    };
    let path =
        |target: &Target| target.src_path.strip_prefix(workspace).unwrap_or(&target.src_path).to_owned();
    let of = |package: &'_ Package| {
        let name = short(&package.name).to_owned();
        package
            .targets
            .iter()
            .filter(product)
            .map(move |target| (name.clone(), path(target)))
            .collect::<Vec<_>>()
    };
    packages.iter().flat_map(of).collect()
}

/// `skiff-sys` -> `sys`; `skiff` and `xtask` are called so.
fn short(package: &str) -> &str {
    package.strip_prefix("skiff-").unwrap_or(package)
}

fn wrong_arrows(packages: &[Package]) -> Vec<String> {
    let allowed: BTreeMap<_, Vec<_>> =
        ARROWS.iter().map(|(from, to)| (*from, to.split_whitespace().collect())).collect();
    let mut wrong = vec![];
    for package in packages {
        let from = short(&package.name);
        let Some(may_use) = allowed.get(from) else {
            wrong.push(format!(
                "{from}: not in the table of crates; place it in crates/xtask/src/graph/mod.rs and in docs/architecture.md"
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let to = short(&dependency.name);
            let kind = dependency.kind.as_deref().map(|k| format!(" ({k}-dependency)")).unwrap_or_default();
            if dependency.path.is_some() && !may_use.contains(&to) {
                let may = if may_use.is_empty() { "none of ours".into() } else { may_use.join(", ") };
                wrong.push(format!("{from}: {from} -> {to}{kind} is not allowed; {from} may use {may}"));
            }
            if dependency.name == "libc" && !MAY_BE_UNSAFE.contains(&from) {
                wrong.push(format!("{from}: {from} -> libc{kind}: system calls go through sys or rustix"));
            }
        }
    }
    wrong
}

/// An arrow that nobody goes is taken out of the table: it would be a way back.
fn unused_arrows(packages: &[Package]) -> Vec<String> {
    let uses = |from: &str, to: &str| {
        let of = packages.iter().filter(|package| short(&package.name) == from);
        of.flat_map(|package| &package.dependencies).any(|dependency| short(&dependency.name) == to)
    };
    let arrows = ARROWS.iter().flat_map(|(from, to)| to.split_whitespace().map(move |to| (*from, to)));
    let unused = arrows.filter(|(from, to)| !uses(from, to));
    unused
        .map(|(from, to)| format!("{from}: {from} -> {to} is in the table of crates, and not used"))
        .collect()
}

fn wrong_reasons(packages: &[Package], text: &str) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let explained: BTreeSet<String> = text.lines().filter_map(name).collect();
    let foreign = packages.iter().flat_map(|p| &p.dependencies).filter(|d| d.path.is_none());
    let used: BTreeSet<String> = foreign.map(|d| d.name.clone()).collect();
    let missing =
        used.difference(&explained).map(|name| format!("{REASONS}: no line says why {name} is used"));
    let stale = explained.difference(&used).map(|name| format!("{REASONS}: {name} is not used any more"));
    missing.chain(stale).collect()
}

/// Paths and texts of a crate's files.
fn sources(package: &Package) -> anyhow::Result<Vec<(String, String)>> {
    let root = package.manifest_path.parent().context("manifest without directory")?;
    let text = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok((path.display().to_string(), text))
    };
    rust_files(root)?.into_iter().map(text).collect()
}

fn wrong_unsafe(package: &Package, files: &[(String, String)]) -> Vec<String> {
    let name = short(&package.name);
    if MAY_BE_UNSAFE.contains(&name) {
        return vec![];
    }
    let lines = files
        .iter()
        .flat_map(|(path, text)| lex::unsafe_lines(text).into_iter().map(move |line| (path, line)));
    lines.map(|(path, line)| format!("{name}: unsafe at {path}:{line}; it belongs into crates/sys")).collect()
}

fn rust_files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in std::fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" {
                found.extend(rust_files(&path)?);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|name| Dependency {
                name: (*name).into(),
                kind: None,
                path: (*name != "libc").then(|| PathBuf::from("/there")),
            })
            .collect();
        Package { name: name.into(), manifest_path: "/x/Cargo.toml".into(), dependencies, targets: vec![] }
    }

    #[test]
    fn table_lists_each_crate_after_what_it_uses() {
        for (at, (from, to)) in ARROWS.iter().enumerate() {
            for used in to.split_whitespace() {
                assert!(ARROWS[..at].iter().any(|(name, _)| *name == used), "{from} -> {used}");
            }
        }
    }

    #[test]
    fn arrows() {
        let cases: &[(&str, &[&str], Option<&str>)] = &[
            ("skiff-sandbox", &["skiff-sys", "skiff-spec"], None),
            ("skiff", &["skiff-cluster", "skiff-sys"], None),
            ("skiff-cluster", &["skiff-sys"], None),
            ("skiff-snapshot", &["skiff-spec"], Some("snapshot -> spec is not allowed")),
            ("skiff-sys", &["libc"], None),
            ("skiff-sys", &["skiff-spec"], Some("sys -> spec is not allowed; sys may use none of ours")),
            (
                "skiff-snapshot",
                &["skiff-sandbox"],
                Some("snapshot -> sandbox is not allowed; snapshot may use site"),
            ),
            ("skiff", &["skiff-spank"], Some("skiff -> spank")),
            ("xtask", &["skiff-spec"], Some("xtask -> spec")),
            ("skiff-snapshot", &["libc"], Some("snapshot -> libc")),
            ("skiff-new", &[], Some("new: not in the table")),
        ];
        for (name, uses, expected) in cases {
            let wrong = wrong_arrows(&[package(name, uses)]);
            match expected {
                None => assert!(wrong.is_empty(), "{name}: {wrong:?}"),
                Some(part) => assert!(wrong.len() == 1 && wrong[0].contains(part), "{name}: {wrong:?}"),
            }
        }
    }

    #[test]
    fn reasons() {
        let packages = [package("skiff", &["libc", "skiff-sys"])];
        assert!(wrong_reasons(&packages, "text\n| `libc` | why |\n").is_empty());
        let wrong = wrong_reasons(&packages, "| `old` | why |");
        assert!(
            wrong.len() == 2 && wrong[0].contains("why libc") && wrong[1].contains("old is not used"),
            "{wrong:?}"
        );
    }
}
