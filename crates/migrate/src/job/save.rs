//! The coordinator of a save: all networks are shut, then all processes stopped, then all saved; then the checkpoint appears, whole.

use std::time::Instant;

use serde::Serialize;
use skiff_checkpoint::obstacles::IN_THE_WAY;
use skiff_checkpoint::place::NewCheckpoint;
use skiff_checkpoint::set::{JobCheckpoint, SavedMember};
use skiff_cli::JobSaveArgs;
use skiff_launch::handshake::SharedSecret;
use skiff_launch::hosts;
use skiff_output as output;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_sys::clock::now;
use skiff_user::checkpoints::{dir_of, home_of};
use skiff_user::context::UserContext;

use super::links::{self, MemberLink, MemberPlace, hear_all, hear_all_at_last, hear_one, strange, tell_all};
use super::preflight;
use super::restore::assign;
use crate::talk::{
    DestinationMessage, FoundInstance, JointPart, JointSaveOrder, Offer, SourceMessage, VERSION,
};
use crate::way;

/// What is said of a whole job's save.
#[derive(Serialize)]
pub struct JobSaved {
    /// Name of the checkpoint.
    pub checkpoint: String,
    members: Vec<MemberReport>,
    /// Bytes of all parts.
    pub bytes: u64,
    left_running: bool,
    /// How long the processes stood still that did so longest.
    pub frozen_ms: u64,
    /// How long it took in all.
    pub total_ms: u128,
    path: String,
    /// Why it is not known of all whether they have ended, or go on.
    #[serde(skip)]
    unknown: Option<Error>,
}

/// What is said of an instance that was saved.
#[derive(Serialize)]
struct MemberReport {
    instance: EnvName,
    node: String,
    processes: usize,
    bytes: u64,
    frozen_ms: u64,
}

/// What is said of an instance that is to be saved.
#[derive(Serialize)]
pub struct MemberFound {
    instance: EnvName,
    node: String,
    processes: usize,
    /// What is in the way, a line each.
    obstacles: Vec<String>,
    #[serde(skip)]
    offer: Option<Offer>,
}

impl MemberFound {
    /// The name of the instance that was looked at.
    pub fn instance(&self) -> &EnvName {
        &self.instance
    }
}

/// Does it, and says so; the exit code.
pub fn save(context: &UserContext, words: &JobSaveArgs) -> Result<i32> {
    if !words.dry_run {
        let saved = carry_out(context, words)?;
        let code = say(words, &saved)?;
        return saved.refuse_unknown().map(|_| code);
    }
    show_all(words, &look(context, words)?)
}

/// Looks at all instances, of which nothing is saved.
pub fn look(context: &UserContext, words: &JobSaveArgs) -> Result<Vec<MemberFound>> {
    let mut members = MemberLink::open_all(context, &places(words)?)?;
    let found = order(&mut members, words, None).and_then(|()| {
        hear_all(&mut members, |message| match message {
            DestinationMessage::Absent => Ok(None),
            DestinationMessage::Found(found) => Ok(Some(*found)),
            other => Err(strange(&other)),
        })
    });
    let found = found.map(|found| with_places(&members, found));
    links::end(members);
    found
}

/// Asks the nodes that they are to come to whether these could take them; why not.
pub fn ask_destinations(
    context: &UserContext,
    found: &mut [MemberFound],
    to: &[String],
) -> Result<Vec<DestinationRefusal>> {
    let former = found.iter().enumerate().map(|(part, one)| MemberPlace {
        instance: one.instance.clone(),
        node: one.node.clone(),
        part,
    });
    let places = assign(former.collect(), to)?.into_iter();
    let wanted: Vec<(MemberPlace, Offer)> =
        places.filter_map(|place| found[place.part].offer.take().map(|offer| (place, offer))).collect();
    let asked: Vec<MemberPlace> = wanted.iter().map(|(place, _)| place.clone()).collect();
    let answers = asked.into_iter().zip(preflight::ask_all(context, wanted)?);
    Ok(answers.filter_map(|(place, why)| Some(DestinationRefusal { place, why: why? })).collect())
}

