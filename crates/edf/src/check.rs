//! What may stand in a file.

/// The keys of a definition.
pub const KEYS: [&str; 9] = [
    "annotations",
    "base_environment",
    "devices",
    "entrypoint",
    "env",
    "image",
    "mounts",
    "workdir",
    "writable",
];

/// More slips than these are another word.
const MOST_SLIPS: usize = 3;

/// What somebody may have meant who wrote a key that there is not.
pub(crate) fn suggest_key(key: &str) -> String {
    let slips = |known: &&str| strsim::osa_distance(&key.to_lowercase(), known);
    let nearest = KEYS.iter().min_by_key(|known| slips(known)).filter(|known| slips(known) <= MOST_SLIPS);
    match nearest {
        Some(known) => format!("{known:?} may be meant"),
        None => format!("there are {}", KEYS.join(", ")),
    }
}
