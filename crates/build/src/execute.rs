//! Carries a plan out: what the cache has is taken from there, the rest is done in containers.

mod debootstrap;
mod mounts;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::dup;
use rustix::process::umask;
use rustix::stdio::{dup2_stdin, dup2_stdout, stderr, stdout};
use serde_json::{Value, json};
use skiff_cli::BuildArgs;
use skiff_image::export::root;
use skiff_image::source::{ImageSource, temporary};
use skiff_oci::platform::Platform;
use skiff_output as output;
use skiff_plan::import;
use skiff_plan::progress::PullProgress;
use skiff_runtime::naming;
use skiff_sandbox::enter::{open_root, run_unseen};
use skiff_sandbox::join::Failed;
use skiff_sandbox::session::CommandExit;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::plan::Upper;
use skiff_store::index::{ImageBase, ImageName};
use skiff_store::{client, ours};
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_user::context::UserContext;
use skiff_user::scratch::Scratch;

use crate::BuildOutcome;
use crate::cache::BuildCache;
use crate::container::{Containers, ReadyMounts, RunEnd, StageFiles};
use crate::inputs::BuildInputs;
use crate::plan::{
    Action, BuildKey, BuildPlan, CopyAction, CopyFrom, PlannedStage, PlannedStep, RunAction, StageBase,
};
use crate::{transfer, variables};

/// Names of layers in the making.
const STEP: &str = "step";
const PLACES: &str = "places";
const SOURCE: &str = "source";
/// The name of a repository's files on their way.
const CLONE: &str = "clone";

/// Does what is not done yet; the image is called by all `names`.
pub fn carry_out(
    context: &UserContext,
    cache: &BuildCache<'_>,
    inputs: &BuildInputs,
    plan: &BuildPlan,
    (names, args): (&[String], &BuildArgs),
) -> Result<BuildOutcome> {
    let Some(last) = plan.stages.last() else { return Err(Fault::new("build: no stage")) };
    let made_of = BuildKey::of(&json!([last.key, last.config]));
    if !args.no_cache
        && let Some(image) = cache.image(&made_of).filter(|image| client::has(context, image.id))
    {
        // They are the next build's, if something changes.
        let steps = plan.stages.iter().flat_map(|stage| &stage.steps);
        steps.filter_map(|step| step.action.as_ref()).for_each(|(key, _)| {
            cache.layer(key);
        });
        return named(context, image, names).map(BuildOutcome::Image);
    }
    let containers = Containers { context, empty: cache.empty.clone(), quiet: args.quiet };
    let work = cache.work_directory()?;
    let total = plan.stages.iter().map(|stage| stage.steps.len()).sum();
    let mut builder = Builder { cache, inputs, containers, work, files: vec![], done: 0, total, args };
    let output = Output::turn()?;
    for stage in &plan.stages {
        match builder.stage(stage) {
            Ok(files) => builder.files.push(files),
            Err(StepFault::Skiff(fault)) => return Err(fault),
            Err(StepFault::Command(fault, code)) => {
                output::complain(&fault);
                return Ok(BuildOutcome::Failed(code));
            }
        }
    }
    let image = builder.image(last, names, plan.has_variables)?;
    output.turn_back()?;
    // A later build that took this image, but the layers of others for what changes, would go back in time.
    if !args.no_cache {
        cache.note_image(&made_of, &image)?;
    }
    named(context, image, names).map(BuildOutcome::Image)
}

/// Notes all names of an image; gives it with the first.
fn named(context: &UserContext, image: ImageName, names: &[String]) -> Result<ImageName> {
    let mut first = image.clone();
    for name in names.iter().rev() {
        first = ImageName { pulled: now(), ..image.clone() }.called(name.clone());
        naming::note(context, &first)?;
    }
    client::mount(context, image.id);
    Ok(first)
}

/// Standard output is for the result alone: what commands say goes to standard error, and they read nothing.
struct Output {
    before: OwnedFd,
}

impl Output {
    fn turn() -> Result<Self> {
        let before = dup(stdout()).context(|| "standard output")?;
        // What commands make is for all to read, as in Docker, whatever is the user's habit.
        umask(Mode::from_raw_mode(0o022));
        let null = File::open("/dev/null").context(|| "/dev/null")?;
        dup2_stdin(&null).context(|| "standard input")?;
        dup2_stdout(stderr()).context(|| "standard output")?;
        Ok(Self { before })
    }

    fn turn_back(self) -> Result<()> {
        dup2_stdout(&self.before).context(|| "standard output")
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        dup2_stdout(&self.before).ignore_error("then what is said goes to standard error");
    }
}

/// Why a step was not done.
enum StepFault {
    /// Something of Skiff's.
    Skiff(Fault),
    /// The command; and its exit code.
    Command(Fault, i32),
}

