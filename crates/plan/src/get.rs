//! An image for whoever is about to use it: one that they have, else pulled from where its name says.

use std::io::IsTerminal;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;
use skiff_oci::reference::{ImageReference, Named};
use skiff_output as output;
use skiff_runtime::environments::Environment;
use skiff_runtime::naming;
use skiff_runtime::record::InstanceDir;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::job::JobImage;
use skiff_spec::name::EnvName;
use skiff_store::ImageMetadata;
use skiff_store::client::PullMirror;
use skiff_store::copies::{self, ImageCopy};
use skiff_store::fetcher::process as fetcher;
use skiff_store::file::{FileStamp, ImageFile, parse};
use skiff_store::index::{ImageName, Names};
use skiff_store::protocol::{StoreReply, StoreRequest};
use skiff_store::{Error as StoreError, client, known};
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_user::context::UserContext;

use crate::image_peers::ImagePeers;
use crate::import;
use crate::named_file::not_expanded;
use crate::progress::PullProgress;

/// When an image is pulled that is to be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PullWhen {
    /// If it is not in the store
    #[default]
    Missing,
    /// Each time, as the tag may have moved
    Always,
    /// Not at all; fail if it is missing
    Never,
}

/// The image that a command is to run in.
pub fn to_run(context: &UserContext, text: &str, when: PullWhen) -> Result<ImageName> {
    if when != PullWhen::Never && ImageFile::of(text).is_some() {
        return import::find_or_import(context, text);
    }
    let entry = match (when, known(context, text)?) {
        (PullWhen::Never, found) => return found.ok_or_else(|| not_pulled(text)),
        (PullWhen::Missing, Some(entry)) if client::has(context, entry.id) => return Ok(entry),
        // The same one as before, whatever its name means by now.
        (PullWhen::Missing, Some(entry)) => return by_id(context, entry),
        (PullWhen::Always, Some(entry)) if entry.origin.is_some() && !is_artifact(&entry.reference) => {
            return Err(StoreError::NotInRegistry(entry.reference).into());
        }
        // By digits or short it was named, and by a full name it is asked for.
        (PullWhen::Always, Some(entry)) => entry.reference,
        (_, None) if is_id(text) => return Err(StoreError::NotPulled(text.into()).into()),
        (_, None) => match meant(context, text)? {
            Some(guess) => return Err(guess),
            None => text.to_owned(),
        },
    };
    let is_far = |reference| {
        use ImageReference::{Artifact, Registry, Short};
        matches!(reference, Registry(_) | Short(_) | Artifact(_))
    };
    if !is_far(parse(&entry)?) {
        return Err(StoreError::NotPulled(text.into()).into());
    }
    output::note(&format!("image {entry}: pulling it"));
    let mut progress = PullProgress::new(None, false);
    let pulled = pull_within(client::HASTY, context, &entry, &Platform::host(), &mut progress);
    pulled
        .map_err(|e| Error { hint: e.hint.replace("skiff pull IMAGE", &format!("skiff pull {entry}")), ..e })
        .map_err(|e| with_meant(context, text, e))
        .map_err(|e| match when {
            // Who forgot the dashes gets no answer from any registry.
            PullWhen::Missing if !text.contains(['/', ':', '@']) => {
                let hint = format!("{}; to run a command over the host's root: skiff run -- {text}", e.hint);
                Error { hint: hint.trim_start_matches("; ").into(), ..e }
            }
            _ => e,
        })
}

/// What else may have been meant by a word that no image here is called by: something that is here counts for more than what a registry may
/// have under that name.
fn meant(context: &UserContext, text: &str) -> Result<Option<Error>> {
    let Some(what) = what_is_called(context, text)? else { return Ok(None) };
    let hub = format!("if an image is meant: skiff pull {text}");
    let (what, line) = match what {
        Called::Environment => {
            (format!("an environment is called {text}"), format!("skiff env exec {text} -- COMMAND"))
        }
        Called::Instance => (format!("an instance is called {text}"), format!("skiff exec {text} COMMAND")),
        Called::Path => {
            (format!("{text} is a path here"), format!("skiff run ./{text}, or skiff run -- ./{text}"))
        }
        Called::Program => (format!("{text} is a program of the host"), format!("skiff run -- {text}")),
    };
    Ok(Some(Error::new(format!("image {text}: not pulled, and {what}")).hint(format!("{line}; {hub}"))))
}

