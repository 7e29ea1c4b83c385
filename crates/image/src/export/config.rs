//! The configuration of an exported image: as it came, but for its layers, and what its history says of them.

use serde_json::{Map, Value, json};
use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;
use skiff_sys::IgnoreError;

use super::layers::ImageLayerSource;

/// `config` with this layer instead of its own.
pub(super) fn with_one_layer(config: &Value, diff_id: &Digest) -> Vec<u8> {
    let mut config = on_platform(config);
    config.insert("rootfs".into(), json!({"type": "layers", "diff_ids": [diff_id]}));
    let mut steps: Vec<Value> = history(&config).into_iter().map(without_layer).collect();
    steps.push(step(&config, "skiff export", "the layers of all steps in one"));
    config.insert("history".into(), steps.into());
    to_bytes(&config)
}

/// `config` with these layers. `below` is the configuration of the image that the lower ones come from.
pub(super) fn with_layers(config: &Value, below: Option<&Value>, layers: &[ImageLayerSource]) -> Vec<u8> {
    let mut config = on_platform(config);
    let diff_ids: Vec<Digest> = layers.iter().map(|source| source.layer().diff_id).collect();
    config.insert("rootfs".into(), json!({"type": "layers", "diff_ids": diff_ids}));
    let count = layers.iter().filter(|source| matches!(source, ImageLayerSource::Below(_))).count();
    let mut steps = below.map(|below| history_below(below, count)).unwrap_or_default();
    let done = below.and_then(Value::as_object).map_or(0, |below| history(below).len());
    let mut rest = history(&config).into_iter().map(without_layer).skip(done);
    let mut at = done;
    for source in layers {
        let ImageLayerSource::Made { steps: until, .. } = source else { continue };
        let own: Vec<Value> = rest.by_ref().take(until.saturating_sub(at)).collect();
        at = at.max(*until);
        let is_silent = own.is_empty();
        steps.extend(own);
        if is_silent {
            steps.push(step(&config, "skiff push", "what has changed"));
        } else if let Some(last) = steps.last_mut().and_then(Value::as_object_mut) {
            last.remove("empty_layer");
        }
    }
    steps.extend(rest);
    config.insert("history".into(), steps.into());
    to_bytes(&config)
}

/// The history of an image below, if it has a step for each of its layers; else one that has.
fn history_below(below: &Value, layers: usize) -> Vec<Value> {
    let Some(below) = below.as_object() else { return vec![] };
    let steps = history(below);
    let has_layer = |step: &&Value| !step.get("empty_layer").and_then(Value::as_bool).unwrap_or_default();
    if steps.iter().filter(has_layer).count() == layers {
        return steps;
    }
    let unknown = (0..layers).map(|_| step(below, "unknown", "a layer of the image below"));
    unknown.chain(steps.into_iter().map(without_layer)).collect()
}

fn on_platform(config: &Value) -> Map<String, Value> {
    let mut config = config.as_object().cloned().unwrap_or_default();
    let host = Platform::host();
    for (key, value) in [("architecture", &host.architecture), ("os", &host.os)] {
        if config.get(key).is_none_or(|value| value.as_str().is_none_or(str::is_empty)) {
            config.insert(key.into(), json!(value));
        }
    }
    config
}

fn history(config: &Map<String, Value>) -> Vec<Value> {
    config.get("history").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// A step that stays, but has no layer of its own any more.
fn without_layer(mut step: Value) -> Value {
    if let Some(step) = step.as_object_mut() {
        step.insert("empty_layer".into(), json!(true));
    }
    step
}

fn step(config: &Map<String, Value>, created_by: &str, comment: &str) -> Value {
    let mut step = json!({"created_by": created_by, "comment": comment});
    if let Some(created) = config.get("created").filter(|created| created.is_string()) {
        step["created"] = created.clone();
    }
    step
}

fn to_bytes(config: &Map<String, Value>) -> Vec<u8> {
    serde_json::to_vec(config).default_on_error("JSON, which was read as such: nothing that could fail")
}
