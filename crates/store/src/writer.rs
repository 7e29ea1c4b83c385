//! The store's writer: does what it is asked, as whoever owns the store. For the trusted store that is a process of the system
//! user's which the helper started, and which has no network: beside it `fetcher` asks registries. A user without the helper has a store
//! of their own, and is its writer and fetcher.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use skiff_erofs as erofs;
use skiff_image::source::ImageSource;
use skiff_ipc::{self as ipc, Until};
use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;
use skiff_registry::policy::Policies;
use skiff_spec::fault::Context as _;
use skiff_spec::image::ImageId;
use skiff_spec::site::ImageFormat;
use skiff_sys::allow::{self, NetworkAccess};
use skiff_sys::{IgnoreError, landlock};

use crate::error::{Error, Result, talk};
use crate::fetcher::process;
use crate::fetcher::{Fetcher, RemoteFetcher};
use crate::import::ImportJob;
use crate::layer::{self, LayerJob, Pace, ReceivedLayer};
use crate::listing;
use crate::protocol::{CheckedImage, LayerRequest, LayerState, StoreReply, StoreRequest};
use crate::pull::{LayerProgress, PullJob, PullWatch, Pulled, pull};
use crate::store::{ImageMetadata, Quota, Store, Usage};

/// So long may the user send nothing, or read nothing of what is sent.
const PATIENCE: Duration = Duration::from_secs(60);
/// So long may it take until the whole request has arrived, with its files: a user who asks for nothing must not keep a writer.
const QUESTION: Duration = Duration::from_secs(10);
/// A listing of an image's files comes in pieces of so many lines.
const LINES: usize = 1000;

/// A store, and for whom it is asked.
#[derive(Clone, Copy)]
pub struct StoreAccess<'a> {
    /// Directory of the store.
    pub store: &'a Path,
    /// Who asks.
    pub uid: u32,
    /// As what its images are mounted.
    pub format: ImageFormat,
    /// What each of its users may have of it.
    pub quota: Quota,
    /// The way to the user's process, which can ask the helper to let go of mounts; none where nothing is mounted.
    pub user: Option<&'a UnixStream>,
}

impl StoreAccess<'_> {
    fn open(&self) -> Result<Store> {
        let store = Store::open(self.store)?.with_quota(self.quota);
        store.remove_freed().ignore_error("the next one does so");
        let Some(user) = self.user else { return Ok(store) };
        let user = user.try_clone().context(|| "socket")?;
        // If nobody listens any more, nobody lets go.
        Ok(store.with_release(move || drop(ipc::send(&mut &user, &StoreReply::Removed))))
    }
}

