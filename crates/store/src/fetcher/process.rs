//! Who asks registries: for the trusted store a process of its own, which has the network and can write nothing but a user's layers.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use skiff_oci::platform::Platform;
use skiff_oci::reference::{ImageReference, Named};
use skiff_registry::auth::{Credential, Credentials, Secret};
use skiff_registry::policy::{Policies, PolicyFiles};
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{BlobDir, Certificates, Client, ClientSettings, site_places};
use skiff_spec::fault::Context as _;
use skiff_spec::image::ImageId;
use skiff_sys::allow::{self, NetworkAccess};
use skiff_sys::landlock;

use crate::error::{Error, Result};
use crate::fetcher::{image_id, serve};
use crate::file::parse;
use crate::protocol::{RegistryLogin, StoreRequest};
use crate::store::Store;

/// Where configuration, and what the C library reads, lies.
const READABLE: [&str; 2] = ["/etc", "/usr"];
/// What tells names of hosts; links, often.
const NAMES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// The process that the helper becomes. Its arguments are the store's path, the uid of the user it works for, and the number of the socket
/// to the writer.
pub fn run(args: &[String]) -> Result<()> {
    let bad = || Error::Misused("internal command: only the helper starts it");
    let [store, uid, socket] = args else { return Err(bad()) };
    let (uid, socket) = (uid.parse().map_err(|_| bad())?, socket.parse().map_err(|_| bad())?);
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .context(|| "fetcher")?;
    let socket = UnixStream::from(skiff_sys::process::inherited_fd(socket).context(|| "socket")?);
    // Before anybody is asked: it may lie, and have its keys, where this process reads nothing later.
    let policy = PolicyFiles::of_site();
    let blobs = Store::open(Path::new(store)).and_then(|store| store.blobs(uid))?;
    confine(&blobs)?;
    let dir = BlobDir::open(&blobs)?;
    serve(socket, &dir, policy, &begin)
}

/// From now on it changes nothing but the user's layers, and reads nothing besides but what it needs to ask registries: no image, of nobody.
fn confine(blobs: &Path) -> Result<()> {
    let open = |path: &Path, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
    let dir = open(blobs, OFlags::PATH | OFlags::DIRECTORY).context(|| blobs.display().to_string())?;
    // The names' files may be replaced meanwhile, beside what was there.
    let names = NAMES.iter().filter_map(|file| Some(Path::new(file).canonicalize().ok()?.parent()?.into()));
    let readable: BTreeSet<PathBuf> =
        READABLE.iter().map(PathBuf::from).chain(names).chain(site_places()).collect();
    // Opened by what links lead to. What is not there is not read.
    let readable: Vec<OwnedFd> = readable.iter().filter_map(|path| open(path, OFlags::PATH).ok()).collect();
    // A kernel without Landlock goes without: `skiff doctor` says so.
    landlock::confine_to(dir.as_fd(), &readable).context(|| "the store's fetcher: Landlock")?;
    Ok(allow::only_listed(NetworkAccess::Used).context(|| "the store's fetcher: seccomp")?)
}

fn begin(wish: &str) -> Result<(Client, Named, Platform)> {
    asked(&serde_json::from_str(wish)?)
}

/// Which image a name means for the machine that is asked about, as far as its registry and the policies go: nothing is got, and no
/// store is needed.
pub fn resolve(ask: &StoreRequest) -> Result<(ImageId, String)> {
    let (client, image, platform) = asked(ask)?;
    let found = client.resolve(&image, &platform)?;
    let policies = Policies::load()?;
    policies.admit(&found, || client.signatures(&found))?;
    Ok((image_id(&found), image.to_string()))
}

/// The one image of that name which the user's own policy accepts; nothing if that accepts whatever it is. The writer of the trusted store
/// is another user and does not see that policy, so it must get no other one: nor one of another registry, so the name is made full.
pub fn vouched(ask: &mut StoreRequest) -> Result<Option<ImageId>> {
    let policies = Policies::of_user()?;
    if policies.is_empty() {
        return Ok(None);
    }
    let (_, image, _) = asked(ask)?;
    if let StoreRequest::Pull { reference, .. } = ask {
        *reference = image.to_string();
    }
    match policies.accepts_any(&image) {
        true => Ok(None),
        false => resolve(ask).map(|(id, _)| Some(id)),
    }
}

/// Whom to ask, for what, for which machine.
pub fn asked(ask: &StoreRequest) -> Result<(Client, Named, Platform)> {
    let StoreRequest::Pull { reference, platform, registries, logins, certificates, name_service_ms } = ask
    else {
        return Err(Error::Misused("the store's fetcher: not a request to pull"));
    };
    let client = client(registries, logins, certificates, *name_service_ms)?;
    let image = name(&client, reference)?;
    let platform = platform.parse::<Platform>()?;
    Ok((client, image, platform))
}

fn client(
    registries: &[(String, String)],
    logins: &[RegistryLogin],
    certificates: &Certificates,
    name_service_ms: u32,
) -> Result<Client> {
    let mut conf = RegistriesConf::default();
    for (file, text) in registries {
        conf.add(file, text)?;
    }
    let mut credentials = Credentials::default();
    for RegistryLogin { place, basic, identity_token } in logins {
        let credential = match (basic.clone(), identity_token.clone()) {
            (_, Some(token)) => Credential::IdentityToken(Secret(token)),
            (Some((user, password)), None) => Credential::Basic { user, password: Secret(password) },
            (None, None) => continue,
        };
        credentials.add(place.clone(), credential);
    }
    let resolve = Duration::from_millis(name_service_ms.into()).min(ClientSettings::PATIENT);
    let settings =
        ClientSettings { certificates: certificates.clone(), resolve, ..ClientSettings::default() };
    Ok(Client::new(settings, conf, credentials))
}

fn name(client: &Client, reference: &str) -> Result<Named> {
    match parse(reference)? {
        ImageReference::Registry(named) | ImageReference::Artifact(named) => Ok(named.with_default_tag()),
        ImageReference::Short(short) => Ok(client.complete(&short)?.with_default_tag()),
        _ => Err(Error::NotInRegistry(reference.into())),
    }
}
