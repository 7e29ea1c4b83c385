//! `skiff build`: an image of a Dockerfile, without privilege and without a daemon.
//!
//! The file is read ([`dockerfile`]), then planned ([`plan`]): each step has a key, which follows from its text, from what it depends on and from
//! the step before. Then it is carried out (`execute`): a step that the cache has is not done again; another one works in a container over the
//! layers of those before, and its changes are a layer. At the end all layers become one image file, as `skiff commit` makes it.

mod agents;
mod archive;
mod cache;
mod container;
pub mod context;
pub mod definition;
pub mod dockerfile;
mod execute;
pub mod fuzz;
pub mod git;
mod inputs;
mod lookup;
pub mod plan;
mod remote;
mod room;
mod secrets;
mod text_file;
mod transfer;
mod variables;

use serde::Serialize;
use skiff_cli::BuildArgs;
use skiff_output as output;
use skiff_plan::refuse_inside;
use skiff_spec::fault::{Fault, Result};
use skiff_store::copies;
use skiff_store::file::name_for;
use skiff_store::index::ImageName;
use skiff_user::context::UserContext;

use cache::BuildCache;
use inputs::BuildInputs;
use lookup::HostLookup;
use plan::{Action, BuildOptions, BuildPlan, PlannedSource};

/// Where to build instead of in a job's environment, where the helper has no power.
const ELSEWHERE: &str =
    "build on the login node, or beside the environment: srun --overlap --environment=none skiff build ...";

/// How a build ended.
pub enum BuildOutcome {
    /// With this image.
    Image(ImageName),
    /// All that was asked for has been shown or done.
    Done,
    /// A command failed; its exit code.
    Failed(i32),
}

/// Builds an image, or shows how that would be done.
///
/// # Errors
/// The Dockerfile cannot be read, or a step cannot be done.
pub fn build(args: &BuildArgs) -> Result<BuildOutcome> {
    let context = UserContext::load()?;
    if args.prune {
        let count = cache::clear(&context)?;
        if !args.quiet {
            output::note(&format!("layers removed from the cache: {count}"));
        }
        return Ok(BuildOutcome::Done);
    }
    if let Some(platform) = &args.platform {
        plan::check_platform(platform)?;
    }
    if !args.dry_run {
        refuse_inside(&context).map_err(|fault| fault.hint(ELSEWHERE))?;
    }
    let mut inputs = BuildInputs::open(args)?;
    let names = names(args, &inputs)?;
    let cache = BuildCache::open(&context, args.no_cache)?;
    inputs.remotes.room = cache.room();
    let mut given = inputs::arguments(&args.build_args)?;
    given.retain(|name, _| !inputs.dockerfile.used_args.contains(name));
    let options = BuildOptions {
        file: inputs.shown.clone(),
        args: given,
        target: args.target.clone(),
        labels: inputs::labels(&args.labels)?,
        ids: format!("{:?} {}", context.route(), cache::ids(&context)?),
    };
    let mut lookup = HostLookup { context: &context, inputs: &inputs, is_dry_run: args.dry_run };
    let plan = plan::plan(&inputs.dockerfile, &options, &mut lookup)?;
    if let Some(note) = inputs.note_of_context().filter(|_| plan.reads_context() && !args.quiet) {
        output::note(&note);
    }
    plan.notes.iter().filter(|_| !args.quiet).for_each(|note| output::note(note));
    if args.dry_run {
        return show(&plan, &cache, args).map(|()| BuildOutcome::Done);
    }
    let built = execute::carry_out(&context, &cache, &inputs, &plan, (&names, args))?;
    if let BuildOutcome::Image(image) = &built {
        cache.tidy();
        if std::env::var_os("SLURM_JOB_ID").is_some() {
            leave_copy(&context, image);
        }
    }
    Ok(built)
}

/// Leaves a copy of what a job has built in the depot: its node's store may be that node's alone, and other hosts find the image there.
fn leave_copy(context: &UserContext, image: &ImageName) {
    let left = context.depot().and_then(|depot| Ok(copies::put(context, &depot, image)?));
    if let Err(fault) = left {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = &image.reference;
        output::note(&format!(
            "image {name}: only the store of {host} has it; no copy in the depot: {fault}"
        ));
    }
}

/// What the image is called: what was asked for, else as the context is.
fn names(args: &BuildArgs, inputs: &BuildInputs) -> Result<Vec<String>> {
    if !args.tags.is_empty() {
        return args.tags.iter().map(|name| Ok(name_for(name)?)).collect();
    }
    let named = inputs.name.as_deref().map(|name| name_for(&name.to_lowercase()));
    match named {
        Some(Ok(name)) => Ok(vec![name]),
        _ => Err(Fault::new("build: the context's directory has no name that an image could have")
            .hint("-t NAME gives it one")),
    }
}

/// A step as it is shown.
#[derive(Serialize)]
struct ListedStep<'a> {
    stage: &'a str,
    line: usize,
    instruction: &'a str,
    /// Whether it makes a layer.
    layer: bool,
    /// Whether the cache has that.
    cached: bool,
    /// Whether that shows only when files of other hosts have been fetched.
    #[serde(skip)]
    unknown: bool,
}

/// Whether a step has files of another host, which are fetched only by a build: until then it is not known whether they are those of the cache.
fn is_far(action: &Action) -> bool {
    let is_far = |source: &PlannedSource| match source {
        PlannedSource::Remote { digest, .. } => digest.is_empty(),
        PlannedSource::Repository { commit, .. } => commit.is_empty(),
        PlannedSource::Path(_) | PlannedSource::Text { .. } => false,
    };
    matches!(action, Action::Copy(copy) if copy.sources.iter().any(is_far))
}

fn show(plan: &BuildPlan, cache: &BuildCache<'_>, args: &BuildArgs) -> Result<()> {
    let mut is_known = true;
    let steps: Vec<ListedStep<'_>> = plan
        .stages
        .iter()
        .flat_map(|stage| stage.steps.iter().map(move |step| (stage, step)))
        .map(|(stage, step)| {
            is_known &= !step.action.as_ref().is_some_and(|(_, action)| is_far(action));
            ListedStep {
                stage: &stage.label,
                line: step.line,
                instruction: &step.text,
                layer: step.action.is_some(),
                cached: !args.no_cache
                    && step.action.as_ref().is_some_and(|(key, _)| cache.layer(key).is_some()),
                unknown: !args.no_cache && !is_known,
            }
        })
        .collect();
    if args.json {
        return output::json(&steps);
    }
    let state = |step: &ListedStep<'_>| match (step.layer, step.cached) {
        (false, _) => "configuration",
        (true, true) => "cached",
        (true, false) if step.unknown => "not known",
        (true, false) => "to do",
    };
    let row = |step: &ListedStep<'_>| {
        vec![
            step.stage.to_owned(),
            step.line.to_string(),
            state(step).to_owned(),
            // One line for each: an instruction may have been continued, or be a whole script.
            step.instruction.split_whitespace().collect::<Vec<_>>().join(" "),
        ]
    };
    output::table(&["STAGE", "LINE", "STATE", "INSTRUCTION"], &steps.iter().map(row).collect::<Vec<_>>())
}
