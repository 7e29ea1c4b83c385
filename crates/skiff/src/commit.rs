//! `skiff commit`: the files of an instance or environment as an image of their own.
//!
//! They are read by a process that is root of the container's user namespace, since they may belong to any of the user's ids, and that root inside
//! does not see. From what it writes, an image file with the new configuration, the store imports as it does from any user's file. Of an
//! environment over the host's root the image has the changes alone, or with `--full` all that is shown.

mod config;
mod reading;

use std::os::fd::AsFd;

use serde::Serialize;
use serde_json::Value;
use skiff_cli::CommitArgs;
use skiff_env::calling::named_or_own;
use skiff_env::host_image::full::HostRoot;
use skiff_env::host_image::{HostChanges, ImageContents, ImageTarget, ReadProgress, watched};
use skiff_env::own_files::{BaseFiles, CleanedList, OwnFiles};
use skiff_env::root::session;
use skiff_env::snapshot_copy::with_state_of;
use skiff_image::export::root::{self, OtherContent, RootFilter, RootSize};
use skiff_image::source::{ImageSource, temporary};
use skiff_output as output;
use skiff_plan::import;
use skiff_plan::progress::PullProgress;
use skiff_runtime::control::Live;
use skiff_runtime::environments::Environment;
use skiff_runtime::record::{ENV, InstanceDir};
use skiff_sandbox::enter::{open_root, run_unseen};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::name::EnvName;
use skiff_spec::plan::{Accounts, Base, inside};
use skiff_store::file::name_for;
use skiff_store::index::{ImageBase, ImageName};
use skiff_store::{client, ours};
use skiff_user::context::UserContext;

use crate::images::commands::{ListedImage, digest};
use crate::named;
use reading::Reading;

/// Makes the image; prints its id.
pub fn commit(args: &CommitArgs) -> Result<()> {
    let context = UserContext::load()?;
    // Before anything is read: at the end it would be all for nothing.
    let reference = name_for(&args.image)?;
    let name = named_or_own(args.env.name.as_ref())?;
    let committing = Committing { context: &context, args, name: &name, reference };
    if named::is_environment(&context, &name, "commit")? {
        return with_state_of(&context, &args.env, |env| committing.environment(env));
    }
    if args.env.revision.is_some() {
        return Err(Fault::new(format!("instance {name}: instances have no snapshots"))
            .hint(format!("`skiff commit {name} {}` makes an image of it as it is", args.image)));
    }
    let record = InstanceDir::existing(&context, &name)?;
    let image = image_of_instance(&context, &record)?.ok_or_else(|| {
        Fault::new(format!(
            "instance {name} stands on the host's root, and only of environments over that an image is made"
        ))
        .hint("make the changes in an environment: `skiff env create NAME`, later `skiff commit NAME IMAGE`")
    })?;
    committing.over_image(&image, || named::enter(&context, &name, "commit"))
}

/// The image that an instance was made of, or that the environment stands on which it was made of.
fn image_of_instance(context: &UserContext, record: &InstanceDir) -> Result<Option<ImageName>> {
    if let Some(image) = record.image()? {
        return Ok(Some(image));
    }
    let started = record.started()?;
    let (Some(id), Some(name)) = (started.image, started.of.strip_prefix(ENV)) else { return Ok(None) };
    let environment = Environment::named(context, name.parse().map_err(|e| Fault::new(format!("{e}")))?)?;
    let image = if environment.exists() { environment.base()?.image().cloned() } else { None };
    match image.filter(|image| image.id == id) {
        // The environment of this name is another one by now.
        None => Ok(Some(skiff_store::find(context, &digest(id))?)),
        found => Ok(found),
    }
}

/// An image that is being made.
struct Committing<'a> {
    context: &'a UserContext,
    args: &'a CommitArgs,
    /// Of the container.
    name: &'a EnvName,
    reference: String,
}

