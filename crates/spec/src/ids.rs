//! Which ids inside an environment are which outside.
//!
//! Inside 0 is the user, inside 1..65535 are subordinate ids that belong to nobody else; the groups the user is a
//! member of stand for themselves, so that files of a project's group keep it in both directions.

use std::fmt::Write;

/// How many ids an environment has.
pub const COUNT: u32 = 65536;
/// The kernel takes at most this many lines in a map ...
const MOST_LINES: usize = 340;
/// ... and less than a page of text.
const MOST_BYTES: usize = 4095;

/// Consecutive subordinate ids of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first of them.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// One line of a map: `count` ids from `inside` are those from `outside`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// A map for user or group ids, lines in order of the inside ids, none overlapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMap(Vec<Line>);

impl IdMap {
    /// Inside 0 is `own`; the rest of [`COUNT`] comes from `range` (as far as it goes); each of `same` is itself.
    #[must_use]
    pub fn new(own: u32, range: Option<Range>, same: &[u32]) -> Self {
        let mut same: Vec<u32> = same.iter().copied().filter(|id| *id != own && *id != 0).collect();
        same.sort_unstable();
        same.dedup();
        // Each takes up to two lines; what does not fit stays unmapped, as without us.
        same.truncate((MOST_LINES - 2) / 2);
        loop {
            let map = Self::with(own, range, &same);
            let length = map.to_proc().len();
            if length <= MOST_BYTES {
                return map;
            }
            same.truncate(same.len() * MOST_BYTES / length);
        }
    }

    /// The same of sorted ids.
    fn with(own: u32, range: Option<Range>, same: &[u32]) -> Self {
        let mut lines = vec![Line { inside: 0, outside: own, count: 1 }];
        let last = range.map_or(0, |r| r.count.min(COUNT - 1));
        let mut next = 1;
        for &id in same {
            // An id inside the range punches a hole: inside `id` must not mean two things.
            if let Some(r) = range
                && next <= last
                && next < id
            {
                let end = id.min(last + 1);
                lines.push(Line { inside: next, outside: r.first + next - 1, count: end - next });
            }
            lines.push(Line { inside: id, outside: id, count: 1 });
            next = next.max(id.saturating_add(1));
        }
        if let Some(r) = range
            && next <= last
        {
            lines.push(Line { inside: next, outside: r.first + next - 1, count: last + 1 - next });
        }
        Self(lines)
    }

    /// The lines.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.0
    }

    /// Which id outside the id `inside` is; `None` if it has none.
    #[must_use]
    pub fn outside(&self, inside: u32) -> Option<u32> {
        let line = self.0.iter().find(|line| inside >= line.inside && inside - line.inside < line.count)?;
        Some(line.outside + (inside - line.inside))
    }

    /// As `/proc/PID/uid_map` takes it.
    #[must_use]
    pub fn to_proc(&self) -> String {
        let mut text = String::new();
        for Line { inside, outside, count } in &self.0 {
            // Writing to a String cannot fail.
            let (Ok(()) | Err(_)) = writeln!(text, "{inside} {outside} {count}");
        }
        text
    }
}

/// The subordinate range of a user in the text of `/etc/subuid` or `/etc/subgid`: the first line, by name or number,
/// that is large enough for a whole environment, else the largest.
#[must_use]
pub fn subordinate(text: &str, name: Option<&str>, uid: u32) -> Option<Range> {
    let uid = uid.to_string();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.trim().split(':');
            let owner = fields.next()?;
            let first = fields.next()?.parse().ok()?;
            let count: u32 = fields.next()?.parse().ok()?;
            let mine = owner == uid || name == Some(owner);
            // A range that holds 0 or runs over the end of the numbers would give away what is not theirs.
            let sound = first > 0 && count > 0 && u32::checked_add(first, count).is_some();
            (mine && sound).then_some(Range { first, count: count.min(COUNT - 1) })
        })
        .reduce(|best, r| if r.count > best.count { r } else { best })
}

