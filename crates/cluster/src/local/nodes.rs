//! Nodes of a cluster that is up: more of them, fewer, how they fare.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use skiff_output as output;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::instance::End;
use skiff_spec::members::Member;
use skiff_spec::name::EnvName;
use skiff_user::context::UserContext;
use skiff_user::named;

use crate::local::errand::{Errand, wait_until_ready};
use crate::local::known::{nodes, not_up, shown_end};
use crate::local::record::ClusterDir;
use crate::local::wire::{SupervisorReply, SupervisorRequest, ask};

/// How long a cluster may take to get ready.
pub const READY: Duration = Duration::from_secs(120);

/// Adds some; returns when they take jobs.
pub fn add(context: &UserContext, name: &EnvName, count: u16, dry_run: bool) -> Result<()> {
    let record = ClusterDir::existing(context, name)?;
    let there: Vec<Member> = nodes(&record)?.iter().map(|node| node.name).collect();
    let new = added(name, &there, record.settings()?.most, count)?;
    if dry_run {
        return output::line(&format!("make {} in cluster {name}", names(&new).join(" ")));
    }
    // The controller refuses nodes that it does not expect.
    expect(&record, &new, "RESUME", "")?;
    let made = ask(&record.dir, &SupervisorRequest::Make(new.clone()))
        .and_then(|answer| answer.ok_or_else(|| not_up(&record)));
    if let Err(e) = made {
        expect(&record, &new, "FUTURE", "")?;
        return Err(e);
    }
    wait_until_ready(&record, &new, READY)?;
    output::line(&names(&new).join(" "))
}

/// Takes some away: those named, or those with the highest numbers.
pub fn remove(
    context: &UserContext,
    name: &EnvName,
    count: Option<u16>,
    named: &[Member],
    dry_run: bool,
) -> Result<()> {
    let record = ClusterDir::existing(context, name)?;
    let there: Vec<Member> =
        nodes(&record)?.iter().map(|node| node.name).filter(|node| *node != Member::Controller).collect();
    let go = removed(name, &there, count, named)?;
    if dry_run {
        return output::line(&format!("end {} of cluster {name}, and what runs there", names(&go).join(" ")));
    }
    // What runs there is told to be lost before it is.
    expect(&record, &go, "DOWN", "Reason=removed")?;
    ask(&record.dir, &SupervisorRequest::End(go.clone()))?.ok_or_else(|| not_up(&record))?;
    expect(&record, &go, "FUTURE", "")?;
    output::line(&names(&go).join(" "))
}

/// So many workers more, those with the lowest numbers that are free.
fn added(name: &EnvName, there: &[Member], most: u16, count: u16) -> Result<Vec<Member>> {
    let all = Member::workers().take(most.into());
    let new: Vec<Member> = all.filter(|worker| !there.contains(worker)).take(count.into()).collect();
    if new.len() < count.into() {
        return Err(Error::new(format!("cluster {name}: it can have {} more nodes", new.len()))
            .hint(format!("{most} are the most it can have; `skiff cluster remove` makes room")));
    }
    Ok(new)
}

/// So many workers, those with the highest numbers; or those named.
fn removed(name: &EnvName, there: &[Member], count: Option<u16>, named: &[Member]) -> Result<Vec<Member>> {
    let go: Vec<Member> = match count {
        Some(count) if usize::from(count) > there.len() => {
            return Err(Error::new(format!("cluster {name}: it has {} nodes", there.len()))
                .hint(format!("`skiff cluster down {name}` ends it")));
        }
        Some(count) => there.iter().rev().take(count.into()).copied().collect(),
        None => named.to_vec(),
    };
    match go.iter().find(|node| !there.contains(node)) {
        Some(stranger) => Err(Error::new(format!("node {stranger}: cluster {name} has no such worker"))
            .hint(format!("it has {}", names(there).join(" ")))),
        None => Ok(go),
    }
}

/// Tells the cluster's Slurm what state nodes are in.
fn expect(record: &ClusterDir, nodes: &[Member], state: &str, more: &str) -> Result<()> {
    let (list, state) = (format!("NodeName={}", names(nodes).join(",")), format!("State={state}"));
    let words: Vec<&str> =
        ["scontrol", "update", &list, &state, more].into_iter().filter(|word| !word.is_empty()).collect();
    match Errand::start(record, &words)?.wait(READY)? {
        Some((0, _)) => Ok(()),
        Some((_, said)) => {
            Err(Error::new(format!("cluster {}: {}: {}", record.name, words.join(" "), said.trim())))
        }
        None => Err(Error::new(format!("cluster {}: its controller does not answer", record.name))),
    }
}

fn names(members: &[Member]) -> Vec<String> {
    members.iter().map(Member::to_string).collect()
}

#[derive(Serialize)]
struct Shown {
    name: Member,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// `running` or `lost`.
    state: &'static str,
    /// As Slurm says: `idle`, `alloc`, `down` ...
    slurm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(serialize_with = "output::as_time")]
    since: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<End>,
}

#[derive(Serialize)]
struct Status {
    name: String,
    base: String,
    #[serde(rename = "created", serialize_with = "output::as_time")]
    made: u64,
    nodes: Vec<Shown>,
}