/// The process that the helper starts, which sees nothing but the store. Its arguments are the store's path, the uid of the user it works
/// for, the format in which images are mounted, the bytes that each user may have (or nothing: a share), and the numbers of the sockets
/// to the user and to the fetcher.
pub fn run(args: &[String]) -> Result<()> {
    let bad = || Error::Misused("internal command: only the helper starts it");
    let [store, uid, format, quota, socket, fetcher] = args else { return Err(bad()) };
    let (uid, socket) = (uid.parse().map_err(|_| bad())?, socket.parse().map_err(|_| bad())?);
    let format = ImageFormat::of_name(format).ok_or_else(bad)?;
    let quota = match quota.as_str() {
        "" => Quota::Share,
        bytes => Quota::Bytes(bytes.parse().map_err(|_| bad())?),
    };
    // Others of its kind work for other users: none shall look into another, whatever becomes of it.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .context(|| "writer")?;
    let socket = skiff_sys::process::inherited_fd(socket).context(|| "socket")?;
    let mut socket = UnixStream::from(socket);
    let fetcher = fetcher.parse().map_err(|_| bad())?;
    let fetcher = UnixStream::from(skiff_sys::process::inherited_fd(fetcher).context(|| "socket")?);
    // Nobody speaks through a socket that listens, but a wait for that would last.
    socket.peer_addr().context(|| "socket")?;
    // Others wait for the locks that we hold: one who neither listens nor goes away must not keep us.
    socket.set_write_timeout(Some(PATIENCE)).context(|| "socket")?;
    if let Err(error) = confine(Path::new(store)) {
        return ipc::send(&mut socket, &StoreReply::Failed(error.into())).map_err(talk);
    }
    let until = Instant::now() + QUESTION;
    let Some(ask) = ipc::receive(&mut Until::new(&socket, until)).map_err(talk)? else { return Ok(()) };
    let user = socket.try_clone().context(|| "socket")?;
    let asked = StoreAccess { store: Path::new(store), uid, format, quota, user: Some(&user) };
    let answered = match ask {
        StoreRequest::Import { source, platform } => {
            let files =
                Until::new(&socket, until).receive_descriptors::<StoreRequest>(source.files.len() + 1);
            let source = files.map_err(talk).and_then(|files| Ok(ImageSource::given(source, files)?));
            source.and_then(|source| take_over(asked, source, &platform, &mut socket, fetcher))
        }
        StoreRequest::Open(id) => hand_out(asked, id, &mut socket),
        StoreRequest::Layer(wanted) => {
            let sent = Until::new(&socket, until).receive_descriptors::<StoreRequest>(1).map_err(talk);
            sent.and_then(|mut sent| {
                let sent = sent.pop().ok_or(Error::Misused("the store's writer: no socket for the layer"))?;
                take_layer(asked, &wanted, &sent.into(), &mut socket)
            })
        }
        ask => answer(asked, ask, Some(fetcher), &mut |reply| ipc::send(&mut socket, &reply).is_ok()),
    };
    // If nobody listens any more, nobody needs to know.
    answered.or_else(|error| ipc::send(&mut socket, &StoreReply::Failed(error.into()))).or(Ok(()))
}

/// All that is foreign is read after this: whoever takes the process over by that can change nothing but the store, start nothing, reach no
/// other process and no network, and has few of the kernel's calls to try.
fn confine(store: &Path) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(store, flags, Mode::empty()).context(|| store.display().to_string())?;
    // A kernel without Landlock goes without: `skiff doctor` says so.
    landlock::confine_changes_to(dir.as_fd()).context(|| "the store's writer: Landlock")?;
    Ok(allow::only_listed(NetworkAccess::Unused).context(|| "the store's writer: seccomp")?)
}

/// Imports from files that the user has opened.
fn take_over(
    asked: StoreAccess<'_>,
    source: ImageSource,
    platform: &str,
    socket: &mut UnixStream,
    fetcher: UnixStream,
) -> Result<()> {
    let remote = RemoteFetcher::new(fetcher)?;
    let policies = policies_of(&remote)?;
    let place = if policies.is_empty() { None } else { remote.place(source.opened())? };
    let source = source.lies_at(place);
    drop(remote);
    let mut say = |reply: StoreReply| ipc::send(socket, &reply).is_ok();
    let last = import(asked, &source, platform, &policies, &mut say)?;
    say(last);
    Ok(())
}

/// Takes a layer that the user sends.
fn take_layer(
    asked: StoreAccess<'_>,
    wanted: &LayerRequest,
    sent: &UnixStream,
    socket: &mut UnixStream,
) -> Result<()> {
    if asked.format != ImageFormat::Erofs {
        return Err(Error::Misused("layers are mounted by kernels with EROFS only"));
    }
    let store = asked.open()?;
    let job = LayerJob { store: &store, uid: asked.uid, wanted, sent, pace: Pace::default() };
    // A user who does not hear of it goes on waiting, as they would.
    let mut waiting = || drop(ipc::send(socket, &StoreReply::Waiting));
    let ReceivedLayer { there, removed, waited } = layer::receive(&job, &mut waiting)?;
    if removed > 0 {
        store.let_go_of_removed(Some(asked.uid))?;
    }
    let waited_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
    ipc::send(socket, &StoreReply::Layer { there, removed, waited_ms }).map_err(talk)
}

