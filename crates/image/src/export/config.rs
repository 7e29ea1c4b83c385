//! The configuration of an exported image: as it came, but of one layer.

use serde_json::{Map, Value, json};
use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;
use skiff_sys::IgnoreError;

/// `config` with this layer instead of its own.
pub(super) fn with_one_layer(config: &Value, diff_id: &Digest) -> Vec<u8> {
    let mut config = config.as_object().cloned().unwrap_or_default();
    let host = Platform::host();
    for (key, value) in [("architecture", &host.architecture), ("os", &host.os)] {
        if config.get(key).is_none_or(|value| value.as_str().is_none_or(str::is_empty)) {
            config.insert(key.into(), json!(value));
        }
    }
    config.insert("rootfs".into(), json!({"type": "layers", "diff_ids": [diff_id]}));
    let history = history(&config);
    config.insert("history".into(), history);
    serde_json::to_vec(&config).default_on_error("JSON, which was read as such: nothing that could fail")
}

/// The steps stay, but none of them has a layer of its own any more.
fn history(config: &Map<String, Value>) -> Value {
    let steps = config.get("history").and_then(Value::as_array).cloned().unwrap_or_default();
    let without_layer = |mut step: Value| {
        if let Some(step) = step.as_object_mut() {
            step.insert("empty_layer".into(), json!(true));
        }
        step
    };
    let mut steps: Vec<Value> = steps.into_iter().map(without_layer).collect();
    let mut last = json!({"created_by": "skiff export", "comment": "the layers of all steps in one"});
    if let Some(created) = config.get("created").filter(|created| created.is_string()) {
        last["created"] = created.clone();
    }
    steps.push(last);
    steps.into()
}