/// Whether an id is one of anybody's subordinate ids, as a text like `/etc/subuid` says.
#[must_use]
pub fn is_subordinate(text: &str, id: u32) -> bool {
    text.lines().any(|line| {
        let mut fields = line.trim().split(':').skip(1).map(str::parse::<u32>);
        match (fields.next(), fields.next()) {
            (Some(Ok(first)), Some(Ok(count))) => id >= first && id - first < count,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_ids_are_subordinate() {
        let text = "alice:100000:65536\n# bob\nbob:300000:10:x\nbad:1000\nworse:-1:5\n";
        for (id, is) in [
            (1000, false),
            (99_999, false),
            (100_000, true),
            (165_535, true),
            (165_536, false),
            (300_009, true),
        ] {
            assert_eq!(is_subordinate(text, id), is, "{id}");
        }
    }

    fn map(own: u32, range: Option<(u32, u32)>, same: &[u32]) -> String {
        IdMap::new(own, range.map(|(first, count)| Range { first, count }), same).to_proc()
    }

    #[test]
    fn maps() {
        type Case = (u32, Option<(u32, u32)>, &'static [u32], &'static str);
        let cases: [Case; 6] = [
            (1000, None, &[], "0 1000 1\n"),
            (1000, Some((100_000, 65536)), &[], "0 1000 1\n1 100000 65535\n"),
            (1000, Some((100_000, 10)), &[], "0 1000 1\n1 100000 10\n"),
            (
                1000,
                Some((100_000, 65536)),
                &[1000, 27, 5000, 0],
                "0 1000 1\n1 100000 26\n27 27 1\n28 100027 4972\n5000 5000 1\n5001 105000 60535\n",
            ),
            (1000, Some((100_000, 65536)), &[70_000], "0 1000 1\n1 100000 65535\n70000 70000 1\n"),
            (1000, None, &[5000], "0 1000 1\n5000 5000 1\n"),
        ];
        for (own, range, same, want) in cases {
            let got = map(own, range, same);
            // Order of lines past the range is of no matter to the kernel.
            let sorted = |s: &str| {
                let mut lines: Vec<_> = s.lines().map(str::to_owned).collect();
                lines.sort();
                lines
            };
            assert_eq!(sorted(&got), sorted(want), "{own} {range:?} {same:?}");
        }
    }

    #[test]
    fn ids_outside() {
        let map = IdMap::new(1000, Some(Range { first: 100_000, count: 65535 }), &[27, 70_000]);
        for (inside, outside) in [
            (0, Some(1000)),
            (1, Some(100_000)),
            (27, Some(27)),
            (28, Some(100_027)),
            (65535, Some(165_534)),
            (65536, None),
            (70_000, Some(70_000)),
            (u32::MAX, None),
        ] {
            assert_eq!(map.outside(inside), outside, "{inside}");
        }
    }

    #[test]
    fn no_inside_id_means_two_things() {
        let scattered = (0..400).map(|n| 5000 + 3 * n).collect();
        let of_a_directory = (0..400).map(|n| 1_234_567_890 + n).collect();
        for same in [
            vec![1, 2, 3],
            vec![65535, 65536],
            (1..400).collect(),
            vec![1, 3, 65534, 90_000],
            scattered,
            of_a_directory,
        ] {
            let m = IdMap::new(1000, Some(Range { first: 100_000, count: 65536 }), &same);
            assert!(m.lines().len() <= MOST_LINES && m.to_proc().len() < 4096, "{} bytes", m.to_proc().len());
            assert!(m.lines().len() > 100 || same.len() < 100, "only {} lines", m.lines().len());
            let mut ends: Vec<_> = m.lines().iter().map(|l| (l.inside, l.inside + l.count)).collect();
            ends.sort_unstable();
            assert!(ends.windows(2).all(|w| w[0].1 <= w[1].0), "{ends:?}");
            assert!(m.lines().iter().all(|l| l.count > 0));
        }
    }

    #[test]
    fn ranges_of_subuid() {
        let text = "root:1:5\nalice:100000:65536\n1001:300000:65536\nbob:7:0\neve:4294967290:65536\nzed:0:65536\njunk\n";
        assert_eq!(subordinate(text, Some("alice"), 1000), Some(Range { first: 100_000, count: 65535 }));
        assert_eq!(subordinate(text, None, 1001), Some(Range { first: 300_000, count: 65535 }));
        for nobody in ["bob", "eve", "zed", "mallory", "junk"] {
            assert_eq!(subordinate(text, Some(nobody), 9), None, "{nobody}");
        }
    }
}
