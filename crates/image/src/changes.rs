//! An image of changes: what an environment has changed of a host's root. Which root that was is recorded, and not in the image.
//!
//! To registries and other programs it is an image as any, with one layer. What is removed is a whiteout there, as OCI layers have them: an empty
//! file `.wh.NAME`, and `.wh..wh..opq` in a directory that hides the base's. Below the layer there is nothing that it could hide, so an image's
//! file has these names as files of their own. What else must be known of the base is in `/.skiff/base`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The label that makes an image one of changes; others begin so.
const BASE: &str = "io.skiff.base";
/// Value of that label: the base is a host's root.
const HOST: &str = "host";
/// The label with the name that the environment had.
const ENVIRONMENT: &str = "io.skiff.environment";
/// The directory in which the image has texts about its base, which are no changes.
pub(crate) const TEXTS: &str = ".skiff/base";
/// What the name of a whiteout begins with.
pub(crate) const WHITEOUT: &[u8] = b".wh.";
/// The file in a directory that hides the base's directory of its name.
pub(crate) const OPAQUE: &[u8] = b".wh..wh..opq";

/// What an image of changes says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesLabels {
    /// The environment's name.
    pub environment: String,
    /// What the base was, as the caller describes it.
    pub base: BTreeMap<String, String>,
}

impl ChangesLabels {
    /// What a configuration says, if the image is one of changes.
    #[must_use]
    pub fn of(config: &Value) -> Option<ChangesLabels> {
        let labels = config.get("config")?.get("Labels")?.as_object()?;
        let text = |key: &str| labels.get(key).and_then(Value::as_str);
        (text(BASE) == Some(HOST)).then_some(())?;
        let fact = |(key, value): (&String, &Value)| {
            let key = key.strip_prefix(BASE)?.strip_prefix('.')?;
            Some((key.to_owned(), value.as_str()?.to_owned()))
        };
        let environment = text(ENVIRONMENT).unwrap_or_default().into();
        Some(ChangesLabels { environment, base: labels.iter().filter_map(fact).collect() })
    }

    /// Has a configuration say it, whatever it said of this before.
    pub fn put(&self, config: &mut Value) {
        let labels = &mut config["config"]["Labels"];
        if !labels.is_object() {
            *labels = json!({});
        }
        if let Some(labels) = labels.as_object_mut() {
            labels.retain(|key, _| !key.starts_with(BASE));
            labels.insert(BASE.into(), HOST.into());
            labels.insert(ENVIRONMENT.into(), (*self.environment).into());
            labels.extend(self.base.iter().map(|(key, value)| (format!("{BASE}.{key}"), (**value).into())));
        }
    }
}

/// Whether an image is one of changes.
#[must_use]
pub fn is_of_changes(config: &Value) -> bool {
    ChangesLabels::of(config).is_some()
}

/// Whether a name in a layer is none of a file's own.
pub(crate) fn is_mark(name: &[u8]) -> bool {
    name.starts_with(WHITEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_say_what_the_base_was() {
        let base = BTreeMap::from([("release".to_owned(), "debian 12".to_owned())]);
        let labels = ChangesLabels { environment: "dev".into(), base };
        let mut config = json!({"config": {"Labels": {"io.skiff.base.kernel": "6", "of": "mine"}}});
        assert_eq!(ChangesLabels::of(&config), None, "only the base's kind makes it one");
        labels.put(&mut config);
        assert_eq!(ChangesLabels::of(&config), Some(labels.clone()));
        assert_eq!(config["config"]["Labels"]["of"], "mine");
        assert_eq!(config["config"]["Labels"]["io.skiff.base.release"], "debian 12");
        for mut without in [json!({}), json!({"config": {"Labels": null}})] {
            labels.put(&mut without);
            assert_eq!(ChangesLabels::of(&without), Some(labels.clone()));
        }
        for other in [json!({"config": {"Labels": {BASE: "image"}}}), json!({"config": []}), json!(1)] {
            assert!(!is_of_changes(&other), "{other}");
        }
    }
}
