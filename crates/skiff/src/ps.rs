//! `skiff ps`: everything of the user's that runs.

use serde::Serialize;
use skiff_cluster as cluster;
use skiff_env::live::{self as env, ListedEnvironment};
use skiff_instance as instance;
use skiff_output as output;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_user::context::UserContext;

/// Prints those that run, and the instances and clusters that do.
pub fn show(context: &UserContext, json: bool) -> Result<()> {
    let envs: Vec<ListedEnvironment> = env::listed(context)?.into_iter().filter(|l| l.running).collect();
    let instances = instance::running(context)?;
    let clusters = cluster::running(context)?;
    if json {
        let values = envs.iter().map(|l| of_kind("environment", l));
        let values = values.chain(instances.iter().map(|l| of_kind("instance", l)));
        let values = values.chain(clusters.iter().map(|l| of_kind("cluster", l)));
        return output::json(&values.collect::<Result<Vec<_>>>()?);
    }
    let rows = envs.iter().map(env::row).chain(instances.iter().map(instance::ListedInstance::row));
    let rows: Vec<_> = rows.chain(clusters.iter().map(cluster::ListedCluster::row)).collect();
    output::table(&["NAME", "BASE", "CREATED", "RUNNING", "PID"], &rows)
}

fn of_kind(kind: &str, listed: &impl Serialize) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(listed).map_err(|e| Error::new(format!("JSON: {e}")))?;
    value["kind"] = kind.into();
    Ok(value)
}
