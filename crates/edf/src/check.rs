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

/// What somebody may have meant who wrote a key that there is not.
pub(crate) fn suggest_key(key: &str) -> String {
    match skiff_nearest::nearest(key, KEYS) {
        Some(known) => format!("{known:?} may be meant"),
        None => format!("there are {}", KEYS.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::KEYS;
    use crate::file::DefinitionFile;

    const SCHEMA: &str = include_str!("../../../docs/edf.schema.json");

    #[test]
    fn the_schema_has_the_keys_that_are_read() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
        let properties = schema["properties"].as_object().expect("an object");
        assert_eq!(properties.keys().map(String::as_str).collect::<Vec<_>>(), KEYS);
        for key in KEYS {
            // A date fits no key: whoever knows the key says what it must be.
            let text = format!("{key} = 2026-11-27");
            let wrong = DefinitionFile::parse(Path::new("/x.toml"), text.as_bytes()).expect_err(key);
            assert_eq!(wrong.what.split(", ").next(), Some(&*format!("{key} is a date")), "{}", wrong.what);
        }
    }
}
