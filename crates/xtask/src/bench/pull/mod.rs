//! How long it takes to get a large image from a registry on loopback into something that runs: Skiff, as an ordinary user through
//! the trusted store, beside Podman and the steps that Sarus takes, each from nothing; and the limit, which is what no way can save.

mod files;
mod memory;
mod registry;
mod ways;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};

use self::memory::peak_of;
pub use self::registry::Registry;
use self::ways::{PullMethod, ways};
pub use self::ways::{STORE, empty_store};
use super::Setting;
use super::people::{self, RunAs, TestUser};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use super::stats;

const IMAGE_SCRIPT: &str = include_str!("image.sh");

const MEMORY_MIB: f64 = 300.0 * 1e6 / (1 << 20) as f64;
const FIRST_RUN_MS: f64 = 2.0;

/// How often a run in the image and one on the host are compared after each pull.
const RUNS: usize = 10;

#[derive(clap::Args)]
pub struct Args {
    /// Which image
    #[arg(long, value_enum, default_value_t = ImageSet::Six)]
    image: ImageSet,
    /// Where images are made (some minutes, the network), and found again
    #[arg(long, default_value = "target/bench-images")]
    images: PathBuf,
    /// In how many of the rounds the peers pull too, for half a minute or two minutes each
    #[arg(long, default_value_t = 2)]
    peer_rounds: usize,
}

/// See `tests/images/make-big-layers`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ImageSet {
    /// Six layers, 0.6 GB compressed, 1.95 GB inflated
    Six,
    /// 32 layers, 3.5 GB compressed, 10 GB inflated; wants 20 GB of disk
    Many,
    /// Two of one layer, with 200,000 and 1,000,000 small files: how much memory each takes
    Files,
}

/// What is promised of an image: seconds where the limits were set, which move with the peers and the limit to other machines.
struct Aims {
    /// Of the record.
    name: &'static str,
    title: &'static str,
    skiff: f64,
    podman: f64,
    sarus: f64,
    limit: f64,
}

impl ImageSet {
    /// The directories in which the images of this choice are.
    fn names(self) -> &'static [&'static str] {
        match self {
            ImageSet::Six => &["six"],
            ImageSet::Many => &["many"],
            ImageSet::Files => &files::IMAGES,
        }
    }

    /// The directory of what has one image.
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Nothing, where it is not about time.
    fn aims(self) -> Option<Aims> {
        match self {
            ImageSet::Six => Some(Aims {
                name: "pull",
                title: "Pulling an image of 6 layers and 1.95 GB, s",
                skiff: 4.0,
                podman: 25.6,
                sarus: 31.2,
                limit: 2.5,
            }),
            // Nobody measured Sarus' way with the second one; it is no quicker than Podman's.
            ImageSet::Many => Some(Aims {
                name: "pull-many",
                title: "Pulling an image of 32 layers and 10 GB, s",
                skiff: 20.0,
                podman: 102.6,
                sarus: 102.6,
                limit: 15.0,
            }),
            ImageSet::Files => None,
        }
    }
}

/// Makes the image, unless it is there. Outside of the test bed, which has no network.
pub fn prepare(args: &Args) -> anyhow::Result<()> {
    make(&args.images, args.image)
}

/// The same, for whoever needs one.
pub fn make(images: &Path, image: ImageSet) -> anyhow::Result<()> {
    for name in image.names() {
        let mut script = Command::new("bash");
        script.args(["-c", IMAGE_SCRIPT, "image.sh"]).arg(images).arg(name);
        let made = script.stdin(Stdio::null()).status().context("running bash")?;
        ensure!(made.success(), "making the image {name} in {}: {made}", images.display());
    }
    Ok(())
}

pub fn run(setting: &Setting, args: &Args) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    let Some(aims) = args.image.aims() else { return files::run(setting, &args.images) };
    people::require(&["docker-registry", "igzip", "openssl"])?;
    let machine = HostInfo::here()?;
    let image = args.images.join(args.image.name());
    let registry = Registry::start(&image)?;
    let user = RunAs::User(&setting.user);
    let import = args.image == ImageSet::Six;
    let mut ways = ways(user, &setting.skiff, &registry.reference, &image, import)?;
    let mut beside = Beside::default();
    let measured = rounds(setting, args, &registry, &mut ways, &mut beside);
    ways::clean_up()?;
    measured?;
    Ok(evaluate(machine, &aims, &ways, beside))
}