impl Committing<'_> {
    /// Of an environment.
    fn environment(&self, env: &Environment) -> Result<()> {
        match env.base()?.image() {
            Some(image) => self.over_image(image, || session(self.context, env)),
            None if self.args.full => self.whole(env),
            None => self.changes(env),
        }
    }

    /// Of a container over an image.
    fn over_image(&self, below: &ImageName, enter: impl FnOnce() -> Result<Live>) -> Result<()> {
        let config = config::of_image(below.config.clone(), self.args)?;
        let live = enter()?;
        let container = ContainerRoot {
            live: &live,
            name: self.name.as_str(),
            base: base_files(self.context, below),
            accounts: skiff_plan::accounts(self.context),
        };
        let bases = below.as_bases();
        self.make((&config, bases), &container.survey()?, |target, progress| {
            container.write(target, progress)
        })?;
        live.leave();
        Ok(())
    }

    /// Of all that an environment over the host's root shows.
    fn whole(&self, env: &Environment) -> Result<()> {
        let config = config::of_host(self.args)?;
        let live = session(self.context, env)?;
        let root = HostRoot::of(self.context, env, &live)?;
        let contents = root.survey()?;
        refuse_without_system(&env.name, &contents)?;
        self.make((&config, vec![]), &contents, |target, progress| root.write(target, progress))?;
        live.leave();
        Ok(())
    }

    /// Of what an environment has changed of the host's root.
    fn changes(&self, env: &Environment) -> Result<()> {
        let changes = HostChanges::of(self.context, env)?;
        let config = config::of_changes(&changes.labels, self.args)?;
        self.make((&config, vec![]), &changes.survey()?, |target, progress| changes.write(target, progress))?;
        if !self.args.quiet && !self.args.dry_run {
            let image = &self.args.image;
            output::note(&format!(
                "{image} has the changes alone: `skiff env import image:{image} NAME` makes an environment of it"
            ));
        }
        Ok(())
    }

    /// Has `write` write the files, and takes them into the store; or says what there is to write.
    fn make(
        &self,
        (config, bases): (&Value, Vec<ImageBase>),
        contents: &ImageContents,
        write: impl FnOnce(ImageTarget<'_>, &mut dyn ReadProgress) -> Result<()>,
    ) -> Result<()> {
        let (name, CommitArgs { quiet, json, dry_run, .. }) = (self.name, self.args);
        if *dry_run {
            return show(contents, *json);
        }
        let platform = config::platform(config)?;
        let (image, room, room_name) = temporary().map_err(ours)?;
        let room = (room.as_fd(), &*room_name);
        reading::check_room(contents.bytes, room, &client::store(self.context))?;
        if !quiet {
            output::note(&format!("reading the files of {name}: {}", size(contents)));
        }
        let mut progress = Reading::new(name.as_str(), contents.bytes, *quiet);
        write(ImageTarget { image: image.as_fd(), room }, &mut progress)?;
        let source = ImageSource::written(image, name.as_str(), config).map_err(ours)?;
        let mut progress = PullProgress::new(None, *quiet);
        let named = (self.reference.clone(), bases);
        let entry = import::import_made(self.context, source, named, &platform, &mut progress)?;
        // It is no matter of progress: whoever uses the image misses that.
        left_out(contents).iter().for_each(|text| output::note(&format!("left out: {text}")));
        client::mount(self.context, entry.id);
        match json {
            true => output::json(&CommittedImage {
                image: ListedImage::of(&entry),
                left_out: LeftOut::of(contents),
            }),
            false => output::line(&digest(entry.id)),
        }
    }
}

/// Directories without which nothing runs.
const SYSTEM: [&str; 5] = ["/bin", "/etc", "/lib", "/sbin", "/usr"];

/// Refuses an image that would lack what its programs need, as it lies on other file systems.
fn refuse_without_system(name: &EnvName, contents: &ImageContents) -> Result<()> {
    let is_system = |(place, _): &&(String, String)| SYSTEM.contains(&&**place);
    match contents.file_systems.iter().find(is_system) {
        None => Ok(()),
        Some((place, kind)) => Err(Fault::new(format!(
            "environment {name}: {place} is another file system ({kind}), and the image would be without it"
        ))
        .hint("without --full the image has the changes alone")),
    }
}

/// What an image would have, for programs.
#[derive(Serialize)]
struct ShownContents<'a> {
    files: u64,
    bytes: u64,
    #[serde(flatten)]
    left_out: LeftOut<'a>,
}

/// An image that was made, for programs.
#[derive(Serialize)]
struct CommittedImage<'a> {
    #[serde(flatten)]
    image: ListedImage,
    #[serde(flatten)]
    left_out: LeftOut<'a>,
}

