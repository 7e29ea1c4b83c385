//! Environments as they run: entering, running something in them, listing, refreshing, ending them.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::Serialize;
use skiff_output::{self as output, ListFormat};
use skiff_packages::PackageChange;
use skiff_plan::in_image;
use skiff_plan::inside::ProcessArgs;
use skiff_runtime::control::{self, ControlRequest, Live, SupervisorStatus};
use skiff_runtime::enter;
use skiff_runtime::environments::{self, Environment, EnvironmentBase};
use skiff_runtime::host_changes;
use skiff_runtime::package_database::{self, PackageReport};
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::Failed;
use skiff_sandbox::session::{CommandExit, Session};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names;
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_user::context::UserContext;
use skiff_user::named;

use crate::calling::{self, Confirmation};
use crate::{device_variables, root, ssh_agent};

/// The user's shell in an environment; the default one is made on first use.
pub fn enter(context: &UserContext, name: &EnvName, inside: &ProcessArgs) -> Result<i32> {
    let env = existing_or_default(context, name)?;
    let mut command = command(context, &env, inside, &[])?;
    set_prompt(&mut command, name);
    Ok(exec_in(context, &env, inside, &command))
}

/// A command as it runs in an environment; the user's shell if it has no words.
pub fn command(
    context: &UserContext,
    env: &Environment,
    inside: &ProcessArgs,
    words: &[OsString],
) -> Result<CommandSpec> {
    match env.base()? {
        EnvironmentBase::Host => Ok(inside.command(context, words)),
        EnvironmentBase::Image(entry) => {
            in_image::in_environment(context, (entry.id, &entry.exec()?), inside, words)
        }
    }
}

/// As a login does: `command` by the login shell if there is one, else the shell as a login shell.
pub fn enter_default(context: &UserContext, name: &EnvName, command: Option<OsString>) -> Result<i32> {
    let env = existing_or_default(context, name)?;
    let inside = ProcessArgs { root: true, workdir: Some(context.home.clone()), ..ProcessArgs::default() };
    let shell = context.shell();
    // Its name without directories, as sshd gives it; with a dash it is a login shell.
    let mut argv0 = std::path::Path::new(&shell).file_name().unwrap_or(&shell).to_owned();
    let command = match command {
        Some(words) => {
            let mut command = self::command(context, &env, &inside, &[shell, "-c".into(), words])?;
            command.argv0 = Some(argv0);
            command
        }
        None => {
            let mut command = self::command(context, &env, &inside, &[])?;
            argv0 = [std::ffi::OsStr::new("-"), &argv0].into_iter().collect();
            command.argv0 = Some(argv0);
            set_prompt(&mut command, name);
            command
        }
    };
    Ok(exec_in(context, &env, &inside, &command))
}

fn existing_or_default(context: &UserContext, name: &EnvName) -> Result<Environment> {
    let found = Environment::existing(context, name.clone());
    if found.is_ok() || *name != EnvName::default_name() {
        return found;
    }
    let env = Environment::named(context, name.clone())?;
    match env.create(&EnvironmentBase::Host, vec![], Net::Host) {
        // Two first uses at once: one of them makes it.
        Err(_) if env.exists() => {}
        made => made?,
    }
    Ok(env)
}

/// What Debian's shells show in front of the prompt.
fn set_prompt(command: &mut CommandSpec, name: &EnvName) {
    command.set("debian_chroot", name.as_str());
}

/// Runs a command in an environment, which is started if need be; the exit code.
pub fn exec_in(context: &UserContext, env: &Environment, inside: &ProcessArgs, command: &CommandSpec) -> i32 {
    let mut command = command.clone();
    command.set(names::ENVIRONMENT, env.name.as_str());
    match session(context, env, inside, command) {
        Ok(ended) => output::exit_as(ended),
        Err(why) => output::failed(why),
    }
}

fn session(
    context: &UserContext,
    env: &Environment,
    inside: &ProcessArgs,
    mut command: CommandSpec,
) -> std::result::Result<CommandExit, Failed> {
    let live = root::session(context, env)?;
    device_variables::set(&env.dir, &mut command, inside)?;
    let agent = ssh_agent::forward(context, env, inside, &mut command);
    let session = Session::begin()?;
    let target = (&live.init, live.pid, enter::net_space(&env.settings()?.net, false));
    let child = enter::spawn(context, target, inside.identity(), &command, &session)?;
    let ended = session.wait(&child)?;
    drop(agent);
    live.leave();
    Ok(ended)
}

/// One, for people and programs.
#[derive(Serialize)]
pub struct ListedEnvironment {
    /// Name of the environment.
    pub name: String,
    /// What lies below, as its user named that.
    pub base: String,
    #[serde(serialize_with = "output::as_time")]
    pub(crate) created: u64,
    /// Whether it runs.
    pub running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<u32>,
    path: String,
}

