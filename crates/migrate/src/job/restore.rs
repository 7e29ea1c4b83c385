//! The coordinator of a restore: all instances are made on their nodes, and begin to run when the last of them is there.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use skiff_checkpoint::obstacles::IN_THE_WAY;
use skiff_checkpoint::place;
use skiff_checkpoint::record::Checkpoint;
use skiff_checkpoint::restore::IMAGE;
use skiff_checkpoint::set::{self, JobCheckpoint};
use skiff_cli::{GrownFiles, JobRestoreArgs, Mode};
use skiff_output as output;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_store::index::ImageName;
use skiff_user::context::UserContext;

use super::links::{self, MemberLink, MemberPlace, hear_all, hear_all_at_last, strange, tell_all};
use super::preflight;
use crate::talk::{DestinationMessage, JointRestoreOrder, Offer, SourceMessage, VERSION};
use crate::way;

/// What is said of a whole job's restore.
#[derive(Serialize)]
struct JobRestored {
    checkpoint: String,
    members: Vec<RestoredMember>,
    /// How long it took until all ran.
    total_ms: u128,
}

/// What is said of an instance that was or is to be restored.
#[derive(Clone, Serialize)]
struct RestoredMember {
    instance: EnvName,
    /// Where it was saved.
    from: String,
    node: String,
    /// What is in the way there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    obstacles: Vec<String>,
}

/// Does it, and says so; the exit code.
pub fn restore(context: &UserContext, words: &JobRestoreArgs) -> Result<i32> {
    if !words.dry_run {
        return hold(context, words)?.run();
    }
    let (dir, job) = place::existing_job(context, &words.checkpoint)?;
    let about = |e: Error| about(words, e);
    let (places, mut members) = plan(words, &dir, &job).map_err(about)?;
    let offer = |place: MemberPlace| offer(&dir, &place).map(|offer| (place, offer));
    let wanted: Result<Vec<(MemberPlace, Offer)>> = places.into_iter().map(offer).collect();
    let refusals = wanted.and_then(|wanted| preflight::ask_all(context, wanted)).map_err(about)?;
    for (member, why) in members.iter_mut().zip(refusals) {
        member.obstacles.extend(why.map(|why| format!("{}: {}", member.node, why.message)));
    }
    show(&words.checkpoint, &members, words.output.json)
}

/// What the node is to know of the instance that is to come there.
fn offer(dir: &Path, place: &MemberPlace) -> Result<Offer> {
    let dir = set::part(dir, place.part);
    let (checkpoint, image) = (Checkpoint::read(&dir)?, ImageName::read(&dir.join(IMAGE))?);
    Ok(Offer { dir: Some(dir), ..Offer::new(checkpoint, image, Mode::Disk) })
}

/// All instances of a job, made and standing still.
pub struct HeldJob<'a> {
    words: &'a JobRestoreArgs,
    begun: Instant,
    members: Vec<RestoredMember>,
    links: Vec<MemberLink>,
}

/// Has all instances made, or none.
pub fn hold<'a>(context: &UserContext, words: &'a JobRestoreArgs) -> Result<HeldJob<'a>> {
    let begun = Instant::now();
    let (dir, job) = place::existing_job(context, &words.checkpoint)?;
    let (places, members) = plan(words, &dir, &job).map_err(|e| about(words, e))?;
    let nothing = |e: Error| about(words, e.about("no instance is restored"));
    let mut links = MemberLink::open_all(context, &places).map_err(nothing)?;
    match hold_all(&mut links, words, (&dir, &job)) {
        Ok(()) => Ok(HeldJob { words, begun, members, links }),
        Err(why) => {
            links::give_up(links);
            Err(nothing(why))
        }
    }
}

impl HeldJob<'_> {
    /// Lets all run, and says so; the exit code.
    pub fn run(self) -> Result<i32> {
        let Self { words, begun, members, mut links } = self;
        let running = tell_all(&mut links, &SourceMessage::Go).and_then(|()| {
            hear_all_at_last(&mut links, |message| match message {
                DestinationMessage::Running => Ok(()),
                other => Err(strange(&other)),
            })
        });
        let ended = running
            .map_err(|why| why.hint("the others go on: `skiff instance stop` ends them"))
            .and_then(|_| {
                let (checkpoint, total_ms) = (words.checkpoint.to_string(), begun.elapsed().as_millis());
                say(words, &JobRestored { checkpoint, members, total_ms })?;
                if words.wait { wait_for_all(&mut links) } else { Ok(0) }
            });
        // What runs goes on, in a job as long as its receiver does.
        links.into_iter().for_each(MemberLink::leave);
        ended.map_err(|e| about(words, e))
    }
}

fn about(words: &JobRestoreArgs, e: Error) -> Error {
    e.about(&format!("checkpoint {}", words.checkpoint))
}

/// Where each instance is to be made, if the checkpoint is whole.
fn plan(
    words: &JobRestoreArgs,
    dir: &Path,
    job: &JobCheckpoint,
) -> Result<(Vec<MemberPlace>, Vec<RestoredMember>)> {
    let slot = &words.checkpoint;
    let nodes = if words.on.is_empty() { way::hosts_of_job()? } else { words.on.clone() };
    let former: Vec<MemberPlace> = job.members.iter().map(former_place).collect();
    let before = used_nodes(&former);
    let places = assign(former, &nodes)?;
    job.members.iter().try_for_each(|member| member.check(dir))?;
    let (former, now) = (before, used_nodes(&places));
    if now < former {
        let (former, now) = (count(former, "node"), count(now, "node"));
        output::note(&format!("checkpoint {slot}: instances of {former} come to {now}"));
    }
    let restored = |(member, place): (&set::SavedMember, &MemberPlace)| RestoredMember {
        instance: place.instance.clone(),
        from: member.node.clone(),
        node: place.node.clone(),
        obstacles: vec![],
    };
    let members = job.members.iter().zip(&places).map(restored).collect();
    Ok((places, members))
}

