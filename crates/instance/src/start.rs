//! `skiff instance start`: from words to a plan and a command, and that carried out in the background.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::process::getgid;
use serde::Deserialize;
use serde::Serialize;
use skiff_cli::StartArgs;
use skiff_env as env;
use skiff_env::deploy::{own_layers, unpack};
use skiff_env::history::SnapshotOrigin;
use skiff_env::snapshot_fault::ours;
use skiff_env::take_snapshot::take_snapshot;
use skiff_output as output;
use skiff_plan::data::{self, UnreadData};
use skiff_plan::described::DescribedProcess;
use skiff_plan::resolve::{MainProcess, RunFacts, resolve};
use skiff_plan::show::show;
use skiff_plan::stop::stop_signal;
use skiff_plan::{self as plan, PlanOptions, RootOptions, RootSource, base, devices, ssh_agent};
use skiff_runtime::environments::Environment;
use skiff_runtime::network;
use skiff_runtime::record::{ENV, InstanceDir};
use skiff_runtime::service::Service;
use skiff_runtime::supervisor::{self, Lifetime, RuntimeDir};
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::Failed;
use skiff_snapshot::{Depot, LayerLease};
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::instance::Started;
use skiff_spec::job::names;
use skiff_spec::name::EnvName;
use skiff_spec::plan::{Base, Identity, Plan, Upper};
use skiff_spec::settings::Settings;
use skiff_store::index::ImageName;
use skiff_sys::clock::now;
use skiff_user::checkpoints::refuse_missing;
use skiff_user::context::UserContext;
use skiff_user::scratch;

use crate::saves;

/// What an instance is of.
enum Of {
    Host,
    Image(String),
    Env(Environment),
}

/// All that is needed to start one.
struct Wanted {
    plan: Plan,
    /// Layers that must not be evicted.
    held: Vec<OwnedFd>,
    snapshot: Option<String>,
    command: Option<CommandSpec>,
    identity: Identity,
    stop: Option<String>,
    /// The image.
    entry: Option<ImageName>,
    /// Variables of a definition.
    definition_variables: Vec<(String, String)>,
}

/// The same, on its way to where the plan's network is.
#[derive(Serialize, Deserialize)]
struct Resolved {
    plan: Plan,
    snapshot: Option<String>,
    process: Option<DescribedProcess>,
    identity: Identity,
    stop: Option<String>,
    entry: Option<ImageName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    definition_variables: Vec<(String, String)>,
}

impl Resolved {
    fn of(wanted: &Wanted) -> Self {
        let Wanted { plan, held: _, snapshot, command, identity, stop, entry, definition_variables } = wanted;
        let process = |command: &CommandSpec| {
            let (command, identity, stop) = (command.clone(), *identity, stop.clone());
            DescribedProcess::of(MainProcess { command, identity, stop })
        };
        Self {
            plan: plan.clone(),
            snapshot: snapshot.clone(),
            process: command.as_ref().map(process),
            identity: *identity,
            stop: stop.clone(),
            entry: entry.clone(),
            definition_variables: definition_variables.clone(),
        }
    }

    fn wanted(self, context: &UserContext) -> Result<Wanted> {
        let Self { plan, snapshot, process, identity, stop, entry, definition_variables } = self;
        // They are on this machine; but whoever held them has gone.
        let layers = snapshot.as_ref().map(|snapshot| own_layers(context, snapshot)).transpose()?;
        let held = layers.into_iter().flatten().map(|(_, lease)| lease.into()).collect();
        let own = [context.uid, getgid().as_raw()];
        let process = process.map(|process| process.check(&plan, own)).transpose()?;
        let (command, identity, stop) = match process {
            Some(MainProcess { command, identity, stop }) => (Some(command), identity, stop),
            None => (None, identity, stop),
        };
        Ok(Wanted { plan, held, snapshot, command, identity, stop, entry, definition_variables })
    }
}

