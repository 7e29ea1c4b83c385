//! The user's way to the store: the trusted one through the helper, or one of their own.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use skiff_image::export::OpenImage;
use skiff_image::source::{ImageSource, temporary};
use skiff_ipc as ipc;
use skiff_oci::platform::Platform;
use skiff_oci::reference::{ImageReference, Named};
use skiff_registry::auth::{Credential, Credentials};
use skiff_registry::policy::Policies;
use skiff_registry::registries_conf::{Endpoint, RegistriesConf};
use skiff_registry::{Certificates, ClientSettings, ImageParts, asked_for};
use skiff_sandbox::helper::Helper;
use skiff_spec::fault::Context as _;
use skiff_spec::image::{ImageId, store as names};
use skiff_spec::plan::Base;
use skiff_spec::site::{self, ImageFormat, Site};
use skiff_spec::wire::Request;
use skiff_sys::{IgnoreError, lock};
use skiff_user::context::UserContext;

use crate::error::{Error, Result, talk};
use crate::fetcher;
use crate::file::parse;
use crate::index::ImageName;
use crate::protocol::{LayerRequest, RegistryLogin, StoreReply, StoreRequest};
use crate::store::{Collected, ImageMetadata, Quota, users_for_root};
use crate::writer;

/// What Apptainer calls its images in registries.
const SIF_LAYER: &str = "application/vnd.sylabs.sif.layer.v1.sif";

/// How long the name service may take: for what can wait, and for a person who does.
pub const PATIENT: Duration = ClientSettings::PATIENT;
/// See [`PATIENT`].
pub const HASTY: Duration = ClientSettings::HASTY;

/// So long is waited for one of the user's writers to end, where there are as many as there may be.
const BUSY: Duration = Duration::from_secs(60);

/// Has the store's writer do something; `heard` gets what it says on the way, and the last reply is given.
pub fn ask(
    context: &UserContext,
    ask: StoreRequest,
    heard: &mut (dyn FnMut(StoreReply) + Send),
) -> Result<StoreReply> {
    match &context.helper {
        Some(helper) => ask_trusted(helper, &ask, heard),
        None => ask_own(context, ask, heard),
    }
}

fn ask_trusted(
    program: &Path,
    ask: &StoreRequest,
    heard: &mut (dyn FnMut(StoreReply) + Send),
) -> Result<StoreReply> {
    let mut writer = Writer::start(program)?;
    writer.send(ask)?;
    writer.last_reply(heard).map(|(reply, _)| reply)
}

/// The trusted store's writer, and the way to it.
struct Writer {
    program: PathBuf,
    helper: Helper,
    socket: UnixStream,
}

impl Writer {
    /// Starts it, or waits a while until one of the user's others has ended.
    fn start(program: &Path) -> Result<Self> {
        Self::start_within(BUSY, program)
    }

    fn start_within(patience: Duration, program: &Path) -> Result<Self> {
        lock::within(patience, || Self::try_start(program))?.ok_or_else(|| Error::Busy)
    }

    /// Nothing if the user has as many as one may have.
    fn try_start(program: &Path) -> Result<Option<Self>> {
        let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let helper = Helper::spawn_with(program, &env)?;
        let (ours, theirs) = UnixStream::pair().context(|| "socket to the store's writer")?;
        helper.ask(&Request::Store, &[theirs.as_fd()])?;
        drop(theirs);
        match helper.started()? {
            true => Ok(Some(Self { program: program.into(), helper, socket: ours })),
            false => {
                helper.finish();
                Ok(None)
            }
        }
    }

    fn send(&mut self, ask: &StoreRequest) -> Result<()> {
        ipc::send(&mut self.socket, ask).map_err(talk)
    }

    /// What it says in the end, and the file that it gives.
    fn last_reply(
        mut self,
        heard: &mut (dyn FnMut(StoreReply) + Send),
    ) -> Result<(StoreReply, Option<OwnedFd>)> {
        let (mut last, mut file) = (None, None);
        while let Some(reply) = ipc::receive(&mut self.socket).map_err(talk)? {
            match reply {
                StoreReply::Failed(fault) => return Err(fault.into()),
                StoreReply::Removed => release_by(&self.program)
                    .ignore_error("what stays counts for its user until the next one lets go of it"),
                reply if reply.is_progress() => heard(reply),
                reply => {
                    if matches!(reply, StoreReply::Opened(_)) {
                        file = ipc::receive_descriptors::<StoreReply>(&self.socket, 1).map_err(talk)?.pop();
                    }
                    last = Some(reply);
                }
            }
        }
        self.helper.finish();
        Ok((last.ok_or(Error::NoAnswer)?, file))
    }
}

