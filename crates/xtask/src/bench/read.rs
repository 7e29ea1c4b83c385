//! Reading from a mounted image, against the same files on ext4 and in squashfs: a program that imports much, and many small files,
//! each with nothing of it in memory and with all of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use super::Setting;
use super::people::{self, RunAs};
use super::picture::Bar;
use super::pull::{self, ImageSet};
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_MEDIAN, Series};
use super::stats;

/// Ours may take as long as either of the others.
const LIMIT: f64 = 1.0;

/// Directories and files in each of them; some fill a block, most do not.
const SMALL_FILES: &str = "import os, sys\nfor d in range(100):\n    os.makedirs(f'{sys.argv[1]}/{d}')\n    \
     for f in range(1000):\n        n = d * 1000 + f\n        \
     open(f'{sys.argv[1]}/{d}/{f}', 'wb').write((b'%d ' % n * 1000)[:n * 7919 % 6000])\n";

/// No package's script has made the links to these two libraries.
const IMPORT: &str = "chroot TREE sh -c 'LD_LIBRARY_PATH=$(echo /usr/lib/*/blas):$(echo /usr/lib/*/lapack) \
                      python3 -c \"import numpy, scipy\"'";

#[derive(clap::Args)]
pub struct Args {
    /// Where the image of `bench pull` is made (some minutes, the network), and found again
    #[arg(long, default_value = "target/bench-images")]
    images: PathBuf,
}

/// Makes the image, unless it is there.
pub fn prepare(args: &Args) -> anyhow::Result<()> {
    pull::make(&args.images, ImageSet::Six)
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["docker-registry", "mksquashfs", "mount"])?;
    let machine = HostInfo::here()?;
    let bench = Bench::new(args)?;
    let python = bench.trees("python", |tree| bench.pull(setting, args, tree))?;
    let small = bench.trees("small", |tree| bench.make_small(setting, tree))?;
    let mut works = vec![];
    for (name, trees, script) in [
        ("import numpy, scipy", &python, IMPORT),
        ("100,000 small files", &small, "find TREE -type f -print0 | xargs -0 cat >/dev/null"),
    ] {
        for cold in [true, false] {
            let name = format!("{name}, {}", if cold { "cold" } else { "warm" });
            works.push(Work { name, trees, script, cold, samples: Default::default() });
        }
    }
    for round in 0..setting.rounds {
        eprintln!("round {} of {}", round + 1, setting.rounds);
        for work in &mut works {
            work.round(round)?;
        }
    }
    Ok(evaluate(machine, works))
}

/// The kinds of file systems, ours first.
const KINDS: [&str; 3] = ["image", "ext4", "squashfs"];

/// Where one tree of files is mounted, in the order of [`KINDS`].
type Trees = [PathBuf; 3];

/// All that was made for the benchmark; gone when dropped.
struct Bench {
    scratch: PathBuf,
}

impl Bench {
    fn new(args: &Args) -> anyhow::Result<Self> {
        let scratch = std::path::absolute(args.images.join("read"))?;
        let bench = Bench { scratch };
        bench.clear()?;
        fs::create_dir_all(&bench.scratch).with_context(|| format!("making {}", bench.scratch.display()))?;
        // The user reads what is imported from there.
        people::output(Command::new("chmod").arg("755").arg(&bench.scratch), "chmod")?;
        RunAs::Root.bash(&pull::empty_store())?;
        Ok(bench)
    }

    fn clear(&self) -> anyhow::Result<()> {
        let scratch = self.scratch.display();
        RunAs::Root.bash(&format!("umount {scratch}/*-* 2>/dev/null; rm -rf {scratch}")).map(drop)
    }

    /// The same files thrice; `make` makes two of them, and gives the file of the image that has them.
    fn trees(
        &self,
        name: &str,
        make: impl FnOnce(&Path) -> anyhow::Result<PathBuf>,
    ) -> anyhow::Result<Trees> {
        let [image, ext4, squashfs] = KINDS.map(|kind| self.scratch.join(format!("{name}-{kind}")));
        let file = make(&ext4)?;
        let mount = |kind: &str, file: &Path, at: &Path| -> anyhow::Result<()> {
            fs::create_dir(at).with_context(|| format!("making {}", at.display()))?;
            let mut mount = Command::new("mount");
            people::output(mount.args(["-r", "-t", kind]).args([file, at]), "mount").map(drop)
        };
        mount("erofs", &file, &image)?;
        if !ext4.exists() {
            people::output(Command::new("cp").arg("-aT").args([&image, &ext4]), "cp")?;
        }
        let packed = self.scratch.join(format!("{name}.sqsh"));
        if !packed.exists() {
            pack(&ext4, &packed)?;
        }
        mount("squashfs", &packed, &squashfs)?;
        Ok([image, ext4, squashfs])
    }

