//! `skiff commit`: the files of an instance or environment as an image of their own.
//!
//! They are read by a process that is root of the container's user namespace, since they may belong to any of the user's ids, and that root inside
//! does not see. From what it
//! writes, an image file with the new configuration, the store imports as it does from any user's file.

use std::os::fd::AsFd;

use serde_json::{Value, json};
use skiff_cli::CommitArgs;
use skiff_env::own_files::{BaseFiles, CleanedList};
use skiff_image::export::root::{self, OtherContent, RootFilter};
use skiff_image::source::{ImageSource, temporary};
use skiff_oci::manifest::{ImageConfig, Instructions};
use skiff_oci::platform::Platform;
use skiff_output as output;
use skiff_plan::import;
use skiff_plan::progress::PullProgress;
use skiff_runtime::control::Live;
use skiff_runtime::environments::Environment;
use skiff_runtime::record::{ENV, InstanceDir};
use skiff_sandbox::enter::{open_root, run_unseen};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::name::EnvName;
use skiff_spec::plan::{Accounts, Base, inside};
use skiff_store::file::name_for;
use skiff_store::index::ImageName;
use skiff_store::{client, ours};
use skiff_sys::clock::now;
use skiff_user::context::UserContext;

use crate::images::commands::{ListedImage, digest};
use crate::named;

/// Makes the image; prints its id.
pub fn commit(args: &CommitArgs) -> Result<()> {
    let CommitArgs { changes, message, author, quiet, json, name, image } = args;
    let context = UserContext::load()?;
    // Before anything is read: at the end it would be all for nothing.
    let reference = name_for(image)?;
    let live = named::enter(&context, name, "commit")?;
    let below = image_below(&context, name)?;
    let mut config = below.config.clone();
    change(&mut config, changes)?;
    note_step(&mut config, name.as_str(), message.as_deref(), author.as_deref());
    let platform = platform(&config)?;
    let mut progress = PullProgress::new(None, *quiet);
    if !quiet {
        output::note(&format!("reading the files of {name}"));
    }
    let own = (&base_files(&context, &below), &skiff_plan::accounts(&context));
    let source = read(&live, name.as_str(), &config, own)?;
    let entry = import::import_made(&context, source, reference, &platform, &mut progress)?;
    live.leave();
    client::mount(&context, entry.id);
    match json {
        true => output::json(&ListedImage::of(&entry)),
        false => output::line(&digest(entry.id)),
    }
}

/// The image that the container was made of: the new one inherits its configuration.
fn image_below(context: &UserContext, name: &EnvName) -> Result<ImageName> {
    let environment = Environment::named(context, name.clone())?;
    let image = match environment.exists() {
        true => environment.ground()?.image().cloned(),
        false => image_of_instance(context, &InstanceDir::existing(context, name)?)?,
    };
    image.ok_or_else(|| {
        Fault::new(format!(
            "{name} stands on the host's root, and an image of it would be one of the whole host"
        ))
        .hint("`skiff env create NAME --base image:IMAGE` makes an environment that an image can be made of")
    })
}

/// The image that an instance was made of, or that the environment stands on which it was made of.
fn image_of_instance(context: &UserContext, record: &InstanceDir) -> Result<Option<ImageName>> {
    if let Some(image) = record.image()? {
        return Ok(Some(image));
    }
    let started = record.started()?;
    let (Some(id), Some(name)) = (started.image, started.of.strip_prefix(ENV)) else { return Ok(None) };
    let environment = Environment::named(context, name.parse().map_err(|e| Fault::new(format!("{e}")))?)?;
    let ground = if environment.exists() { environment.ground()?.image().cloned() } else { None };
    match ground.filter(|image| image.id == id) {
        // The environment of this name is another one by now.
        None => Ok(Some(skiff_store::find(context, &digest(id))?)),
        found => Ok(found),
    }
}

/// What the image below has where Skiff may have put something. The image may be gone by now: then what was made of it is all the more worth
/// keeping.
fn base_files(context: &UserContext, below: &ImageName) -> BaseFiles {
    BaseFiles::of(context, Base::Image(below.id)).unwrap_or_else(|fault| {
        let name = &below.reference;
        output::note(&format!("image {name}: your account stays in what is made of it: {fault}"));
        BaseFiles::default()
    })
}

fn change(config: &mut Value, changes: &[String]) -> Result<()> {
    let mut instructions = Instructions::new(config);
    for text in changes {
        instructions.apply(text).map_err(|e| Fault::new(format!("commit: --change: {e}")))?;
    }
    config["config"] = instructions.into_config();
    Ok(())
}

/// Says in the image's history how it came to be. Its files are one layer, whatever layers those below had.
fn note_step(config: &mut Value, name: &str, message: Option<&str>, author: Option<&str>) {
    let created = output::rfc3339(now());
    let steps = config.get("history").and_then(Value::as_array).cloned().unwrap_or_default();
    let without_layer = steps.into_iter().map(|mut step| {
        if let Some(step) = step.as_object_mut() {
            step.insert("empty_layer".into(), true.into());
        }
        step
    });
    let mut history: Vec<Value> = without_layer.collect();
    let mut step = json!({"created": created, "created_by": format!("skiff commit {name}")});
    if let Some(message) = message {
        step["comment"] = message.into();
    }
    if let Some(author) = author {
        step["author"] = author.into();
        config["author"] = author.into();
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

/// What the image runs on: that of the image below, which need not be this host's.
fn platform(config: &Value) -> Result<Platform> {
    let parsed = ImageConfig::parse("the new image", config.to_string().as_bytes())
        .map_err(|e| Fault::new(e.to_string()))?;
    Ok(parsed.platform.unwrap_or_else(Platform::host))
}

/// Reads the container's files into an image file, but what is Skiff's among them.
fn read(
    live: &Live,
    name: &str,
    config: &Value,
    (base, accounts): (&BaseFiles, &Accounts),
) -> Result<ImageSource> {
    let (image, scratch_dir, scratch_name) = temporary().map_err(ours)?;
    let init = live.init.as_fd();
    let all = open_root(init)?;
    run_unseen(init, &[image.as_fd(), scratch_dir.as_fd(), all.as_fd()], || {
        let scratch = (scratch_dir.as_fd(), &*scratch_name);
        let own = base.own_files(all.as_fd(), accounts)?;
        let leave_out =
            |path: &[u8], target: Option<&[u8]>| inside::is_own(path, target) || own.left_out.contains(path);
        let replacement =
            |list: &CleanedList| OtherContent { content: list.text.clone().into(), mtime: list.mtime };
        let replaced = own.cleaned.iter().map(|(path, list)| (path.clone(), replacement(list))).collect();
        let filter = RootFilter { leave_out: &leave_out, replaced: &replaced };
        root::of_filtered_root((all.as_fd(), name), filter, image.as_fd(), scratch).map_err(ours)
    })?;
    ImageSource::written(image, name, config).map_err(ours)
}
