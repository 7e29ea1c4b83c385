//! What users ask for, what their job lets them have, and the devices that come of both.

use std::collections::BTreeSet;

use crate::catalog::{Catalog, CdiError, FoundDevice, how_to_describe, shortened};
use crate::name::{ALL, DeviceName};

/// The kinds of GPUs, the one that is looked for first in front.
const GPU_KINDS: [&str; 3] = ["nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu"];

/// One thing that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceRequest {
    /// A device by its full name, or all of its kind.
    Device(DeviceName),
    /// GPUs.
    Gpus {
        /// Of which vendor; nothing for the one that the host has files of.
        kind: Option<&'static str>,
        /// The ones that are wanted.
        which: WhichGpus,
    },
}

/// The GPUs that are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhichGpus {
    /// All that the user may have.
    All,
    /// So many of these.
    Count(usize),
    /// Some, by number or UUID.
    These(Vec<String>),
    /// What is granted, if anything is: nobody has asked but the image's maker.
    IfGranted,
}

/// What a job may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// Everything: there is no job, or its manager does not share GPUs out.
    Everything,
    /// These GPUs, by number or UUID.
    Only(Vec<String>),
}

impl DeviceRequest {
    /// GPUs in Docker's words: `all`, a number, a list of numbers and UUIDs, `device=...`.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn gpus(text: &str) -> Result<Self, String> {
        Ok(Self::Gpus { kind: None, which: WhichGpus::parse(text)? })
    }

    /// All GPUs of NVIDIA's.
    #[must_use]
    pub fn nvidia() -> Self {
        Self::Gpus { kind: Some(GPU_KINDS[0]), which: WhichGpus::All }
    }

    /// All GPUs of AMD's.
    #[must_use]
    pub fn amd() -> Self {
        Self::Gpus { kind: Some(GPU_KINDS[1]), which: WhichGpus::All }
    }

    /// Whether an image's maker asks, and nobody else.
    fn is_makers(&self) -> bool {
        matches!(self, Self::Gpus { which: WhichGpus::IfGranted, .. })
    }

    /// Whether a user asks for GPUs.
    fn is_for_gpus_of_user(&self) -> bool {
        match self {
            Self::Device(name) => GPU_KINDS.contains(&&*name.kind),
            Self::Gpus { .. } => !self.is_makers(),
        }
    }

    /// Whether a user asks for some GPUs and not for all.
    fn picks_gpus(&self) -> bool {
        match self {
            Self::Device(name) => self.is_for_gpus_of_user() && name.device != ALL,
            Self::Gpus { which, .. } => matches!(which, WhichGpus::Count(_) | WhichGpus::These(_)),
        }
    }
}

impl WhichGpus {
    fn parse(text: &str) -> Result<Self, String> {
        let plain = text.replace('"', "");
        let (mut key, mut ids, mut has_key) = ("", vec![], false);
        let mut count = None;
        for piece in plain.split(',') {
            let value = match piece.split_once('=') {
                Some((name, value)) => {
                    key = ["device", "count", "capabilities", "driver"]
                        .into_iter()
                        .find(|known| *known == name)
                        .ok_or_else(|| format!("{name:?} is not device, count, capabilities or driver"))?;
                    value
                }
                None => piece,
            };
            match key {
                // The vendor's description decides what a device brings.
                "capabilities" | "driver" => {}
                "count" => count = Some(value.to_owned()),
                _ if is_id(value) => {
                    has_key |= !key.is_empty();
                    ids.push(value.to_owned());
                }
                _ => return Err(format!("{value:?} is not the number or the name of a GPU")),
            }
        }
        // A number alone is a count, as Docker has it, whatever capabilities are named beside it.
        if let (false, [one]) = (has_key, &ids[..]) {
            count = Some(one.clone()).filter(|one| one == ALL || one.parse::<usize>().is_ok());
        }
        match count.as_deref() {
            Some(ALL | "-1") => Ok(Self::All),
            Some(number) => match number.parse() {
                Ok(number) if number > 0 => Ok(Self::Count(number)),
                _ => Err(format!("{number:?} is not a number of GPUs")),
            },
            None if ids.is_empty() => Err("no GPU is named".into()),
            None if ids.iter().any(|id| id == ALL) => Ok(Self::All),
            None => Ok(Self::These(ids)),
        }
    }
}

/// Whether a text can be the number, the name or the UUID of a GPU.
fn is_id(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-:_.".contains(c))
}

impl Granted {
    /// What a job's variables say.
    #[must_use]
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let is_slurm = variable("SLURM_JOB_ID").is_some();
        if !is_slurm && ["PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"].iter().all(|name| variable(name).is_none())
        {
            return Self::Everything;
        }
        // Slurm's own numbers are those of the node; the others may begin at zero in each job.
        let names = [
            "SLURM_STEP_GPUS",
            "SLURM_JOB_GPUS",
            "CUDA_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "ZE_AFFINITY_MASK",
        ];
        let names = if is_slurm { &names[..] } else { &names[2..] };
        match names.iter().find_map(|name| variable(name)) {
            Some(text) => Self::Only(ids(&text)),
            None if is_slurm => Self::Only(vec![]),
            None => Self::Everything,
        }
    }
}

