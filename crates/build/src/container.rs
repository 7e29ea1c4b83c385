//! Containers of a build: over the files of a stage so far, with a layer of their own for changes.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use skiff_output as output;
use skiff_plan::ssh_agent::VARIABLE;
use skiff_plan::{self as plan, BaseFacts, Facts, PlanOptions, RootOptions, base};
use skiff_runtime::agent_relay::AgentRelay;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::first::{First, Stdio};
use skiff_sandbox::join::Failed;
use skiff_sandbox::output_pipe::{OutputPipe, OutputTail, shown};
use skiff_sandbox::session::{CommandExit, Session};
use skiff_sandbox::start::{RunningContainer, StartOptions, start, start_for};
use skiff_spec::fault::Result;
use skiff_spec::image::ImageId;
use skiff_spec::network::Net;
use skiff_spec::plan::{Accounts, Mount, Plan, Upper};
use skiff_sys::IgnoreError;
use skiff_sys::signal::restore;
use skiff_user::context::UserContext;

use crate::plan::RunAction;

/// Places of a plan where an image's own files are seen: what is written there belongs to the image.
const OF_IMAGE: &[&str] = &["/tmp", "/var/tmp"];

/// How long a command may go on once its build has been interrupted.
const GRACE: Duration = Duration::from_secs(2);

/// How a build's command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// By itself.
    Exit(CommandExit),
    /// With the build, which got this signal. How the command ended does not matter.
    Interrupted(i32),
}

/// The files that a stage has so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageFiles {
    /// The image at the bottom, if it is not an empty directory.
    pub image: Option<ImageId>,
    /// The layers on it, the topmost first.
    pub layers: Vec<PathBuf>,
}

impl StageFiles {
    /// Adds a layer on top.
    pub fn push(&mut self, layer: PathBuf) {
        self.layers.insert(0, layer);
    }
}

/// What one command sees beside the files of its stage.
#[derive(Default)]
pub struct ReadyMounts {
    /// The mounts.
    pub mounts: Vec<Mount>,
    /// Variables with secrets.
    pub env: Vec<(String, String)>,
    /// As long as they are held, others keep out or nobody removes what is mounted.
    pub locks: Vec<OwnedFd>,
    /// The ways to ssh agents, which end with the command.
    pub agents: Vec<AgentRelay>,
}

impl ReadyMounts {
    /// Adds a way to an agent. Programs find the first.
    pub fn add_agent(&mut self, relay: AgentRelay, target: &str) {
        if self.agents.is_empty() {
            self.env.push((VARIABLE.into(), target.into()));
        }
        self.agents.push(relay);
    }
}

/// Makes containers.
pub struct Containers<'a> {
    /// Whose they are.
    pub context: &'a UserContext,
    /// A base without files.
    pub empty: PathBuf,
    /// Whether what commands print is shown only if one fails.
    pub quiet: bool,
}

impl Containers<'_> {
    fn plan(&self, files: &StageFiles, upper: Upper, no_network: bool, own: &[Mount]) -> Result<Plan> {
        let asked = RootOptions {
            contain: true,
            no_home: true,
            writable: true,
            net: no_network.then_some(Net::None),
            ..RootOptions::default()
        };
        let mut facts = match files.image {
            Some(id) => base::facts(self.context, id, Default::default())?,
            None => Facts::of_directory(self.context, &self.empty)?,
        };
        // The user is nobody whom an image knows.
        if let BaseFacts::Image { accounts, .. } | BaseFacts::Directory { accounts, .. } = &mut facts.base {
            *accounts = Accounts::default();
        }
        let options = PlanOptions {
            layers: files.layers.clone(),
            replaced: OF_IMAGE,
            shims: false,
            own: own.to_vec(),
            ..PlanOptions::new("build", upper, asked)
        };
        plan::build(options, facts)
    }

    fn options(&self) -> StartOptions<'_> {
        StartOptions { helper: self.context.helper.as_deref(), ..StartOptions::default() }
    }

    /// A container that shows these files and nothing else; what is written goes to `upper`.
    pub fn bare(&self, files: &StageFiles, upper: Upper) -> Result<RunningContainer> {
        let plan = plan::bare(self.plan(files, upper, false, &[])?);
        base::make_ready(self.context, &plan)?;
        start(&plan, self.options())
    }

    /// Runs a command over these files; what it changes goes to `upper`. The places that mounts need are made in `places`, a layer that nobody
    /// keeps: so a step's own layer has nothing but what the step did.
    pub fn run(
        &self,
        files: &StageFiles,
        [places, upper]: [Upper; 2],
        (action, ready): (&RunAction, &ReadyMounts),
    ) -> std::result::Result<RunEnd, Failed> {
        let plan = self.plan(files, places.clone(), action.no_network, &ready.mounts)?;
        base::make_ready(self.context, &plan)?;
        start(&plan, self.options())?.end();
        let mut files = files.clone();
        if let Upper::Scratch(path) | Upper::Directory(path) = &places {
            files.push(path.join("upper"));
        }
        let plan = self.plan(&files, upper, action.no_network, &ready.mounts)?;
        let command = command(action, &ready.env);
        let (output, pipe) = OutputPipe::new()?;
        let mut output = output.harmless();
        let tail = OutputTail::default();
        if self.quiet {
            output = output.kept_in(tail.clone());
        }
        let session = Session::begin()?.without_terminal(output).ends_within(GRACE);
        let mask = session.mask();
        let attr = session.spawn_attr(rustix::process::Signal::KILL.as_raw());
        let stdio = Stdio::Pipe(pipe.as_fd());
        let first = First { command: &command, attr, mask: session.mask(), stdio };
        let started = start_for(&plan, self.options(), &first);
        drop(pipe);
        let ended = started.and_then(|(instance, process)| {
            instance.notes.iter().for_each(|note| output::note(note));
            Ok(session.wait_first(instance, process)?)
        });
        let interrupted = session.ended_by();
        if !matches!(ended, Ok(CommandExit::Code(0))) {
            std::io::stderr()
                .write_all(&shown(&tail))
                .ignore_error("that the command failed is told by the exit code, too");
        }
        // A signal that has come since ends the build at once, as between commands.
        restore(mask);
        match interrupted {
            Some(signal) => Ok(RunEnd::Interrupted(signal)),
            None => ended.map(RunEnd::Exit),
        }
    }
}

fn command(action: &RunAction, secrets: &[(String, String)]) -> CommandSpec {
    let mut command = CommandSpec {
        argv: action.words.iter().map(OsString::from).collect(),
        cwd: action.workdir.clone().into(),
        only_there: true,
        close_descriptors: true,
        // Root, too, is looked up there: for its home.
        user: Some(action.user.clone()),
        ..CommandSpec::default()
    };
    for (name, value) in action.uncounted.iter().chain(&action.env).chain(secrets) {
        command.set(name, value);
    }
    command
}
