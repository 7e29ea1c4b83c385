//! Whether packages of Debian's can be installed, reinstalled, removed and purged in an environment of an ordinary user, in a test bed that reaches
//! a mirror. `list.txt` says which packages, and was written before any was tried; docs/packages.md says what came of it.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::bench::people::{TestUser, UserDir, output};
use crate::testbed;

const LIST: &str = include_str!("list.txt");

/// Where the bed has it: another may come first in the user's path.
const SKIFF: &str = "/usr/bin/skiff";

/// Name of the environment.
const ENVIRONMENT: &str = "packages";

/// Before the first package: no service is started, nothing is asked, what is downloaded is kept for other environments, and nothing waits for
/// the disk. `$1` is a directory in the user's home.
const PREPARE: &str = r#"printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d
mkdir -p "$1/archives/partial" "$1/lists/partial"
printf '%s\n' "Dir::Cache::archives \"$1/archives\";" "Dir::State::lists \"$1/lists\";" 'APT::Sandbox::User "root";' 'APT::Get::Assume-Yes "true";' \
    'APT::Keep-Downloaded-Packages "true";' 'Dpkg::Use-Pty "0";' 'quiet "2";' >/etc/apt/apt.conf.d/99packages
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/packages
ls "$1"/lists/*Packages* >/dev/null 2>&1 || apt-get update"#;

/// What is done with each package, in this order, and how dpkg knows it then; `$1` is its name.
const STEPS: [(&str, &str, &str); 4] = [
    ("install", "apt-get install --no-install-recommends \"$1\"", "installed"),
    ("reinstall", "apt-get install --reinstall \"$1\"", "installed"),
    ("remove", "apt-get remove --allow-remove-essential \"$1\"", "config-files|not-installed|''"),
    ("purge", "apt-get purge --allow-remove-essential \"$1\"", "not-installed|''"),
];

/// After each step: dpkg knows the package so, and nothing that is half-done.
const CHECK: &str = r#"status=$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null || :)
case $status in STATUS) ;; *) echo "dpkg says that it is $status"; exit 1 ;; esac
audit=$(dpkg --audit); [ -z "$audit" ] || { echo "dpkg --audit: $audit"; exit 1; }"#;

/// A step that takes longer has failed.
const LIMIT: &str = "900";

#[derive(clap::Args)]
pub struct Args {
    /// Try only so many packages, those that the list marks
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Try only this package, of the list or not
    #[arg(long, value_name = "NAME", conflicts_with = "sample")]
    only: Vec<String>,
}

/// A heading of the list and what stands below.
struct Group {
    packages: Vec<Package>,
}

struct Package {
    name: String,
    is_sample: bool,
}

/// How one package fared.
struct Outcome {
    /// For each step whether it went well, until one has not.
    steps: Vec<bool>,
    took: Duration,
    /// The last lines of the step that failed.
    said: String,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let groups = chosen(args)?;
    if !testbed::is_inside() {
        return testbed::run_again_inside(&["--nodes", "1", "--internet"], &[]);
    }
    let user = TestUser::find("alice")?;
    let home = UserDir::new(&user, "packages")?;
    let trial = Trial { user: &user, home: &home };
    let heads = STEPS.map(|(name, ..)| format!("{name:>10}")).concat();
    println!("{:28}{heads}{:>9}", "package", "seconds");
    let (mut tried, mut failed) = (0, vec![]);
    for group in &groups {
        trial.begin()?;
        for package in &group.packages {
            let outcome = trial.outcome(&package.name)?;
            outcome.print(&package.name);
            tried += 1;
            if !outcome.is_good() {
                failed.push(package.name.as_str());
                // What it has left must not make others fail.
                trial.end()?;
                trial.begin()?;
            }
        }
        trial.end()?;
    }
    println!("{} of {tried} packages went through all steps", tried - failed.len());
    ensure!(failed.is_empty(), "packages: failed: {}", failed.join(" "));
    Ok(())
}

/// The groups that were asked for. Each has an environment of its own, in which dependencies stay: a new one for each package would spend
/// most of its time with these, and one for all would be a system that nobody has.
fn chosen(args: &Args) -> anyhow::Result<Vec<Group>> {
    if !args.only.is_empty() {
        let packages = args.only.iter().map(|name| Package { name: name.clone(), is_sample: false });
        return Ok(vec![Group { packages: packages.collect() }]);
    }
    let Some(most) = args.sample else { return Ok(groups(LIST)) };
    let all = groups(LIST).into_iter().flat_map(|group| group.packages);
    let packages: Vec<_> = all.filter(|package| package.is_sample).take(most).collect();
    if packages.len() < most {
        bail!("packages: the list marks {} for the sample, not {most}", packages.len());
    }
    Ok(vec![Group { packages }])
}

fn groups(list: &str) -> Vec<Group> {
    let lines = |part: &str| {
        let names = part.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        names.map(package).collect::<Vec<_>>()
    };
    let groups = list.split("\n\n").map(|part| Group { packages: lines(part) });
    groups.filter(|group| !group.packages.is_empty()).collect()
}

fn package(line: &str) -> Package {
    let (name, is_sample) = line.strip_suffix(" *").map_or((line, false), |name| (name, true));
    Package { name: name.into(), is_sample }
}

struct Trial<'a> {
    user: &'a TestUser,
    home: &'a UserDir,
}

impl Trial<'_> {
    fn begin(&self) -> anyhow::Result<()> {
        output(self.user.command(SKIFF).args(["env", "create", ENVIRONMENT]), "skiff env create")?;
        let home = self.home.path.to_string_lossy();
        let (is_good, said) = self.inside(PREPARE, &home)?;
        ensure!(is_good, "preparing an environment: {said}");
        Ok(())
    }

    fn end(&self) -> anyhow::Result<()> {
        output(self.user.command(SKIFF).args(["env", "rm", "--force", ENVIRONMENT]), "skiff env rm").map(drop)
    }

    fn outcome(&self, name: &str) -> anyhow::Result<Outcome> {
        let begin = Instant::now();
        let (mut steps, mut said) = (vec![], String::new());
        for (_, step, status) in STEPS {
            let check = CHECK.replace("STATUS", status);
            let (is_good, words) = self.inside(&format!("{step}\n{check}"), name)?;
            steps.push(is_good);
            if !is_good {
                said = words;
                break;
            }
        }
        Ok(Outcome { steps, took: begin.elapsed(), said })
    }

    /// Runs a script with an argument as root inside; whether it went well, and the last it said.
    fn inside(&self, script: &str, argument: &str) -> anyhow::Result<(bool, String)> {
        let script = format!("exec 2>&1; export DEBIAN_FRONTEND=noninteractive\n{script}");
        let mut command = self.user.command("timeout");
        command.args([LIMIT, SKIFF, "env", "exec", ENVIRONMENT, "--", "sh", "-euc", &script, "sh", argument]);
        let done = command.stdin(Stdio::null()).output().context("running skiff env exec")?;
        let all = [done.stdout, done.stderr].concat();
        let text = String::from_utf8_lossy(&all);
        let lines: Vec<_> = text.lines().collect();
        Ok((done.status.success(), lines[lines.len().saturating_sub(12)..].join("\n")))
    }
}

impl Outcome {
    fn is_good(&self) -> bool {
        self.steps.len() == STEPS.len() && self.steps.iter().all(|good| *good)
    }

    fn print(&self, name: &str) {
        let column = |at| match self.steps.get(at) {
            Some(true) => "ok",
            Some(false) => "FAILED",
            None => "-",
        };
        let columns: String = (0..STEPS.len()).map(|at| format!("{:>10}", column(at))).collect();
        println!("{name:28}{columns}{:9.1}", self.took.as_secs_f64());
        for line in self.said.lines() {
            println!("    | {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_150_packages_and_a_sample_of_15() {
        let all: Vec<_> = groups(LIST).into_iter().flat_map(|group| group.packages).collect();
        assert_eq!(all.len(), 150);
        assert_eq!(all.iter().filter(|package| package.is_sample).count(), 15);
        let mut names: Vec<_> = all.iter().map(|package| &package.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 150, "one is there twice");
    }
}