/// Why a node cannot take an instance.
pub struct DestinationRefusal {
    /// The instance, and the node.
    place: MemberPlace,
    why: Error,
}

impl DestinationRefusal {
    /// Notes them with what was found in the way of the instances.
    pub fn note(all: Vec<Self>, found: &mut [MemberFound]) {
        for Self { place, why } in all {
            found[place.part].obstacles.push(format!("{}: {}", place.node, why.message));
        }
    }

    /// Refuses if there is any.
    pub fn refuse(all: &[Self]) -> Result<()> {
        let Some(first) = all.first() else { return Ok(()) };
        let line = |Self { place, why }: &Self| {
            format!("instance {} on {}: {}", place.instance, place.node, why.message)
        };
        let lines: Vec<String> = all.iter().map(line).collect();
        Err(Error::new(lines.join("; ")).hint(first.why.hint.clone()))
    }
}

/// Shows what would be saved; the exit code says whether it can be.
pub fn show_all(words: &JobSaveArgs, found: &[MemberFound]) -> Result<i32> {
    let code = show(&CheckpointName::newest(&words.checkpoint), found, words.output.json)?;
    match refuse_missing(words, found.iter().map(MemberFound::instance)) {
        Ok(()) => Ok(code),
        Err(why) => {
            output::note(&why.message);
            Ok(IN_THE_WAY)
        }
    }
}

/// Saves all, or none.
pub fn carry_out(context: &UserContext, words: &JobSaveArgs) -> Result<JobSaved> {
    let begun = Instant::now();
    let slot = CheckpointName::newest(&words.checkpoint);
    let new = NewCheckpoint::make(&home_of(context, &slot)?, &slot.name)?;
    new.check()?;
    let token = SharedSecret::generate().map_err(|e| Error::new(e.to_string()))?.to_hex();
    let mut members = MemberLink::open_all(context, &places(words)?)?;
    let mut absent = vec![];
    let saved = claim(&mut members, &mut absent, words, (&new, &token))
        .and_then(|()| save_all(&mut members, words, (&new, &token)));
    // Only now: their ends take time, and processes may have stood still.
    let absent = absent.into_iter().map(MemberLink::hang_up).collect();
    let parts = match saved {
        Ok(parts) => parts,
        Err(why) => {
            links::give_up(members);
            links::wait_for_ends(absent);
            return Err(why.about(&format!("checkpoint {slot}: nothing is saved, and all instances go on")));
        }
    };
    let frozen = tell_all(&mut members, &SourceMessage::End).and_then(|()| {
        hear_all_at_last(&mut members, |message| match message {
            DestinationMessage::Over(frozen) => Ok(frozen),
            other => Err(strange(&other)),
        })
    });
    let members = report(members, parts, &frozen);
    links::wait_for_ends(absent);
    let unknown = frozen.err().map(|why| {
        why.about(&format!("checkpoint {slot}: it is saved, but an instance may run on"))
            .hint("`srun skiff instance list` shows what runs where; end that before you restore")
    });
    if let Err(why) = new.prune(words.keep) {
        output::note(&format!(
            "checkpoint {slot}: it is saved, but an older one could not be removed: {why}"
        ));
    }
    Ok(JobSaved {
        checkpoint: slot.to_string(),
        bytes: members.iter().map(|member| member.bytes).fold(0, u64::saturating_add),
        left_running: words.leave_running,
        frozen_ms: members.iter().map(|member| member.frozen_ms).max().unwrap_or(0),
        total_ms: begun.elapsed().as_millis(),
        path: dir_of(context, &slot)?.display().to_string(),
        members,
        unknown,
    })
}

impl JobSaved {
    /// Refuses one of which it is not known whether all instances have ended, or go on.
    pub fn refuse_unknown(self) -> Result<Self> {
        match self.unknown {
            Some(why) => Err(why),
            None => Ok(self),
        }
    }

    /// The nodes where the instances were, in their order.
    pub fn nodes(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.members.iter().map(|member| member.node.clone()).collect();
        nodes.dedup();
        nodes
    }
}