/// Prints how its nodes fare.
pub fn status(context: &UserContext, name: &EnvName, json: bool) -> Result<()> {
    let record = ClusterDir::existing(context, name)?;
    let settings = record.settings()?;
    let nodes = nodes(&record)?;
    let slurm = slurm_states(&record);
    let shown = nodes.into_iter().map(|node| Shown {
        address: node.address,
        host: node.host,
        state: if node.lost.is_some() { "lost" } else { "running" },
        slurm: slurm.get(&node.name.to_string()).cloned().unwrap_or_else(|| "-".into()),
        name: node.name,
        pid: node.pid,
        since: node.since,
        lost: node.lost,
    });
    let status =
        Status { name: name.to_string(), base: settings.base, made: settings.made, nodes: shown.collect() };
    if json {
        return output::json(&status);
    }
    let rows: Vec<Vec<String>> = status
        .nodes
        .iter()
        .map(|node| {
            let pid = node.pid.map_or_else(|| "-".into(), |pid| pid.to_string());
            let state = match node.lost {
                Some(end) => format!("lost ({})", shown_end(Some(end))),
                None => node.state.into(),
            };
            vec![
                node.name.to_string(),
                node.address.clone(),
                node.host.clone().unwrap_or_else(|| "-".into()),
                state,
                node.slurm.clone(),
                output::time(node.since),
                pid,
            ]
        })
        .collect();
    output::table(&["NODE", "ADDRESS", "HOST", "STATE", "SLURM", "SINCE", "PID"], &rows)
}

/// What the cluster's Slurm says of its nodes; nothing if it does not answer soon.
fn slurm_states(record: &ClusterDir) -> BTreeMap<String, String> {
    let said = Errand::start(record, &["sinfo", "-h", "-N", "-o", "%N %t"])
        .and_then(|mut errand| errand.wait(Duration::from_secs(5)));
    let Ok(Some((0, text))) = said else { return BTreeMap::new() };
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(node, state)| (node.to_owned(), state.trim().to_owned())).collect()
}

/// One cluster, for people and programs.
#[derive(Serialize)]
pub struct ListedCluster {
    name: String,
    base: String,
    #[serde(rename = "created", serialize_with = "output::as_time")]
    made: u64,
    /// `up` or `lost`.
    state: &'static str,
    /// How many nodes it has, without the controller.
    pub nodes: usize,
    path: String,
}

impl ListedCluster {
    /// A row as `skiff ps` has it.
    pub fn row(&self) -> Vec<String> {
        let (name, base) = (self.name.clone(), self.base.clone());
        vec![name, base, output::time(self.made), format!("cluster of {}", self.nodes), "-".into()]
    }
}

/// Lists the clusters that are up.
pub fn running(context: &UserContext) -> Result<Vec<ListedCluster>> {
    Ok(listed(context)?.into_iter().filter(|cluster| cluster.state == "up").collect())
}

/// Lists all clusters.
pub fn listed(context: &UserContext) -> Result<Vec<ListedCluster>> {
    let one = |record: &ClusterDir| -> Result<ListedCluster> {
        let settings = record.settings()?;
        let nodes = match ask(&record.dir, &SupervisorRequest::Status)? {
            Some((SupervisorReply::Nodes(nodes), _)) => Some(nodes.len().saturating_sub(1)),
            _ => None,
        };
        Ok(ListedCluster {
            name: record.name.to_string(),
            base: settings.base,
            made: settings.made,
            state: if nodes.is_some() { "up" } else { "lost" },
            nodes: nodes.unwrap_or(0),
            path: record.dir.display().to_string(),
        })
    };
    let all = ClusterDir::all(context)?;
    // One that has gone meanwhile is none.
    let looked = all.iter().map(|record| (record, one(record)));
    let there = looked.filter(|(record, one)| one.is_ok() || record.dir.exists());
    Ok(named::listable(there.map(|(_, one)| one)))
}

/// Prints the user's clusters.
pub fn list(context: &UserContext, json: bool) -> Result<()> {
    let all = listed(context)?;
    if json {
        return output::json(&all);
    }
    let row = |l: &ListedCluster| {
        vec![l.name.clone(), l.base.clone(), output::time(l.made), l.state.into(), l.nodes.to_string()]
    };
    output::table(&["NAME", "BASE", "MADE", "STATE", "NODES"], &all.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(names: &str) -> Vec<Member> {
        names.split_whitespace().map(|name| name.parse().expect("a member")).collect()
    }

    #[test]
    fn nodes_come_by_the_lowest_free_numbers_and_go_by_the_highest() {
        let lab: EnvName = "lab".parse().expect("a name");
        for (there, most, count, want) in [
            ("ctl n1", 256, 2, Ok("n2 n3")),
            ("ctl n1 n3", 256, 2, Ok("n2 n4")),
            ("ctl n2", 2, 1, Ok("n1")),
            ("ctl n1 n2", 2, 1, Err("cluster lab: it can have 0 more nodes")),
            ("ctl n1", 3, 3, Err("cluster lab: it can have 2 more nodes")),
        ] {
            let new = added(&lab, &members(there), most, count).map(|new| names(&new).join(" "));
            assert_eq!(new.map_err(|e| e.message), want.map(str::to_owned).map_err(str::to_owned), "{there}");
        }
        for (there, count, named, want) in [
            ("n1 n2 n3", Some(2), "", Ok("n3 n2")),
            ("n1 n2", Some(2), "", Ok("n2 n1")),
            ("n1 n2", Some(3), "", Err("cluster lab: it has 2 nodes")),
            ("n1 n2 n3", None, "n1 n3", Ok("n1 n3")),
            ("n1 n2", None, "n1 n4", Err("node n4: cluster lab has no such worker")),
            // Without its controller it would be none.
            ("n1 n2", None, "ctl", Err("node ctl: cluster lab has no such worker")),
        ] {
            let go = removed(&lab, &members(there), count, &members(named)).map(|go| names(&go).join(" "));
            assert_eq!(go.map_err(|e| e.message), want.map(str::to_owned).map_err(str::to_owned), "{there}");
        }
    }
}
