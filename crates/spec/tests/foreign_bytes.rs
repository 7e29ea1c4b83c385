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
            fuzz::changed_copies(&bytes, COPIES).for_each(|copy| parse(&copy));
        }
    }
}
