//! The parsers of what others say, for fuzzing: each takes any bytes, and panics where what must hold of every outcome does not.

use crate::config::{self, ConfigText};
use crate::ids::{COUNT, IdMap, subordinate};
use crate::site::Site;
use crate::wire::{MOST_BYTES, Reply, Request};

/// A message to or from the helper.
pub fn wire(bytes: &[u8]) {
    if let Some(request) = Request::decode(bytes) {
        assert_eq!(request.encode(), bytes, "a request is written in one way only");
    }
    if let Some(reply) = Reply::decode(bytes) {
        let again = reply.encode();
        assert!(again.len() <= MOST_BYTES);
        assert!(Reply::decode(&again).is_some());
    }
}

/// `/etc/subuid`: a uid and seven groups, four bytes each, then the text.
pub fn ids(bytes: &[u8]) {
    let (numbers, text) = bytes.split_at(bytes.len().min(32));
    let numbers: Vec<u32> = numbers.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect();
    let text = String::from_utf8_lossy(text);
    let uid = numbers.first().copied().unwrap_or(1000);
    let range = subordinate(&text, Some("alice"), uid);
    if let Some(range) = range {
        assert!(range.first > 0 && range.count > 0 && range.count < COUNT);
        assert!(range.first.checked_add(range.count).is_some(), "past the end of the numbers");
    }
    let map = IdMap::new(uid, range, numbers.get(1..).unwrap_or_default());
    assert!(map.lines().len() <= 340 && map.to_proc().len() < 4096, "more than the kernel takes");
    let mut inside: Vec<_> =
        map.lines().iter().map(|l| (u64::from(l.inside), u64::from(l.inside) + u64::from(l.count))).collect();
    inside.sort_unstable();
    assert!(inside.windows(2).all(|w| w[0].1 <= w[1].0), "an id inside that means two things");
    for line in map.lines() {
        let ranges =
            range.is_some_and(|r| line.outside >= r.first && line.outside - r.first + line.count <= r.count);
        assert!(
            ranges || line.count == 1 && numbers.contains(&line.outside) || line.outside == uid,
            "an id of somebody else"
        );
    }
}

/// The helper's configuration.
pub fn site(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(site) = Site::parse(&text) {
        for uid in [0, 1000, 65_536, 1_000_000, u32::MAX] {
            assert!(
                site.range(uid).is_none_or(|r| r.first > 65_535 && r.first.checked_add(r.count).is_some())
            );
        }
    }
}

/// The configuration: the site's text and the user's, parted by a null byte.
pub fn configuration(bytes: &[u8]) {
    let text = |bytes: &[u8], site| ConfigText {
        origin: "fuzz".into(),
        text: String::from_utf8_lossy(bytes).into(),
        site,
    };
    let mut parts = bytes.splitn(2, |b| *b == 0);
    let ours = text(parts.next().unwrap_or_default(), true);
    let theirs = text(parts.next().unwrap_or_default(), false);
    let Ok(locked) = config::merge(&[
        ConfigText { text: format!("lock = ['slurm', 'helper']\n{}", ours.text), ..ours },
        theirs,
    ]) else {
        return;
    };
    let alone = text(bytes.split(|b| *b == 0).next().unwrap_or_default(), true);
    let Ok(alone) = config::merge(&[alone]) else { return };
    let (locked, alone) = (locked.config, alone.config);
    if locked.lock.iter().any(|name| name == "slurm") {
        assert_eq!(locked.slurm, alone.slurm, "the user has changed what is locked");
    }
    let own = |config: &config::Config| (config.helper.clone(), config.slurm.commands.clone());
    assert_eq!(own(&locked), own(&alone), "the user has changed what is the site's");
}

/// Bytes that mean something to one format or another.
const TELLING: &[u8] = b"\0\x01\x7f\x80\xff\n:=\"\\9 {}[],";

/// Copies of `bytes`, each with a few bytes replaced, added, taken out or doubled: for tests, the same each time.
pub fn changed_copies(bytes: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut random = Random(0x5eed);
    (0..count).map(move |_| random.changed(bytes))
}

/// Numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end.max(1) as u64).unwrap_or(0)
    }

    fn changed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(copy.len());
            let any = u8::try_from(self.below(256)).unwrap_or(0);
            let byte = TELLING.get(self.below(TELLING.len() + 1)).copied().unwrap_or(any);
            match self.below(4) {
                0 if !copy.is_empty() => copy[at] = byte,
                1 => copy.insert(at, byte),
                2 => copy.truncate(at),
                _ => copy.extend_from_within(at..),
            }
        }
        copy
    }
}
