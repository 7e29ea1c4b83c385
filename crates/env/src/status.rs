//! What of an environment hides something newer of the host's.

use std::os::fd::AsFd as _;

use serde::Serialize;
use skiff_output as output;
use skiff_runtime::control::{ControlRequest, Live};
use skiff_runtime::environments::Environment;
use skiff_runtime::package_database::{self, ShadowedPackage, UncomparedDatabase};
use skiff_snapshot::Change;
use skiff_spec::fault::Result;
use skiff_spec::name::EnvName;
use skiff_user::context::UserContext;

use crate::changes;

/// What programs write for themselves on both sides: of no such file is one side's newer, and packages are compared by what is installed.
const KEPT_BY_PROGRAMS: [&[u8]; 7] = [
    b"var/log/",
    b"var/cache/",
    b"var/lib/apt/",
    b"var/lib/dpkg/",
    b"var/lib/rpm/",
    b"var/lib/dnf/",
    b"usr/lib/sysimage/rpm/",
];

#[derive(Serialize)]
struct Shadowed {
    name: String,
    /// Packages of the user's that are older than the host's, or that both have changed.
    packages: Vec<ShadowedPackage>,
    /// Files that the user has changed, and the host after that.
    files: Vec<String>,
    /// An RPM database of the user's that was not compared with the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    rpm_database: Option<String>,
}

/// Prints what of an environment hides something newer of the host's.
pub fn status(context: &UserContext, name: &EnvName, json: bool) -> Result<()> {
    let env = Environment::existing(context, name.clone())?;
    let mut shadowed =
        Shadowed { name: name.to_string(), packages: vec![], files: vec![], rpm_database: None };
    // An image does not change.
    if env.base()?.image().is_none() {
        shadowed.packages = package_database::shadowed(&env.dir)?;
        let changes = changes::changes(context, &env)?;
        let is_told = |change: &&Change| {
            change.base_changed && !KEPT_BY_PROGRAMS.iter().any(|dir| change.path.starts_with(dir))
        };
        let files = changes.iter().filter(is_told);
        shadowed.files = files.map(|change| format!("/{}", String::from_utf8_lossy(&change.path))).collect();
        let live = Live::connect(&env.dir, ControlRequest::Session)?;
        let init = live.as_ref().map(|live| live.init.as_fd());
        let (packages, database) = package_database::shadowed_rpm(&env.dir, init)?;
        live.into_iter().for_each(Live::leave);
        shadowed.packages.extend(packages);
        if let Some(database) = &database {
            tell_uncompared(database);
        }
        shadowed.rpm_database = database.map(|database| database.path);
    }
    if json { output::json(&shadowed) } else { print(&shadowed) }
}

fn tell_uncompared(UncomparedDatabase { path, is_merged }: &UncomparedDatabase) {
    output::note(&match is_merged {
        true => format!(
            "{path} is the environment's own: RPM compares it with the host's only while the environment runs"
        ),
        false => format!(
            "{path} is the environment's own: what `rpm` says inside leaves out what the host has installed since"
        ),
    });
}

fn print(shadowed: &Shadowed) -> Result<()> {
    let Shadowed { name, packages, files, rpm_database } = shadowed;
    if packages.is_empty() && files.is_empty() && rpm_database.is_none() {
        output::note(&format!("environment {name} hides nothing that is newer on the host"));
    }
    if !packages.is_empty() {
        let rows = packages.iter().map(row).collect::<Vec<_>>();
        output::table(&["PACKAGE", "YOURS", "HOST", "NOTE"], &rows)?;
    }
    files.iter().try_for_each(|file| output::line(&format!("{file}  (the host has changed it since)")))?;
    Ok(())
}

fn row(package: &ShadowedPackage) -> Vec<String> {
    let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "-".into());
    let notes = [
        (package.security == Some(true), "security update"),
        (package.conflict, "both have changed it"),
        (package.held, "held"),
    ];
    let notes: Vec<&str> = notes.into_iter().filter(|(is_so, _)| *is_so).map(|(_, note)| note).collect();
    vec![package.name.clone(), version(&package.yours), version(&package.host), notes.join(", ")]
}