impl From<Fault> for StepFault {
    fn from(fault: Fault) -> Self {
        Self::Skiff(fault)
    }
}

struct Builder<'a> {
    cache: &'a BuildCache<'a>,
    inputs: &'a BuildInputs,
    containers: Containers<'a>,
    work: Scratch,
    /// The files of the stages before.
    files: Vec<StageFiles>,
    done: usize,
    total: usize,
    args: &'a BuildArgs,
}

impl Builder<'_> {
    fn stage(&mut self, stage: &PlannedStage) -> std::result::Result<StageFiles, StepFault> {
        let mut files = match stage.base {
            StageBase::Scratch => StageFiles { image: None, layers: vec![] },
            StageBase::Image(id) => StageFiles { image: Some(id), layers: vec![] },
            StageBase::Stage(at) => self.files[at].clone(),
        };
        for step in &stage.steps {
            self.done += 1;
            let Some((key, action)) = &step.action else {
                self.tell(step, "");
                continue;
            };
            let layer = match self.cache.layer(key) {
                Some(layer) => {
                    self.tell(step, " (cached)");
                    layer
                }
                None => {
                    self.tell(step, "");
                    self.step(&files, step, action).and_then(|upper| Ok(self.cache.keep(key, &upper)?))?
                }
            };
            if !matches!(action, Action::Run(RunAction { is_test: true, .. })) {
                files.push(layer);
            }
        }
        Ok(files)
    }

    fn tell(&self, step: &PlannedStep, state: &str) {
        if !self.args.quiet {
            let line = step.text.split_whitespace().collect::<Vec<_>>().join(" ");
            output::note(&format!("step {}/{}: {line}{state}", self.done, self.total));
        }
    }

    /// Does a step; gives where its changes are.
    fn step(
        &self,
        files: &StageFiles,
        step: &PlannedStep,
        action: &Action,
    ) -> std::result::Result<Upper, StepFault> {
        let upper = self.new_upper(STEP)?;
        let about = |fault: Fault| {
            let word = step.text.split(' ').next().unwrap_or_default();
            fault.about(&format!("{}:{}: {word}", self.inputs.shown, step.line))
        };
        let about_step = |fault: StepFault| match fault {
            StepFault::Skiff(fault) => StepFault::Skiff(about(fault)),
            StepFault::Command(fault, code) => StepFault::Command(about(fault), code),
        };
        match action {
            Action::Run(run) => {
                self.run(files, [self.new_upper(PLACES)?, upper.clone()], run).map_err(about_step)?;
            }
            Action::Debootstrap { packages, uncounted } => {
                self.debootstrap(packages, uncounted, &upper).map_err(about_step)?;
            }
            Action::MakeDirectory { path, owner } => {
                let target = self.containers.bare(files, upper.clone())?;
                let made = transfer::make_directory(path, owner.as_deref(), target.init.pidfd.as_fd());
                target.end();
                if !made.map_err(about)? {
                    output::note(&format!("{path} belongs to root: its owner needs subordinate ids"));
                }
            }
            Action::Copy(copy) => self.copy(files, upper.clone(), copy).map_err(about)?,
        }
        Ok(upper)
    }

    /// A directory for a layer, in which nothing is.
    fn new_upper(&self, name: &str) -> Result<Upper> {
        let old = self.work_path(name);
        if old.exists() {
            // Its files may belong to any of the user's ids.
            skiff_user::dirs::delete(self.containers.context, old)?;
        }
        self.work.upper(name)
    }

    /// An empty directory that is the user's alone.
    fn new_directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.work_path(name);
        if path.exists() {
            skiff_user::dirs::delete(self.containers.context, path.clone())?;
        }
        std::fs::DirBuilder::new().mode(0o700).create(&path).context(|| path.display().to_string())?;
        Ok(path)
    }

    fn work_path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    fn run(
        &self,
        files: &StageFiles,
        uppers: [Upper; 2],
        run: &RunAction,
    ) -> std::result::Result<(), StepFault> {
        self.command(files, uppers, (run, &self.ready(&run.mounts)?))
    }

    /// Runs a command whose mounts are ready.
    fn command(
        &self,
        files: &StageFiles,
        uppers: [Upper; 2],
        command: (&RunAction, &ReadyMounts),
    ) -> std::result::Result<(), StepFault> {
        let hint = match self.args.no_cache {
            true => "no image was made, and with --no-cache no step is kept",
            false => {
                "no image was made; the next build begins at this step again: any steps before it are kept"
            }
        };
        match self.containers.run(files, uppers, command) {
            Ok(RunEnd::Exit(CommandExit::Code(0))) => Ok(()),
            Ok(RunEnd::Exit(CommandExit::Code(code))) => {
                Err(StepFault::Command(Fault::new(format!("exit code {code}")).hint(hint), code))
            }
            Ok(RunEnd::Interrupted(number)) => Err(StepFault::Command(
                Fault::new(format!("the build was interrupted by signal {number}")).hint(hint),
                128 + number,
            )),
            Ok(RunEnd::Exit(CommandExit::Signal(number))) => Err(StepFault::Command(
                Fault::new(format!("ended by signal {number}")).hint(hint),
                128 + number,
            )),
            Err(Failed::Skiff(fault)) => Err(StepFault::Skiff(fault)),
            Err(failed @ Failed::Command(..)) => {
                let Failed::Command(_, errno) = failed else { return Ok(()) };
                let code = skiff_sandbox::command::exit_code(&std::io::Error::from_raw_os_error(errno));
                Err(StepFault::Command(
                    failed
                        .into_error()
                        .hint("a line without brackets is run by the image's /bin/sh, which it must have"),
                    code,
                ))
            }
        }
    }

    fn copy(&self, files: &StageFiles, upper: Upper, copy: &CopyAction) -> Result<()> {
        let target = self.containers.bare(files, upper)?;
        let copied = match copy.from {
            CopyFrom::Context => {
                let excluded = copy.excluded();
                let (tree, clone) = (self.inputs.tree(copy.options(&excluded)), self.work_path(CLONE));
                transfer::from_context(tree, (&self.inputs.remotes, &clone), copy, target.init.pidfd.as_fd())
            }
            CopyFrom::Stage(at) => self.copy_from(&self.files[at], copy, target.init.pidfd.as_fd()),
            CopyFrom::Image(id) => self.copy_from(
                &StageFiles { image: Some(id), layers: vec![] },
                copy,
                target.init.pidfd.as_fd(),
            ),
        };
        target.end();
        copied
    }

    fn copy_from(&self, files: &StageFiles, copy: &CopyAction, target: BorrowedFd<'_>) -> Result<()> {
        let source = self.containers.bare(files, self.new_upper(SOURCE)?)?;
        let copied = transfer::from_root(source.init.pidfd.as_fd(), "--from: ", copy, target);
        source.end();
        copied
    }

    /// Makes the image of a stage's files.
    fn image(&self, stage: &PlannedStage, names: &[String], has_variables: bool) -> Result<ImageName> {
        let Some(files) = self.files.last() else { return Err(Fault::new("build: no stage")) };
        let name = names.first().map_or("the new image", |name| name);
        let mut config = with_times(&stage.config);
        if let Some(layer) = files.layers.first().filter(|_| has_variables) {
            self.take_variables(&mut config, layer)?;
        }
        let container = self.containers.bare(files, self.new_upper(STEP)?)?;
        let (image, room, room_name) = temporary().map_err(ours)?;
        let written = open_root(container.init.pidfd.as_fd()).and_then(|all| {
            run_unseen(container.init.pidfd.as_fd(), &[image.as_fd(), room.as_fd(), all.as_fd()], || {
                let room = (room.as_fd(), &*room_name);
                let is_list = |path: &[u8], _: Option<&[u8]>| Ok(has_variables && variables::is_list(path));
                root::of_root((all.as_fd(), name), &is_list, image.as_fd(), room).map_err(ours)
            })
        });
        container.end();
        written?;
        let source = ImageSource::written(image, name, &config).map_err(ours)?;
        let mut progress = PullProgress::new(None, self.args.quiet);
        let named = (name.into(), self.bases(files));
        import::import_made(self.containers.context, source, named, &Platform::host(), &mut progress)
    }
}

impl Builder<'_> {
    /// The images below a stage's layers. One without a name by now is none: then all files go when the new image is pushed.
    fn bases(&self, files: &StageFiles) -> Vec<ImageBase> {
        let below =
            files.image.and_then(|id| skiff_store::find(self.containers.context, &id.to_string()).ok());
        below.map(|below| below.as_bases()).unwrap_or_default()
    }

    fn take_variables(&self, config: &mut Value, layer: &Path) -> Result<()> {
        let dynamic = variables::take(config, layer)?;
        if !dynamic.is_empty() && !self.args.quiet {
            let (names, file) = (dynamic.join(", "), &self.inputs.shown);
            output::note(&format!(
                "{file}: %environment: {names}: depends on the user who runs the image, so only the runscript sets it"
            ));
        }
        Ok(())
    }
}

/// The configuration with the time at which its image was made.
fn with_times(config: &Value) -> Value {
    let mut config = config.clone();
    let created = output::rfc3339(now());
    if let Some(history) = config.get_mut("history").and_then(Value::as_array_mut) {
        for step in history.iter_mut().filter(|step| step.get("created").is_none()) {
            step["created"] = created.clone().into();
        }
    }
    config["created"] = created.into();
    config
}
