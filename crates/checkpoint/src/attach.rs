//! System V segments that processes have attached. Only a process itself can attach one: so each is made to, when CRIU has made it and it stands
//! still. CRIU knows the place as a mapping of a file, the placeholder, which is replaced then.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::memory::page_size;
use skiff_sys::process::positive_pid;
use skiff_sys::traced::{AttachedPart, Traced};

use crate::mappings::{Mapping, Placeholders, of_process};

/// Flags of mappings, and the advice that sets each. Source: `filesystems/proc.rst`, `asm-generic/mman-common.h`.
const ADVICE: [(&str, u32); 6] = [("rr", 1), ("sr", 2), ("dc", 10), ("hg", 14), ("nh", 15), ("dd", 16)];

/// A part of a segment that a process has attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// The process inside.
    pub pid: i32,
    /// Number of the segment.
    pub id: i32,
    /// Where the part begins and ends in the process, and where it begins in the segment.
    start: u64,
    end: u64,
    offset: u64,
    /// Whether it may be read, written, executed.
    rights: [bool; 3],
    /// Whether it could be made writable (`SHM_RDONLY` was not asked for).
    may_write: bool,
    /// Whether it stays in memory (`mlock`).
    #[serde(default)]
    locked: bool,
    /// What the kernel was advised of it (`madvise`).
    #[serde(default)]
    advice: Vec<u32>,
}

/// What these processes have attached.
///
/// # Errors
/// When the kernel does not show it.
pub(crate) fn read(processes: &[i32]) -> Result<Vec<Attachment>> {
    let mut all = vec![];
    for pid in processes {
        let about = || format!("process {pid}: its memory");
        let mappings = match of_process(*pid) {
            // One that has ended and not been waited for has none.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::SRCH) => vec![],
            mappings => mappings.context(about)?,
        };
        let attached: Vec<&Mapping> = mappings.iter().filter(|mapping| mapping.is_system_v()).collect();
        if attached.is_empty() {
            continue;
        }
        let flags = flags(&fs::read(format!("/proc/{pid}/smaps")).context(about)?);
        for mapping in attached {
            all.push(Attachment::of(*pid, mapping, &flags)?);
        }
    }
    Ok(all)
}

impl Attachment {
    fn of(pid: i32, mapping: &Mapping, flags: &HashMap<u64, Vec<String>>) -> Result<Self> {
        let about = || format!("process {pid}: System V shared memory");
        let id = i32::try_from(mapping.object.2).map_err(|_| Fault::new(about()))?;
        let flags = flags.get(&mapping.start).ok_or_else(|| Fault::new(about()))?;
        let is_set = |flag: &str| flags.iter().any(|set| set == flag);
        let rights = ['r', 'w', 'x'].map(|letter| mapping.rights.contains(letter));
        let advice = ADVICE.iter().filter(|(flag, _)| is_set(flag)).map(|(_, advice)| *advice).collect();
        let Mapping { start, end, offset, .. } = *mapping;
        Ok(Self {
            pid,
            id,
            start,
            end,
            offset,
            rights,
            may_write: is_set("mw"),
            locked: is_set("lo"),
            advice,
        })
    }
}

/// The kernel's flags of the segments' mappings, by where each begins, as `/proc/PID/smaps` tells them.
fn flags(smaps: &[u8]) -> HashMap<u64, Vec<String>> {
    let (mut found, mut start) = (HashMap::new(), None);
    for line in String::from_utf8_lossy(smaps).lines() {
        if let Some(mapping) = Mapping::parse(line) {
            start = mapping.is_system_v().then_some(mapping.start);
        } else if let (Some(start), Some(flags)) = (start, line.strip_prefix("VmFlags:")) {
            found.insert(start, flags.split_whitespace().map(str::to_owned).collect());
        }
    }
    found
}

/// Makes the placeholder of each segment that is attached.
///
/// # Errors
/// When one cannot be made.
pub(crate) fn make_placeholders(
    placeholders: &Placeholders,
    all: &[Attachment],
    sizes: &[(i32, u64)],
) -> Result<()> {
    let mut ids: Vec<i32> = all.iter().map(|one| one.id).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        placeholders.make(id, size_of(id, sizes)?)?;
    }
    Ok(())
}

fn size_of(id: i32, sizes: &[(i32, u64)]) -> Result<u64> {
    let found = sizes.iter().find(|(of, _)| *of == id).map(|(_, size)| *size);
    found.ok_or_else(|| {
        Fault::new(format!("System V shared memory {id}: attached but missing from the checkpoint"))
    })
}

/// Has each process attach what it had.
///
/// # Errors
/// When one cannot.
pub(crate) fn again(all: &[Attachment], sizes: &[(i32, u64)]) -> Result<()> {
    let mut pids: Vec<i32> = all.iter().map(|one| one.pid).collect();
    // In any order in the record: none is traced twice.
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        let about = || format!("process {pid}: System V shared memory");
        let process = positive_pid(pid).ok_or_else(|| Fault::new(about()))?;
        let traced = Traced::stop(process).context(about)?;
        for (id, parts) in attachments(all, pid) {
            let size = size_of(id, sizes)?.next_multiple_of(page_size() as u64);
            traced.attach(id, size, &parts).context(about)?;
        }
        traced.release().context(about)?;
    }
    Ok(())
}

/// The attachments of a process, each with its parts: what is left of one lies where it was, seen from where the segment would begin.
fn attachments(all: &[Attachment], pid: i32) -> Vec<(i32, Vec<AttachedPart>)> {
    let mut found: BTreeMap<(i32, u64), Vec<AttachedPart>> = BTreeMap::new();
    for one in all.iter().filter(|one| one.pid == pid) {
        let known = |advice: &&u32| ADVICE.iter().any(|(_, known)| known == *advice);
        let part = AttachedPart {
            start: one.start,
            end: one.end,
            offset: one.offset,
            rights: one.rights,
            may_write: one.may_write,
            locked: one.locked,
            advice: one.advice.iter().filter(known).copied().collect(),
        };
        found.entry((one.id, one.start.wrapping_sub(one.offset))).or_default().push(part);
    }
    found.into_iter().map(|((id, _), parts)| (id, parts)).collect()
}