/// Starts it; the exit code: that of a command that cannot be started, too.
pub fn start(start: &StartArgs) -> Result<i32> {
    let context = UserContext::load()?;
    let record = InstanceDir::named(&context, &start.instance)?;
    let of = Of::read(&context, &start.of)?;
    record.refuse_taken()?;
    if let Some(Some(checkpoint)) = &start.checkpoint {
        let make = format!("`skiff checkpoint create {checkpoint}` makes it");
        refuse_missing(&context, &CheckpointName::newest(checkpoint))
            .map_err(|why| Error { hint: format!("{make}; {}", why.hint), ..why })?;
    }
    let wanted = match network::attached::<Resolved>()? {
        Some(resolved) => resolved.wanted(&context)?,
        None => wanted(&context, start, &of, &record)?,
    };
    if start.show.dry_run {
        return show(&wanted.plan, start.show.json).map(|()| 0);
    }
    network::attach(&context, wanted.plan.network_to_join(), || Resolved::of(&wanted))?;
    base::make_ready(&context, &wanted.plan)?;
    let started = started(start, &of, &wanted);
    let lock = record.make(&context, &started, wanted.entry.as_ref())?;
    match launch(&context, start, &of, &record, &wanted, &lock) {
        Ok(()) => {
            saves::begin(&context, &record, &started);
            Ok(0)
        }
        Err(why) => {
            record.remove(&context, lock)?;
            Ok(output::failed(why))
        }
    }
}

fn launch(
    context: &UserContext,
    start: &StartArgs,
    of: &Of,
    record: &InstanceDir,
    wanted: &Wanted,
    lock: &OwnedFd,
) -> std::result::Result<(), Failed> {
    let runtime = RuntimeDir {
        dir: record.dir.clone(),
        name: record.name.to_string(),
        environment: match of {
            Of::Env(env) => Some(env.name.to_string()),
            Of::Host | Of::Image(_) => None,
        },
    };
    let service = Service {
        command: wanted.command.as_ref(),
        restorer: None,
        identity: wanted.identity,
        stop: stop_signal(wanted.stop.as_deref()),
        checkpoint: start.checkpointable(),
        record,
    };
    supervisor::launch(context, &runtime, Lifetime::Instance(&service), &wanted.plan, &wanted.held, lock)
}

fn started(start: &StartArgs, of: &Of, wanted: &Wanted) -> Started {
    let words = wanted.command.iter().flat_map(|command| &command.argv);
    Started {
        name: start.instance.clone(),
        of: match of {
            Of::Host => "host".into(),
            Of::Image(image) => format!("{}{image}", skiff_store::PREFIX),
            Of::Env(env) => format!("{ENV}{}", env.name),
        },
        image: match wanted.plan.base {
            Base::Host | Base::Directory => None,
            Base::Image(id) => Some(id),
        },
        snapshot: wanted.snapshot.clone(),
        command: words.map(|word| word.to_string_lossy().into_owned()).collect(),
        identity: wanted.identity,
        net: wanted.plan.net.clone(),
        checkpoint: start.checkpointable(),
        saved_as: start.checkpoint.clone().flatten(),
        checkpoint_every: start.checkpoint_every,
        started: now(),
        definition_variables: wanted.definition_variables.clone(),
        plan: wanted.plan.clone(),
    }
}

impl Of {
    /// Reads the word. One that may be either is an environment's name if the user has such an environment: they made it themselves, and an
    /// image can be named in other ways.
    fn read(context: &UserContext, word: &str) -> Result<Self> {
        if word == "host" {
            return Ok(Self::Host);
        }
        if let Some(name) = word.strip_prefix(ENV) {
            let name: EnvName = name.parse().map_err(|e| Error::new(format!("{e}")))?;
            return Environment::existing(context, name).map(Self::Env);
        }
        if let Some(image) = word.strip_prefix(skiff_store::PREFIX) {
            return Ok(Self::Image(image.into()));
        }
        if let Ok(name) = word.parse::<EnvName>() {
            let env = Environment::named(context, name)?;
            if env.exists() {
                return Ok(Self::Env(env));
            }
        }
        Ok(Self::Image(word.into()))
    }
}

fn wanted(context: &UserContext, start: &StartArgs, of: &Of, record: &InstanceDir) -> Result<Wanted> {
    let asked = start.options().with_bind_variable();
    let upper = if asked.dumpable {
        // On the disk, where it can be saved.
        Upper::Directory(record.dir.clone())
    } else if scratch::memory_will_do() {
        Upper::Memory { size: context.config.run.memory.clone() }
    } else {
        Upper::Scratch(record.dir.clone())
    };
    let source = match of {
        Of::Env(env) => return of_environment(context, start, env, options(asked, record, upper)),
        Of::Image(image) => RootSource::Image(image.clone()),
        Of::Host => RootSource::Host,
    };
    let asked = RootOptions { source, ..asked }.with_definition(context)?;
    let templates = asked.inside.templates.iter();
    let definition_variables = templates.map(|(name, text)| (name.clone(), text.to_string())).collect();
    let found = of_base(context, start, options(asked, record, upper))?;
    Ok(Wanted { definition_variables, ..found })
}