/// The numbers and UUIDs of a list; `2-4` stands for three numbers.
fn ids(text: &str) -> Vec<String> {
    let mut found = vec![];
    for id in text.split(',').map(str::trim) {
        let range = id
            .split_once('-')
            .and_then(|(from, to)| Some((from.parse::<u32>().ok()?, to.parse::<u32>().ok()?)));
        match range {
            Some((from, to)) if to.saturating_sub(from) < 1024 => {
                found.extend((from..=to).map(|id| id.to_string()))
            }
            _ if ["", "none", "void", "NoDevFiles", "-1"].contains(&id) => {}
            _ => found.push(id.into()),
        }
    }
    found
}

impl Catalog {
    /// The devices that requests mean, each once.
    ///
    /// # Errors
    /// One that does not exist, or is not granted.
    pub fn resolve(
        &self,
        requests: &[DeviceRequest],
        granted: &Granted,
    ) -> Result<Vec<FoundDevice<'_>>, CdiError> {
        let mut found: Vec<FoundDevice<'_>> = vec![];
        // What a user picks counts more than what the image's maker asks for.
        let is_picked = requests.iter().any(DeviceRequest::is_for_gpus_of_user);
        let is_meant = |request: &&DeviceRequest| !is_picked || !request.is_makers();
        for request in requests.iter().filter(is_meant) {
            let more = match request {
                DeviceRequest::Device(name) => self.named(name, granted)?,
                DeviceRequest::Gpus { kind, which } => self.gpus(*kind, which, granted)?,
            };
            for one in more {
                let is_same = |other: &FoundDevice<'_>| std::ptr::eq(other.device, one.device);
                if !found.iter().any(is_same) {
                    found.push(one);
                }
            }
        }
        Ok(found)
    }

    /// Device nodes of the GPUs that are left out where some of their kind were picked by name or number: a root that has the host's `/dev`
    /// must not show them.
    #[must_use]
    pub fn nodes_left_out(&self, requests: &[DeviceRequest], found: &[FoundDevice<'_>]) -> Vec<String> {
        if !requests.iter().any(DeviceRequest::picks_gpus) {
            return vec![];
        }
        let kind = |found: &FoundDevice<'_>| found.file.description.kind.clone();
        let kinds: BTreeSet<String> =
            found.iter().map(kind).filter(|kind| GPU_KINDS.contains(&&**kind)).collect();
        let nodes = |found: &FoundDevice<'_>| {
            let of_all = found.file.description.edits.nodes.iter();
            found.device.edits.nodes.iter().chain(of_all).map(|node| node.host.clone()).collect::<Vec<_>>()
        };
        let given: BTreeSet<String> = found.iter().flat_map(nodes).collect();
        let all = kinds.iter().flat_map(|kind| self.devices(kind));
        let nodes = all.flat_map(|found| found.device.edits.nodes.iter().map(|node| node.host.clone()));
        let left_out: BTreeSet<String> = nodes.filter(|node| !given.contains(node)).collect();
        left_out.into_iter().collect()
    }

    fn named(&self, name: &DeviceName, granted: &Granted) -> Result<Vec<FoundDevice<'_>>, CdiError> {
        if GPU_KINDS.contains(&&*name.kind) && *granted != Granted::Everything {
            let which =
                if name.device == ALL { WhichGpus::All } else { WhichGpus::These(vec![name.device.clone()]) };
            return self.gpus(Some(&name.kind), &which, granted);
        }
        match self.find(name) {
            Ok(found) => Ok(vec![found]),
            // Not every file has a device that stands for all.
            Err(why) if name.device == ALL => match self.devices(&name.kind) {
                none if none.is_empty() => Err(why),
                all => Ok(all),
            },
            Err(why) => Err(why),
        }
    }

    fn gpus(
        &self,
        kind: Option<&str>,
        which: &WhichGpus,
        granted: &Granted,
    ) -> Result<Vec<FoundDevice<'_>>, CdiError> {
        let kinds: Vec<&str> = kind.map_or_else(|| GPU_KINDS.to_vec(), |kind| vec![kind]);
        if let Some(kind) = kinds.iter().find(|kind| !self.devices(kind).is_empty()) {
            return self.of_kind(kind, which, granted);
        }
        let is_if_granted = *which == WhichGpus::IfGranted;
        if is_if_granted && *granted == Granted::Only(vec![]) {
            return Ok(vec![]);
        }
        if let Some(conflict) = self.conflict(|name| kinds.contains(&&*name.kind)) {
            return Err(conflict);
        }
        let none = format!("no file describes a GPU ({})", kinds.join(", "));
        // Of a file that is no YAML nobody knows what it was to describe.
        let may_be_gpus = |kind: &str| kind.is_empty() || kinds.contains(&kind);
        match self.broken(|file| !is_if_granted || may_be_gpus(&file.description.kind)) {
            Some(broken) => Err(CdiError::new(format!("{none}; {broken}"), "skiff cdi check")),
            // Most hosts have no GPU, and the same image runs on them.
            None if is_if_granted => Ok(vec![]),
            None => Err(CdiError::new(none, self.other_gpus().unwrap_or_else(|| how_to_describe(&kinds)))),
        }
    }

    /// Names the GPUs that this host has, where others were asked for.
    fn other_gpus(&self) -> Option<String> {
        let others: Vec<&str> = self.kinds().into_iter().filter(|kind| GPU_KINDS.contains(kind)).collect();
        (!others.is_empty()).then(|| format!("this host's GPUs are {}: skiff cdi list", others.join(" and ")))
    }

    fn of_kind(
        &self,
        kind: &str,
        which: &WhichGpus,
        granted: &Granted,
    ) -> Result<Vec<FoundDevice<'_>>, CdiError> {
        let all = self.devices(kind);
        let mine = match granted {
            Granted::Everything => units(&all),
            Granted::Only(ids) if ids.is_empty() => match which {
                WhichGpus::IfGranted => return Ok(vec![]),
                _ => {
                    return Err(CdiError::new(
                        "this job has no GPU",
                        "srun --gpus=1, or #SBATCH --gpus-per-node=1",
                    ));
                }
            },
            Granted::Only(ids) => ids.iter().map(|id| by_id(&all, kind, id)).collect::<Result<_, _>>()?,
        };
        match which {
            WhichGpus::All | WhichGpus::IfGranted => {
                match (granted, all.iter().find(|found| found.device.name == ALL)) {
                    (Granted::Everything, Some(whole)) => Ok(vec![*whole]),
                    _ => Ok(mine),
                }
            }
            WhichGpus::Count(count) if *count <= mine.len() => Ok(mine[..*count].to_vec()),
            WhichGpus::Count(count) => {
                let whose = if *granted == Granted::Everything { "this host" } else { "this job" };
                Err(CdiError::new(
                    format!("{count} GPUs of {kind}: {whose} has {}", mine.len()),
                    "skiff cdi list",
                ))
            }
            WhichGpus::These(ids) => ids.iter().map(|id| granted_id(&all, &mine, kind, id)).collect(),
        }
    }
}

