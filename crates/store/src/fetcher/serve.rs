//! The fetcher's side: one image of one user, asked for once.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use skiff_image::source::path_of;
use skiff_ipc::{receive, receive_descriptors, send};
use skiff_oci::digest::Digest;
use skiff_oci::manifest::Descriptor;
use skiff_oci::platform::Platform;
use skiff_oci::reference::Named;
use skiff_registry::policy::PolicyFiles;
use skiff_registry::{self as registry, BlobDir, Client, Event, Fetch, Origin, Resolved, Told};
use skiff_sys::IgnoreError;
use skiff_sys::SystemContext;

use super::Fetcher;
use super::local::ask_for;
use super::protocol::{FetcherAnswer, FetcherQuestion, told};
use crate::error::{Error, Result};

/// Understands the wish of a user's: whom to ask, for what, for which machine.
pub type Begin<'a> = &'a dyn Fn(&str) -> Result<(Client, Named, Platform)>;

/// Answers until nobody asks any more.
///
/// # Errors
/// The other process says what makes no sense.
pub fn serve(
    link: UnixStream,
    dir: &BlobDir,
    policy: registry::Result<Option<PolicyFiles>>,
    begin: Begin<'_>,
) -> Result<()> {
    let to = link.try_clone().on("use", "the socket to the store's writer")?;
    let mut server =
        Server { dir, policy: Some(policy), begin, to: Arc::new(Mutex::new(to)), pull: None, fetch: None };
    let mut from = &link;
    while let Some(question) = receive(&mut from)? {
        let answer = match question {
            FetcherQuestion::Place => place(&link).map(Some),
            question => server.answer(question),
        };
        if let Some(answer) = answer.unwrap_or_else(|error| Some(FetcherAnswer::Failed(told(&error)))) {
            server.say(&answer)?;
        }
    }
    Ok(())
}

fn place(link: &UnixStream) -> Result<FetcherAnswer> {
    let files = receive_descriptors::<FetcherQuestion>(link, 1)?;
    let path = files.first().and_then(|file| path_of(file.as_fd()));
    Ok(FetcherAnswer::Place(path.map(|path| path.display().to_string())))
}

struct Server<'a> {
    dir: &'a BlobDir,
    /// Told once.
    policy: Option<registry::Result<Option<PolicyFiles>>>,
    begin: Begin<'a>,
    to: Arc<Mutex<UnixStream>>,
    pull: Option<RequestedImage>,
    fetch: Option<Fetch>,
}

/// What the user wants, and what is known of it.
struct RequestedImage {
    client: Client,
    image: Named,
    platform: Platform,
    found: Option<Resolved>,
}