/// Finds the instances, has them for this save alone, and refuses if anything is in the way. Receivers that find none become `absent`.
fn claim(
    members: &mut Vec<MemberLink>,
    absent: &mut Vec<MemberLink>,
    words: &JobSaveArgs,
    (new, token): (&NewCheckpoint, &str),
) -> Result<()> {
    order(members, words, Some((new, token)))?;
    let is_here = hear_all(members, |message| match message {
        DestinationMessage::Absent => Ok(false),
        DestinationMessage::Present => Ok(true),
        other => Err(strange(&other)),
    })?;
    let mut is_here = is_here.into_iter();
    (*members, *absent) = std::mem::take(members).into_iter().partition(|_| is_here.next() == Some(true));
    absent.iter().try_for_each(|member| new.remove_part(member.place.part))?;
    refuse_missing(words, members.iter().map(|member| &member.place.instance))?;
    // One after the other, and all commands in one order: else two might wait for each other.
    let mut turns: Vec<usize> = (0..members.len()).collect();
    turns.sort_by_cached_key(|at| members[*at].place.turn());
    for at in turns {
        members[at].tell(&SourceMessage::Claim)?;
        hear_one(members, at, |message| match message {
            DestinationMessage::Claimed => Ok(()),
            other => Err(strange(&other)),
        })?;
    }
    let found = hear_all(members, |message| match message {
        DestinationMessage::Found(found) => Ok(Some(*found)),
        other => Err(strange(&other)),
    })?;
    refuse(&with_places(members, found))
}

/// The nodes on which instances are looked for.
pub fn nodes(words: &JobSaveArgs) -> Result<Vec<String>> {
    if words.on.is_empty() {
        return way::hosts_of_job();
    }
    let mut nodes: Vec<String> = vec![];
    for node in &words.on {
        // Named twice, a node would have two receivers that want the same instance.
        if !nodes.iter().any(|other| hosts::same(other, node)) {
            nodes.push(node.clone());
        }
    }
    Ok(nodes)
}

/// Where instances are looked for: each name on each node.
pub fn places(words: &JobSaveArgs) -> Result<Vec<MemberPlace>> {
    let nodes = nodes(words)?;
    let of_node = |node: &String| {
        let node = node.clone();
        words.instances.iter().map(move |instance| (instance.clone(), node.clone()))
    };
    let places = nodes.iter().flat_map(of_node).enumerate();
    Ok(places.map(|(part, (instance, node))| MemberPlace { instance, node, part }).collect())
}

/// Has each receiver look for its instance.
fn order(
    members: &mut [MemberLink],
    words: &JobSaveArgs,
    into: Option<(&NewCheckpoint, &str)>,
) -> Result<()> {
    for member in members {
        let order = JointSaveOrder {
            version: VERSION.into(),
            instance: member.place.instance.clone(),
            checkpoint: words.checkpoint.clone(),
            token: into.map_or_else(String::new, |(_, token)| token.into()),
            dir: into.map(|(new, _)| new.make_part(member.place.part)).transpose()?,
            leave_running: words.leave_running,
        };
        member.tell(&SourceMessage::Save(Box::new(order)))?;
    }
    Ok(())
}

/// What each has found that found something.
fn with_places(members: &[MemberLink], found: Vec<Option<FoundInstance>>) -> Vec<MemberFound> {
    let with_place = |(member, found): (&MemberLink, Option<FoundInstance>)| {
        let MemberPlace { instance, node, .. } = member.place.clone();
        let FoundInstance { processes, obstacles, offer } = found?;
        Some(MemberFound { instance, node, processes, obstacles, offer })
    };
    members.iter().zip(found).filter_map(with_place).collect()
}

/// Refuses if an instance is nowhere.
pub fn refuse_missing<'a>(
    words: &JobSaveArgs,
    found: impl Iterator<Item = &'a EnvName> + Clone,
) -> Result<()> {
    match words.instances.iter().find(|name| !found.clone().any(|one| one == *name)) {
        None => Ok(()),
        Some(missing) => Err(Error::new(format!("instance {missing}: it runs on none of the nodes"))
            .hint("`srun skiff instance list` shows what runs where")),
    }
}

