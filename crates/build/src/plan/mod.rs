//! From a Dockerfile to the steps of a build: what each does, and the key by which the cache knows it. Nothing is run; what has to be looked up
//! is asked of [`PlanLookup`], so tests make it up, and `--dry-run` prints what is carried out.

mod action;
mod arguments;
mod budget;
mod copy;
mod environment;
mod run;
mod source;
mod stage;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use skiff_oci::hash::sha256_hex;
use skiff_oci::platform::Platform;
use skiff_spec::fault::{Fault, Result};
use skiff_spec::image::ImageId;

use crate::dockerfile::{Dockerfile, DockerfileError, StageFrom};
use crate::git::GitSource;
pub use action::{Action, CopyAction, CopyFrom, PlannedMount, PlannedMountKind, PlannedSource, RunAction};
use arguments::Arguments;
use budget::ValueBudget;
pub use run::MOUNTED;
use stage::StagePlanner;
pub use stage::check_platform;

/// What an image below a stage is.
#[derive(Debug, Clone, PartialEq)]
pub struct BaseImage {
    /// The image.
    pub id: ImageId,
    /// The image's whole configuration.
    pub config: Value,
}

/// What planning asks of the outside.
pub trait PlanLookup {
    /// An image of the user's, pulled if need be.
    ///
    /// # Errors
    /// There is none.
    fn image(&mut self, reference: &str) -> Result<BaseImage>;

    /// An image of the user's list, or in a file or directory.
    ///
    /// # Errors
    /// There is none.
    fn local_image(&mut self, name: &str) -> Result<BaseImage>;

    /// The digest of a file of another server.
    ///
    /// # Errors
    /// The file cannot be had.
    fn remote(&mut self, address: &str) -> Result<String>;

    /// The commit that a repository's reference means.
    ///
    /// # Errors
    /// It cannot be had.
    fn commit(&mut self, repository: &GitSource) -> Result<String>;

    /// The sum of the files of the context that are copied.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    fn sum(&mut self, copy: &CopyAction) -> Result<String>;
}

/// What is asked for beside the Dockerfile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildOptions {
    /// The Dockerfile, in messages.
    pub file: String,
    /// Values of arguments.
    pub args: BTreeMap<String, String>,
    /// The stage to build; the last if none is named.
    pub target: Option<String>,
    /// Remarks for the image.
    pub labels: Vec<(String, String)>,
    /// What else files depend on: whose ids they have, and how containers are made.
    pub ids: String,
}

/// The stages that are needed, each behind those that it needs.
#[derive(Debug, Clone, PartialEq)]
pub struct BuildPlan {
    /// The stages. The last is the one that becomes the image.
    pub stages: Vec<PlannedStage>,
    /// What the user is told.
    pub notes: Vec<String>,
    /// Whether the last layer tells variables for the configuration: see [`definition`](crate::definition).
    pub has_variables: bool,
}

impl BuildPlan {
    /// Whether files of the context are read.
    #[must_use]
    pub fn reads_context(&self) -> bool {
        let of_context = |copy: &CopyAction| {
            copy.from == CopyFrom::Context
                && copy.sources.iter().any(|source| matches!(source, PlannedSource::Path(_)))
        };
        let mut actions =
            self.stages.iter().flat_map(|stage| &stage.steps).filter_map(|step| step.action.as_ref());
        actions.any(|(_, action)| match action {
            Action::Copy(copy) => of_context(copy),
            Action::Run(run) => run
                .mounts
                .iter()
                .any(|mount| matches!(&mount.kind, PlannedMountKind::Files { copy, .. } if of_context(copy))),
            Action::Debootstrap { .. } | Action::MakeDirectory { .. } => false,
        })
    }
}

/// A stage.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedStage {
    /// Name of the stage, or its number.
    pub label: String,
    /// What it begins with.
    pub base: StageBase,
    /// The stage's steps.
    pub steps: Vec<PlannedStep>,
    /// The configuration of its image, whole, but for times.
    pub config: Value,
    /// Arguments at its end, which stages that begin with it have.
    pub args: BTreeMap<String, String>,
    /// The key of its files.
    pub key: BuildKey,
}

/// What a stage begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageBase {
    /// No files.
    Scratch,
    /// An image.
    Image(ImageId),
    /// The files of a stage before, by its place among the planned ones.
    Stage(usize),
}

/// What identifies files by how they were made: the steps and all that they depend on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct BuildKey(pub String);

/// Counts up whenever the same steps make other files, or are written otherwise: then no layer from before is taken.
const FORMAT: u32 = 4;

impl BuildKey {
    /// The key of what is made of this.
    #[must_use]
    pub fn of(what: &Value) -> Self {
        Self(sha256_hex(json!([FORMAT, what]).to_string().as_bytes()))
    }
}

/// A build has not more stages: each is planned within the planning of the one that needs it, which takes some of the stack.
const MOST_STAGES: usize = 250;

/// A step.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedStep {
    /// Line of the instruction.
    pub line: usize,
    /// The instruction.
    pub text: String,
    /// What it does to files, if anything.
    pub action: Option<(BuildKey, Action)>,
}