/// Has an image imported.
pub fn import(
    context: &UserContext,
    source: ImageSource,
    platform: &Platform,
    heard: &mut (dyn FnMut(StoreReply) + Send),
) -> Result<StoreReply> {
    let Some(helper) = &context.helper else {
        let mut say = |reply: StoreReply| {
            heard(reply);
            true
        };
        let policies = Policies::load()?;
        let platform = platform.to_string();
        return writer::import(in_own(context, &own(context)), &source, &platform, &policies, &mut say);
    };
    // The writer is another user, who sees the site's policy and not this one's.
    let policies = Policies::of_user()?;
    crate::import::admit(&source, &policies)?;
    let (source, files) = source.hand_over(platform)?;
    let mut writer = Writer::start(helper)?;
    writer.send(&StoreRequest::Import { source, platform: platform.to_string() })?;
    let open: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    ipc::send_descriptors::<StoreRequest>(&writer.socket, &open).map_err(talk)?;
    drop(files);
    writer.last_reply(heard).map(|(reply, _)| reply)
}

/// Has a layer of an environment taken into the trusted store, unless it is there. `send` writes the layer to the socket that it gets, which
/// fails with `EPIPE` if the writer reads no more. Says how long others who make the same layer were waited for.
pub fn add_layer(
    helper: &Path,
    layer: LayerRequest,
    send: impl FnOnce(UnixStream) -> skiff_snapshot::Result<()> + Send,
) -> Result<Duration> {
    let id = layer.id;
    let mut writer = Writer::start(helper)?;
    let (ours, theirs) = UnixStream::pair().context(|| "socket for a layer")?;
    writer.send(&StoreRequest::Layer(layer))?;
    ipc::send_descriptors::<StoreRequest>(&writer.socket, &[theirs.as_fd()]).map_err(talk)?;
    drop(theirs);
    let (sent, reply) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(ours));
        let reply = writer.last_reply(&mut |_| ());
        (sending.join().unwrap_or_else(|panic| resume_unwind(panic)), reply)
    });
    match reply {
        Ok((StoreReply::Layer { removed, waited_ms, .. }, _)) => {
            if removed > 0 {
                // What was removed takes room until it is let go of.
                release_by(helper).ignore_error("the next one lets go of it, or `skiff sweep`");
            }
            Ok(Duration::from_millis(waited_ms.into()))
        }
        Ok(_) => Err(Error::OtherAnswer(format!("layer {id}"))),
        // If the writer has hung up, it says why; otherwise what the sender has met is why the writer had too little.
        Err(reply) => match sent {
            Err(error) if !matches!(error.errno(), Some(Errno::PIPE | Errno::CONNRESET)) => {
                Err(Error::Layer(error))
            }
            _ => Err(reply),
        },
    }
}

/// An image of the user's, its file open.
pub fn open_image(context: &UserContext, entry: &ImageName) -> Result<OpenImage> {
    let (_, file) = open_file(context, entry.id, &entry.reference)?;
    // The user's own, which has what they have said of a file without a configuration.
    Ok(OpenImage { name: entry.id.to_string(), config: entry.config.clone(), file })
}

/// The file of an image or of a layer that the user may use, and what is known of it; `name` is for messages.
pub fn open_file(context: &UserContext, id: ImageId, name: &str) -> Result<(ImageMetadata, File)> {
    open_file_within(BUSY, context, id, name)
}

/// The same for whoever can do without: so long it may take until one of the user's writers has ended, where all are at work.
pub fn open_file_within(
    patience: Duration,
    context: &UserContext,
    id: ImageId,
    name: &str,
) -> Result<(ImageMetadata, File)> {
    let Some(helper) = &context.helper else { return writer::open(&own(context), context.uid, id) };
    let mut writer = Writer::start_within(patience, helper)?;
    writer.send(&StoreRequest::Open(id))?;
    match writer.last_reply(&mut |_| ())? {
        (StoreReply::Opened(record), Some(file)) => Ok((*record, file.into())),
        _ => Err(Error::OtherAnswer(format!("image {name}"))),
    }
}

