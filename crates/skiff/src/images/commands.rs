//! `skiff pull`, `import`, `export`, `images`, `rmi`, `inspect`, `store`.

use std::io::IsTerminal;
use std::str::FromStr;

use serde::Serialize;
use skiff_cli::{ExportArgs, ImportArgs, PullArgs, StoreCommand};
use skiff_image::export::{Exported, Target, export as write};
use skiff_image::source::{ImageSource, temporary};
use skiff_image::unpack::LeftOut;
use skiff_oci::platform::Platform;
use skiff_oci::reference::{DEFAULT_SERVER, Named};
use skiff_output::{self as output, ListFormat};
use skiff_plan::progress::PullProgress;
use skiff_plan::{get, import};
use skiff_runtime::naming;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::size;
use skiff_store::UserUsage;
use skiff_store::client::{self, room};
use skiff_store::copies;
use skiff_store::file::{ImageFile, name_for};
use skiff_store::index::{ImageName, Names};
use skiff_store::protocol::{StoreReply, StoreRequest};
use skiff_store::{find, ours};
use skiff_user::context::UserContext;

use crate::named;

/// Digits of an id that tell images apart for a person.
const SHOWN_DIGITS: usize = 12;

/// `skiff pull`: prints the image's id.
pub fn pull(pull: &PullArgs) -> Result<()> {
    let context = UserContext::load()?;
    let way = &pull.way;
    let platform = platform(way.arch.as_deref())?;
    let mut progress = PullProgress::new(way.shown.progress, way.shown.quiet);
    let entry = get::pull(&context, &pull.image, &platform, &mut progress)?;
    client::mount(&context, entry.id);
    match way.shown.json {
        true => output::json(&ListedImage::of(&entry)),
        false => output::line(&digest(entry.id)),
    }
}

/// `skiff import`: prints the image's id.
pub fn import(import: &ImportArgs) -> Result<()> {
    let context = UserContext::load()?;
    let way = &import.way;
    let platform = platform(way.arch.as_deref())?;
    let name = import.name.as_deref().map(name_for).transpose()?;
    let mut progress = PullProgress::new(way.shown.progress, way.shown.quiet);
    let entry = if import.file == INPUT {
        let name = name.ok_or_else(|| {
            Error::new("import: what comes from standard input has no name").hint("skiff import - NAME <FILE")
        })?;
        import::import_made(&context, standard_input()?, (name, vec![]), &platform, &mut progress)?
    } else {
        let file = ImageFile::meant(&import.file)?;
        import::import_to(&context, &file, name, &platform, &mut progress)?
    };
    client::mount(&context, entry.id);
    match way.shown.json {
        true => output::json(&ListedImage::of(&entry)),
        false => output::line(&digest(entry.id)),
    }
}

/// Standard input in the place of a file.
const INPUT: &str = "-";

/// What comes from standard input. It is read from several places, so it goes into a file first.
fn standard_input() -> Result<ImageSource> {
    let mut input = std::io::stdin().lock();
    if input.is_terminal() {
        return Err(Error::new("import: standard input is a terminal, and an image does not come from it")
            .hint("skiff import - NAME <FILE"));
    }
    let (mut file, ..) = temporary().map_err(ours)?;
    std::io::copy(&mut input, &mut file).context(|| "standard input")?;
    ImageSource::of_file(file, "standard input").map_err(ours)
}

/// `skiff export`: prints the digest of what was written, where it has one.
pub fn export(export: &ExportArgs) -> Result<()> {
    let context = UserContext::load()?;
    let mut target = Target::from_str(&export.target).map_err(ours)?;
    let entry = find(&context, &export.image)?;
    if let Target::DockerArchive { name: name @ None, .. } = &mut target {
        // As `docker save` does; an image that came from a file has no name that Docker would take.
        *name = Named::from_str(&entry.reference).ok().filter(|named| named.digest().is_none());
    }
    let image = client::open_image(&context, &entry)?;
    let Exported { digest, left_out } = write(&image, &target).map_err(ours)?;
    let digest = digest.map(|digest| digest.to_string());
    left_out.notes().iter().for_each(|text| output::note(text));
    let LeftOut { devices, sockets, xattrs, owners } = left_out;
    if owners > 0 {
        output::note(&format!(
            "{owners} files that belong to others in the image are yours, without setuid and setgid bits"
        ));
    }
    match (export.output.json, digest) {
        (true, digest) => {
            let ExportArgs { image, target, .. } = export;
            output::json(
                &serde_json::json!({"image": image, "target": target, "digest": digest, "devices_left_out": devices,
                    "sockets_left_out": sockets, "xattrs_left_out": xattrs, "owners_changed": owners}),
            )
        }
        (false, Some(digest)) => output::line(&digest),
        (false, None) => Ok(()),
    }
}