/// The site's, from who sees the host's files.
fn policies_of(remote: &RemoteFetcher) -> Result<Policies> {
    let text = remote.policy()?;
    Ok(Policies::of_text(text.as_ref())?)
}

/// Gives an image's file. Its kind is one that nothing can be changed by.
fn hand_out(asked: StoreAccess<'_>, id: ImageId, socket: &mut UnixStream) -> Result<()> {
    let (record, file) = open(asked.store, asked.uid, id)?;
    ipc::send(socket, &StoreReply::Opened(told(record))).map_err(talk)?;
    ipc::send_descriptors::<StoreReply>(socket, &[file.as_fd()]).map_err(talk)
}

/// What a user is told of an image: not in which repositories others have it.
fn told(record: ImageMetadata) -> Box<ImageMetadata> {
    Box::new(ImageMetadata { origins: vec![], ..record })
}

/// An image that the user may use.
pub fn open(store: &Path, uid: u32, id: ImageId) -> Result<(ImageMetadata, File)> {
    let store = Store::open(store)?;
    match store.find(id)?.filter(|_| store.permitted(uid, id)) {
        Some(record) => Ok((record, store.open_image(id)?)),
        None => Err(Error::NotYours(id)),
    }
}

/// Imports an image.
pub fn import(
    asked: StoreAccess<'_>,
    source: &ImageSource,
    platform: &str,
    policies: &Policies,
    say: &mut (dyn FnMut(StoreReply) -> bool + Send),
) -> Result<StoreReply> {
    let (store, uid, format) = (asked.open()?, asked.uid, asked.format);
    let platform = platform.parse::<Platform>()?;
    let wish = ImportJob { store: &store, source, policies, platform: &platform, uid };
    let pulled = crate::import::import(&wish, &mut Teller { say })?;
    make_mountable(&store, (pulled.id, uid), format)?;
    Ok(said_of(pulled, String::new()))
}

/// An image is of use only where the kernel mounts it.
fn make_mountable(store: &Store, (id, uid): (ImageId, u32), format: ImageFormat) -> Result<()> {
    match format {
        ImageFormat::Erofs => Ok(()),
        ImageFormat::Squashfs => store.make_squashfs(id, uid),
    }
}

/// Does what is asked; `say` returns whether anybody still listens. Without a fetcher this process asks registries itself.
pub fn answer(
    of: StoreAccess<'_>,
    ask: StoreRequest,
    fetcher: Option<UnixStream>,
    say: &mut (dyn FnMut(StoreReply) -> bool + Send),
) -> Result<()> {
    let (store, uid, format) = (of.open()?, of.uid, of.format);
    let last = match ask {
        ask @ StoreRequest::Pull { .. } => pull_image(&store, of, &ask, fetcher, say)?,
        // Files come along with these, or go back.
        StoreRequest::Import { .. } | StoreRequest::Layer(_) | StoreRequest::Open(_) => {
            return Err(Error::Misused("the store's writer: asked without a socket"));
        }
        StoreRequest::Find(id) => {
            let found = if store.permitted(uid, id) { store.find(id)? } else { None };
            // It may be from before, or from a node whose kernel mounts other ones.
            found.iter().try_for_each(|_| make_mountable(&store, (id, uid), format))?;
            StoreReply::Found(found.map(told))
        }
        StoreRequest::Forget(id) => {
            store.forbid(uid, id)?;
            store.let_go_of_removed(Some(uid))?;
            StoreReply::Done
        }
        StoreRequest::Usage => StoreReply::Usage(usage(&store, uid)?),
        // What one user has in use is not for another to throw away; what nobody has is nobody's.
        StoreRequest::Collect { budget: Some(_), .. } if !is_owner(uid) => {
            return Err(Error::NotAdministrator);
        }
        StoreRequest::Collect { budget, dry_run } => {
            let collected = store.collect(budget, dry_run)?;
            if !dry_run {
                store.let_go_of_removed(None)?;
            }
            StoreReply::Collected(collected)
        }
        StoreRequest::Verify(only) => StoreReply::Verified(verify(&store, uid, only)?),
        StoreRequest::Files(id) => files(&store, uid, id, say)?,
    };
    say(last);
    Ok(())
}

