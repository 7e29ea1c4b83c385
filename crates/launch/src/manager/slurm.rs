//! Slurm: hosts from the job's variables, and one `srun` for all of them.

use std::ffi::OsString;

use skiff_spec::job::names;

use super::{ConnectMethod, Launch, ManagerEntry, Surroundings, Told, invalid, var, words_of};
use crate::error::Result;
use crate::hosts::Host;

/// What a job has set for its own steps; ours is one of another shape.
const MISLEADING: [&str; 19] = [
    names::ENVIRONMENT,
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_HINT",
    "SLURM_HOSTFILE",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_MPI_TYPE",
    "SLURM_NNODES",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_TRES_PER_TASK",
    "SLURM_THREADS_PER_CORE",
];

/// More hosts than any machine has: a range beyond is a mistake.
const MOST_HOSTS: usize = 65_536;

pub const ENTRY: ManagerEntry = ManagerEntry {
    name: "Slurm",
    variables: &["SLURM_JOB_ID", "SLURM_JOB_NODELIST"],
    hosts,
    launches: |_, hosts, program| vec![launch(hosts, program)],
    way: ConnectMethod::CallBack,
    leads_session: false,
    tells_programs: Some(Told { started_from: "SLURM_LAUNCH_NODE_IPADDR", own_name: "SLURMD_NODENAME" }),
};

fn hosts(around: &Surroundings<'_>) -> Result<Vec<Host>> {
    let list = var(around, "SLURM_JOB_NODELIST")?;
    let names = expand(&list)
        .ok_or_else(|| invalid("SLURM_JOB_NODELIST", format!("{list:?}: not a list of hosts")))?;
    // Tasks are what Open MPI takes, too; without them the processors.
    let counts = ["SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"].into_iter().find_map(|name| {
        let counts = counts(&(around.var)(name)?)?;
        (counts.len() == names.len()).then_some(counts)
    });
    let slots = |at: usize| counts.as_ref().map(|counts| counts[at]);
    Ok(names.into_iter().enumerate().map(|(at, name)| Host { name, slots: slots(at) }).collect())
}

fn launch(hosts: &[Host], agent: &[OsString]) -> Launch {
    let count = hosts.len();
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let shape = [
        "srun".to_owned(),
        format!("--nodes={count}"),
        format!("--ntasks={count}"),
        format!("--nodelist={}", names.join(",")),
    ];
    let rest = [
        // Beside the job's own steps, with all that the job has on a node, bound to no part of it.
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--mpi=none",
        // The end of one is for us to judge.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--quiet",
        "--unbuffered",
        "--job-name=skiff-cluster",
        "--",
    ];
    let words = shape.iter().map(String::as_str).chain(rest);
    Launch {
        argv: words_of(words, agent.iter().cloned()),
        without: MISLEADING.to_vec(),
        way: ENTRY.way,
        hosts: (0..count).collect(),
    }
}

/// The names of a list like `n[1-3,07],gpu1,r[1-2]n[1-2]`; nothing if it is not one.
pub fn expand(list: &str) -> Option<Vec<String>> {
    let mut names = vec![];
    let (mut depth, mut from) = (0_u32, 0);
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                names.extend(expand_one(&list[from..at])?);
                from = at + 1;
            }
            _ => {}
        }
        if names.len() > MOST_HOSTS {
            return None;
        }
    }
    (depth == 0).then_some(names)
}

/// One name of it, with any number of brackets.
fn expand_one(name: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = name.split_once('[') else {
        return (!name.is_empty()).then(|| vec![name.to_owned()]);
    };
    let (inner, after) = rest.split_once(']')?;
    let afters = if after.is_empty() { vec![String::new()] } else { expand_one(after)? };
    let mut names = vec![];
    for range in inner.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if ![first, last].iter().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
            return None;
        }
        let (low, high): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if high < low || (high - low).saturating_mul(afters.len()) > MOST_HOSTS || names.len() > MOST_HOSTS {
            return None;
        }
        // As many digits as are written: n[01-10].
        let width = first.len();
        for number in low..=high {
            names.extend(afters.iter().map(|after| format!("{before}{number:0width$}{after}")));
        }
    }
    Some(names)
}

/// Numbers like `4(x2),2`.
fn counts(text: &str) -> Option<Vec<u32>> {
    let mut all = vec![];
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let count: u32 = count.parse().ok().filter(|count| *count > 0)?;
        all.extend(std::iter::repeat_n(count, Some(times).filter(|times| *times <= MOST_HOSTS)?));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_hosts() {
        for (list, want) in [
            ("n1", "n1"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-10,12],gpu1", "n08 n09 n10 n12 gpu1"),
            ("r[1-2]n[1-2]-x", "r1n1-x r1n2-x r2n1-x r2n2-x"),
        ] {
            assert_eq!(expand(list).map(|names| names.join(" ")).as_deref(), Some(want), "{list}");
        }
        for junk in ["", "n[1", "n1]", "n[a-b]", "n[3-1]", "n[1-99999999999]", "n[1-9999999]", "a,,b", "n[]"]
        {
            assert_eq!(expand(junk), None, "{junk}");
        }
    }

    #[test]
    fn numbers_of_slots() {
        assert_eq!(counts("4(x2),2"), Some(vec![4, 4, 2]));
        assert_eq!(counts("1"), Some(vec![1]));
        for junk in ["", "x", "4(x)", "4(x2", "0", "4(x999999999999)"] {
            assert_eq!(counts(junk), None, "{junk}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_list_takes_the_reader_down(list in "[a-c0-9\\[\\],x()-]{0,30}") {
            assert!(expand(&list).is_none_or(|names| names.iter().all(|name| !name.is_empty())));
            counts(&list);
        }
    }
}
