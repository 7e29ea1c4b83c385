//! `skiff cluster notebook` and `desktop`: `skiff app` on a node of the allocation that we are in, with which it ends.

use std::ffi::OsString;
use std::path::Path;

use skiff_cli::AppRunArgs;
use skiff_output as output;
use skiff_sandbox::command::{CommandSpec, own_env};
use skiff_sandbox::join::{SpawnAttr, as_we_are};
use skiff_sandbox::session::{CommandExit, Session};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::plan::inside;

use crate::{AppType, serve, variable};

/// Serves it in this allocation; the exit code.
pub fn in_allocation(kind: AppType, wanted: &AppRunArgs) -> Result<i32> {
    if variable("SLURM_JOB_ID").is_some() {
        return by_srun(kind, wanted);
    }
    if ["PBS_JOBID", "LSB_JOBID", "JOB_ID"].into_iter().any(|name| variable(name).is_some()) {
        // Scripts and interactive jobs of these run on the allocation's first host.
        return serve(kind, wanted);
    }
    Err(Error::new("not in a job").hint(format!(
        "in one: salloc skiff cluster {0}, or sbatch --wrap 'skiff cluster {0}'; on this host: skiff app {0}",
        kind.name()
    )))
}

/// By a step on the first node, which the job manager brings the environment or the image to.
fn by_srun(kind: AppType, wanted: &AppRunArgs) -> Result<i32> {
    let mut argv: Vec<OsString> = ["srun", "-Q", "-N1", "-n1", "--overlap"].map(OsString::from).into();
    let mut put_in = Path::new(inside::PROGRAM).exists();
    if let Some(name) = &wanted.environment {
        argv.push(format!("--environment={name}").into());
        put_in = true;
    }
    if let Some(image) = &wanted.image {
        argv.push(format!("--container-image={image}").into());
        argv.extend(wanted.root.then(|| "--container-remap-root".into()));
        put_in = true;
    }
    let own = || std::env::current_exe().context(|| "own program");
    argv.push(if put_in { inside::PROGRAM.into() } else { own()?.into() });
    argv.extend(["app".into(), kind.name().into()]);
    argv.extend(wanted.port.map(|port| format!("--port={port}").into()));
    argv.extend(wanted.tcp.then(|| "--tcp".into()));
    argv.extend(wanted.json.then(|| "--json".into()));
    if !wanted.words.is_empty() {
        argv.push("--".into());
        argv.extend(wanted.words.iter().cloned());
    }
    if wanted.dry_run {
        let shown: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
        return output::line(&shown.join(" ")).map(|()| 0);
    }
    let cwd = std::env::current_dir().context(|| "the directory you are in")?;
    let command = CommandSpec { argv, env: own_env(), cwd, ..CommandSpec::default() };
    let session = Session::begin()?;
    let attr: SpawnAttr = session.spawn_attr(rustix::process::Signal::TERM.as_raw());
    Ok(match as_we_are(&command, attr, session.mask()) {
        Ok(child) => {
            let ended: CommandExit = session.wait(&child)?;
            output::exit_as(ended)
        }
        Err(why) => output::failed(why),
    })
}