/// The store of a user without the helper.
pub fn own(context: &UserContext) -> PathBuf {
    context.data().join("store")
}

/// The store that images of this user's go to.
pub fn store(context: &UserContext) -> PathBuf {
    trusted_store(context).map_or_else(|| own(context), |site| site.store.into())
}

/// Nothing mounts what is in there.
fn in_own<'a>(context: &UserContext, store: &'a Path) -> writer::StoreAccess<'a> {
    let (uid, format, quota) = (context.uid, ImageFormat::Erofs, Quota::Unlimited);
    writer::StoreAccess { store, uid, format, quota, user: None }
}

fn ask_own(
    context: &UserContext,
    ask: StoreRequest,
    heard: &mut (dyn FnMut(StoreReply) + Send),
) -> Result<StoreReply> {
    let mut last = None;
    let mut say = |reply: StoreReply| {
        match reply {
            reply if reply.is_progress() => heard(reply),
            reply => last = Some(reply),
        }
        true
    };
    writer::answer(in_own(context, &own(context)), ask, None, &mut say)?;
    last.ok_or(Error::NoAnswer)
}

/// Whether an image seems to be in this machine's store for this user, so that it need not be pulled. Whether it may be used the
/// helper decides.
pub fn has(context: &UserContext, id: ImageId) -> bool {
    let (store, format) = match &context.helper {
        // What cannot be read or understood is the helper's to complain of.
        Some(_) => {
            let text = std::fs::read_to_string(site::FILE).ok();
            let site = text.and_then(|text| Site::parse(&text).ok()).unwrap_or_default();
            (PathBuf::from(site.store), site.image_format)
        }
        None => (own(context), None),
    };
    let missing = |name: String| {
        store.join(name).symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    };
    let is_mountable = format != Some(ImageFormat::Squashfs) || !missing(names::squashfs(id));
    // One that the user may not look at has lost its ACL (a copy of a store, say): a pull gives it back.
    let has_permit = |uid| store.join(names::permit(uid, id)).symlink_metadata().is_ok();
    let is_permitted =
        has_permit(context.uid) || (context.helper.is_none() && users_for_root(&store).any(has_permit));
    is_permitted && !missing(names::image(id)) && is_mountable
}

/// Whether layers can be mounted here, as far as a user can see: there is a store, and its images are mounted as EROFS.
pub fn takes_layers(context: &UserContext) -> bool {
    trusted_store(context).is_some_and(|site| site.image_format != Some(ImageFormat::Squashfs))
}

/// What the site says of its trusted store, if there is one here.
fn trusted_store(context: &UserContext) -> Option<Site> {
    let site = std::fs::read_to_string(site::FILE).ok().and_then(|text| Site::parse(&text).ok());
    let site = site.unwrap_or_default();
    let is_there = Path::new(&site.store).symlink_metadata().is_ok();
    (context.helper.is_some() && is_there).then_some(site)
}

/// Removes from the trusted store, if there is one here, what killed writers have left and what nobody may use any more; gives its files.
pub fn sweep_trusted(context: &UserContext, dry_run: bool) -> Result<Vec<PathBuf>> {
    let Some(Site { store, .. }) = trusted_store(context) else { return Ok(vec![]) };
    let reply = ask(context, StoreRequest::Collect { budget: None, dry_run }, &mut |_| ())?;
    let StoreReply::Collected(Collected { images, files, .. }) = reply else {
        return Err(Error::NoAnswer);
    };
    if !dry_run {
        release(context)?;
    }
    let images = images.into_iter().map(|id| Path::new(&store).join(names::image(id)));
    Ok(images.chain(files).collect())
}

/// Has an image of the trusted store mounted, which takes a millisecond, so that its first start finds it so. What cannot be is told by that
/// start.
pub fn mount(context: &UserContext, id: ImageId) {
    if let Some(helper) = &context.helper
        && let Ok(helper) = Helper::spawn_for(helper, Base::Image(id))
    {
        helper.finish();
    }
}

/// Lets go of what is no longer in the trusted store.
pub fn release(context: &UserContext) -> Result<()> {
    context.helper.as_deref().map_or(Ok(()), release_by)
}

