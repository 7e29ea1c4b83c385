//! Many jobs of several users while processes of every step are killed at random: nothing may be left of them.
//!
//! It runs in a test bed, whose processes are all seen from its login node: those of the nodes as well. What is there before the first
//! job and after the last one is counted, and each difference is a leak.

mod census;
mod jobs;
mod kill;
mod lost;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::bench::people::{self, TestUser};
use crate::random::Random;
use crate::testbed::{self, USERS};
use census::Census;

/// How many jobs each user has at a time.
const AT_ONCE: u64 = 2;
/// How long what is left may take to go when the last job has ended.
const SETTLE: Duration = Duration::from_secs(60);

/// The command line of `cargo xtask soak`.
#[derive(clap::Args)]
pub struct Args {
    /// For how long jobs are submitted
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Nodes of the test bed
    #[arg(long, default_value_t = 4)]
    nodes: usize,
    /// What decides which jobs and which kills come; printed, for another run of the same
    #[arg(long)]
    seed: Option<u64>,
    /// Milliseconds between two kills, on average; 0: none
    #[arg(long, default_value_t = 1000)]
    kill_every: u64,
    /// Print each kill
    #[arg(long)]
    tell_kills: bool,
}

/// Brings a test bed up unless this is one, and runs in it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(rustix::process::getuid().is_root(), "a soak needs root, for the test bed");
    if !testbed::is_inside() {
        let nodes = args.nodes.to_string();
        let bed =
            ["--nodes", &nodes, "--slurm-conf", "KillWait=2", "--slurm-conf", "UnkillableStepTimeout=20"];
        return testbed::run_again_inside(&bed, &[]);
    }
    let _tmp = OwnTmp::mount()?;
    people::require(&["srun", "sbatch", "scancel", "squeue", "scontrol", "mksquashfs"])?;
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let seed = args.seed.unwrap_or(time.as_nanos() as u64);
    println!("soak: seed {seed}, {} minutes, {} nodes, users {}", args.minutes, args.nodes, USERS.join(", "));
    let users: Vec<TestUser> = USERS.iter().map(|name| TestUser::find(name)).collect::<Result<_, _>>()?;
    jobs::prepare(&users, args.nodes)?;
    // It makes directories that stay.
    jobs::sweep(&users, args.nodes)?;
    let before = settled(None)?;
    let (jobs, kills) = storm(args, &users, seed);
    jobs::end_all(args.nodes)?;
    // What a killed job has left may be the next one's to remove, as docs/containers.md says of a crash.
    jobs::one_more(&users, args.nodes)?;
    let after = settled(Some(&before))?;
    jobs::age_unfinished()?;
    // docs/install.md: what a crash has left, and so a kill of root's own processes, is removed so.
    jobs::sweep(&users, args.nodes)?;
    let swept = settled(Some(&before))?;
    println!("\n{:44} {:>8}", "jobs", "count");
    jobs.iter().for_each(|(what, count)| println!("{what:44} {count:8}"));
    println!("\n{:44} {:>8}", "killed", "count");
    kills.iter().for_each(|(what, count)| println!("{what:44} {count:8}"));
    let leaks = census::compare(&before, &after, &swept);
    jobs::remove(&users)?;
    let stuck: u64 =
        jobs.iter().filter(|(what, _)| what.ends_with(jobs::STUCK)).map(|(_, count)| count).sum();
    ensure!(stuck == 0, "{stuck} jobs did not end in time");
    ensure!(
        leaks == 0,
        "{leaks} kinds of things have leaked (hint: --seed {seed} for another run of the same)"
    );
    println!("\nnothing has leaked");
    Ok(())
}

/// A `/tmp` of the bed's login node. The machine's is seen by all that runs on it: what others make there is no leak.
struct OwnTmp;

impl OwnTmp {
    fn mount() -> anyhow::Result<Self> {
        testbed::tmpfs("/tmp", c"mode=1777").map(|()| Self)
    }
}

impl Drop for OwnTmp {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount("/tmp", rustix::mount::UnmountFlags::DETACH) {
            eprintln!("soak: /tmp: {error}");
        }
    }
}

type Counts = std::collections::BTreeMap<String, u64>;

/// Jobs of all users and kills, until the time is over.
fn storm(args: &Args, users: &[TestUser], seed: u64) -> (Counts, Counts) {
    let (end, over) = (Instant::now() + Duration::from_secs(60 * args.minutes), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| kill::until(&over, Random::new(seed), args.kill_every, args.tell_kills));
        let tended = scope.spawn(|| lost::cancel_until(&over, || jobs::keep_resumed(args.nodes)));
        let submitters: Vec<_> = users
            .iter()
            .flat_map(|user| (0..AT_ONCE).map(move |slot| (user, slot)))
            .enumerate()
            .map(|(at, (user, slot))| {
                let random = Random::new(seed.wrapping_add(1 + at as u64));
                scope.spawn(move || jobs::until(end, user, slot, random, args.nodes))
            })
            .collect();
        let mut jobs = Counts::new();
        for submitter in submitters {
            for (what, count) in submitter
                .join()
                .unwrap_or_else(|_| Counts::from([("a thread of the soak has failed".into(), 1)]))
            {
                *jobs.entry(what).or_default() += count;
            }
        }
        over.store(true, Ordering::Relaxed);
        match tended.join() {
            Ok(lost) => drop(jobs.insert("cancelled, as Slurm lost or holds them".into(), lost.len() as u64)),
            Err(_) => drop(jobs.insert("a thread of the soak has failed".into(), 1)),
        }
        (jobs, killer.join().unwrap_or_else(|_| Counts::new()))
    })
}

/// A census when nothing changes any more: what has just ended takes a moment to go.
fn settled(before: Option<&Census>) -> anyhow::Result<Census> {
    let begun = Instant::now();
    let mut last = Census::take()?;
    loop {
        std::thread::sleep(Duration::from_secs(2));
        let now = Census::take()?;
        let done = match before {
            Some(before) => now.is_within(before),
            None => now.is_same(&last),
        };
        if done || begun.elapsed() > SETTLE {
            return Ok(now);
        }
        last = now;
    }
}
