//! `skiff env`, and what jobs, instances and checkpoints need of environments: snapshots, their way to a node, the identity of the base.

pub mod base_fingerprint;
mod base_view;
pub mod calling;
mod changes;
pub mod commit;
pub mod deploy;
pub mod depot;
mod depot_dir;
mod device_variables;
mod elapsed;
mod export;
pub mod fan_out;
pub mod history;
pub mod host_image;
mod import;
pub mod job_records;
pub mod job_snapshot;
mod job_status;
pub mod latest;
mod layer_store;
pub mod live;
mod near_images;
mod near_layers;
pub mod own_files;
mod remove;
mod rollback;
pub mod root;
mod settings;
pub mod snapshot_copy;
mod snapshot_diff;
pub mod snapshot_fault;
mod ssh_agent;
mod status;
mod tag_list;
pub mod take_snapshot;
pub mod time_limit;

use skiff_cli::{EnvCommand, ExecArgs, HostArgs};
use skiff_output as output;
use skiff_plan::data::UnreadData;
use skiff_plan::{self as plan, RootSource, show};
use skiff_runtime::environments::{Environment, EnvironmentBase};
use skiff_spec::fault::Result;
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_spec::plan::{Mount, Source};
use skiff_user::context::UserContext;

use history::{Occasion, SnapshotOrigin};

pub use live::{command, enter_default, exec_in, stop};
pub use remove::delete_leftovers;
pub use ssh_agent::forward_to_instance;

/// Does what was asked; the exit code.
pub fn run(command: &EnvCommand) -> Result<i32> {
    let context = UserContext::load()?;
    match command {
        EnvCommand::Create { name, base, host, dry_run } => {
            create(&context, name, base, host, *dry_run)?;
        }
        EnvCommand::Enter { inside, env, dry_run: false, .. } => {
            return live::enter(&context, &env.name, inside);
        }
        EnvCommand::Enter { env, json, .. } => {
            let env = Environment::named(&context, env.name.clone())?;
            show::show(&crate::root::plan_with(&context, &env, UnreadData::Refuse)?, *json)?;
        }
        EnvCommand::Exec(ExecArgs { inside, name, command }) => {
            let env = Environment::existing(&context, name.clone())?;
            let mut words = live::command(&context, &env, inside, command)?;
            // Whoever sees a prompt sees where they are. A command elsewhere than meant may remove what it should not.
            words.only_there |= inside.user.is_none();
            return Ok(exec_in(&context, &env, inside, &words));
        }
        EnvCommand::List(list) => live::list(&context, &list.format())?,
        EnvCommand::Show { env, output } => settings::show(&context, &env.name, output.json)?,
        EnvCommand::Clone { env, new } => settings::copy(&context, env, new)?,
        EnvCommand::Rename { name, new } => settings::rename(&context, name, new)?,
        EnvCommand::Diff { env, snapshots, output } => {
            snapshot_diff::diff(&context, env, snapshots, output.json)?;
        }
        EnvCommand::Refresh { env, output } => live::refresh(&context, &env.name, output.json)?,
        EnvCommand::Status { env, job, output } => match job_status::meant(&context, &env.name, *job)? {
            Some(job) => job_status::status(&context, job, output.json)?,
            None => status::status(&context, &env.name, output.json)?,
        },
        EnvCommand::Snapshot { env, tag, message, output } => {
            let (tag, message) = (tag.clone(), message.clone().filter(|message| !message.is_empty()));
            let occasion = Occasion { message, tag, ..SnapshotOrigin::Manual.into() };
            take_snapshot::snapshot(&context, &env.name, &occasion, output.json)?;
        }
        EnvCommand::History { env, list } => history::list(&context, env, &list.format())?,
        EnvCommand::Tag { env: of, tag, message, remove, list } => {
            let env = Environment::existing(&context, calling::named_or_own(of.name.as_ref())?)?;
            let revision = of.revision.as_ref();
            match (tag, message.as_deref()) {
                _ if *remove => history::remove_tag(&context, &env, of)?,
                (None, None) => tag_list::print(&context, &env, revision, &list.format())?,
                (tag, message) => {
                    let newest = history::tag(&context, &env, revision, (tag.as_ref(), message))?;
                    if let (Some(id), Some(tag)) = (newest, tag) {
                        take_snapshot::note_if_changed(&context, &env, tag, id);
                    }
                }
            }
        }
        EnvCommand::Rollback { env, to, dry_run } => {
            rollback::rollback(&context, env, to.as_ref(), (dry_run.dry_run, dry_run.json))?;
        }
        EnvCommand::Export { env, file, output } => export::export(&context, env, file, output.json)?,
        EnvCommand::Import { file, name } => import::import(&context, file, name.as_ref())?,
        EnvCommand::Stop(env) => stop(&context, &env.name)?,
        EnvCommand::Rm { names, force, dry_run } => {
            output::each(names, |name| remove::remove(&context, name, *force, *dry_run))?;
        }
    }
    Ok(0)
}

/// Says that a mount's source is not there. It may be on another host, or come later.
fn note_missing(mount: &Mount) {
    if let Source::Bind(path) = &mount.source
        && !mount.optional
        && !path.exists()
    {
        output::note(&format!(
            "mount of {}: it does not exist on this host; the environment starts where it does",
            path.display()
        ));
    }
}

fn create(context: &UserContext, name: &EnvName, base: &str, host: &HostArgs, dry_run: bool) -> Result<()> {
    let (mounts, net) = (&host.words(), &host.net);
    let base = match RootSource::of_base(base)? {
        RootSource::Host => EnvironmentBase::Host,
        RootSource::Image(image) => {
            let entry = skiff_store::find(context, &image)?;
            entry.refuse_changes()?;
            EnvironmentBase::Image(entry)
        }
    };
    // What is wrong with a mount shows now, not at the first start.
    for mount in mounts {
        plan::parse_mounts(mount)?.iter().for_each(note_missing);
    }
    if let Some(Net::Named(network)) = net {
        skiff_runtime::network::read(network)?;
    }
    let env = Environment::named(context, name.clone())?;
    if dry_run {
        let over = match &base {
            EnvironmentBase::Host => "the host's root".into(),
            EnvironmentBase::Image(entry) => format!("image {} (sha256:{})", entry.reference, entry.id),
        };
        return output::line(&format!("make {} over {over}", env.dir.display()));
    }
    env.create(&base, mounts.clone(), net.clone().unwrap_or_default())
}