/// Prints the user's environments.
pub fn list(context: &UserContext, format: &ListFormat<'_>) -> Result<()> {
    let all = listed(context)?;
    let rows = all.iter().map(row).collect::<Vec<_>>();
    output::list(
        format,
        &all,
        |l| l.name.clone(),
        || output::table(&["NAME", "BASE", "CREATED", "RUNNING", "PID"], &rows),
    )
}

/// A row of the table of them.
pub fn row(l: &ListedEnvironment) -> Vec<String> {
    let pid = l.pid.map_or_else(|| "-".into(), |p| p.to_string());
    vec![l.name.clone(), l.base.clone(), output::time(l.created), l.state(), pid]
}

/// All of the user's.
pub fn listed(context: &UserContext) -> Result<Vec<ListedEnvironment>> {
    Ok(named::listable(environments::list(context)?.iter().map(ListedEnvironment::of)))
}

impl ListedEnvironment {
    /// An environment as it fares now.
    pub fn of(env: &Environment) -> Result<Self> {
        let settings = env.settings()?;
        let status = Live::status(&env.dir)?;
        let live = match &status {
            SupervisorStatus::Running(live) => Some(live),
            SupervisorStatus::NotRunning | SupervisorStatus::Silent => None,
        };
        Ok(Self {
            name: env.name.to_string(),
            base: settings.base.clone(),
            created: settings.created,
            running: !matches!(status, SupervisorStatus::NotRunning),
            pid: live.map(|l| l.pid.as_raw_nonzero().get()),
            sessions: live.map(|l| l.sessions),
            path: env.dir.display().to_string(),
        })
    }

    /// Whether it runs, and how many sessions it has.
    pub(crate) fn state(&self) -> String {
        match (self.pid, self.sessions) {
            (Some(_), Some(0)) => "no session".into(),
            (Some(_), Some(1)) => "1 session".into(),
            (Some(_), Some(n)) => format!("{n} sessions"),
            _ if self.running => "no answer".into(),
            _ => "-".into(),
        }
    }
}

/// Ends a running environment with everything in it.
pub fn stop(context: &UserContext, name: &EnvName) -> Result<()> {
    let env = Environment::existing(context, name.clone())?;
    if calling::confirm_if_inside(name, "End everything in it?")? == Confirmation::No {
        return Err(calling::declined(name));
    }
    calling::outlive()?;
    match control::stop_at(&env.dir)? {
        true => Ok(()),
        false => {
            Err(Error::new(format!("environment {name} is not running"))
                .hint("`skiff ps` shows those that do"))
        }
    }
}

/// What a refresh has brought to light.
#[derive(Default, Serialize)]
struct Refreshed {
    /// Directories of the host in which something was created, removed or renamed.
    directories: Vec<PathBuf>,
    #[serde(flatten)]
    report: PackageReport,
}

/// Makes a running environment see what has changed on the host, and says in which directories.
pub fn refresh(context: &UserContext, name: &EnvName, json: bool) -> Result<()> {
    let env = Environment::existing(context, name.clone())?;
    let refreshed = refreshed(context, &env)?;
    let Refreshed { directories, report } = &refreshed;
    root::report_conflicts(name, report);
    if report.is_in_use {
        output::note(&format!(
            "environment {name}: a package manager is at work in it, or was interrupted: its packages are merged with the host's by the next session"
        ));
    }
    if json {
        return output::json(&refreshed);
    }
    if directories.is_empty() && report.packages.is_empty() && !report.is_in_use {
        output::note(&match env.base()?.image() {
            Some(_) => format!("environment {name} is over an image, which does not change"),
            None => format!("environment {name} is up to date with the host"),
        });
    }
    directories.iter().try_for_each(|directory| output::line(&directory.display().to_string()))?;
    report.packages.iter().try_for_each(|change| output::line(&described(change)))
}

fn described(PackageChange { name, was, now }: &PackageChange) -> String {
    match (was, now) {
        (None, Some(now)) => format!("package {name} {now} installed"),
        (Some(was), Some(now)) => format!("package {name} {was} -> {now}"),
        (Some(was), None) => format!("package {name} {was} removed"),
        (None, None) => format!("package {name}"),
    }
}

/// Nothing where an image lies below, which does not change, and where the next start sees everything.
fn refreshed(context: &UserContext, env: &Environment) -> Result<Refreshed> {
    let Some(live) = Live::connect(&env.dir, ControlRequest::Session)? else {
        return Ok(Refreshed::default());
    };
    let Some(view) = root::view_of_host(context, env, &live)? else {
        if env.base()?.image().is_some() {
            return Ok(Refreshed::default());
        }
        return Err(Error::new(format!("environment {} cannot be refreshed without the helper", env.name))
            .hint("stop it and enter it again"));
    };
    let directories = host_changes::refresh(&view)?;
    let report = package_database::bring_all_up_to_date(view.dir, view.init)?;
    live.leave();
    Ok(Refreshed { directories, report })
}
