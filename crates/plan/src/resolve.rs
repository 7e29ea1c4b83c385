//! From what is asked for to what is known: the image is looked up, and pulled if need be, and the command gets its words and variables.

use std::path::{Path, PathBuf};

use skiff_sandbox::command::CommandSpec;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::plan::Identity;
use skiff_store::index::ImageName;
use skiff_user::context::UserContext;

use crate::data::{self, UnreadData};
use crate::inside::ROOT;
use crate::{Facts, RootOptions, RootSource, base, get, in_image, parse_mounts, refuse_inside, ssh_agent};

/// What is to be run, in what, as whom: all that a plan and its command are made of.
pub struct RunFacts<'a> {
    /// What was found.
    pub facts: Facts<'a>,
    /// The process.
    pub process: MainProcess,
    /// The image that it is to be run in.
    pub entry: Option<ImageName>,
}

/// What is run, and as whom.
#[derive(Clone)]
pub struct MainProcess {
    /// The command.
    pub command: CommandSpec,
    /// Who it is inside.
    pub identity: Identity,
    /// The signal that the command is to get in place of SIGTERM.
    pub stop: Option<String>,
}

/// Looks up what is asked for; the image is here then, but for a dry run.
pub fn resolve<'a>(asked: &RootOptions, context: &'a UserContext, dry_run: bool) -> Result<RunFacts<'a>> {
    refuse_inside(context)?;
    let inside = &asked.inside;
    let RootSource::Image(image) = &asked.source else {
        if asked.untrusted {
            return Err(Error::new(
                "--untrusted: the host's root shows more than a program needs that nobody trusts",
            )
            .hint("skiff run --untrusted IMAGE COMMAND; -v DIR:DIR:ro shows it a directory"));
        }
        let mut facts = Facts::of_host(context)?.with_devices(&asked.mounts, asked.contain)?;
        facts.data = data::mounts(context, &asked.mounts, UnreadData::of(dry_run))?;
        let mut command = inside.command(context, &asked.argv);
        facts.working_dir = begin_in(asked, context, &mut command, "")?;
        facts.agent_dir = ssh_agent::directory(context, &command, inside);
        let identity = become_user(asked, None, inside.identity(), &mut command);
        facts.set_variables(&mut command, inside);
        command.limits = asked.limits()?;
        command.close_descriptors = asked.contain;
        let process = MainProcess { command, identity, stop: None };
        return Ok(RunFacts { facts, process, entry: None });
    };
    let entry = match dry_run {
        true => skiff_store::find(context, image)?,
        false => get::to_run(context, image, asked.pull)?,
    };
    let mut exec = entry.exec()?;
    let facts = base::facts(context, entry.id, std::mem::take(&mut exec.volumes))?;
    let mut facts = facts.with_devices(&asked.mounts, asked.contain)?;
    facts.data = data::mounts(context, &asked.mounts, UnreadData::of(dry_run))?;
    let entrypoint = asked.entrypoint.as_deref();
    let mut command = in_image::command(context, (entry.id, &exec), inside, entrypoint, &asked.argv)?;
    facts.working_dir = begin_in(asked, context, &mut command, &exec.working_dir)?;
    facts.agent_dir = ssh_agent::directory(context, &command, inside);
    // Whom the image's maker meant counts for one who wants ids as its maker has them; for themselves it is who runs it.
    let makers = Some(&*exec.user).filter(|user| inside.root && !user.is_empty());
    let identity = inside.identity_in_image(context.route());
    let identity = become_user(asked, makers, identity, &mut command);
    if asked.contain && asked.no_home && !asked.untrusted && identity == Identity::Root {
        in_image::be_at_home_there(&mut command, &exec, inside);
    }
    let identity = match identity {
        Identity::Me if asked.untrusted => {
            command.seen_as = Some([context.uid, rustix::process::getgid().as_raw()]);
            Identity::Root
        }
        identity => identity,
    };
    facts.set_variables(&mut command, inside);
    command.limits = asked.limits()?;
    command.close_descriptors = asked.contain;
    let stop = exec.stop_signal.filter(|signal| !signal.is_empty());
    let process = MainProcess { command, identity, stop };
    Ok(RunFacts { facts, process, entry: Some(entry) })
}

/// Settles where the command begins: where its user or the image's maker says, else where its user is. That directory is then shown inside,
/// as Apptainer does. Contained, there is nothing of the user's, so it begins in the home.
fn begin_in(
    asked: &RootOptions,
    context: &UserContext,
    command: &mut CommandSpec,
    makers: &str,
) -> Result<Option<PathBuf>> {
    command.only_there = true;
    let is_named = asked.inside.workdir.is_some();
    let Ok(here) = std::env::current_dir() else { return Ok(None) };
    if here == Path::new("/") || !command.cwd.starts_with(&here) || (!is_named && !makers.is_empty()) {
        return Ok(None);
    }
    let without_home = asked.no_home && here == context.home;
    if !asked.contain && !without_home {
        return Ok(Some(here));
    }
    let mounts = asked.mounts.iter().map(|text| parse_mounts(text)).collect::<Result<Vec<_>>>()?.concat();
    if !is_named && !mounts.iter().any(|mount| here.starts_with(&mount.target)) {
        // An empty home is the user's own: nobody else of an image is let in.
        let is_at_home = !asked.no_home && asked.user.is_none();
        command.cwd = if is_at_home { context.home.clone() } else { "/".into() };
    }
    Ok(None)
}

/// Has root inside become another user there, if one is wanted.
fn become_user(
    asked: &RootOptions,
    makers: Option<&str>,
    identity: Identity,
    command: &mut CommandSpec,
) -> Identity {
    let Some(user) = asked.user.as_deref().or(makers) else { return identity };
    if !ROOT.contains(&user) {
        asked.inside.become_other(command, user);
        // Another user may not be let into the directory of this one, which they have not asked for.
        command.only_there = asked.inside.workdir.is_some();
    }
    Identity::Root
}