/// What has a name that could be an image's.
enum Called {
    Environment,
    Instance,
    Path,
    Program,
}

fn what_is_called(context: &UserContext, text: &str) -> Result<Option<Called>> {
    // With a tag or a digest it can only be an image.
    if text.contains([':', '@']) {
        return Ok(None);
    }
    if let Ok(name) = text.parse::<EnvName>() {
        if Environment::named(context, name.clone())?.exists() {
            return Ok(Some(Called::Environment));
        }
        if InstanceDir::named(context, &name)?.is_there() {
            return Ok(Some(Called::Instance));
        }
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&path).map(|dir| dir.join(text));
    Ok(if Path::new(text).exists() {
        Some(Called::Path)
    } else if !text.contains('/') && programs.any(|program| program.is_file()) {
        Some(Called::Program)
    } else {
        None
    })
}

/// Refuses a platform that is not this host's, for a program that is to run on it.
pub fn check_platform(text: &str) -> std::result::Result<(), String> {
    match Platform::from_str(text) {
        Ok(platform) if platform == Platform::host() => Ok(()),
        Ok(_) => Err(format!("this host runs programs for {}", Platform::host())),
        Err(e) => Err(e.to_string()),
    }
}

/// The image for a job that is being submitted: the one that the user has pulled or imported, otherwise what the name means now, so that
/// all nodes get the same one. Only the image of a file is imported into this host's store, since nodes ask the registry by themselves.
/// An image that no registry has is put into the user's depot, where the nodes find it.
pub fn pin(context: &UserContext, text: &str) -> Result<JobImage> {
    if let Some(hint) = not_expanded(text) {
        return Err(Error::new(format!("image {text}: there is no such file")).hint(hint));
    }
    let of = |ImageName { id, reference, .. }| JobImage { id, reference };
    if ImageFile::of(text).is_some() {
        let entry = import::find_or_import(context, text)?;
        entry.refuse_changes()?;
        return Ok(of(entry));
    }
    if let Some(entry) = known(context, text)? {
        entry.refuse_changes()?;
        let depot = context.depot()?;
        tell_of_copy(&depot, &entry)?;
        copies::put(context, &depot, &entry)?;
        return Ok(of(entry));
    }
    if is_id(text) {
        return Err(StoreError::NotPulled(text.into()).into());
    }
    if is_artifact(text) {
        // Which image is in it shows only when it is here.
        let entry = pull(context, text, &Platform::host(), &mut PullProgress::new(None, false))?;
        copies::put(context, &context.depot()?, &entry)?;
        return Ok(of(entry));
    }
    let ask = client::pull(context, text, &Platform::host().to_string(), client::PATIENT);
    let resolved = ask.map_err(Error::from).and_then(|ask| Ok(fetcher::resolve(&ask)?));
    let (id, reference) = resolved.map_err(|e| with_meant(context, text, e))?;
    Ok(JobImage { id, reference })
}

/// Says, to somebody at a terminal, that a copy of an image is about to be made: a large one takes a while.
fn tell_of_copy(depot: &Path, entry: &ImageName) -> Result<()> {
    if entry.origin.is_some() && std::io::stderr().is_terminal() && copies::find(depot, entry.id)?.is_none() {
        let (reference, size) = (&entry.reference, output::size(entry.size));
        output::note(&format!("image {reference}: copying it to your depot for the nodes ({size})"));
    }
    Ok(())
}

/// A fault of an image that could not be had, with what may have been meant by its name.
fn with_meant(context: &UserContext, text: &str, fault: Error) -> Error {
    let names = Names::of(context).and_then(|names| names.all()).default_on_error("a hint is lost");
    let names: Vec<&str> = names.iter().map(|entry| &*entry.reference).collect();
    let hints = [meant_name(text, &names), cut_hint(text), Some(fault.hint.clone())];
    let hints: Vec<String> = hints.into_iter().flatten().filter(|hint| !hint.is_empty()).collect();
    fault.hint(hints.join("; "))
}