/// The machine that an image is for.
pub fn platform(arch: Option<&str>) -> Result<Platform> {
    match arch {
        None => Ok(Platform::host()),
        Some(text) => Platform::from_str(text).map_err(|e| {
            Error::new(format!("--arch {text}: {e}")).hint("it is written amd64, arm64, linux/arm/v7 ...")
        }),
    }
}

/// As registries write it.
pub fn digest(id: ImageId) -> String {
    format!("sha256:{id}")
}

/// An image as it is shown.
#[derive(Serialize)]
pub struct ListedImage {
    reference: String,
    repository: String,
    tag: Option<String>,
    server: Option<String>,
    id: ImageId,
    digest: String,
    created: Option<String>,
    #[serde(serialize_with = "output::as_time")]
    pulled: u64,
    size: u64,
}

impl ListedImage {
    /// Lists an image by the user's note of it.
    pub fn of(entry: &ImageName) -> Self {
        let created = entry.config().ok().and_then(|c| c.created);
        let named = Named::from_str(&entry.reference).ok();
        Self {
            repository: named.as_ref().map_or_else(|| entry.reference.clone(), |n| n.repository().into()),
            tag: named.as_ref().and_then(|n| n.tag().map(String::from)),
            server: named.map(|n| n.server().into()),
            reference: entry.reference.clone(),
            id: entry.id,
            digest: digest(entry.id),
            created,
            pulled: entry.pulled,
            size: entry.size,
        }
    }

    fn row(&self) -> Vec<String> {
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        let created = self.created.as_ref().map(|time| time.chars().take(10).collect());
        let digits = self.id.to_string().chars().take(SHOWN_DIGITS).collect();
        let size = output::size(self.size);
        // As it is typed.
        let repository = match self.server.as_deref() {
            Some(DEFAULT_SERVER) => self.repository.strip_prefix("library/").unwrap_or(&self.repository),
            _ => &self.repository,
        };
        vec![repository.into(), dash(&self.tag), digits, dash(&created), size, dash(&self.server)]
    }
}

/// `skiff images`.
pub fn list(format: &ListFormat<'_>) -> Result<()> {
    let context = UserContext::load()?;
    let all: Vec<ListedImage> =
        Names::of(&context)?.all_but(|e| output::complain(&e.into()))?.iter().map(ListedImage::of).collect();
    let rows: Vec<Vec<String>> = all.iter().map(ListedImage::row).collect();
    output::list(
        format,
        &all,
        |l| l.digest.clone(),
        || output::table(&["REPOSITORY", "TAG", "DIGEST", "CREATED", "SIZE", "SERVER"], &rows),
    )
}

/// What became of a name.
#[derive(Serialize)]
struct Forgotten {
    reference: String,
    digest: String,
    /// The environment or running instance that keeps the image.
    kept_by: Option<String>,
}

/// `skiff rmi`: forgets names; an image without one is given up.
pub fn remove(images: &[String], json: bool) -> Result<()> {
    let context = UserContext::load()?;
    let names = Names::of(&context)?;
    let mut all = vec![];
    for image in images {
        let entry = find(&context, image)?;
        names.remove(&entry)?;
        let kept_by = naming::give_up(&context, entry.id)?;
        if kept_by.is_none() && !names.all()?.iter().any(|other| other.id == entry.id) {
            copies::remove(&context.depot()?, entry.id)?;
        }
        if let Some(over) = &kept_by {
            output::note(&format!("{}: the image stays, as {over} is over it", entry.reference));
        }
        all.push(Forgotten { digest: digest(entry.id), reference: entry.reference, kept_by });
    }
    client::release(&context)?;
    if json { output::json(&all) } else { Ok(()) }
}

#[derive(Serialize)]
struct Inspected {
    #[serde(flatten)]
    listed: ListedImage,
    here: bool,
    layers: Vec<skiff_store::ImageLayer>,
    files: Option<u64>,
    config: serde_json::Value,
}

