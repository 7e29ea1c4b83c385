//! By how much the kernel is to set semaphores back when a process ends (`SEM_UNDO`). It shows that to nobody. But it refuses an operation by which
//! that would leave the range of a semaphore (`ERANGE`), and an operation of several steps is carried out whole or not at all. So the process is
//! made to ask for operations that come to nothing in any case, and the error says how much there is. Source: `perform_atomic_semop_slow` and
//! `SEMAEM` of the kernel's `ipc/sem.c`.

use std::collections::BTreeSet;
use std::io;

use rustix::io::Errno;
use rustix::process::test_kill_process;
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::process::positive_pid;
use skiff_sys::sysv::{self, Kind};
use skiff_sys::traced::{SemaphoreStep, Traced, TracedThrough};

use crate::obstacles::SavedProcess;
use crate::sysv_tables::SystemVObject;

/// The largest value of a semaphore, and the most by which it is set back (`SEMVMX`, `SEMAEM`).
const MOST: i16 = i16::MAX;
/// Semaphores that are asked about at once.
const AT_ONCE: usize = 16;

/// A semaphore that is to be set back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Undo {
    /// The process inside at whose end it is.
    pub pid: i32,
    /// The set.
    pub id: i32,
    /// The semaphore in it.
    pub number: u16,
    /// What is added then.
    pub by: i16,
}

/// A set of semaphores as it is: the value of each, and the process that has changed it last.
pub(crate) struct SetState<'a> {
    pub object: &'a SystemVObject,
    pub all: &'a [(u16, i32)],
}

/// Threads that have one list in common: the first of them, and the processes that they are of.
struct UndoList {
    thread: i32,
    processes: BTreeSet<i32>,
}