/// The user's image whose name is nearest.
fn meant_name(text: &str, names: &[&str]) -> Option<String> {
    let tagged = text.rsplit('/').next().is_some_and(|last| last.contains(':'));
    let near = skiff_nearest::nearest(short(text, tagged), names.iter().map(|name| short(name, tagged)))?;
    let name = names.iter().find(|name| short(name, tagged) == near)?;
    Some(format!("your image {name} may be meant"))
}

/// The last part of a name, with its tag if that counts.
fn short(name: &str, tagged: bool) -> &str {
    let last = name.rsplit(['/', '#']).next().unwrap_or(name);
    if tagged { last } else { last.split(':').next().unwrap_or(last) }
}

/// What to do where nothing but a host and a port is left of a name: Slurm ends a line of a script at `#`.
fn cut_hint(text: &str) -> Option<String> {
    let (host, port) = text.split_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_port && (host.contains('.') || host == "localhost"))
        .then(|| format!("in a line of #SBATCH write {text}\\#IMAGE: Slurm ends the line at a # without \\"))
}

/// Whether it names a file that a registry keeps: `oras://...`.
fn is_artifact(text: &str) -> bool {
    matches!(parse(text), Ok(ImageReference::Artifact(_)))
}

/// Digits alone say nothing of where an image could be had.
fn is_id(text: &str) -> bool {
    text.starts_with("sha256:") || ImageId::from_str(text).is_ok()
}

/// The very image that something was run in before, by what was noted then.
pub fn again(context: &UserContext, entry: ImageName) -> Result<ImageName> {
    if client::has(context, entry.id) { Ok(entry) } else { by_id(context, entry) }
}

/// Refuses an image that [`again`] would not find, and gets nothing.
pub fn refuse_missing(context: &UserContext, entry: &ImageName) -> Result<()> {
    let (id, reference) = (entry.id, &*entry.reference);
    if client::has(context, id) {
        return Ok(());
    }
    if entry.origin.is_some() {
        let copy = copies::find(&context.depot()?, id)?;
        return copy.map(drop).ok_or_else(|| not_here(id, reference));
    }
    let exact = exact_name(id, reference)?;
    let ask = client::pull(context, &exact, &Platform::host().to_string(), client::PATIENT)?;
    Ok(fetcher::resolve(&ask).map(drop)?)
}

/// An image that the user has pulled, on a node that may not have it.
fn by_id(context: &UserContext, entry: ImageName) -> Result<ImageName> {
    if entry.origin.is_some() {
        let copy = from_depot(context, &context.depot()?, (entry.id, &entry.reference), None)?;
        return copy.map(|(entry, _)| entry).ok_or_else(|| not_here(entry.id, &entry.reference));
    }
    output::note(&format!("image {}: pulling it, as this host does not have it", entry.reference));
    let progress = &mut PullProgress::new(None, false);
    fetch_exactly(context, (entry.id, &entry.reference), None, progress)?;
    Ok(entry)
}

/// An image that is in no registry, by its copy in a depot: it has another id then, which follows from that file.
fn from_depot(
    context: &UserContext,
    depot: &Path,
    (id, reference): (ImageId, &str),
    peers: Option<&dyn ImagePeers>,
) -> Result<Option<(ImageName, ImageOrigin)>> {
    let Some(copy) = copies::find(depot, id)? else { return Ok(None) };
    let ImageCopy { path, id } = &copy;
    let (entry, origin) = match in_store(context, *id, reference)? {
        Some(entry) => (entry, ImageOrigin::Store),
        None => {
            let file = ImageFile::meant(&path.display().to_string())?;
            let imported = import::exactly_by(context, &file, *id, peers);
            let (entry, is_by_peers) = imported.map_err(|e| of_copy(depot, &copy, e))?;
            (entry, if is_by_peers { ImageOrigin::Nodes } else { ImageOrigin::Depot })
        }
    };
    Ok(Some((ImageName { reference: reference.into(), ..entry }, origin)))
}

/// Why a copy could not be imported. One that is damaged is removed, so that it is not in the way of the next one.
fn of_copy(depot: &Path, copy: &ImageCopy, fault: Error) -> Error {
    let is_damaged = copies::remove_damaged(depot, copy)
        .default_on_error("what cannot be read or removed is another fault");
    if !is_damaged {
        return fault;
    }
    Error::new(format!("{}: the copy of the image is damaged: {}", copy.path.display(), fault.message))
        .hint("it has been removed; submit the job again, which makes another one")
}

