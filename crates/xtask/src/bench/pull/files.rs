//! How much memory a pull takes for each file of an image, beyond what it takes for any.

use std::path::Path;

use super::MEMORY_MIB;
use super::memory::peak_of;
use super::registry::Registry;
use super::ways::{STORE, empty_store};
use crate::bench::Setting;
use crate::bench::people::{self, RunAs};
use crate::bench::picture::Bar;
use crate::bench::result::{BenchResult, HostInfo, LimitCheck, OVER_ALL, Series};
use crate::bench::stats;

/// The images, by how many files they have.
pub const IMAGES: [&str; 2] = ["files-200000", "files-1000000"];
/// How many more the second one has.
const MORE: f64 = 800_000.0;
const BYTES_A_FILE: f64 = 400.0;

pub fn run(setting: &Setting, images: &Path) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["docker-registry"])?;
    let machine = HostInfo::here()?;
    let [few, many] = IMAGES.map(|name| Registry::start(&images.join(name)));
    let registries = [few?, many?];
    let mut memory = [vec![], vec![]];
    for round in 0..setting.rounds {
        eprintln!("round {} of {}", round + 1, setting.rounds);
        for index in 0..IMAGES.len() {
            let index = (round + index) % IMAGES.len();
            memory[index].push(pull(setting, &registries[index].reference)?);
        }
    }
    Ok(evaluate(machine, memory))
}

/// The most memory that the store's writer takes for a pull into an empty store, in bytes.
fn pull(setting: &Setting, reference: &str) -> anyhow::Result<f64> {
    RunAs::Root.bash(&empty_store())?;
    let script = format!("{} pull -q {reference}", setting.skiff);
    let (pulled, peak) = peak_of(STORE.user, || RunAs::User(&setting.user).bash(&script));
    pulled?;
    RunAs::Root.bash(&empty_store())?;
    peak.map(|bytes| bytes as f64)
}

fn evaluate(machine: HostInfo, memory: [Vec<f64>; 2]) -> (BenchResult, Vec<Bar>) {
    let [few, many] = &memory;
    let each: Vec<f64> = stats::differences(many, few).iter().map(|bytes| bytes / MORE).collect();
    let mebibytes = |bytes: &[f64]| bytes.iter().map(|bytes| bytes / f64::from(1 << 20)).collect::<Vec<_>>();
    let claims = vec![
        LimitCheck::new("memory for 200,000 files", "MiB", &mebibytes(few), MEMORY_MIB),
        LimitCheck::new("memory for each file beyond them", "B", &each, BYTES_A_FILE),
    ];
    let series = vec![
        Series::new("memory for 200,000 files", "MiB", mebibytes(few)),
        Series::new("memory for 1,000,000 files", "MiB", mebibytes(many)),
    ];
    let bars = series.iter().map(|s| Bar::over_all(&s.name, "MiB", s.spread, true)).collect();
    let title = "Memory of the store's writer for many small files".into();
    (BenchResult { name: "pull-files", title, machine, lines: OVER_ALL, series, claims }, bars)
}
