//! `skiff exec`, `stop`, `kill`, `rm` of whatever has a name: an environment, an instance or a cluster.

use skiff_cli::{
    ClusterCommand, EnvCommand, ExecArgs, InstanceCommand, KillArgs, LogsArgs, NamedExecArgs, NamedRmArgs,
    NodesCommand, StopArgs,
};
use skiff_cluster as cluster;
use skiff_cluster::local::record::ClusterDir;
use skiff_env as env;
use skiff_instance as instance;
use skiff_output as output;
use skiff_plan::stop;
use skiff_runtime::control::{ControlRequest, Live};
use skiff_runtime::environments::{self, Environment};
use skiff_runtime::record::InstanceDir;
use skiff_spec::fault::{Fault, Result};
use skiff_spec::members::Member;
use skiff_spec::name::EnvName;
use skiff_user::context::UserContext;
use skiff_user::named::there_are;

/// What a name is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedKind {
    Environment,
    Instance,
    Cluster,
}

impl NamedKind {
    /// The command group of its kind.
    fn group(self) -> &'static str {
        match self {
            Self::Environment => "env",
            Self::Instance => "instance",
            Self::Cluster => "cluster",
        }
    }

    /// All that have this name.
    fn all(context: &UserContext, name: &EnvName) -> Result<Vec<Self>> {
        let is_environment = Environment::named(context, name.clone())?.exists();
        let is_instance = InstanceDir::named(context, name)?.is_there();
        let is_cluster = ClusterDir::named(context, name)?.is_there();
        let found =
            [(is_environment, Self::Environment), (is_instance, Self::Instance), (is_cluster, Self::Cluster)];
        Ok(found.into_iter().filter(|(is, _)| *is).map(|(_, what)| what).collect())
    }

    /// The only one of this name. `verb` is the command that is to be done.
    fn only(context: &UserContext, name: &EnvName, verb: &str) -> Result<Self> {
        match Self::all(context, name)?[..] {
            [one] => Ok(one),
            [] => Err(none(context, name)?),
            ref several => {
                let long = several.iter().map(|one| format!("`skiff {} {verb} {name}`", one.group()));
                Err(Fault::new(format!("{name}: several have this name"))
                    .hint(format!("name one: {}", long.collect::<Vec<_>>().join(" or "))))
            }
        }
    }
}

/// All names that something of the user's has.
pub fn names(context: &UserContext) -> Result<Vec<EnvName>> {
    let instances = InstanceDir::all(context)?.into_iter().map(|one| one.name);
    let environments = environments::list(context)?.into_iter().map(|one| one.name);
    let clusters = ClusterDir::all(context)?.into_iter().map(|one| one.name);
    Ok(instances.chain(environments).chain(clusters).collect())
}

/// Why a word that names something of the user's names no image.
pub fn not_an_image(context: &UserContext, word: &str) -> Option<Fault> {
    let name: EnvName = word.parse().ok()?;
    let (what, line) = match NamedKind::all(context, &name).ok()?.first()? {
        NamedKind::Environment => ("an environment", format!("skiff env show {name}")),
        NamedKind::Instance => ("an instance", "skiff instance list --json".into()),
        NamedKind::Cluster => ("a cluster", format!("skiff cluster status {name}")),
    };
    Some(Fault::new(format!("image {word}: there is none of this name, but {what}")).hint(line))
}

fn none(context: &UserContext, name: &EnvName) -> Result<Fault> {
    let names = names(context)?;
    Ok(Fault::new(format!("{name}: there is no instance, environment or cluster of this name"))
        .hint(there_are(names.iter())))
}

/// `skiff exec`; the exit code.
pub fn exec(args: NamedExecArgs) -> Result<i32> {
    let NamedExecArgs { inside, user, tty: _, interactive: _, name, command } = args;
    let context = UserContext::load()?;
    let inside = match user {
        Some(user) => inside.as_user(&context, user),
        None => inside,
    };
    match NamedKind::only(&context, &name, "exec")? {
        NamedKind::Environment => env::run(&EnvCommand::Exec(ExecArgs { inside, name, command })),
        NamedKind::Instance => instance::run(&InstanceCommand::Exec { inside, instance: name, command }),
        NamedKind::Cluster => {
            let exec = NodesCommand::Exec { inside, node: Member::Controller, name, command };
            cluster::run(&ClusterCommand::Machines(exec))
        }
    }
}