/// One that is asked for by name, if it is among those that the user may have.
fn granted_id<'a>(
    all: &[FoundDevice<'a>],
    mine: &[FoundDevice<'a>],
    kind: &str,
    id: &str,
) -> Result<FoundDevice<'a>, CdiError> {
    let found = by_id(all, kind, id)?;
    match mine.iter().any(|one| is_same_unit(one, &found)) {
        true => Ok(found),
        false => {
            let names: Vec<&str> = mine.iter().map(|one| &*one.device.name).collect();
            Err(CdiError::new(
                format!("GPU {id} of {kind}: this job has not been given it, but {}", shortened(&names)),
                "`all` stands for what the job has: --gpus all, nvidia.com/gpu=all",
            ))
        }
    }
}

/// The device that a number or a UUID means. A job manager counts device nodes, and the vendor's own numbers may differ from these.
fn by_id<'a>(all: &[FoundDevice<'a>], kind: &str, id: &str) -> Result<FoundDevice<'a>, CdiError> {
    let is_number = id.bytes().all(|byte| byte.is_ascii_digit());
    let node = format!("/dev/nvidia{id}");
    let has_node = |found: &&FoundDevice<'a>| {
        is_number && found.device.name != ALL && found.device.edits.nodes.iter().any(|one| one.inside == node)
    };
    // Vendors' lists may have the beginning of a UUID.
    let is_named = |found: &&FoundDevice<'a>| {
        found.device.name == id || (id.len() > 8 && found.device.name.starts_with(id))
    };
    let is_plain = |found: &&FoundDevice<'a>| has_node(found) && !found.device.name.contains(':');
    let found = all.iter().find(is_plain).or_else(|| all.iter().find(is_named));
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|found| &*found.device.name).collect();
        CdiError::new(
            format!("GPU {id} of {kind}: not described; there are {}", shortened(&names)),
            "skiff cdi list",
        )
    })
}

fn is_same_unit(one: &FoundDevice<'_>, other: &FoundDevice<'_>) -> bool {
    one.device.name == other.device.name
        || (!one.device.edits.nodes.is_empty() && one.device.edits.nodes == other.device.edits.nodes)
}

/// Each GPU once, though it may have a number and a UUID for names.
fn units<'a>(all: &[FoundDevice<'a>]) -> Vec<FoundDevice<'a>> {
    let mut units: Vec<FoundDevice<'a>> = vec![];
    for found in all.iter().filter(|found| found.device.name != ALL) {
        if !units.iter().any(|known| is_same_unit(known, found)) {
            units.push(*found);
        }
    }
    units
}