fn pull_image(
    store: &Store,
    of: StoreAccess<'_>,
    ask: &StoreRequest,
    fetcher: Option<UnixStream>,
    say: &mut (dyn FnMut(StoreReply) -> bool + Send),
) -> Result<StoreReply> {
    let StoreRequest::Pull { platform, .. } = ask else {
        return Err(Error::Misused("the store's writer: not a request to pull"));
    };
    let platform = &platform.parse::<Platform>()?;
    let (fetcher, policies, image): (Box<dyn Fetcher>, _, _) = match fetcher {
        None => {
            let (client, image, _) = process::asked(ask)?;
            (Box::new(client), Policies::load()?, image)
        }
        Some(stream) => {
            let remote = RemoteFetcher::new(stream)?;
            let policies = policies_of(&remote)?;
            let image = remote.begin(serde_json::to_string(ask)?)?;
            (Box::new(remote), policies, image)
        }
    };
    let job =
        PullJob { store, fetcher: &*fetcher, policies: &policies, image: &image, platform, uid: of.uid };
    let pulled = pull(&job, &mut Teller { say })?;
    make_mountable(store, (pulled.id, of.uid), of.format)?;
    Ok(said_of(pulled, image.to_string()))
}

fn said_of(pulled: Pulled, name: String) -> StoreReply {
    let Pulled { id, digest, record, there } = pulled;
    StoreReply::Pulled { name, id, digest: digest.to_string(), record: told(record), there }
}

/// What the store takes up; whose it is sees of all users how much of it, others only of themselves.
fn usage(store: &Store, uid: u32) -> Result<Usage> {
    let users = match is_owner(uid) {
        true => store.usage_of_users()?,
        false => vec![store.usage_of(uid)?],
    };
    Ok(Usage { users, ..store.usage()? })
}

/// Whether the user is whom the store belongs to, or the machine.
fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::getuid().as_raw()
}

fn verify(store: &Store, uid: u32, only: Option<ImageId>) -> Result<Vec<CheckedImage>> {
    let all = store.images()?;
    let wanted = all
        .into_iter()
        .filter(|id| only.is_none_or(|o| o == *id) && (is_owner(uid) || store.permitted(uid, *id)));
    let check = |id: ImageId| CheckedImage { id, fault: store.verify(id).err().map(|e| e.to_string()) };
    Ok(wanted.map(check).collect())
}

fn files(
    store: &Store,
    uid: u32,
    id: ImageId,
    say: &mut (dyn FnMut(StoreReply) -> bool + Send),
) -> Result<StoreReply> {
    if !store.permitted(uid, id) {
        return Err(Error::NotYours(id));
    }
    let file = store.open_image(id)?;
    let reader = erofs::Reader::open(file, id.to_string())?;
    let mut lines = vec![];
    for file in reader.files() {
        lines.push(listing::line(&file?));
        if lines.len() == LINES && !say(StoreReply::Lines(std::mem::take(&mut lines))) {
            break;
        }
    }
    say(StoreReply::Lines(lines));
    Ok(StoreReply::Done)
}

/// Passes on how a pull goes.
struct Teller<'a> {
    say: &'a mut (dyn FnMut(StoreReply) -> bool + Send),
}

impl PullWatch for Teller<'_> {
    fn waiting(&mut self) {
        (self.say)(StoreReply::Waiting);
    }

    fn layers(&mut self, digests: &[Digest], progress: &[LayerProgress]) -> bool {
        let layer = |(digest, p): (&Digest, &LayerProgress)| LayerState {
            digest: digest.to_string(),
            size: p.size,
            fetched: p.fetched,
            unpacked: p.unpacked,
        };
        (self.say)(StoreReply::Layers(digests.iter().zip(progress).map(layer).collect()))
    }
}
