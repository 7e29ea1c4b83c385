//! The configuration of an image that is made of a container.

use std::path::Path;

use serde_json::{Value, json};
use skiff_cli::CommitArgs;
use skiff_image::changes::ChangesLabels;
use skiff_oci::manifest::{ImageConfig, Instructions};
use skiff_oci::platform::Platform;
use skiff_output as output;
use skiff_spec::fault::{Fault, Result};
use skiff_sys::clock::now;

/// Where a host's programs are.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Of a container over an image, whose configuration it inherits.
pub fn of_image(below: Value, args: &CommitArgs) -> Result<Value> {
    changed(below, args)
}

/// Of an environment's changes alone. That it is such an image is no instruction's to say.
pub fn of_changes(labels: &ChangesLabels, args: &CommitArgs) -> Result<Value> {
    let mut config = changed(json!({"config": {}}), args)?;
    labels.put(&mut config);
    Ok(config)
}

/// Of all that an environment over the host's root shows.
pub fn of_host(args: &CommitArgs) -> Result<Value> {
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    changed(json!({"config": {"Env": [PATH], "Cmd": [shell]}}), args)
}

/// What the image runs on: that of the image below, which need not be this host's.
pub fn platform(config: &Value) -> Result<Platform> {
    let parsed = ImageConfig::parse("the new image", config.to_string().as_bytes())
        .map_err(|e| Fault::new(e.to_string()))?;
    Ok(parsed.platform.unwrap_or_else(Platform::host))
}

fn changed(mut config: Value, args: &CommitArgs) -> Result<Value> {
    let mut instructions = Instructions::new(&config);
    for text in &args.changes {
        instructions.apply(text).map_err(|e| Fault::new(format!("commit: --change: {e}")))?;
    }
    config["config"] = instructions.into_config();
    note_step(&mut config, args);
    Ok(config)
}

/// Says in the image's history how it came to be. Its files are one layer, whatever layers those below had.
fn note_step(config: &mut Value, args: &CommitArgs) {
    let created = output::rfc3339(now());
    let steps = config.get("history").and_then(Value::as_array).cloned().unwrap_or_default();
    let without_layer = steps.into_iter().map(|mut step| {
        if let Some(step) = step.as_object_mut() {
            step.insert("empty_layer".into(), true.into());
        }
        step
    });
    let mut history: Vec<Value> = without_layer.collect();
    let full = if args.full { "--full " } else { "" };
    let mut step = json!({"created": created, "created_by": format!("skiff commit {full}{}", args.env)});
    if let Some(message) = &args.message {
        step["comment"] = (**message).into();
    }
    if let Some(author) = &args.author {
        step["author"] = (**author).into();
        config["author"] = (**author).into();
    }
    history.push(step);
    config["history"] = history.into();
    config["created"] = created.into();
    config["rootfs"] = json!({"type": "layers", "diff_ids": []});
    let host = Platform::host();
    for (key, value) in [("architecture", host.architecture), ("os", host.os)] {
        if config.get(key).and_then(Value::as_str).is_none_or(str::is_empty) {
            config[key] = value.into();
        }
    }
}
