//! `skiff ps`: everything of the user's that is running, or all.

use serde::Serialize;
use skiff_cluster as cluster;
use skiff_env::live::{self as env, ListedEnvironment};
use skiff_instance as instance;
use skiff_output::{self as output, ListFormat};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_user::context::UserContext;

/// Prints those that run, and the instances and clusters that do; or all.
pub fn show(context: &UserContext, all: bool, format: &ListFormat<'_>) -> Result<()> {
    let envs: Vec<ListedEnvironment> =
        env::listed(context)?.into_iter().filter(|l| all || l.running).collect();
    let instances = if all { instance::listed(context)? } else { instance::running(context)? };
    let clusters = if all { cluster::listed(context)? } else { cluster::running(context)? };
    let values = envs.iter().map(|l| of_kind("environment", l));
    let values = values.chain(instances.iter().map(|l| of_kind("instance", l)));
    let values = values.chain(clusters.iter().map(|l| of_kind("cluster", l)));
    let values = values.collect::<Result<Vec<_>>>()?;
    let rows = envs.iter().map(env::row).chain(instances.iter().map(instance::ListedInstance::row));
    let rows: Vec<_> = rows.chain(clusters.iter().map(cluster::ListedCluster::row)).collect();
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap_or_default().to_owned();
    output::list(format, &values, name, || {
        output::table(&["NAME", "BASE", "CREATED", "RUNNING", "PID"], &rows)
    })
}

fn of_kind(kind: &str, listed: &impl Serialize) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(listed).map_err(|e| Error::new(format!("JSON: {e}")))?;
    value["kind"] = kind.into();
    Ok(value)
}
