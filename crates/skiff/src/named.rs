//! `skiff exec`, `stop`, `kill`, `rm` of whatever has a name: an environment, an instance or a cluster.

use skiff_cli::{
    ClusterCommand, EnvCommand, ExecArgs, InstanceCommand, KillArgs, NamedExecArgs, NamedRmArgs,
    NodesCommand, StopArgs,
};
use skiff_cluster as cluster;
use skiff_env as env;
use skiff_instance as instance;
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
enum Named {
    Environment,
    Instance,
    Cluster,
}

impl Named {
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
        let is_cluster = cluster::local::record::ClusterDir::named(context, name)?.is_there();
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

fn none(context: &UserContext, name: &EnvName) -> Result<Fault> {
    let instances = InstanceDir::all(context)?;
    let environments = environments::list(context)?;
    let names = instances.iter().map(|one| &one.name).chain(environments.iter().map(|one| &one.name));
    Ok(Fault::new(format!("{name}: there is no instance, environment or cluster of this name"))
        .hint(there_are(names)))
}

/// `skiff exec`; the exit code.
pub fn exec(args: NamedExecArgs) -> Result<i32> {
    let NamedExecArgs { inside, tty: _, interactive: _, name, command } = args;
    match Named::only(&UserContext::load()?, &name, "exec")? {
        Named::Environment => env::run(&EnvCommand::Exec(ExecArgs { inside, name, command })),
        Named::Instance => instance::run(&InstanceCommand::Exec { inside, instance: name, command }),
        Named::Cluster => {
            let exec = NodesCommand::Exec { inside, node: Member::Controller, name, command };
            cluster::run(&ClusterCommand::Machines(exec))
        }
    }
}

/// A session in an environment, which is started if need be, or in a running instance; for `verb`.
pub fn enter(context: &UserContext, name: &EnvName, verb: &str) -> Result<Live> {
    match Named::all(context, name)?[..] {
        [Named::Environment] => env::root::session(context, &Environment::existing(context, name.clone())?),
        [Named::Instance] => {
            let record = InstanceDir::existing(context, name)?;
            Live::connect(&record.dir, ControlRequest::Session)?
                .ok_or_else(|| instance::look::not_running(&record))
        }
        [Named::Cluster] => Err(Fault::new(format!("{name} is a cluster, and {verb} is for one root"))
            .hint(format!("`skiff cluster exec {name} -- COMMAND` runs a command on one of its nodes"))),
        [] => Err(none(context, name)?),
        _ => Err(Fault::new(format!("{name}: several have this name"))
            .hint(format!("give the environment another one: skiff env rename {name} NEW"))),
    }
}

/// `skiff stop`: an environment of this name goes first, as it always has.
pub fn stop(args: &StopArgs) -> Result<()> {
    let context = UserContext::load()?;
    let StopArgs { time, name } = args;
    match Named::all(&context, name)?.first() {
        Some(Named::Environment) => env::stop(&context, name),
        Some(Named::Instance) => instance::look::stop(&context, name, *time),
        Some(Named::Cluster) => Err(is_cluster(name)),
        None => Err(none(&context, name)?),
    }
}

/// `skiff logs`.
pub fn logs(name: &EnvName, follow: bool) -> Result<()> {
    let context = UserContext::load()?;
    match Named::all(&context, name)?[..] {
        [Named::Environment] => {
            Err(Fault::new(format!("environment {name}: nothing keeps the output of its commands"))
                .hint("an instance's output is kept: `skiff run -d`, `skiff instance start`"))
        }
        [Named::Cluster] => {
            Err(Fault::new(format!("cluster {name}: nothing keeps the output of its commands"))
                .hint(format!("`skiff cluster exec {name} -- cat FILE` shows what a job has written")))
        }
        _ => instance::show_logs(&context, name, follow),
    }
}

/// `skiff kill`; the exit code.
pub fn kill(args: &KillArgs) -> Result<i32> {
    let context = UserContext::load()?;
    let signal = args.signal.as_deref().map(number_of).transpose()?.unwrap_or(KILL);
    for name in &args.names {
        match Named::only(&context, name, "stop")? {
            Named::Cluster => return Err(is_cluster(name)),
            Named::Environment if signal == KILL => env::stop(&context, name)?,
            Named::Environment => {
                return Err(Fault::new(format!(
                    "environment {name} has no command of its own to get a signal"
                ))
                .hint(format!("skiff exec {name} kill -{signal} PID")));
            }
            Named::Instance if signal == KILL => instance::look::kill(&context, name)?,
            Named::Instance => instance::look::signal(&context, name, signal)?,
        }
    }
    Ok(0)
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

/// `skiff rm`; the exit code.
pub fn remove(args: NamedRmArgs) -> Result<i32> {
    let context = UserContext::load()?;
    let NamedRmArgs { names, force } = args;
    for name in names {
        match Named::only(&context, &name, "rm")? {
            Named::Environment => {
                env::run(&EnvCommand::Rm { names: vec![name], force, dry_run: false })?;
            }
            Named::Instance => instance::look::remove(&context, &name, force)?,
            Named::Cluster => return Err(is_cluster(&name)),
        }
    }
    Ok(0)
}

fn is_cluster(name: &EnvName) -> Fault {
    Fault::new(format!("{name} is a cluster"))
        .hint(format!("`skiff cluster down {name}` stops and removes it"))
}