/// Reads what these processes, which `tracer` has stopped, have to be set back of these sets.
///
/// # Errors
/// When it cannot be told, or could not be set again.
pub(crate) fn read(
    processes: &[SavedProcess],
    tracer: Option<i32>,
    sets: &[SetState<'_>],
) -> Result<Vec<Undo>> {
    let lists = if sets.is_empty() { vec![] } else { lists(processes)? };
    let Some(tracer) = tracer.and_then(positive_pid).filter(|_| !lists.is_empty()) else {
        return match lists.is_empty() {
            true => Ok(vec![]),
            false => Err(Fault::new("System V semaphores: who has stopped the processes is gone")),
        };
    };
    let traced = Traced::stop(tracer).context(|| "CRIU")?;
    let found = lists.iter().map(|list| list.read(&traced, sets)).collect::<Result<Vec<_>>>();
    traced.release().context(|| "CRIU")?;
    let found: Vec<Undo> = found?.into_iter().flatten().collect();
    let mut seen = BTreeSet::new();
    match found.iter().find(|undo| !seen.insert((undo.pid, undo.id, undo.number))) {
        Some(undo) => Err(undo.refusal("threads of it have lists of their own")),
        None => Ok(found),
    }
}

/// The lists that these processes have. One that has none is like this process.
fn lists(processes: &[SavedProcess]) -> Result<Vec<UndoList>> {
    let own = rustix::process::getpid();
    let mut lists: Vec<UndoList> = vec![];
    for process in processes {
        let about = || format!("process {}: System V semaphores", process.pid);
        for thread in &process.threads {
            let Some(this) = positive_pid(*thread) else { continue };
            let differs = |other| match sysv::undo_lists_differ(this, other) {
                // It has ended.
                Err(e) if Errno::from_io_error(&e) == Some(Errno::SRCH) => Ok(false),
                differs => differs,
            };
            if !differs(own).context(about)? {
                continue;
            }
            let mut known = None;
            for (place, list) in lists.iter().enumerate() {
                let other = positive_pid(list.thread).ok_or_else(|| Fault::new(about()))?;
                if !differs(other).context(about)? {
                    known = Some(place);
                    break;
                }
            }
            match known {
                Some(place) => {
                    lists[place].processes.insert(process.pid);
                }
                None => lists.push(UndoList { thread: *thread, processes: [process.pid].into() }),
            }
        }
    }
    Ok(lists)
}

impl UndoList {
    fn read(&self, tracer: &Traced, sets: &[SetState<'_>]) -> Result<Vec<Undo>> {
        let pid = self.processes.first().copied().unwrap_or(self.thread);
        let about = || format!("process {pid}: System V semaphores that are set back at its end (SEM_UNDO)");
        let thread = positive_pid(self.thread).ok_or_else(|| Fault::new(about()))?;
        let thread = TracedThrough::new(tracer, thread);
        let mut found = vec![];
        for set in sets {
            let exceeds = |steps: &[SemaphoreStep]| {
                let done = with_rights(set.object, || thread.operate(set.object.id, steps));
                exceeds(done)
            };
            for (number, by) in set.undone(exceeds).context(about)? {
                found.push(Undo { pid, id: set.object.id, number, by });
            }
        }
        if self.processes.len() > 1
            && let Some(undo) = found.first()
        {
            return Err(undo.refusal("another process has the same list"));
        }
        Ok(found)
    }
}

impl Undo {
    fn refusal(&self, why: &str) -> Fault {
        let Self { pid, id, .. } = self;
        Fault::new(format!(
            "process {pid}: it cannot be saved: System V semaphores {id} are set back at its end (SEM_UNDO), and {why}"
        ))
    }
}

/// What an operation that comes to nothing says: whether it would have left the range.
fn exceeds(done: io::Result<()>) -> io::Result<bool> {
    match done.as_ref().map_err(Errno::from_io_error) {
        Err(Some(Errno::RANGE)) => Ok(true),
        Err(Some(Errno::AGAIN)) => Ok(false),
        Ok(()) => Err(io::Error::other("what cannot be done was done")),
        Err(_) => done.map(|()| false),
    }
}

/// Does something for which a process may need the right to change a set: it may have had that before.
fn with_rights(object: &SystemVObject, act: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let done = act();
    if done.as_ref().is_err_and(|e| Errno::from_io_error(e) == Some(Errno::ACCESS)) {
        let rights = |mode| sysv::set_owner(Kind::Semaphores, object.id, (object.uid, object.gid, mode), 0);
        rights(0o666)?;
        let done = act();
        rights(object.mode & 0o777)?;
        return done;
    }
    done
}

impl SetState<'_> {
    /// The semaphores that are set back, and by how much. `exceeds` tries an operation.
    fn undone(&self, exceeds: impl Fn(&[SemaphoreStep]) -> io::Result<bool>) -> io::Result<Vec<(u16, i16)>> {
        let all: Vec<(u16, u16)> = (0..).zip(self.all).map(|(number, (value, _))| (number, *value)).collect();
        let mut found = vec![];
        for some in all.chunks(AT_ONCE) {
            let any = |test: &dyn Fn((u16, u16)) -> Vec<SemaphoreStep>| {
                let mut steps: Vec<SemaphoreStep> = some.iter().flat_map(|one| test(*one)).collect();
                let last = some.last().map_or(0, |(number, _)| *number);
                steps.extend(never(last, &steps, some));
                exceeds(&steps)
            };
            if !any(&|one| at_least(one, 1))? && !any(&|one| at_most(one, 1))? {
                continue;
            }
            for one in some {
                let is = |steps: Vec<SemaphoreStep>| {
                    exceeds(&[steps.clone(), never(one.0, &steps, &[*one])].concat())
                };
                let by = match is(at_least(*one, 1))? {
                    true => largest(|by| is(at_least(*one, by)))?,
                    false if is(at_most(*one, 1))? => -largest(|by| is(at_most(*one, by)))?,
                    false => continue,
                };
                found.push((one.0, by));
            }
        }
        Ok(found)
    }
}

/// The largest number from 1 on that is in it, where 1 is.
fn largest(is_in: impl Fn(i16) -> io::Result<bool>) -> io::Result<i16> {
    let (mut low, mut high) = (1, MOST);
    while low < high {
        let middle = low + (high - low) / 2 + 1;
        if is_in(middle)? { low = middle } else { high = middle - 1 }
    }
    Ok(low)
}

fn step(number: u16, by: i32, undone: bool) -> Option<SemaphoreStep> {
    i16::try_from(by).ok().filter(|by| *by != 0).map(|by| SemaphoreStep { number, by, undone })
}

/// Steps that leave the range if a semaphore of this value is set back by at least `by`: it is made as large as can be, and taken from.
fn at_least((number, value): (u16, u16), by: i16) -> Vec<SemaphoreStep> {
    let (most, value) = (i32::from(MOST), i32::from(value));
    let down = most + 1 - i32::from(by);
    [step(number, most - value, false), step(number, -down, true)].into_iter().flatten().collect()
}

/// The same for `-by` or less: it is made as small as can be, and added to.
fn at_most((number, value): (u16, u16), by: i16) -> Vec<SemaphoreStep> {
    let most = i32::from(MOST);
    // A step is no larger than the largest value.
    let up = most + 2 - i32::from(by);
    let (first, second) = if up > most { (most, up - most) } else { (up, 0) };
    let between = if second == 0 { 0 } else { -first };
    let all = [(-i32::from(value), false), (first, true), (between, false), (second, true)];
    all.into_iter().filter_map(|(by, undone)| step(number, by, undone)).collect()
}

/// A step that cannot be done behind these.
fn never(number: u16, steps: &[SemaphoreStep], all: &[(u16, u16)]) -> Vec<SemaphoreStep> {
    let begun = all.iter().find(|(one, _)| *one == number).map_or(0, |(_, value)| i32::from(*value));
    let changed: i32 = steps.iter().filter(|step| step.number == number).map(|step| i32::from(step.by)).sum();
    // To wait until it is zero, or to take more than is there.
    let by = if begun + changed == 0 { -1 } else { 0 };
    vec![SemaphoreStep { number, by, undone: false }]
}

/// Has each process, which is there and stands still, have semaphores set back at its end as before. Their values stay.
///
/// # Errors
/// When one cannot.
pub(crate) fn set_again(all: &[Undo], sets: &[SetState<'_>]) -> Result<()> {
    for undo in all {
        let (set, value, _) = undo.find(sets)?;
        operate(undo.pid, set.object, &undo.steps(value))?;
    }
    // Who has changed a semaphore last is another than it was.
    for undo in all {
        let (set, value, last) = undo.find(sets)?;
        let is_there = positive_pid(last).is_some_and(|last| test_kill_process(last).is_ok());
        if is_there {
            let by = if value == MOST.unsigned_abs() { -1 } else { 1 };
            let touch = [by, -by].map(|by| SemaphoreStep { number: undo.number, by, undone: false });
            operate(last, set.object, &touch)?;
        }
    }
    Ok(())
}

fn operate(pid: i32, object: &SystemVObject, steps: &[SemaphoreStep]) -> Result<()> {
    let about = || format!("process {pid}: System V semaphores {}", object.id);
    let process = positive_pid(pid).ok_or_else(|| Fault::new(about()))?;
    let traced = Traced::stop(process).context(about)?;
    let done = with_rights(object, || traced.operate(object.id, steps)).context(about);
    traced.release().context(about)?;
    done
}

impl Undo {
    fn find<'a, 'b>(&self, sets: &'b [SetState<'a>]) -> Result<(&'b SetState<'a>, u16, i32)> {
        let set = sets.iter().find(|set| set.object.id == self.id);
        let found = set.and_then(|set| Some((set, *set.all.get(usize::from(self.number))?)));
        let unknown = || Fault::new(format!("System V semaphores {}: missing from the checkpoint", self.id));
        found.map(|(set, (value, last))| (set, value, last)).ok_or_else(unknown)
    }

    /// Steps that have it set back, and leave its value.
    fn steps(&self, value: u16) -> Vec<SemaphoreStep> {
        let (most, value, by) = (i32::from(MOST), i32::from(value), i32::from(self.by));
        // First so that there is room.
        let first = (by - value).max(0) - (value - by - most).max(0);
        let all = [(first, false), (-by, true), (by - first, false)];
        all.into_iter().filter_map(|(by, undone)| step(self.number, by, undone)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel carries it out (`perform_atomic_semop_slow`): what is set back, and the values, are as they were if it fails.
    fn operation(values: &mut [i32], undo: &mut [i32], steps: &[SemaphoreStep]) -> io::Result<()> {
        let (before, undo_before) = (values.to_vec(), undo.to_vec());
        let done = steps.iter().try_for_each(|SemaphoreStep { number, by, undone }| {
            let (at, by) = (usize::from(*number), i32::from(*by));
            if (by == 0 && values[at] != 0) || values[at] + by < 0 {
                return Err(Errno::AGAIN);
            }
            let less = undo[at] - by;
            if values[at] + by > 32_767 || (*undone && !(-32_768..=32_767).contains(&less)) {
                return Err(Errno::RANGE);
            }
            values[at] += by;
            undo[at] = if *undone { less } else { undo[at] };
            Ok(())
        });
        if done.is_err() {
            values.copy_from_slice(&before);
            undo.copy_from_slice(&undo_before);
        }
        done.map_err(Into::into)
    }

    fn object() -> SystemVObject {
        SystemVObject { id: 3, key: 0, mode: 0o600, uid: 0, gid: 0, creator: (0, 0) }
    }

    proptest::proptest! {
        #[test]
        fn what_is_set_back_is_told_exactly_and_set_again(
            all in proptest::collection::vec((
                proptest::prop_oneof![0_u16..3, 32_765_u16..=32_767, 0_u16..=32_767],
                proptest::prop_oneof![-2_i16..=2, -32_767_i16..=-32_765, 32_765_i16..=32_767],
            ), 1..40)
        ) {
            let state: Vec<(u16, i32)> = all.iter().map(|(value, _)| (*value, 0)).collect();
            let object = object();
            let set = SetState { object: &object, all: &state };
            let values: Vec<i32> = all.iter().map(|(value, _)| i32::from(*value)).collect();
            let undo: Vec<i32> = all.iter().map(|(_, by)| i32::from(*by)).collect();
            let told = set.undone(|steps| {
                let (mut values, mut undo) = (values.clone(), undo.clone());
                assert!(steps.len() * 6 <= 512, "{} steps", steps.len());
                exceeds(operation(&mut values, &mut undo, steps))
            }).expect("told");
            let wanted: Vec<(u16, i16)> =
                (0..).zip(&all).filter(|(_, (_, by))| *by != 0).map(|(number, (_, by))| (number, *by)).collect();
            assert_eq!(told, wanted);
            let (mut now, mut again) = (values.clone(), vec![0; all.len()]);
            for (number, by) in told {
                let undo = Undo { pid: 1, id: 3, number, by };
                let steps = undo.steps(all[usize::from(number)].0);
                operation(&mut now, &mut again, &steps).expect("set");
            }
            assert_eq!((now, again), (values, undo));
        }
    }
}
