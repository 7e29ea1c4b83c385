//! `skiff complete`: the names that may follow what is typed, for shells. What cannot be looked up has no names: nothing is said in the middle
//! of somebody's line.

use std::collections::BTreeSet;
use std::process::Command;

use skiff_cli::complete::{NameKind, following};
use skiff_cluster::local::record::ClusterDir;
use skiff_env::history::SnapshotHistory;
use skiff_output as output;
use skiff_runtime::environments;
use skiff_runtime::record::InstanceDir;
use skiff_spec::fault::Result;
use skiff_spec::members::Member;
use skiff_store::PREFIX;
use skiff_store::index::Names;
use skiff_sys::IgnoreError;
use skiff_user::checkpoints;
use skiff_user::context::UserContext;

/// Prints them, one a line.
pub fn complete(words: &[String]) -> Result<()> {
    let Some(kind) = following(words) else { return Ok(()) };
    let names = names(&UserContext::load()?, kind)?;
    names.iter().filter(|name| is_plain(name)).try_for_each(|name| output::line(name))
}

/// Whether a shell takes a name as it stands: an image that came from a file is called as that, and the file's name may be anybody's.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || "._/:@-".contains(c)) && !name.starts_with('-')
}

fn names(context: &UserContext, kind: NameKind) -> Result<Vec<String>> {
    let environments = || -> Result<Vec<String>> {
        Ok(environments::list(context)?.iter().map(|one| one.name.to_string()).collect())
    };
    let instances = || -> Result<Vec<String>> {
        Ok(InstanceDir::all(context)?.iter().map(|one| one.name.to_string()).collect())
    };
    let clusters = || -> Result<Vec<String>> {
        Ok(ClusterDir::all(context)?.iter().map(|one| one.name.to_string()).collect())
    };
    let host = || vec!["host".to_owned()];
    Ok(match kind {
        NameKind::Environments => environments()?,
        NameKind::Snapshots => [environments()?, snapshots(context)?].concat(),
        NameKind::Instances => instances()?,
        NameKind::Clusters => clusters()?,
        NameKind::Nodes => nodes(context)?,
        NameKind::Hosts => hosts(),
        NameKind::Images => images(context)?,
        NameKind::Networks => {
            let sites = skiff_runtime::network::all()?;
            let own = ["host", "none", "private"].map(String::from);
            own.into_iter().chain(sites.iter().map(ToString::to_string)).collect()
        }
        NameKind::Checkpoints => checkpoints::all(context)?.iter().map(ToString::to_string).collect(),
        NameKind::Anything => [environments()?, instances()?, clusters()?].concat(),
        NameKind::Inside => {
            [environments()?, instances()?].concat().into_iter().map(|name| format!("{name}:")).collect()
        }
        NameKind::Origins => [host(), environments()?, images(context)?].concat(),
        NameKind::Bases => {
            let images = images(context)?.into_iter().map(|image| format!("{PREFIX}{image}"));
            host().into_iter().chain(images).collect()
        }
    })
}

/// Snapshots that have tags. A history that cannot be read has none.
fn snapshots(context: &UserContext) -> Result<Vec<String>> {
    let mut found = vec![];
    for env in environments::list(context)? {
        let history =
            SnapshotHistory::of(&env.dir).default_on_error("nothing is said in the middle of a line");
        found.extend(history.tags.keys().map(|tag| format!("{}@{tag}", env.name)));
    }
    Ok(found)
}

/// As many as the largest cluster has.
fn nodes(context: &UserContext) -> Result<Vec<String>> {
    let most = skiff_cluster::running(context)?.iter().map(|cluster| cluster.nodes).max().unwrap_or(0);
    let workers = (1..=u16::try_from(most).unwrap_or(u16::MAX)).map(Member::Worker);
    Ok([Member::Controller].into_iter().chain(workers).map(|node| node.to_string()).collect())
}

/// The nodes that Slurm has and that answer it. Nobody is to wait in the middle of a line for a Slurm that does not answer.
fn hosts() -> Vec<String> {
    let slurm = Command::new("timeout").args(["1", "sinfo", "-h", "-r", "-N", "-o", "%N"]).output();
    let names = slurm
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .default_on_error("without Slurm there are none to offer");
    names.lines().map(str::trim).collect::<BTreeSet<_>>().into_iter().map(String::from).collect()
}

/// Images as a user types them: without what is in front of the usual ones of Docker Hub.
fn images(context: &UserContext) -> Result<Vec<String>> {
    let short = |name: &str| {
        let rest = name.strip_prefix("docker.io/").unwrap_or(name);
        rest.strip_prefix("library/").unwrap_or(rest).to_owned()
    };
    Ok(Names::of(context)?.all()?.iter().map(|entry| short(&entry.reference)).collect())
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn what_a_shell_would_run_is_no_name() {
        for name in ["dev", "debian:12", "quay.io/a/b@sha256:00", "/home/a/x.sqsh"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["$(touch x)", "a b", "`x`", "*", "-rf", "x;y", "a\nb", "~a", "'a"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