impl Server<'_> {
    fn say(&self, answer: &FetcherAnswer) -> Result<()> {
        Ok(send(&mut *self.to.lock().unwrap_or_else(PoisonError::into_inner), answer)?)
    }

    fn answer(&mut self, question: FetcherQuestion) -> Result<Option<FetcherAnswer>> {
        Ok(Some(match question {
            FetcherQuestion::Policy => match self.policy.take() {
                Some(policy) => FetcherAnswer::Policy(policy?),
                None => return Err(invalid()),
            },
            FetcherQuestion::Begin(wish) => {
                if self.pull.is_some() {
                    return Err(invalid());
                }
                let (client, image, platform) = (self.begin)(&wish)?;
                let name = image.to_string();
                self.pull = Some(RequestedImage { client, image, platform, found: None });
                FetcherAnswer::Name(name)
            }
            FetcherQuestion::Digest => {
                let RequestedImage { client, image, .. } = self.wanted()?;
                FetcherAnswer::Digest(client.digest(image)?.to_string())
            }
            FetcherQuestion::Resolve => self.resolve()?,
            FetcherQuestion::Signatures => {
                let (client, found) = self.found()?;
                FetcherAnswer::Signatures(client.signatures(found)?)
            }
            FetcherQuestion::Origin => {
                let (client, found) = self.found()?;
                FetcherAnswer::Origins(Fetcher::origin(client, found).into_iter().collect())
            }
            FetcherQuestion::ClaimedOrigins => {
                let (client, found) = self.found()?;
                FetcherAnswer::Origins(Fetcher::claimed_origins(client, found))
            }
            FetcherQuestion::AskOrigin { origin, layers } => self.ask_origin(&origin, &layers)?,
            FetcherQuestion::Fetch { number } => {
                self.fetch = None;
                self.fetch = Some(self.fetch(number)?);
                FetcherAnswer::Done
            }
            FetcherQuestion::Want { layer, begin, end, read } => {
                self.with_layer(layer, |fetch, digest| {
                    fetch.read_before(digest, read);
                    fetch.wanted(digest, begin, end);
                })?;
                return Ok(None);
            }
            FetcherQuestion::Read { layer, read } => {
                self.with_layer(layer, |fetch, digest| fetch.read_before(digest, read))?;
                return Ok(None);
            }
            FetcherQuestion::Settle { layer, round, got } => {
                let got = got.map(|got| got.parse::<Digest>().map_err(|_| invalid())).transpose()?;
                self.with_layer(layer, |fetch, digest| fetch.settle(digest, round, got))?;
                return Ok(None);
            }
            FetcherQuestion::Place => return Err(invalid()),
        }))
    }

    fn wanted(&self) -> Result<&RequestedImage> {
        self.pull.as_ref().ok_or_else(invalid)
    }

    fn found(&self) -> Result<(&Client, &Resolved)> {
        let wanted = self.wanted()?;
        Ok((&wanted.client, wanted.found.as_ref().ok_or_else(invalid)?))
    }

    fn resolve(&mut self) -> Result<FetcherAnswer> {
        let wanted = self.pull.as_mut().ok_or_else(invalid)?;
        let found = wanted.client.resolve(&wanted.image, &wanted.platform)?;
        let text = |bytes: &[u8]| {
            let why = |_| Error::unsound(wanted.image.to_string(), "it is not UTF-8");
            String::from_utf8(bytes.to_vec()).map_err(why)
        };
        let documents = found.documents.iter();
        let documents =
            documents.map(|(bytes, kind)| Ok((text(bytes)?, kind.clone()))).collect::<Result<_>>()?;
        let answer = FetcherAnswer::Documents {
            digest: found.digest.to_string(),
            documents,
            config: text(&found.config_bytes)?,
        };
        wanted.found = Some(found);
        Ok(answer)
    }

    /// Nobody is asked whom the user's wish did not lead to: an image that took over the writer has no way to tell others anything.
    fn ask_origin(&self, origin: &Origin, layers: &[usize]) -> Result<FetcherAnswer> {
        let (client, found) = self.found()?;
        let is_known = Fetcher::origin(client, found).as_ref() == Some(origin)
            || Fetcher::claimed_origins(client, found).contains(origin);
        if !is_known {
            return Err(invalid());
        }
        let layer = |number: &usize| found.manifest.layers.get(*number).map(|layer| &layer.blob);
        let layers: Option<Vec<&Descriptor>> = layers.iter().map(layer).collect();
        Fetcher::ask_origin(client, found, origin, &layers.ok_or_else(invalid)?)?;
        Ok(FetcherAnswer::Done)
    }

    fn fetch(&self, number: u32) -> Result<Fetch> {
        let (client, found) = self.found()?;
        let digests: Vec<Digest> = found.manifest.layers.iter().map(|layer| layer.blob.digest).collect();
        let to = Arc::clone(&self.to);
        let tell = move |digest: &Digest, event: Event| {
            let Some(layer) = digests.iter().position(|known| known == digest) else { return };
            let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
            send(&mut *to, &FetcherAnswer::Event { number, layer, event }).ignore_error(
                "where nobody listens any more, the next question does not come either, and that ends it",
            );
        };
        let fetch = client.fetch_for(&found.source, self.dir.clone(), Arc::new(tell))?;
        ask_for(&fetch, &found.manifest.layers);
        Ok(fetch)
    }

    fn with_layer(&self, layer: usize, work: impl FnOnce(&Fetch, &Digest)) -> Result<()> {
        let (_, found) = self.found()?;
        let layer = found.manifest.layers.get(layer).ok_or_else(invalid)?;
        // Of one that is given up, word may still be on its way.
        if let Some(fetch) = &self.fetch {
            work(fetch, &layer.blob.digest);
        }
        Ok(())
    }
}

fn invalid() -> Error {
    let message = "the store's writer: sent an invalid message".into();
    registry::Error::Told(Told { message, hint: None, is_refusal: false }).into()
}