/// Where an instance was.
fn former_place(member: &set::SavedMember) -> MemberPlace {
    MemberPlace { instance: member.instance.clone(), node: member.node.clone(), part: member.part }
}

/// The node of each instance: those of one node come to one node again, in the order of the nodes.
pub fn assign(former: Vec<MemberPlace>, nodes: &[String]) -> Result<Vec<MemberPlace>> {
    if nodes.is_empty() {
        return Err(Error::new("no node is named"));
    }
    let wanted = used_nodes(&former);
    let mut known: Vec<String> = vec![];
    let mut places: Vec<MemberPlace> = vec![];
    for MemberPlace { instance, node, part } in former {
        let at = known.iter().position(|one| *one == node).unwrap_or_else(|| {
            known.push(node);
            known.len() - 1
        });
        let node = nodes[at % nodes.len()].clone();
        if places.iter().any(|place| place.instance == instance && place.node == node) {
            let have = nodes.len();
            return Err(Error::new(format!(
                "two instances {instance} would be on {node}: too few nodes, {have}"
            ))
            .hint(format!("a job of {wanted} nodes has room for all")));
        }
        places.push(MemberPlace { instance, node, part });
    }
    Ok(places)
}

/// On how many nodes they are.
fn used_nodes(places: &[MemberPlace]) -> usize {
    places.iter().map(|place| &*place.node).collect::<BTreeSet<_>>().len()
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Digest of a part's record.
fn record_of(job: &JobCheckpoint, part: usize) -> String {
    job.members
        .iter()
        .find(|member| member.part == part)
        .map(|member| member.record.clone())
        .unwrap_or_default()
}

/// Has all made, until they stand ready.
fn hold_all(
    links: &mut [MemberLink],
    words: &JobRestoreArgs,
    (dir, job): (&Path, &JobCheckpoint),
) -> Result<()> {
    for link in links.iter_mut() {
        let order = JointRestoreOrder {
            version: VERSION.into(),
            instance: link.place.instance.clone(),
            dir: set::part(dir, link.place.part),
            record: record_of(job, link.place.part),
            files: words.files.map(GrownFiles::word),
            wait: words.wait,
        };
        link.tell(&SourceMessage::Load(Box::new(order)))?;
    }
    let held = hear_all(links, |message| match message {
        DestinationMessage::Held => Ok(()),
        other => Err(strange(&other)),
    });
    held.map(drop)
}

/// Waits until all have ended; the largest of their exit codes.
fn wait_for_all(links: &mut [MemberLink]) -> Result<i32> {
    let codes = links::hear_all_without_limit(links, |message| match message {
        DestinationMessage::Ended(code) => Ok(code),
        other => Err(strange(&other)),
    })?;
    Ok(codes.into_iter().max().unwrap_or(0))
}

fn say(words: &JobRestoreArgs, restored: &JobRestored) -> Result<()> {
    if words.output.json {
        return output::json(restored);
    }
    let JobRestored { checkpoint, members, total_ms } = restored;
    let (number, go) = (count(members.len(), "instance"), if members.len() == 1 { "goes" } else { "go" });
    output::note(&format!("{number} of checkpoint {checkpoint} {go} on ({total_ms} ms)"));
    members
        .iter()
        .try_for_each(|RestoredMember { instance, node, .. }| output::line(&format!("{instance}\t{node}")))
}

/// Shows what would be restored where; the exit code says whether it can be.
fn show(slot: &CheckpointName, members: &[RestoredMember], json: bool) -> Result<i32> {
    #[derive(Serialize)]
    struct Shown<'a> {
        checkpoint: String,
        members: &'a [RestoredMember],
    }
    let is_in_the_way = members.iter().any(|member| !member.obstacles.is_empty());
    let code = if is_in_the_way { IN_THE_WAY } else { 0 };
    if json {
        return output::json(&Shown { checkpoint: slot.to_string(), members }).map(|()| code);
    }
    output::line(&format!("checkpoint   {slot}"))?;
    for RestoredMember { instance, from, node, obstacles } in members {
        output::line(&format!("instance     {instance} of {from} to {node}"))?;
        obstacles.iter().try_for_each(|why| output::line(&format!("in the way   {why}")))?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_one_node_stay_together() {
        let member = |(part, (instance, node)): (usize, &(&str, &str))| MemberPlace {
            instance: instance.parse().unwrap(),
            node: (*node).into(),
            part,
        };
        let placed = |members: &[(&str, &str)], nodes: &[&str]| {
            let former = members.iter().enumerate().map(member).collect();
            let nodes: Vec<String> = nodes.iter().map(|node| (*node).into()).collect();
            let places = assign(former, &nodes).map_err(|e| e.message)?;
            Ok(places
                .into_iter()
                .map(|place| format!("{} {}", place.instance, place.node))
                .collect::<Vec<_>>())
        };
        let two = [("a", "n1"), ("b", "n1"), ("a", "n2"), ("b", "n2")];
        assert_eq!(
            placed(&two, &["x", "y", "z"]),
            Ok(["a x", "b x", "a y", "b y"].map(String::from).to_vec())
        );
        assert_eq!(placed(&two, &["x"]), Err("two instances a would be on x: too few nodes, 1".to_owned()));
        let four = [("a", "n1"), ("b", "n2"), ("c", "n3")];
        assert_eq!(placed(&four, &["x", "y"]), Ok(["a x", "b y", "c x"].map(String::from).to_vec()));
        assert_eq!(placed(&four, &[]), Err("no node is named".to_owned()));
    }
}