/// `skiff inspect`: prints what is known of an image, as JSON; or its files.
pub fn inspect(image: &str, files: bool, template: Option<&str>) -> Result<()> {
    let context = UserContext::load()?;
    let entry =
        find(&context, image).map_err(|e| named::not_an_image(&context, image).unwrap_or(e.into()))?;
    if files {
        let mut printed = Ok(());
        client::ask(&context, StoreRequest::Files(entry.id), &mut |word| {
            if let StoreReply::Lines(lines) = word
                && printed.is_ok()
            {
                printed = lines.iter().try_for_each(|line| output::line(line));
            }
        })?;
        return printed;
    }
    let StoreReply::Found(record) = client::ask(&context, StoreRequest::Find(entry.id), &mut |_| ())? else {
        return Err(Error::new(format!("image {image}: the store's writer answered something else")));
    };
    let inspected = Inspected {
        listed: ListedImage::of(&entry),
        here: record.is_some(),
        files: record.as_ref().map(|r| r.files),
        layers: record.map(|r| r.layers).unwrap_or_default(),
        config: entry.config,
    };
    match template {
        None => output::json(&inspected),
        Some(_) => {
            let format = ListFormat { json: false, template, quiet: false };
            output::list(&format, &[inspected], |_| String::new(), || Ok(()))
        }
    }
}

/// `skiff store ...`.
pub fn store(command: &StoreCommand) -> Result<i32> {
    let context = UserContext::load()?;
    match command {
        StoreCommand::Du(output) => usage(&context, output.json)?,
        StoreCommand::Gc { budget, dry_run, output } => {
            collect(&context, budget.as_deref(), *dry_run, output.json)?
        }
        StoreCommand::Verify { image, output } => return verify(&context, image.as_deref(), output.json),
    }
    Ok(0)
}

fn usage(context: &UserContext, json: bool) -> Result<()> {
    let usage = room(context)?;
    if json {
        return output::json(&usage);
    }
    let rows = [
        ("images", usage.images),
        ("layers", usage.blobs),
        ("unfinished", usage.unfinished),
        ("all", usage.total()),
    ];
    let rows: Vec<Vec<String>> =
        rows.iter().map(|(what, bytes)| vec![(*what).into(), output::size(*bytes)]).collect();
    output::table(&["WHAT", "ON DISK"], &rows)?;
    if context.helper.is_none() { Ok(()) } else { usage_of_users(&usage.users) }
}

/// Root and the store's owner see all, others themselves.
fn usage_of_users(users: &[UserUsage]) -> Result<()> {
    let row = |user: &UserUsage| {
        let quota = user.quota.map_or_else(|| "-".into(), output::size);
        let sizes = [user.images, user.blobs, user.unfinished, user.total()].map(output::size);
        [vec![user.uid.to_string(), user.count.to_string()], sizes.to_vec(), vec![quota]].concat()
    };
    output::line("")?;
    output::table(
        &["UID", "COUNT", "IMAGES", "LAYERS", "UNFINISHED", "ALL", "QUOTA"],
        &users.iter().map(row).collect::<Vec<_>>(),
    )
}

fn collect(context: &UserContext, budget: Option<&str>, dry_run: bool, json: bool) -> Result<()> {
    let not_understood = |text: &str| {
        Error::new(format!("size {text:?}: not understood"))
            .hint("it is a number, with K, M, G or T behind it")
    };
    let budget = budget.map(|text| size::parse(text).ok_or_else(|| not_understood(text))).transpose()?;
    let StoreReply::Collected(done) =
        client::ask(context, StoreRequest::Collect { budget, dry_run }, &mut |_| ())?
    else {
        return Err(Error::new("store: the writer answered something else"));
    };
    if !dry_run {
        client::release(context)?;
    }
    if json {
        return output::json(&done);
    }
    let verb = if dry_run { "would remove" } else { "removed" };
    for id in &done.images {
        output::line(&format!("{verb} image sha256:{id}"))?;
    }
    for file in &done.files {
        output::line(&format!("{verb} {}", file.display()))?;
    }
    output::line(&format!("{verb} {} in all", output::size(done.bytes)))
}

fn verify(context: &UserContext, image: Option<&str>, json: bool) -> Result<i32> {
    let only = image.map(|image| find(context, image)).transpose()?.map(|entry| entry.id);
    let StoreReply::Verified(checked) = client::ask(context, StoreRequest::Verify(only), &mut |_| ())? else {
        return Err(Error::new("store: the writer answered something else"));
    };
    let code = i32::from(checked.iter().any(|c| c.fault.is_some()));
    if json {
        return output::json(&checked).map(|()| code);
    }
    for one in &checked {
        let verdict = one.fault.as_deref().unwrap_or("sound");
        output::line(&format!("sha256:{}  {verdict}", one.id))?;
    }
    Ok(code)
}