/// Refuses if anything is in the way.
fn refuse(found: &[MemberFound]) -> Result<()> {
    let in_the_way = found.iter().flat_map(|one| {
        one.obstacles.iter().map(move |why| format!("instance {} on {}: {why}", one.instance, one.node))
    });
    let in_the_way: Vec<String> = in_the_way.collect();
    match in_the_way.is_empty() {
        true => Ok(()),
        false => {
            Err(Error::new(in_the_way.join("; ")).hint("`skiff job save --dry-run` shows what is in the way"))
        }
    }
}

/// Leads all to the moment at which they are saved and stand still, and makes the checkpoint.
fn save_all(
    members: &mut [MemberLink],
    words: &JobSaveArgs,
    (new, token): (&NewCheckpoint, &str),
) -> Result<Vec<JointPart>> {
    step(members, |message| matches!(message, DestinationMessage::Poised))?;
    tell_all(members, &SourceMessage::Shut)?;
    step(members, |message| matches!(message, DestinationMessage::Silent))?;
    tell_all(members, &SourceMessage::Stop)?;
    let parts = hear_all(members, |message| match message {
        DestinationMessage::Written(part) => Ok(part),
        other => Err(strange(&other)),
    })?;
    let saved = members.iter().zip(&parts).map(|(MemberLink { place, .. }, part)| SavedMember {
        instance: place.instance.clone(),
        node: place.node.clone(),
        part: place.part,
        processes: part.processes,
        bytes: part.bytes,
        record: part.record.clone(),
    });
    let (members, left_running) = (saved.collect(), words.leave_running);
    JobCheckpoint { created: now(), token: token.into(), left_running, members }.write(&new.dir)?;
    new.publish(words.keep)?;
    Ok(parts)
}

fn step(members: &mut [MemberLink], is_it: impl Fn(&DestinationMessage) -> bool) -> Result<()> {
    let taken = hear_all(members, |message| match is_it(&message) {
        true => Ok(()),
        false => Err(strange(&message)),
    });
    taken.map(drop)
}

/// What became of each; their receivers end meanwhile.
fn report(members: Vec<MemberLink>, parts: Vec<JointPart>, frozen: &Result<Vec<u64>>) -> Vec<MemberReport> {
    let times = frozen.as_ref().map_or(&[][..], Vec::as_slice);
    let reports = members.iter().zip(parts).enumerate().map(|(at, (member, part))| MemberReport {
        instance: member.place.instance.clone(),
        node: member.place.node.clone(),
        processes: part.processes,
        bytes: part.bytes,
        frozen_ms: times.get(at).copied().unwrap_or(0),
    });
    let reports = reports.collect();
    links::end(members);
    reports
}

fn say(words: &JobSaveArgs, saved: &JobSaved) -> Result<i32> {
    if words.output.json {
        return output::json(saved).map(|()| 0);
    }
    let goes_on = match (&saved.unknown, saved.left_running) {
        (Some(_), _) => "",
        (None, true) => ", and they go on",
        (None, false) => ", and they have ended",
    };
    let (number, size) = (saved.members.len(), output::size(saved.bytes));
    let plural = if number == 1 { "" } else { "s" };
    output::note(&format!("{number} instance{plural} saved, {size}{goes_on} ({} ms)", saved.total_ms));
    output::line(&saved.checkpoint).map(|()| 0)
}

/// Shows what would be saved; the exit code says whether it can be.
fn show(slot: &CheckpointName, found: &[MemberFound], json: bool) -> Result<i32> {
    #[derive(Serialize)]
    struct Shown<'a> {
        checkpoint: String,
        members: &'a [MemberFound],
    }
    let is_in_the_way = found.is_empty() || found.iter().any(|one| !one.obstacles.is_empty());
    let code = if is_in_the_way { IN_THE_WAY } else { 0 };
    if json {
        return output::json(&Shown { checkpoint: slot.to_string(), members: found }).map(|()| code);
    }
    output::line(&format!("checkpoint   {slot}"))?;
    for MemberFound { instance, node, processes, obstacles, offer: _ } in found {
        output::line(&format!("instance     {instance} on {node} ({processes} processes)"))?;
        obstacles.iter().try_for_each(|why| output::line(&format!("in the way   {why}")))?;
    }
    Ok(code)
}