/// The image of this id as this host's store has it.
fn in_store(context: &UserContext, id: ImageId, reference: &str) -> Result<Option<ImageName>> {
    let StoreReply::Found(record) = client::ask(context, StoreRequest::Find(id), &mut |_| ())? else {
        return Err(strange(reference));
    };
    let named = |ImageMetadata { size, config, .. }| ImageName {
        reference: reference.into(),
        id,
        pulled: 0,
        size,
        config,
        origin: None,
        pulled_as: None,
        bases: vec![],
    };
    Ok(record.map(|record| named(*record)))
}

/// The image of this id as this node's store has it, which gets it if need be: from its file, a copy in the depot, or a registry. Its name
/// stays what it is to the user.
pub fn on_node(context: &UserContext, depot: &Path, id: ImageId, reference: &str) -> Result<ImageName> {
    on_node_from(context, depot, (id, reference), None).map(|(entry, _)| entry)
}

/// Where an image came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageOrigin {
    /// The store of this host, where it was already.
    Store,
    /// A file.
    File,
    /// The user's depot.
    Depot,
    /// A registry.
    Registry,
    /// A file or the depot, which other nodes of the job have read.
    Nodes,
}

/// The same, and where it came from. Other nodes that have the image, or are getting it, are asked first.
pub fn on_node_from(
    context: &UserContext,
    depot: &Path,
    (id, reference): (ImageId, &str),
    peers: Option<&dyn ImagePeers>,
) -> Result<(ImageName, ImageOrigin)> {
    if let Some(entry) = in_store(context, id, reference)? {
        return Ok((entry, ImageOrigin::Store));
    }
    if let Some(file) = ImageFile::of(reference) {
        let (entry, is_by_peers) = import::exactly_by(context, &file, id, peers).map_err(|e| match e.hint.is_empty() {
            true => e.hint("a job needs the file on its nodes when it begins; `skiff import FILE NAME` keeps an image of it"),
            false => e,
        })?;
        return Ok((entry, if is_by_peers { ImageOrigin::Nodes } else { ImageOrigin::File }));
    }
    match from_depot(context, depot, (id, reference), peers)? {
        Some(found) => Ok(found),
        None if is_local(reference) => Err(no_copy(id, reference)),
        None => {
            let progress = &mut PullProgress::new(None, true);
            let mirror = peers.and_then(ImagePeers::mirror);
            let entry = fetch_exactly(context, (id, reference), mirror.as_ref(), progress)?;
            Ok((entry, ImageOrigin::Registry))
        }
    }
}

/// Whether no registry has an image of this name.
#[must_use]
pub fn is_local(reference: &str) -> bool {
    Named::from_str(reference).is_ok_and(|named| named.is_local())
}

/// By digest: images of the same name may be others by now.
fn fetch_exactly(
    context: &UserContext,
    (id, reference): (ImageId, &str),
    mirror: Option<&PullMirror>,
    progress: &mut PullProgress,
) -> Result<ImageName> {
    let exact = exact_name(id, reference)?;
    let ask = client::pull(context, &exact, &Platform::host().to_string(), client::PATIENT)?;
    let ask = match mirror {
        Some(mirror) => client::with_mirror(ask, mirror)?,
        None => ask,
    };
    let entry = fetch(context, &exact, ask, progress)?;
    if entry.id != id {
        return Err(not_here(id, reference));
    }
    Ok(ImageName { reference: reference.into(), ..entry })
}

/// The name by which its registry has this very image.
fn exact_name(id: ImageId, reference: &str) -> Result<String> {
    let missing = || not_here(id, reference);
    let named = Named::from_str(reference).map_err(|_| missing())?;
    let digest = Digest::Sha256(id.0);
    let exact = Named::new(named.server(), named.repository(), None, Some(digest));
    Ok(exact.map_err(|_| missing())?.to_string())
}

/// Pulls an image and notes its name.
pub fn pull(
    context: &UserContext,
    image: &str,
    platform: &Platform,
    progress: &mut PullProgress,
) -> Result<ImageName> {
    pull_within(client::PATIENT, context, image, platform, progress)
}