/// Plans a build.
///
/// # Errors
/// What it names cannot be had, or contradicts itself.
pub fn plan(file: &Dockerfile, options: &BuildOptions, lookup: &mut dyn PlanLookup) -> Result<BuildPlan> {
    if let Some(stage) = file.stages.get(MOST_STAGES) {
        let fault = Fault::new(format!("FROM: more than {MOST_STAGES} stages"));
        return Err(fault.about(&format!("{}:{}", options.file, stage.line)));
    }
    let budget = ValueBudget::default();
    let arguments = Arguments::new(file, options, &budget)?;
    let target = match &options.target {
        None => file.stages.len() - 1,
        Some(name) => find_stage(file, name, file.stages.len()).ok_or_else(|| no_target(file, name))?,
    };
    let mut planner =
        Planner { file, options, lookup, arguments, budget, planned: BTreeMap::new(), stages: vec![] };
    planner.stage(target)?;
    let Planner { mut stages, arguments, .. } = planner;
    if let Some(last) = stages.last_mut() {
        finish(&mut last.config, options);
    }
    let mut notes = arguments.notes();
    if let Some(syntax) = &file.syntax {
        notes.push(format!("# syntax={syntax} is ignored: Skiff reads the file itself"));
    }
    Ok(BuildPlan { stages, notes, has_variables: file.is_definition })
}

/// The stage of this name, or of this number, before another.
fn find_stage(file: &Dockerfile, name: &str, before: usize) -> Option<usize> {
    let lower = name.to_lowercase();
    let known = file.stages[..before].iter().rposition(|stage| stage.name.as_deref() == Some(&*lower));
    known.or_else(|| name.parse().ok().filter(|number| *number < before))
}

fn no_target(file: &Dockerfile, name: &str) -> Fault {
    let names: Vec<&str> = file.stages.iter().filter_map(|stage| stage.name.as_deref()).collect();
    let fault = Fault::new(format!("--target {name}: no stage of this name"));
    if names.is_empty() {
        fault.hint("FROM IMAGE AS NAME names one")
    } else {
        fault.hint(format!("there are {}", names.join(", ")))
    }
}

fn finish(config: &mut Value, options: &BuildOptions) {
    if !options.labels.is_empty() {
        let mut instructions = skiff_oci::manifest::Instructions::new(config);
        instructions.add_labels(options.labels.iter().cloned());
        config["config"] = instructions.into_config();
    }
    config["rootfs"] = json!({"type": "layers", "diff_ids": []});
    let host = Platform::host();
    for (key, value) in [("architecture", host.architecture), ("os", host.os)] {
        if config.get(key).and_then(Value::as_str).is_none_or(str::is_empty) {
            config[key] = value.into();
        }
    }
}

/// Plans stages, those that others need first.
pub(crate) struct Planner<'a> {
    pub file: &'a Dockerfile,
    pub options: &'a BuildOptions,
    pub lookup: &'a mut dyn PlanLookup,
    pub arguments: Arguments,
    /// What values may take still.
    pub(crate) budget: ValueBudget,
    /// Where each stage of the file is among the planned ones.
    planned: BTreeMap<usize, usize>,
    stages: Vec<PlannedStage>,
}

impl Planner<'_> {
    /// Plans a stage, unless that was done; where it is among the planned ones.
    fn stage(&mut self, number: usize) -> Result<usize> {
        if let Some(at) = self.planned.get(&number) {
            return Ok(*at);
        }
        let stage = StagePlanner::begin(self, number)?.plan()?;
        self.stages.push(stage);
        self.planned.insert(number, self.stages.len() - 1);
        Ok(self.stages.len() - 1)
    }

    /// What a stage begins with: its files, their key, the configuration and the arguments that it brings.
    fn base(
        &mut self,
        number: usize,
        from: StageFrom,
    ) -> Result<(StageBase, BuildKey, Value, BTreeMap<String, String>)> {
        let ids = &self.options.ids;
        let image = match from {
            StageFrom::Scratch => {
                return Ok((
                    StageBase::Scratch,
                    // What a step puts there itself (debootstrap) is for this machine.
                    BuildKey::of(&json!(["scratch", ids, Platform::host().to_string()])),
                    json!({}),
                    BTreeMap::new(),
                ));
            }
            StageFrom::Written(from) if from == "scratch" => return self.base(number, StageFrom::Scratch),
            StageFrom::Written(from) if from.is_empty() => {
                return Err(Fault::new("FROM: no image is named").hint(
                    "give the argument a value: --build-arg NAME=VALUE, or ARG NAME=VALUE before FROM",
                ));
            }
            StageFrom::Written(from) => {
                let earlier = find_stage(self.file, &from, number).filter(|_| from.parse::<usize>().is_err());
                if let Some(earlier) = earlier {
                    let at = self.stage(earlier)?;
                    let PlannedStage { key, config, args, .. } = &self.stages[at];
                    return Ok((StageBase::Stage(at), key.clone(), config.clone(), args.clone()));
                }
                self.lookup.image(&from)?
            }
            StageFrom::Image(name) => self.lookup.image(&name)?,
            StageFrom::Local(name) => self.lookup.local_image(&name)?,
        };
        let key = BuildKey::of(&json!([image.id, ids]));
        Ok((StageBase::Image(image.id), key, image.config, BTreeMap::new()))
    }

    /// A fault of a line.
    fn at(&self, line: usize, fault: Fault) -> Fault {
        self.at_word(line, "", fault)
    }

    /// The same of an instruction. A fault in a stage that is needed there has a line of its own.
    fn at_word(&self, line: usize, word: &str, fault: Fault) -> Fault {
        let file = &self.options.file;
        if fault.message.starts_with(&format!("{file}:")) {
            return fault;
        }
        let fault = if word.is_empty() { fault } else { fault.about(word) };
        fault.about(&format!("{file}:{line}"))
    }
}

/// A fault of a Dockerfile as a user reads it.
#[must_use]
pub fn fault_of(file: &str, error: &DockerfileError) -> Fault {
    Fault::new(format!("{file}:{}: {}", error.line, error.what)).hint(error.hint.clone())
}
