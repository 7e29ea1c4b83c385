//! The fuzz targets' seeds are what registries and other programs write: all are taken. And what is left of them after some
//! damage, always the same, is taken or refused without a panic.

use std::path::Path;

use skiff_image::fuzz;

/// Whether bytes are taken.
type Parse = fn(&[u8]) -> bool;

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let paths = std::fs::read_dir(&dir).expect("seeds").map(|entry| entry.expect("a seed").path());
    let seeds: Vec<_> =
        paths.map(|path| (path.display().to_string(), std::fs::read(path).expect("a seed"))).collect();
    assert!(!seeds.is_empty(), "no seeds in {}", dir.display());
    seeds
}

/// A step of xorshift.
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

/// Other bytes, missing bytes, repeated bytes.
fn damage(bytes: &mut Vec<u8>, state: &mut u64) {
    for _ in 0..1 + next(state) % 4 {
        if bytes.is_empty() {
            return;
        }
        let (at, other) = (next(state) % bytes.len(), next(state) % bytes.len());
        let (from, to) = (at.min(other), at.max(other));
        match next(state) % 6 {
            0 => bytes[at] = next(state) as u8,
            1 => bytes[at] = b"{}[]\",:@/.=\\0-"[next(state) % 14],
            2 => bytes[at] ^= 1 << (next(state) % 8),
            3 => drop(bytes.drain(from..to.min(from + 16))),
            4 => bytes.truncate(at),
            _ => {
                let copy = bytes[from..to.min(from + 64)].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
}

#[test]
fn all_are_taken_and_damaged_ones_do_no_harm() {
    let targets: [(&str, Parse); 13] = [
        ("tar", skiff_tar::fuzz::tar),
        ("layers", fuzz::layers),
        ("image-archive", fuzz::archive),
        ("sif", fuzz::sif),
        ("squashfs", fuzz::squashfs),
        ("trailer", fuzz::trailer),
        ("reference", skiff_oci::fuzz::reference),
        ("image-document", skiff_oci::fuzz::document),
        ("fetcher", skiff_store::fuzz::fetcher),
        ("registry-answer", skiff_registry::fuzz::answer),
        ("auth", skiff_registry::fuzz::auth),
        ("policy", skiff_registry::fuzz::policy),
        ("registries-conf", skiff_registry::fuzz::registries),
    ];
    for (target, parse) in targets {
        for (name, seed) in seeds(target) {
            assert!(parse(&seed), "{name} was not taken");
            let mut state = 0x9e37_79b9_7f4a_7c15;
            for _ in 0..3000 {
                let mut bytes = seed.clone();
                damage(&mut bytes, &mut state);
                parse(&bytes);
            }
        }
    }
}