    /// The image that `bench pull` pulls.
    fn pull(&self, setting: &Setting, args: &Args, _tree: &Path) -> anyhow::Result<PathBuf> {
        let registry = pull::Registry::start(&args.images.join(ImageSet::Six.name()))?;
        stored(setting, &["pull", "-q", &registry.reference])
    }

    /// Many small files, imported from the squashfs that is the peer.
    fn make_small(&self, setting: &Setting, tree: &Path) -> anyhow::Result<PathBuf> {
        people::output(Command::new("python3").args(["-c", SMALL_FILES]).arg(tree), "python3")?;
        let packed = self.scratch.join("small.sqsh");
        pack(tree, &packed)?;
        stored(setting, &["import", "-q", packed.to_str().context("--images is not UTF-8")?, "small:1"])
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Err(e) = self.clear() {
            eprintln!("bench: {e:#}");
        }
    }
}

/// With mksquashfs' own settings, as its users have it.
fn pack(tree: &Path, packed: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("mksquashfs");
    people::output(command.args([tree, packed]).args(["-quiet", "-no-progress"]), "mksquashfs").map(drop)
}

/// The file of the image that the user gets so.
fn stored(setting: &Setting, words: &[&str]) -> anyhow::Result<PathBuf> {
    let before = images()?;
    people::output(setting.user.command(&setting.skiff).args(words), &words.join(" "))?;
    let new: Vec<_> = images()?.into_iter().filter(|image| !before.contains(image)).collect();
    ensure!(new.len() == 1, "skiff {}: {} images came of it", words.join(" "), new.len());
    Ok(new[0].clone())
}

fn images() -> anyhow::Result<Vec<PathBuf>> {
    let images = Path::new(pull::STORE.path).join("images");
    let Ok(entries) = fs::read_dir(&images) else { return Ok(vec![]) };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths =
        paths.collect::<Result<Vec<_>, _>>().with_context(|| format!("reading {}", images.display()))?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|e| e == "erofs")).collect())
}

/// One thing that is done with each of the trees.
struct Work<'a> {
    name: String,
    trees: &'a Trees,
    /// With TREE for the tree's path.
    script: &'a str,
    cold: bool,
    /// Milliseconds, in the order of [`KINDS`].
    samples: [Vec<f64>; 3],
}

impl Work<'_> {
    fn round(&mut self, round: usize) -> anyhow::Result<()> {
        for index in 0..KINDS.len() {
            let kind = (round + index) % KINDS.len();
            let script = self.script.replace("TREE", &self.trees[kind].to_string_lossy());
            if self.cold {
                rustix::fs::sync();
                fs::write("/proc/sys/vm/drop_caches", "3").context("emptying the page cache")?;
                // The host's programs that do the work are no part of it.
                RunAs::Root.bash("chroot / true; find /etc/hostname -print0 | xargs -0 cat")?;
            } else {
                RunAs::Root.bash(&script)?;
            }
            let began = Instant::now();
            RunAs::Root.bash(&script)?;
            self.samples[kind].push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(())
    }
}

fn evaluate(machine: HostInfo, works: Vec<Work<'_>>) -> (BenchResult, Vec<Bar>) {
    let (mut series, mut claims, mut bars) = (vec![], vec![], vec![]);
    for Work { name, samples, .. } in works {
        for (kind, against) in KINDS.iter().zip(&samples).skip(1) {
            let ratios = stats::ratios(&samples[0], against);
            let claim = LimitCheck::new(format!("{name}: image / {kind}"), "x", &ratios, LIMIT);
            bars.push(Bar::over_median(&claim.name, "x", claim.spread, LIMIT));
            claims.push(claim);
        }
        for (kind, samples) in KINDS.iter().zip(samples) {
            series.push(Series::new(format!("{name}: {kind}"), "ms", samples));
        }
    }
    let title = "Reading from a mounted image, against ext4 and squashfs".into();
    (BenchResult { name: "read", title, machine, lines: OVER_MEDIAN, series, claims }, bars)
}