/// [`pull`], with a limit for the name service.
fn pull_within(
    patience: Duration,
    context: &UserContext,
    image: &str,
    platform: &Platform,
    progress: &mut PullProgress,
) -> Result<ImageName> {
    let entry = match parse(image)? {
        ImageReference::Artifact(named) => {
            let reference = ImageReference::Artifact(named.with_default_tag()).to_string();
            let source = client::artifact(&reference, &platform.to_string(), context, patience)?;
            import::read(context, source, (reference, FileStamp::default()), platform, progress)?
        }
        _ => {
            let ask = client::pull(context, image, &platform.to_string(), patience)?;
            fetch(context, image, ask, progress)?
        }
    };
    naming::note(context, &entry)?;
    Ok(entry)
}

fn fetch(
    context: &UserContext,
    image: &str,
    mut ask: StoreRequest,
    progress: &mut PullProgress,
) -> Result<ImageName> {
    // A store of their own they fill themselves, by their own policy.
    let vouched = context.helper.as_ref().map_or(Ok(None), |_| fetcher::vouched(&mut ask))?;
    let said = client::ask(context, ask, &mut |word| match word {
        StoreReply::Waiting => progress.waiting(),
        StoreReply::Layers(layers) => progress.layers(&layers),
        _ => {}
    });
    progress.end();
    let StoreReply::Pulled { name, id, record, .. } = said? else { return Err(strange(image)) };
    if vouched.is_some_and(|vouched| vouched != id) {
        naming::give_up(context, id)?;
        return Err(Error::new(format!(
            "image {name}: it became another one while your policy.json was asked"
        ))
        .hint("pull it again"));
    }
    let ImageMetadata { size, config, .. } = *record;
    Ok(ImageName {
        reference: name,
        id,
        pulled: now(),
        size,
        config,
        origin: None,
        pulled_as: None,
        bases: vec![],
    })
}

/// Where something is to run, who types a plain word may mean a program.
fn not_pulled(text: &str) -> Error {
    let fault = Error::from(StoreError::NotPulled(text.into()));
    match text.contains(['/', ':', '@']) {
        true => fault,
        false => {
            let hint = format!("{}; to run a command over the host's root: skiff run -- {text}", fault.hint);
            fault.hint(hint)
        }
    }
}

fn not_here(id: ImageId, reference: &str) -> Error {
    Error::new(format!("image {reference} (sha256:{id}): not in the store of this host, or not yours there"))
        .hint(format!(
            "it came from no registry: where it was imported, `srun --container-image={reference} true` leaves a copy for other hosts; or `skiff import` it here"
        ))
}

/// An image of a job that is in no registry, and whose copy is gone.
fn no_copy(id: ImageId, reference: &str) -> Error {
    Error::new(format!(
        "image {reference} (sha256:{id}): not in the store of this host, and its copy in your depot is gone"
    ))
    .hint(format!(
        "`skiff rmi {reference}` removes the copy: import or build the image again, and submit the job again"
    ))
}

fn strange(image: &str) -> Error {
    Error::new(format!("image {image}: the store's writer answered something else"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_slip_is_told_the_nearest() {
        let names = ["localhost/mpi:latest", "10.77.0.1:5000/tools/solver:2"];
        for (text, want) in [
            ("mpy", Some("your image localhost/mpi:latest may be meant")),
            ("tools/solvr:2", Some("your image 10.77.0.1:5000/tools/solver:2 may be meant")),
            ("solver", Some("your image 10.77.0.1:5000/tools/solver:2 may be meant")),
            ("debian:12", None),
        ] {
            assert_eq!(meant_name(text, &names).as_deref(), want, "{text}");
        }
        assert_eq!(meant_name("mpy", &[]), None);
    }

    #[test]
    fn a_name_that_slurm_has_cut_is_told() {
        for (text, want) in [
            ("registry.site:5000", true),
            ("localhost:5000", true),
            ("debian:12", false),
            ("registry.site:5000/a", false),
            ("debian", false),
        ] {
            assert_eq!(cut_hint(text).is_some(), want, "{text}");
        }
    }
}