fn release_by(helper: &Path) -> Result<()> {
    let helper = Helper::spawn(helper)?;
    helper.ask(&Request::Release, &[])?;
    helper.done()?;
    helper.finish();
    Ok(())
}

/// What a pull needs to know of the user: their registries, and their credentials for those that the image may be in. `patience`: how long the
/// name service may take.
pub fn pull(
    context: &UserContext,
    reference: &str,
    platform: &str,
    patience: Duration,
) -> Result<StoreRequest> {
    let registries = RegistriesConf::texts()?;
    let mut conf = RegistriesConf::default();
    registries.iter().try_for_each(|(file, text)| conf.add(file, text))?;
    let names: Vec<Named> = match parse(reference)? {
        ImageReference::Registry(named) if named.is_local() => return Err(Error::NoImport(reference.into())),
        ImageReference::Registry(named) | ImageReference::Artifact(named) => vec![named],
        ImageReference::Short(short) => conf.candidates(&short)?,
        _ => {
            return Err(Error::NotInRegistry(reference.into()));
        }
    };
    let credentials = Credentials::load()?;
    let (mut logins, mut servers) = (vec![], BTreeSet::new());
    for name in &names {
        let endpoints = match conf.endpoints(name) {
            // The next of several may be used all the same.
            Err(skiff_registry::Error::Blocked { .. }) if names.len() > 1 => continue,
            endpoints => endpoints?,
        };
        for endpoint in endpoints {
            let place = format!("{}/{}", endpoint.server, endpoint.repository);
            logins.extend(match credentials.find(&endpoint.server, &endpoint.repository)? {
                Some(Credential::Basic { user, password }) => {
                    Some(RegistryLogin { place, basic: Some((user, password.0)), identity_token: None })
                }
                Some(Credential::IdentityToken(token)) => {
                    Some(RegistryLogin { place, basic: None, identity_token: Some(token.0) })
                }
                None => None,
            });
            servers.insert(asked_for(&endpoint.server).to_owned());
        }
    }
    // To another user no key goes that they need not.
    let concerned = |server: &str| context.helper.is_none() || servers.contains(server);
    let certificates = Certificates::of_user(concerned)?;
    Ok(StoreRequest::Pull {
        reference: reference.into(),
        platform: platform.into(),
        registries,
        logins,
        certificates,
        name_service_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
    })
}

/// A repository that is asked for an image before all other places.
#[derive(Clone)]
pub struct PullMirror {
    /// Host and port.
    pub server: String,
    /// The path there.
    pub repository: String,
}

/// Adds a mirror to a pull.
pub fn with_mirror(mut ask: StoreRequest, mirror: &PullMirror) -> Result<StoreRequest> {
    let StoreRequest::Pull { reference, registries, .. } = &mut ask else { return Ok(ask) };
    let ImageReference::Registry(image) = parse(reference)? else { return Ok(ask) };
    let mut conf = RegistriesConf::default();
    registries.iter().try_for_each(|(file, text)| conf.add(file, text))?;
    let PullMirror { server, repository } = mirror.clone();
    let text = conf.text_with_mirror(&image, &Endpoint { server, repository, insecure: true })?;
    registries.push(("mirror".into(), text));
    Ok(ask)
}

/// What an image in a registry is made of, for who passes it on to other nodes; its registry is asked by this process.
pub fn parts(context: &UserContext, reference: &str) -> Result<ImageParts> {
    let ask = pull(context, reference, &Platform::host().to_string(), PATIENT)?;
    let (client, image, _) = fetcher::process::asked(&ask)?;
    Ok(client.parts(image)?)
}

/// The image file that a registry keeps as an artifact, fetched by this process with the user's own rights.
pub fn artifact(
    reference: &str,
    platform: &str,
    context: &UserContext,
    patience: Duration,
) -> Result<ImageSource> {
    let (client, image, _) = fetcher::process::asked(&pull(context, reference, platform, patience)?)?;
    let (file, ..) = temporary()?;
    client.artifact(&image, SIF_LAYER, &file)?;
    Ok(ImageSource::fetched(file, reference)?)
}

/// The room that the store takes.
pub fn room(context: &UserContext) -> Result<crate::Usage> {
    match ask(context, StoreRequest::Usage, &mut |_| ())? {
        StoreReply::Usage(usage) => Ok(usage),
        _ => Err(Error::OtherAnswer("store".into())),
    }
}
