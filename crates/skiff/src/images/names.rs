//! `skiff tag` and `skiff history`.

use serde::Serialize;
use skiff_output::{self as output, ListFormat};
use skiff_runtime::naming;
use skiff_spec::fault::Result;
use skiff_store::file::name_for;
use skiff_store::find;
use skiff_user::context::UserContext;

/// `skiff tag`: gives an image one more name.
pub fn tag(image: &str, name: &str) -> Result<()> {
    let context = UserContext::load()?;
    let entry = find(&context, image)?;
    naming::note(&context, &entry.called(name_for(name)?))
}

/// A step of an image's making.
#[derive(Serialize)]
struct Step {
    created: Option<String>,
    created_by: Option<String>,
    comment: Option<String>,
    /// Whether it made no layer.
    empty_layer: bool,
}

/// `skiff history`: how an image was built, the last step first.
pub fn history(image: &str, format: &ListFormat<'_>, is_whole: bool) -> Result<()> {
    let context = UserContext::load()?;
    let config = find(&context, image)?.config()?;
    let step = |step: skiff_oci::manifest::History| Step {
        created: step.created,
        created_by: step.created_by,
        comment: step.comment,
        empty_layer: step.empty_layer,
    };
    let steps: Vec<Step> = config.history.into_iter().rev().map(step).collect();
    let dash = || "-".to_owned();
    let row = |step: &Step| {
        let created = step.created.as_ref().map_or_else(dash, |time| time.chars().take(10).collect());
        let layer = if step.empty_layer { "no" } else { "yes" };
        // One line for each: what a step ran may be a whole script.
        let line = |text: Option<&str>| text.unwrap_or("-").split_whitespace().collect::<Vec<_>>().join(" ");
        vec![created, layer.into(), line(step.created_by.as_deref()), line(step.comment.as_deref())]
    };
    let rows: Vec<_> = steps.iter().map(row).collect();
    let by = |step: &Step| step.created_by.clone().unwrap_or_default();
    let table = if is_whole { output::whole_table } else { output::table };
    output::list(format, &steps, by, || table(&["CREATED", "LAYER", "CREATED BY", "COMMENT"], &rows))
}