/// What is asked of the root.
pub fn options(asked: RootOptions, record: &InstanceDir, upper: Upper) -> PlanOptions {
    PlanOptions {
        has_host_name: true,
        own: vec![plan::output(record.output())],
        ..PlanOptions::new(record.name.as_str(), upper, asked)
    }
}

/// As `skiff run` has it.
fn of_base(context: &UserContext, start: &StartArgs, options: PlanOptions) -> Result<Wanted> {
    let entered = options.asked.source == RootSource::Host && start.command.is_empty();
    let found = resolve(&options.asked, context, start.show.dry_run)?;
    let RunFacts { facts, process, entry } = found;
    let MainProcess { command, identity, stop } = process;
    let plan = plan::build(options, facts)?;
    let command = (!entered).then_some(command);
    Ok(Wanted {
        plan,
        held: vec![],
        snapshot: None,
        command,
        identity,
        stop,
        entry,
        definition_variables: vec![],
    })
}

/// Over a snapshot of the environment, as a job is: it goes on meanwhile, and there can be several instances of it.
fn of_environment(
    context: &UserContext,
    start: &StartArgs,
    env: &Environment,
    options: PlanOptions,
) -> Result<Wanted> {
    let settings = env.settings()?.clone();
    let snapshot = match start.show.dry_run {
        true => None,
        false => Some(snapshot(context, env)?),
    };
    let (id, layers) = snapshot.map_or((None, vec![]), |(id, layers)| (Some(id), layers));
    // Topmost first.
    let (paths, held): (Vec<PathBuf>, Vec<OwnedFd>) =
        layers.into_iter().rev().map(|(path, lease)| (path, lease.into())).unzip();
    let RootOptions { inside, user, entrypoint, argv, .. } = options.asked.clone();
    let asked_limits = options.asked.limits()?;
    let words: Vec<OsString> = entrypoint.into_iter().chain(argv).collect();
    let mut facts = base::of_environment(context, &env.base()?)?;
    // Whoever enters it from the same session has that agent, too.
    facts.agent_dir = ssh_agent::directory(context, &env::command(context, env, &inside, &words)?, &inside);
    let options = over_environment(options, settings, paths);
    let mut facts = facts.with_devices(&options.asked.mounts, options.asked.contain)?;
    facts.data = data::mounts(context, &options.asked.mounts, UnreadData::of(start.show.dry_run))?;
    let plan = plan::build(options, facts)?;
    let command = match &words[..] {
        [] => None,
        words => {
            let mut command = env::command(context, env, &inside, words)?;
            command.set(names::ENVIRONMENT, env.name.as_str());
            if let Some(user) = &user {
                inside.become_other(&mut command, user);
            }
            devices::set(&plan.devices.variables, &mut command, &inside);
            command.limits = asked_limits;
            Some(command)
        }
    };
    let identity = inside.identity();
    Ok(Wanted {
        plan,
        held,
        snapshot: id,
        command,
        identity,
        stop: None,
        entry: None,
        definition_variables: vec![],
    })
}

/// What an instance of an environment has of that: its mounts, below those of the instance; its network, unless the instance's words name
/// one; and the layers of its snapshot. It takes changes.
pub fn over_environment(options: PlanOptions, settings: Settings, layers: Vec<PathBuf>) -> PlanOptions {
    let settings = RootOptions::from(settings);
    let asked = RootOptions {
        mounts: [settings.mounts, options.asked.mounts].concat(),
        net: options.asked.net.or(settings.net),
        writable: settings.writable,
        ..options.asked
    };
    PlanOptions { asked, layers, ..options }
}

/// Takes one, and unpacks it; bottom first.
fn snapshot(context: &UserContext, env: &Environment) -> Result<(String, Vec<(PathBuf, LayerLease)>)> {
    let taken = take_snapshot(context, env, &SnapshotOrigin::Instance.into())?;
    for path in &taken.skipped {
        output::note(&format!("not in the instance: /{path} (a socket or device)"));
    }
    let text = taken.descriptor.snapshot;
    let depot = Depot::open_existing(Path::new(&taken.descriptor.depot)).map_err(ours)?;
    let layers = unpack(context, &depot, &text)?;
    Ok((text, layers))
}
