//! The fuzz targets' entry points on their seeds and on some thousand changed copies of these, the same each time.

use std::path::Path;

use skiff_spec::fuzz;

type Target = (&'static str, fn(&[u8]));

/// How many changed copies of each seed.
const COPIES: usize = 3000;

#[test]
fn parsers_hold_what_they_promise() {
    let targets: [Target; 4] = [
        ("wire", fuzz::wire),
        ("ids", fuzz::ids),
        ("site", fuzz::site),
        ("configuration", fuzz::configuration),
    ];
    for (name, parse) in targets {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(name);
        let mut seeds: Vec<_> =
            std::fs::read_dir(&dir).expect("seeds").map(|e| e.expect("a seed").path()).collect();
        seeds.sort();
        assert!(!seeds.is_empty(), "{name} has no seed");
        for seed in seeds {
            let bytes = std::fs::read(&seed).expect("a seed");
            parse(&bytes);
            let mut random = Random(0x5eed);
            for _ in 0..COPIES {
                parse(&random.changed(&bytes));
            }
        }
    }
}

/// Numbers that look random (xorshift), always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    /// A copy with a few bytes replaced, added, taken out or doubled.
    fn changed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(copy.len());
            let telling = [0, 1, 0x7f, 0x80, 0xff, b'\n', b':', b'=', b'9', b' ', self.below(256) as u8];
            let byte = telling[self.below(telling.len())];
            match self.below(4) {
                0 if !copy.is_empty() => copy[at] = byte,
                1 => copy.insert(at, byte),
                2 => copy.truncate(at),
                _ => {
                    let tail = copy[at..].to_vec();
                    copy.extend(tail);
                }
            }
        }
        copy
    }
}