fn rounds(
    setting: &Setting,
    args: &Args,
    registry: &Registry,
    ways: &mut [PullMethod<'_>],
    beside: &mut Beside,
) -> anyhow::Result<()> {
    for round in 0..setting.rounds {
        eprintln!("round {} of {}", round + 1, setting.rounds);
        let count = ways.len();
        for index in 0..count {
            let way = &mut ways[(round + index) % count];
            if !way.peer || round < args.peer_rounds {
                measure(way, setting, registry, beside)?;
            }
        }
    }
    Ok(())
}

/// What is measured beside our own pull.
#[derive(Default)]
struct Beside {
    /// Most memory of the store's writer, MiB.
    memory: Vec<f64>,
    /// Milliseconds: on the host, the first time in the image, and each later pair of both.
    first_host: Vec<f64>,
    first: Vec<f64>,
    host: Vec<f64>,
    image: Vec<f64>,
}

fn measure(
    way: &mut PullMethod<'_>,
    setting: &Setting,
    registry: &Registry,
    beside: &mut Beside,
) -> anyhow::Result<()> {
    RunAs::Root.bash(&way.before)?;
    registry.warm()?;
    // What is still to be written from before is not this one's.
    rustix::fs::sync();
    let began = Instant::now();
    let (result, memory) = peak_of(STORE.user, || way.who.bash(&way.script));
    result?;
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("{}: {seconds:.1} s", way.name);
    way.samples.push(seconds);
    if way.ours {
        beside.memory.push(memory? as f64 / (1 << 20) as f64);
        beside.runs(setting, &registry.reference)?;
    }
    RunAs::Root.bash(&way.before).map(drop)
}

impl Beside {
    fn runs(&mut self, setting: &Setting, reference: &str) -> anyhow::Result<()> {
        let Setting { skiff, user, .. } = setting;
        let host = || milliseconds(user, skiff, &["run", "--", "/bin/true"]);
        let image = || milliseconds(user, skiff, &["run", reference, "/bin/true"]);
        for _ in 0..3 {
            host()?;
        }
        self.first_host.push(host()?);
        self.first.push(image()?);
        for _ in 0..RUNS {
            self.host.push(host()?);
            self.image.push(image()?);
        }
        Ok(())
    }
}

fn milliseconds(user: &TestUser, skiff: &str, words: &[&str]) -> anyhow::Result<f64> {
    let began = Instant::now();
    people::output(user.command(skiff).args(words), "skiff run")?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

fn evaluate(
    machine: HostInfo,
    aims: &Aims,
    ways: &[PullMethod<'_>],
    beside: Beside,
) -> (BenchResult, Vec<Bar>) {
    let pulls: Vec<_> = ways
        .iter()
        .filter(|way| !way.samples.is_empty())
        .map(|way| (way, Series::new(way.name, "s", way.samples.clone())))
        .collect();
    let bars = pulls.iter().map(|(way, s)| Bar::over_all(way.name, "s", s.spread, way.ours)).collect();
    let ours = |way: &&PullMethod<'_>| way.ours;
    let skiff = ways.iter().find(ours).map(|way| way.samples.clone()).unwrap_or_default();
    let ratio = |name: &'static str, to: &str, limit: f64| {
        let to = ways.iter().find(|way| way.name.starts_with(to) && !way.samples.is_empty())?;
        Some(LimitCheck::new(name, "x", &stats::ratios(&skiff, &to.samples), limit))
    };
    let import = ways.iter().find(|way| way.name.starts_with("skiff import"));
    let claims = [
        Some(LimitCheck::new("skiff pull", "s", &skiff, aims.skiff)),
        import.map(|way| {
            LimitCheck::new("import of a docker save / pull", "x", &stats::ratios(&way.samples, &skiff), 1.0)
        }),
        ratio("skiff pull / podman", "podman", aims.skiff / aims.podman),
        ratio("skiff pull / skopeo, umoci, mksquashfs", "skopeo", aims.skiff / aims.sarus),
        ratio("skiff pull / limit", "limit", aims.skiff / aims.limit),
        Some(LimitCheck::new("memory of the store's writer", "MiB", &beside.memory, MEMORY_MIB)),
        Some(LimitCheck::new(
            "first run in the image, added",
            "ms",
            &stats::differences(&beside.first, &beside.first_host),
            FIRST_RUN_MS,
        )),
        Some(LimitCheck::new(
            "later runs in the image, added",
            "ms",
            &stats::differences(&beside.image, &beside.host),
            FIRST_RUN_MS,
        )),
    ];
    let mut series: Vec<_> = pulls.into_iter().map(|(_, series)| series).collect();
    series.push(Series::new("memory of the store's writer", "MiB", beside.memory));
    series.push(Series::new("first run in the image", "ms", beside.first));
    series.push(Series::new("run on the host, before it", "ms", beside.first_host));
    series.push(Series::new("later runs in the image", "ms", beside.image));
    series.push(Series::new("runs on the host, between them", "ms", beside.host));
    let claims = claims.into_iter().flatten().collect();
    (
        BenchResult { name: aims.name, title: aims.title.into(), machine, lines: OVER_ALL, series, claims },
        bars,
    )
}
