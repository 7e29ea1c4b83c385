//! What a cluster's supervisor knows of its nodes, and why it does not run if there is none.

use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::instance::End;
use skiff_spec::members::Member;

use crate::local::record::ClusterDir;
use crate::local::wire::{NodeStatus, SupervisorReply, SupervisorRequest, ask};

/// The nodes as its supervisor knows them.
pub fn nodes(record: &ClusterDir) -> Result<Vec<NodeStatus>> {
    match ask(&record.dir, &SupervisorRequest::Status)? {
        Some((SupervisorReply::Nodes(nodes), _)) => Ok(nodes),
        _ => Err(not_up(record)),
    }
}

/// Refuses if one of these, or the controller, has ended.
pub fn refuse_lost(record: &ClusterDir, members: &[Member]) -> Result<()> {
    let lost = nodes(record)?.into_iter().find_map(|node| {
        (members.contains(&node.name) && node.lost.is_some()).then_some((node.name, node.lost))
    });
    match lost {
        None => Ok(()),
        Some((name, end)) => {
            let (said, hint) = record.last_words(name);
            Err(Error::new(format!("node {name}: it has ended ({}): {said}", shown_end(end))).hint(hint))
        }
    }
}

/// How a node's daemon ended, for a person.
pub fn shown_end(end: Option<End>) -> String {
    match end {
        Some(End::Exited(code)) => format!("exit code {code}"),
        Some(End::Killed(signal)) => format!("signal {signal}"),
        Some(End::Saved) => "saved".into(),
        Some(End::Moved) => "moved".into(),
        None => "-".into(),
    }
}

/// That it does not run, and why, as far as its controller has said.
pub fn not_up(record: &ClusterDir) -> Error {
    let (said, hint) = record.last_words(Member::Controller);
    let said = if said.is_empty() { said } else { format!("; its controller wrote last: {said}") };
    let error = Error::new(format!("cluster {} is no longer running{said}", record.name));
    match hint.is_empty() {
        true => error.hint(format!("`skiff cluster down {}` removes what is left of it", record.name)),
        false => error.hint(hint),
    }
}
