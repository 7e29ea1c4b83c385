//! What jobs have needed on this node, summed up for node_exporter's textfile collector.
//!
//! The figures come from processes of the jobs' users, who can make them say anything of their own jobs. They are numbers of a few kinds, and all
//! of a job's together are taken to be no larger than what it can have needed while it was there.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use skiff_env::job_records::JobFigures;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::lock::within;
use skiff_sys::small_file;

/// In the directory that `slurm.metrics` names.
const FILE: &str = "skiff.prom";
/// In Skiff's own directory: held while that is written.
const LOCK: &str = "metrics.lock";
const RUN: &str = "/run/skiff";
/// How long other epilogs are waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// Most bytes that are counted of a job.
const MOST_BYTES: u64 = 1 << 40;
/// The same for each second that it was there: more than a node's network brings.
const MOST_BYTES_A_SECOND: u64 = 16 << 30;
/// Longest time for a part of a job's start that is counted, in milliseconds.
const MOST_MS: u64 = 3_600_000;
/// Where a counter begins again, which Prometheus takes for a restart: larger numbers of its lose their last digits.
const LARGEST: u64 = 1 << 53;
/// Most parts of a job's start, and most commits of each result, that are counted on one node.
const MOST_PARTS: usize = 64;

/// The counters: name, what it is, and whether it is of milliseconds, which are shown as seconds.
const FAMILIES: [(&str, &str, bool); 5] = [
    ("skiff_deploys_total", "Parts of job roots that were made ready, by kind and origin.", false),
    ("skiff_deploy_bytes_total", "Bytes of them that were not on the node.", false),
    ("skiff_deploy_seconds_total", "Time that it took.", true),
    ("skiff_commits_total", "Changes of jobs that were to be kept, by result.", false),
    ("skiff_commit_bytes_total", "Bytes written to depots for them.", false),
];

/// Counters by family and labels.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counters(BTreeMap<(usize, String), u64>);

impl Counters {
    fn add(&mut self, family: &str, labels: &str, value: u64) {
        if let Some(at) = FAMILIES.iter().position(|(name, ..)| *name == family) {
            let sum = self.0.entry((at, labels.to_owned())).or_default();
            *sum = sum.checked_add(value).filter(|sum| *sum <= LARGEST).unwrap_or(0);
        }
    }

    /// `lasted`: how long the job was here, if that is known. What several roots of it have needed at once is cut to that, too.
    fn add_job(&mut self, figures: &JobFigures, lasted: Option<Duration>) {
        // Root's times are whole seconds.
        let lasted = lasted.map(|lasted| lasted + Duration::from_secs(1));
        let ms = lasted.map_or(MOST_MS, |lasted| u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX));
        let bytes = lasted.map(|lasted| lasted.as_secs().saturating_mul(MOST_BYTES_A_SECOND));
        let (mut ms, mut bytes) = (ms, bytes.unwrap_or(MOST_BYTES).min(MOST_BYTES));
        let within = |left: &mut u64, said: u64| {
            let counted = said.min(*left);
            *left -= counted;
            counted
        };
        for part in figures.parts.iter().take(MOST_PARTS) {
            let labels = format!(r#"{{part="{}",from="{}"}}"#, part.part.as_str(), part.from.as_str());
            self.add("skiff_deploys_total", &labels, 1);
            self.add("skiff_deploy_bytes_total", &labels, within(&mut bytes, part.bytes));
            self.add("skiff_deploy_seconds_total", &labels, within(&mut ms, part.ms.min(MOST_MS)));
        }
        let kept = figures.kept.len().min(MOST_PARTS);
        let most = MOST_PARTS as u64;
        for (result, number) in [
            ("kept", kept as u64),
            ("unchanged", figures.unchanged.min(most)),
            ("failed", figures.failed.min(most)),
        ] {
            if number > 0 {
                self.add("skiff_commits_total", &format!(r#"{{result="{result}"}}"#), number);
            }
        }
        for said in &figures.kept[..kept] {
            self.add("skiff_commit_bytes_total", "", within(&mut bytes, *said));
        }
    }

    /// Of a file that was written here; what is not understood is left out, as if it began anew.
    fn parse(text: &str) -> Self {
        let mut counters = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((key, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = key.find('{').map_or((key, ""), |at| key.split_at(at));
            let known = FAMILIES.iter().find(|(family, ..)| *family == name);
            let value =
                known.and_then(|(.., is_ms)| if *is_ms { milliseconds(value) } else { value.parse().ok() });
            if let Some(value) = value {
                counters.add(name, labels, value);
            }
        }
        counters
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for (at, (name, help, is_ms)) in FAMILIES.iter().enumerate() {
            let mut own = self.0.iter().filter(|((family, _), _)| *family == at).peekable();
            if own.peek().is_some() {
                text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} counter\n"));
            }
            for ((_, labels), value) in own {
                let value = match is_ms {
                    true => format!("{}.{:03}", value / 1000, value % 1000),
                    false => value.to_string(),
                };
                text.push_str(&format!("{name}{labels} {value}\n"));
            }
        }
        text
    }
}

fn milliseconds(seconds: &str) -> Option<u64> {
    let (whole, rest) = seconds.split_once('.')?;
    let rest: u64 = (rest.len() == 3).then(|| rest.parse().ok())??;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(rest)
}

/// Adds what a job that `lasted` so long has needed to the file in `dir`, which readers see whole at any time.
pub fn add(dir: &Path, figures: &JobFigures, lasted: Option<Duration>) -> Result<()> {
    if *figures == JobFigures::default() {
        return Ok(());
    }
    let about = |e: Error| e.about("slurm.metrics");
    let open = || -> Result<TrustedDir> { Ok(TrustedDir::open(dir, 0)?.private()?) };
    let dir = open().map_err(about)?;
    let run = TrustedDir::make(Path::new(RUN), 0, 0o755)?;
    let take = || run.lock(LOCK, FlockOperation::NonBlockingLockExclusive);
    let Some(_held) = within(PATIENCE, take)? else {
        return Err(about(Error::new(
            "another epilog writes it all the time; this job's figures are left out",
        )));
    };
    let shown = || dir.path_of(FILE).display().to_string();
    let text = match small_file::read_below(dir.as_fd(), FILE, LONGEST) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => String::from_utf8_lossy(&read.context(shown)?).into_owned(),
    };
    let mut counters = Counters::parse(&text);
    counters.add_job(figures, lasted);
    Ok(dir.write(FILE, counters.to_text().as_bytes(), 0o644)?)
}

#[cfg(test)]
mod tests {
    use skiff_env::job_records::{StartOrigin, StartPart, StartPartKind};

