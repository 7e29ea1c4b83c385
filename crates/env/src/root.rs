//! The root of an environment that stays: what it is planned from, and a session in it.

use skiff_plan::{self as plan, PlanOptions, base};
use skiff_runtime::control::Live;
use skiff_runtime::environments::Environment;
use skiff_runtime::network;
use skiff_runtime::supervisor::{Lifetime, RuntimeDir, session_at};
use skiff_spec::fault::Result;
use skiff_spec::plan::{Plan, Upper};
use skiff_spec::settings::Settings;
use skiff_user::context::UserContext;

/// A session in one of the user's environments, which is started if it does not run.
pub fn session(context: &UserContext, env: &Environment) -> Result<Live> {
    plan::refuse_inside(context)?;
    let name = env.name.to_string();
    let runtime = RuntimeDir { dir: env.dir.clone(), environment: Some(name.clone()), name };
    let settings = env.settings()?;
    let network = settings.net.of_site();
    let live = session_at(context, &runtime, Lifetime::WhileUsed, || {
        network::join(context, network)?;
        let plan = plan(context, env)?;
        base::make_ready(context, &plan)?;
        Ok((plan, vec![]))
    })?;
    if let Some(name) = network {
        network::follow(context, name, live.pid)?;
    }
    Ok(live)
}

/// The plan by which an environment runs.
pub fn plan(context: &UserContext, env: &Environment) -> Result<Plan> {
    plan::build(options(env, env.settings()?.clone()), base::of_ground(context, &env.ground()?)?)
}

/// What an environment's settings ask for.
pub fn options(env: &Environment, settings: Settings) -> PlanOptions {
    let upper = Upper::Directory(env.dir.clone());
    PlanOptions { has_host_name: true, ..PlanOptions::new(env.name.as_str(), upper, settings.into()) }
}
