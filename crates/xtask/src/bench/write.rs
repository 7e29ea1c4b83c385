//! How a pull's data is best written to the disk: the ways there are, against each other, with nothing else to do and beside as much work
//! of the processor's as inflating is. What was chosen of it stands in docs/image-files.md.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use tempfile::TempDir;

use super::Setting;
use super::people::{self, RunAs};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use super::stats;

const SOURCE: &str = include_str!("write.c");

/// What the product does where the kernel can.
const CHOSEN: &str = "RWF_DONTCACHE";
/// What it would be exchanged for if that were quicker.
const RIVALS: [&str; 2] = ["O_DIRECT, allocated ahead", "io_uring, O_DIRECT, allocated ahead"];

#[derive(clap::Args)]
pub struct Args {
    /// How much to write, in MiB
    #[arg(long, default_value_t = 1860)]
    mebibytes: u32,
    /// By how many threads
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// How long it takes to inflate a MiB, in microseconds of processor time
    #[arg(long, default_value_t = 1250)]
    work: u32,
    /// Where to, on the disk that is meant
    #[arg(long, default_value = "target/bench-write")]
    directory: PathBuf,
}

/// One way, with or without the work.
struct Way {
    name: String,
    script: String,
    seconds: Vec<f64>,
    /// Of all processors, whoever used them: much of it is done by threads of the kernel's.
    processor: Vec<f64>,
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    let machine = HostInfo::here()?;
    let programs = TempDir::with_prefix("skiff-write.").context("making a temporary directory")?;
    let program = build(programs.path())?;
    std::fs::create_dir_all(&args.directory)
        .with_context(|| format!("making {}", args.directory.display()))?;
    let file = args.directory.join("file");
    let mut ways = ways(args, &program, &file);
    for round in 0..setting.rounds {
        eprintln!("round {} of {}", round + 1, setting.rounds);
        let count = ways.len();
        for index in 0..count {
            ways[(round + index) % count].measure(&file)?;
        }
    }
    std::fs::remove_dir_all(&args.directory)
        .with_context(|| format!("removing {}", args.directory.display()))?;
    Ok(evaluate(machine, args, &ways))
}

fn build(directory: &Path) -> anyhow::Result<PathBuf> {
    let (source, program) = (directory.join("write.c"), directory.join("write"));
    std::fs::write(&source, SOURCE).with_context(|| format!("writing {}", source.display()))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-pthread", "-o"]).args([&program, &source]);
    people::output(&mut compiler, "cc (hint: make deps)")?;
    Ok(program)
}

fn ways(args: &Args, program: &Path, file: &Path) -> Vec<Way> {
    let ways = [
        ("buffered", "buffered", 0),
        (CHOSEN, "dontcache", 0),
        ("POSIX_FADV_DONTNEED after every 32 MiB", "dontneed", 0),
        ("O_DIRECT, file grows", "direct", 0),
        (RIVALS[0], "direct", 1),
        (RIVALS[1], "uring", 1),
        ("io_uring, RWF_DONTCACHE", "uring-cache", 0),
    ];
    let with = |work: u32| {
        ways.map(|(name, way, ahead)| Way {
            name: named(name, work > 0),
            script: format!(
                "{} {way} {} {} {work} {} {ahead}",
                program.display(),
                file.display(),
                args.mebibytes,
                args.threads
            ),
            seconds: vec![],
            processor: vec![],
        })
    };
    [with(0), with(args.work)].into_iter().flatten().collect()
}

fn named(way: &str, with_work: bool) -> String {
    if with_work { format!("with work: {way}") } else { way.to_owned() }
}

impl Way {
    fn measure(&mut self, file: &Path) -> anyhow::Result<()> {
        if file.exists() {
            std::fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
        }
        // What is still to be written from before is not this one's.
        rustix::fs::sync();
        let before = busy()?;
        let printed = RunAs::Root.bash(&self.script)?;
        self.processor.push(busy()? - before);
        self.seconds
            .push(printed.trim().parse().with_context(|| format!("{}: printed {printed:?}", self.name))?);
        Ok(())
    }
}

/// How many seconds all processors have worked since the machine's start.
fn busy() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    // user, nice, system, idle, iowait, irq, softirq: in ticks, of which there are a hundred a second on all machines that Linux runs on.
    let fields: Vec<f64> =
        text.lines().next().unwrap_or("").split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    let used =
        fields.iter().take(7).enumerate().filter(|(at, _)| ![3, 4].contains(at)).map(|(_, ticks)| ticks);
    Ok(used.sum::<f64>() / 100.0)
}

fn evaluate(machine: HostInfo, args: &Args, ways: &[Way]) -> (BenchResult, Vec<Bar>) {
    let mut series = vec![];
    let mut bars = vec![];
    for way in ways {
        let seconds = Series::new(&way.name, "s", way.seconds.clone());
        bars.push(Bar::over_all(&way.name, "s", seconds.spread, way.name.ends_with(CHOSEN)));
        series.push(seconds);
        series.push(Series::new(format!("{}, processor", way.name), "s", way.processor.clone()));
    }
    let seconds = |name: &str| {
        let name = named(name, true);
        ways.iter().find(|way| way.name == name).map_or(&[][..], |way| &way.seconds)
    };
    let claims = RIVALS.map(|rival| {
        let ratios = stats::ratios(seconds(CHOSEN), seconds(rival));
        LimitCheck::new(format!("with work: {CHOSEN} / {rival}"), "x", &ratios, 1.0)
    });
    let title = format!("Writing {} MiB by {} threads and syncing, s", args.mebibytes, args.threads);
    (BenchResult { name: "write", title, machine, lines: OVER_ALL, series, claims: claims.into() }, bars)
}