/// A session in an environment, which is started if need be, or in a running instance; for `verb`.
pub fn enter(context: &UserContext, name: &EnvName, verb: &str) -> Result<Live> {
    if is_environment(context, name, verb)? {
        return env::root::session(context, &Environment::existing(context, name.clone())?);
    }
    let record = InstanceDir::existing(context, name)?;
    Live::connect(&record.dir, ControlRequest::Session)?.ok_or_else(|| instance::look::not_running(&record))
}

/// Whether a name is an environment's; else it is an instance's. For `verb`, which is for one root, it must be one of these and nothing else.
pub fn is_environment(context: &UserContext, name: &EnvName, verb: &str) -> Result<bool> {
    match NamedKind::all(context, name)?[..] {
        [NamedKind::Environment] => Ok(true),
        [NamedKind::Instance] => Ok(false),
        [NamedKind::Cluster] => Err(Fault::new(format!("{name} is a cluster, and {verb} is for one root"))
            .hint(format!("`skiff cluster exec {name} -- COMMAND` runs a command on one of its nodes"))),
        [] => Err(none(context, name)?),
        ref several => Err(Fault::new(format!("{name}: several have this name")).hint(
            match several.contains(&NamedKind::Environment) {
                true => format!("give the environment another name: skiff env rename {name} NEW"),
                false => format!("end one: `skiff instance stop {name}` or `skiff cluster down {name}`"),
            },
        )),
    }
}

/// `skiff stop`: an environment of this name goes first, as it always has.
pub fn stop(args: &StopArgs) -> Result<()> {
    let context = UserContext::load()?;
    let StopArgs { time, names } = args;
    output::each(names, |name| match NamedKind::all(&context, name)?.first() {
        Some(NamedKind::Environment) => env::stop(&context, name),
        Some(NamedKind::Instance) => instance::look::stop(&context, name, *time),
        Some(NamedKind::Cluster) => Err(is_cluster(name)),
        None => Err(none(&context, name)?),
    })
}

/// `skiff logs`.
pub fn logs(args: &LogsArgs) -> Result<()> {
    let context = UserContext::load()?;
    let name = &args.instance;
    match NamedKind::all(&context, name)?[..] {
        [NamedKind::Environment] => {
            Err(Fault::new(format!("environment {name}: nothing keeps the output of its commands"))
                .hint("an instance's output is kept: `skiff run -d`, `skiff instance start`"))
        }
        [NamedKind::Cluster] => {
            Err(Fault::new(format!("cluster {name}: nothing keeps the output of its commands"))
                .hint(format!("`skiff cluster exec {name} -- cat FILE` shows what a job has written")))
        }
        _ => instance::show_logs(&context, args),
    }
}

/// `skiff kill`.
pub fn kill(args: &KillArgs) -> Result<()> {
    let context = UserContext::load()?;
    let signal = args.signal.as_deref().map(number_of).transpose()?.unwrap_or(KILL);
    output::each(&args.names, |name| match NamedKind::only(&context, name, "stop")? {
        NamedKind::Cluster => Err(is_cluster(name)),
        NamedKind::Environment if signal == KILL => env::stop(&context, name),
        NamedKind::Environment => {
            Err(Fault::new(format!("environment {name} has no command of its own to get a signal"))
                .hint(format!("skiff exec {name} kill -{signal} PID")))
        }
        NamedKind::Instance if signal == KILL => instance::look::kill(&context, name),
        NamedKind::Instance => instance::look::signal(&context, name, signal),
    })
}

/// The signal that ends every process, not the command alone.
const KILL: u8 = 9;

fn number_of(signal: &str) -> Result<u8> {
    let number = stop::number(signal).and_then(|number| u8::try_from(number).ok());
    number.ok_or_else(|| {
        Fault::new(format!("--signal {signal}: not a signal"))
            .hint("`kill -l` lists them: HUP, INT, USR1, 10 ...")
    })
}

/// `skiff rm`.
pub fn remove(args: &NamedRmArgs) -> Result<()> {
    let context = UserContext::load()?;
    let force = args.force;
    output::each(&args.names, |name| match NamedKind::only(&context, name, "rm")? {
        NamedKind::Environment => {
            env::run(&EnvCommand::Rm { names: vec![name.clone()], force, dry_run: false }).map(drop)
        }
        NamedKind::Instance => instance::look::remove(&context, name, force),
        NamedKind::Cluster => Err(is_cluster(name)),
    })
}

fn is_cluster(name: &EnvName) -> Fault {
    Fault::new(format!("{name} is a cluster"))
        .hint(format!("`skiff cluster down {name}` stops and removes it"))
}