    use super::*;

    fn part(part: StartPartKind, from: StartOrigin, bytes: u64, ms: u64) -> StartPart {
        StartPart { part, from, bytes, read: 0, reused: 0, ms }
    }

    #[test]
    fn what_is_added_is_read_again() {
        let mut counters = Counters::default();
        let figures = JobFigures {
            parts: vec![
                part(StartPartKind::Snapshot, StartOrigin::Depot, 1000, 1234),
                part(StartPartKind::Root, StartOrigin::Node, 0, 7),
            ],
            kept: vec![10, 20],
            unchanged: 0,
            failed: 1,
        };
        counters.add_job(&figures, Some(Duration::from_secs(2)));
        counters.add_job(&figures, None);
        let text = counters.to_text();
        for line in [
            "# TYPE skiff_deploys_total counter",
            r#"skiff_deploys_total{part="snapshot",from="depot"} 2"#,
            r#"skiff_deploy_bytes_total{part="snapshot",from="depot"} 2000"#,
            r#"skiff_deploy_seconds_total{part="snapshot",from="depot"} 2.468"#,
            r#"skiff_deploy_seconds_total{part="root",from="node"} 0.014"#,
            r#"skiff_commits_total{result="kept"} 4"#,
            r#"skiff_commits_total{result="failed"} 2"#,
            "skiff_commit_bytes_total 60",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(!text.contains("unchanged"));
        assert_eq!(Counters::parse(&text), counters);
    }

    #[test]
    fn all_of_a_job_together_is_no_more_than_its_time_allows() {
        let parts = vec![part(StartPartKind::Image, StartOrigin::Registry, u64::MAX, u64::MAX); 1000];
        let lie = JobFigures { parts, kept: vec![u64::MAX; 1000], unchanged: u64::MAX, failed: 0 };
        for (lasted, ms, bytes) in [
            (Some(Duration::ZERO), 1000, MOST_BYTES_A_SECOND),
            (Some(Duration::from_secs(3)), 4000, 4 * MOST_BYTES_A_SECOND),
            (Some(Duration::from_secs(1_000_000)), MOST_PARTS as u64 * MOST_MS, MOST_BYTES),
            (None, MOST_MS, MOST_BYTES),
        ] {
            let mut counters = Counters::default();
            counters.add_job(&lie, lasted);
            let sum = |wanted: &str| {
                let own = counters.0.iter().filter(|((family, _), _)| FAMILIES[*family].0 == wanted);
                own.map(|(_, value)| *value).sum::<u64>()
            };
            assert_eq!(sum("skiff_deploy_seconds_total"), ms, "{lasted:?}");
            assert_eq!(
                sum("skiff_deploy_bytes_total") + sum("skiff_commit_bytes_total"),
                bytes,
                "{lasted:?}"
            );
            assert_eq!(sum("skiff_deploys_total"), MOST_PARTS as u64);
        }
    }

    #[test]
    fn a_counter_at_its_end_begins_again() {
        for before in [LARGEST, LARGEST - 9, u64::MAX] {
            let text = format!("skiff_commit_bytes_total {before}\nother 5\nskiff_deploys_total x\n# x\n\n");
            let mut counters = Counters::parse(&text);
            for _ in 0..2 {
                counters.add_job(&JobFigures { kept: vec![10], ..JobFigures::default() }, None);
            }
            let text = counters.to_text();
            let value = text.lines().last().and_then(|line| line.strip_prefix("skiff_commit_bytes_total "));
            assert!(value.is_some_and(|value| ["10", "20"].contains(&value)), "{text}");
        }
    }
}
