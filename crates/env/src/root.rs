//! The root of an environment that stays: what it is planned from, and a session in it.

use std::cell::Cell;
use std::os::fd::AsFd;

use skiff_output as output;
use skiff_packages::{Conflict, Unmet};
use skiff_plan::data::{self, UnreadData};
use skiff_plan::{self as plan, PlanOptions, base};
use skiff_runtime::control::{ControlRequest, Live};
use skiff_runtime::environments::Environment;
use skiff_runtime::host_changes::{self, ViewOfHost};
use skiff_runtime::network;
use skiff_runtime::package_database::{self, PackageReport};
use skiff_runtime::supervisor::{Lifetime, RuntimeDir, session_at};
use skiff_spec::fault::Result;
use skiff_spec::name::EnvName;
use skiff_spec::plan::{Plan, Upper};
use skiff_spec::settings::Settings;
use skiff_user::context::UserContext;

use crate::device_variables;

/// A session in one of the user's environments, which is started if it does not run.
pub fn session(context: &UserContext, env: &Environment) -> Result<Live> {
    plan::refuse_inside(context)?;
    let name = env.name.to_string();
    let runtime = RuntimeDir { dir: env.dir.clone(), environment: Some(name.clone()), name };
    let settings = env.settings()?;
    let starts = Cell::new(false);
    let network = settings.net.of_site();
    let live = session_at(context, &runtime, Lifetime::WhileUsed, || {
        starts.set(true);
        network::join(context, network)?;
        let plan = plan(context, env)?;
        base::make_ready(context, &plan)?;
        device_variables::note(&env.dir, &plan)?;
        Ok((plan, vec![]))
    })?;
    see_host_changes(context, env, &live, starts.get())?;
    if let Some(name) = network {
        network::follow(context, name, live.pid)?;
    }
    Ok(live)
}

/// Has an environment that is running see what the administrator has changed, before a snapshot of it is taken.
pub fn catch_up(context: &UserContext, env: &Environment) -> Result<()> {
    match Live::connect(&env.dir, ControlRequest::Status)? {
        Some(live) => see_host_changes(context, env, &live, false),
        None => Ok(()),
    }
}

/// Shows the host's changes in an environment and merges its package database. One that has just started shows them already.
fn see_host_changes(context: &UserContext, env: &Environment, live: &Live, starts: bool) -> Result<()> {
    if live.sees_host {
        return Ok(());
    }
    let Some(view) = view_of_host(context, env, live)? else { return Ok(()) };
    let report = if starts {
        package_database::bring_own_up_to_date(view.dir, view.init)
    } else {
        host_changes::look(&view).and_then(|()| package_database::bring_up_to_date(view.dir, view.init))
    };
    match report {
        Ok(report) => report_conflicts(&env.name, &report),
        Err(e) => {
            output::note(&format!("environment {} may not show the host's latest changes: {e}", env.name));
        }
    }
    Ok(())
}

/// Says which packages are not as on the host, now that it has changed them.
pub fn report_conflicts(name: &EnvName, report: &PackageReport) {
    for Conflict { name: package, yours, host } in &report.conflicts {
        let yours =
            yours.as_ref().map_or("you have removed it".into(), |version| format!("yours ({version}) stays"));
        let host = host
            .as_ref()
            .map_or("the host has removed it".into(), |version| format!("the host has {version} now"));
        output::note(&format!("environment {name}: package {package}: {yours}, and {host}"));
    }
    for Unmet { name: package, needs } in &report.unmet {
        output::note(&format!(
            "environment {name}: package {package} needs {needs}, which the host has removed: install it inside (`apt-get -f install`, or `dnf install {needs}`)"
        ));
    }
}

/// What it takes to make a running environment see the host's changes; nothing if it has none to see, or there is no helper.
pub fn view_of_host<'a>(
    context: &'a UserContext,
    env: &'a Environment,
    live: &'a Live,
) -> Result<Option<ViewOfHost<'a>>> {
    let is_over_host = env.settings()?.image.is_none();
    let helper = context.helper.as_deref().filter(|_| is_over_host);
    Ok(helper.map(|helper| ViewOfHost { dir: &env.dir, helper, init: live.init.as_fd() }))
}

/// The plan by which an environment runs.
pub fn plan(context: &UserContext, env: &Environment) -> Result<Plan> {
    plan_with(context, env, UnreadData::Import)
}

/// The same for who changes nothing.
pub fn plan_with(context: &UserContext, env: &Environment, unread: UnreadData) -> Result<Plan> {
    let options = options(env, env.settings()?.clone());
    let mut facts = base::of_environment(context, &env.base()?)?
        .with_devices(&options.asked.mounts, options.asked.contain)?;
    facts.data = data::mounts(context, &options.asked.mounts, unread)?;
    plan::build(options, facts)
}

/// What an environment's settings ask for.
pub fn options(env: &Environment, settings: Settings) -> PlanOptions {
    let upper = Upper::Directory(env.dir.clone());
    PlanOptions { has_host_name: true, ..PlanOptions::new(env.name.as_str(), upper, settings.into()) }
}