/// What an image lacks of what is shown inside.
#[derive(Serialize)]
struct LeftOut<'a> {
    unreadable: u64,
    file_systems: Vec<ShownFileSystem<'a>>,
    skipped: &'a [String],
}

impl<'a> LeftOut<'a> {
    fn of(contents: &'a ImageContents) -> Self {
        let ImageContents { unreadable, file_systems, skipped, .. } = contents;
        let file_systems = file_systems.iter();
        let file_systems = file_systems.map(|(path, kind)| ShownFileSystem { path, r#type: kind }).collect();
        Self { unreadable: *unreadable, file_systems, skipped }
    }
}

#[derive(Serialize)]
struct ShownFileSystem<'a> {
    path: &'a str,
    r#type: &'a str,
}

fn show(contents: &ImageContents, json: bool) -> Result<()> {
    if json {
        let ImageContents { files, bytes, .. } = *contents;
        return output::json(&ShownContents { files, bytes, left_out: LeftOut::of(contents) });
    }
    output::line(&size(contents))?;
    left_out(contents).iter().try_for_each(|text| output::line(&format!("left out: {text}")))
}

fn size(contents: &ImageContents) -> String {
    format!("{}, {}", output::count(contents.files, "file", "files"), output::size(contents.bytes))
}

/// What the image lacks of what is shown inside, for people.
fn left_out(contents: &ImageContents) -> Vec<String> {
    let ImageContents { unreadable, file_systems, skipped, .. } = contents;
    let secrets = (*unreadable > 0).then(|| {
        let count = output::count(*unreadable, "file or directory", "files and directories");
        format!("{count} of the host's that others may not read")
    });
    let other = file_systems.iter().map(|(place, kind)| format!("{place}, another file system ({kind})"));
    let skipped = skipped.iter().map(|path| format!("/{path} (a socket or device)"));
    secrets.into_iter().chain(other).chain(skipped).collect()
}

/// What the image below has where Skiff may have put something. The image may be gone by now: then what was made of it is all the more worth
/// keeping.
fn base_files(context: &UserContext, below: &ImageName) -> BaseFiles {
    BaseFiles::of(context, Base::Image(below.id)).unwrap_or_else(|fault| {
        let name = &below.reference;
        output::note(&format!("image {name}: your account stays in what is made of it: {fault}"));
        BaseFiles::default()
    })
}

/// The root of a container over an image.
struct ContainerRoot<'a> {
    live: &'a Live,
    name: &'a str,
    base: BaseFiles,
    accounts: Accounts,
}

impl ContainerRoot<'_> {
    fn survey(&self) -> Result<ImageContents> {
        self.with_root(None, |root, filter| {
            let RootSize { files, bytes } = root::survey(root, filter).map_err(ours)?;
            Ok(ImageContents { files, bytes, ..ImageContents::default() })
        })
    }

    fn write(&self, target: ImageTarget<'_>, progress: &mut dyn ReadProgress) -> Result<()> {
        self.with_root(Some(target), |root, filter| {
            watched(progress, |watch| {
                root::of_filtered_root(root, filter, target.image, target.room, watch).map_err(ours)
            })
        })
    }

    /// Does something with all of the files but what is Skiff's among them.
    fn with_root<T: Serialize + serde::de::DeserializeOwned>(
        &self,
        target: Option<ImageTarget<'_>>,
        act: impl FnOnce((std::os::fd::BorrowedFd<'_>, &str), RootFilter<'_>) -> Result<T>,
    ) -> Result<T> {
        let init = self.live.init.as_fd();
        let all = open_root(init)?;
        let kept: Vec<_> =
            target.iter().flat_map(|target| [target.image, target.room.0]).chain([all.as_fd()]).collect();
        let done = run_unseen(init, &kept, || {
            let OwnFiles { left_out, cleaned } = self.base.own_files(all.as_fd(), &self.accounts)?;
            let leave_out = |path: &[u8], target: Option<&[u8]>| {
                Ok(inside::is_own(path, target) || left_out.contains(path))
            };
            let replacement =
                |list: &CleanedList| OtherContent { content: list.text.clone().into(), mtime: list.mtime };
            let replaced = cleaned.iter().map(|(path, list)| (path.clone(), replacement(list))).collect();
            act((all.as_fd(), self.name), RootFilter::plain(&leave_out, &replaced))
        })?;
        self.live.still_runs(self.name).map(|()| done)
    }
}
