//! What nothing needs and was used too lately to be removed: how much that is, and when it can go.

use std::time::Duration;

use skiff_output as output;
use skiff_snapshot::{CollectionPlan, DepotContents};

use super::keepers::Keepers;
use super::{GRACE, Limits};

/// Room that a collection leaves only because of the time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct YoungFiles {
    bytes: u64,
    /// Seconds until the last of it can go, if nobody uses it.
    wait: u64,
}

impl YoungFiles {
    /// Computes what `plan`, which is of these limits, leaves only because it is too recent.
    pub(super) fn left_by(
        limits: &Limits,
        contents: &DepotContents,
        keepers: &Keepers,
        plan: &CollectionPlan,
    ) -> Option<Self> {
        let at_last = limits.plan_after(Duration::ZERO, contents, keepers);
        let is_young = |used: &i64| contents.age(*used) < GRACE;
        // What is being written goes by a limit of its own.
        let named = |plan: &CollectionPlan| {
            plan.bytes - plan.unfinished.iter().map(|left| left.file.bytes).sum::<u64>()
        };
        let unfinished = contents.unfinished.iter().filter(|left| is_young(&left.file.used));
        let written: u64 = unfinished.clone().map(|left| left.file.bytes).sum();
        let bytes = named(&at_last).saturating_sub(named(plan)) + written;
        let used = at_last.snapshots.iter().map(|(_, used)| *used);
        let used = used.chain(at_last.layers.iter().map(|(_, used)| *used));
        let used = used.chain(at_last.packs.iter().map(|(_, used)| *used));
        let last = used.chain(unfinished.map(|left| left.file.used)).filter(is_young).max()?;
        // Where the file system's clock cannot be asked, as no file can be made, it is taken to be behind: then it takes longer.
        let wait = last.saturating_sub(contents.now) / 1_000_000_000;
        let wait = u64::try_from(wait.saturating_add_unsigned(GRACE.as_secs())).unwrap_or(0);
        (bytes > 0).then_some(Self { bytes, wait })
    }

    /// How much that is.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Says so.
    pub(super) fn say(&self) {
        output::note(&format!(
            "{} that nothing needs: younger than {} minutes, so it stays; try again in {}",
            output::size(self.bytes),
            GRACE.as_secs() / 60,
            output::count(self.wait.div_ceil(60).max(1), "minute", "minutes")
        ));
    }
}

#[cfg(test)]
mod tests {
    use skiff_snapshot::{DepotFile, LayerId};

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn what_stays_for_its_age_is_counted_with_the_time_until_it_goes() {
        let limits = Limits { older_than: Duration::ZERO, budget: Some(0) };
        let keepers = Keepers::default();
        let left = |ages: &[(u8, i64)]| {
            let mut contents = DepotContents::default();
            contents.now = 10_000 * SECOND;
            for (byte, age) in ages {
                let file = DepotFile { used: (10_000 - age) * SECOND, bytes: 100, len: 100 };
                contents.layers.insert(LayerId([*byte; 32]), file);
            }
            let plan = limits.plan(&contents, &keepers);
            YoungFiles::left_by(&limits, &contents, &keepers, &plan)
        };
        assert_eq!(left(&[]), None);
        assert_eq!(left(&[(1, 700)]), None, "it goes now");
        assert_eq!(left(&[(1, 700), (2, 500), (3, 60)]), Some(YoungFiles { bytes: 200, wait: 540 }));
        // A full file system, whose clock is taken to be an hour behind.
        assert_eq!(left(&[(1, -3600)]), Some(YoungFiles { bytes: 100, wait: 4200 }));
    }
}
