//! The writer's side: registries asked by another process, whose word is not believed.

use std::io::BufReader;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use skiff_image::Error::WrongDigest;
use skiff_image::blob::Blob;
use skiff_ipc::{receive, send, send_descriptors};
use skiff_oci::digest::Digest;
use skiff_oci::hash::digest_like;
use skiff_oci::manifest::{self, Descriptor, Document, ImageConfig};
use skiff_oci::platform::Platform;
use skiff_oci::reference::Named;
use skiff_registry::policy::{PolicyFiles, Signature};
use skiff_registry::{
    self as registry, BlobDir, Event, Growing, MAX_INDEXES, Origin, Repositories, Resolved,
};
use skiff_sys::IgnoreError;
use skiff_sys::SystemError;

use super::blob::FetchedBlob;
use super::protocol::{FetcherAnswer, FetcherQuestion, ended, nonsense};
use super::{Fetcher, Fetching};
use crate::error::{Error, Result};

/// How much is read before the fetcher is told.
const TELL: u64 = 1 << 20;
/// How much is read before it leaves the page cache.
const LET_GO: u64 = 8 << 20;

/// The way to the fetcher.
pub struct RemoteFetcher {
    link: Arc<Link>,
    answers: Mutex<Receiver<FetcherAnswer>>,
    fetches: AtomicU32,
    listener: Option<JoinHandle<()>>,
}

/// What the threads share.
struct Link {
    stream: UnixStream,
    to: Mutex<()>,
    now: Mutex<Now>,
}

/// What is being fetched.
#[derive(Default)]
struct Now {
    number: u32,
    dir: Option<BlobDir>,
    /// By the layer's number; those that come twice are known by the first.
    growing: Vec<Arc<Growing>>,
    has_ended: bool,
}

impl RemoteFetcher {
    /// By a socket whose other end has [`super::serve()`].
    ///
    /// # Errors
    /// Of the system.
    pub fn new(stream: UnixStream) -> Result<RemoteFetcher> {
        let fail = |e: std::io::Error| SystemError::new("use", "the socket to the store's fetcher", e);
        let from = stream.try_clone().map_err(fail)?;
        let link = Arc::new(Link { stream, to: Mutex::default(), now: Mutex::default() });
        let (answered, answers) = channel();
        let listening = Arc::clone(&link);
        let listener = std::thread::Builder::new().name("fetcher".into());
        let listener = listener.spawn(move || listening.listen(from, &answered)).map_err(fail)?;
        Ok(RemoteFetcher {
            link,
            answers: Mutex::new(answers),
            fetches: AtomicU32::new(0),
            listener: Some(listener),
        })
    }

    /// The site's policy. To be asked before anything else.
    ///
    /// # Errors
    /// It cannot be read, or is no policy.
    pub fn policy(&self) -> Result<Option<PolicyFiles>> {
        match self.ask(&FetcherQuestion::Policy)? {
            FetcherAnswer::Policy(text) => Ok(text),
            _ => Err(nonsense()),
        }
    }

    /// Where a file lies, as the host names it.
    ///
    /// # Errors
    /// The fetcher has gone.
    pub fn place(&self, file: BorrowedFd<'_>) -> Result<Option<PathBuf>> {
        let sent = || {
            self.link.say(&FetcherQuestion::Place)?;
            Ok(send_descriptors::<FetcherQuestion>(&self.link.stream, &[file])?)
        };
        match self.answer(sent)? {
            FetcherAnswer::Place(path) => Ok(path.map(PathBuf::from)),
            _ => Err(nonsense()),
        }
    }

    /// Says what the user wants; gives the image's name in full.
    ///
    /// # Errors
    /// The wish makes no sense, or no registry has the name.
    pub fn begin(&self, wish: String) -> Result<Named> {
        match self.ask(&FetcherQuestion::Begin(wish))? {
            FetcherAnswer::Name(name) => name.parse().map_err(Error::Reference),
            _ => Err(nonsense()),
        }
    }

    fn ask(&self, question: &FetcherQuestion) -> Result<FetcherAnswer> {
        self.answer(|| self.link.say(question))
    }

    fn answer(&self, ask: impl FnOnce() -> Result<()>) -> Result<FetcherAnswer> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        ask()?;
        match answers.recv().map_err(|_| ended())? {
            FetcherAnswer::Failed(told) => Err(registry::Error::Told(told).into()),
            answer => Ok(answer),
        }
    }

    fn origins(&self, question: &FetcherQuestion) -> Vec<Origin> {
        // Who cannot say has none: then layers are the proof.
        match self.ask(question) {
            Ok(FetcherAnswer::Origins(origins)) => origins,
            _ => vec![],
        }
    }
}

impl Drop for RemoteFetcher {
    fn drop(&mut self) {
        self.link.stream.shutdown(Shutdown::Both).ignore_error("it may have gone already");
        if let Some(listener) = self.listener.take() {
            listener.join().ignore_error("one that panicked has said so");
        }
    }
}

impl Link {
    fn say(&self, question: &FetcherQuestion) -> Result<()> {
        let _turn = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(send(&mut &self.stream, question)?)
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, from: UnixStream, answered: &Sender<FetcherAnswer>) {
        let mut from = BufReader::new(from);
        while let Ok(Some(answer)) = receive(&mut from) {
            let is_over = match answer {
                FetcherAnswer::Event { number, layer, event } => self.apply(number, layer, event).is_err(),
                answer => answered.send(answer).is_err(),
            };
            if is_over {
                break;
            }
        }
        let mut now = self.now();
        now.has_ended = true;
        now.growing.iter().for_each(|growing| growing.fail_for_good(ended()));
    }

    fn apply(&self, number: u32, layer: usize, event: Event) -> Result<()> {
        let now = self.now();
        if number != now.number {
            return Ok(());
        }
        let (Some(growing), Some(dir)) = (now.growing.get(layer).cloned(), now.dir.clone()) else {
            return Err(nonsense());
        };
        drop(now);
        if growing.apply(event, || dir.open_data(growing.digest()))? { Ok(()) } else { Err(nonsense()) }
    }
}

impl Fetcher for RemoteFetcher {
    fn digest(&self, image: &Named) -> Result<Digest> {
        match self.ask(&FetcherQuestion::Digest)? {
            FetcherAnswer::Digest(text) => {
                let digest = text.parse::<Digest>().map_err(|_| nonsense())?;
                Ok(image.digest().copied().unwrap_or(digest))
            }
            _ => Err(nonsense()),
        }
    }

    fn resolve(&self, image: &Named, platform: &Platform) -> Result<Resolved> {
        match self.ask(&FetcherQuestion::Resolve)? {
            FetcherAnswer::Documents { digest, documents, config } => {
                let digest = digest.parse::<Digest>().map_err(|_| nonsense())?;
                follow(image, platform, digest, documents, config.into_bytes())
            }
            _ => Err(nonsense()),
        }
    }

    fn signatures(&self, _found: &Resolved) -> Result<Vec<Signature>> {
        match self.ask(&FetcherQuestion::Signatures)? {
            FetcherAnswer::Signatures(signatures) => Ok(signatures),
            _ => Err(nonsense()),
        }
    }

    fn origin(&self, _found: &Resolved) -> Option<Origin> {
        self.origins(&FetcherQuestion::Origin).pop()
    }

    fn claimed_origins(&self, _found: &Resolved) -> Vec<Origin> {
        self.origins(&FetcherQuestion::ClaimedOrigins)
    }

    fn ask_origin(&self, found: &Resolved, origin: &Origin, layers: &[&Descriptor]) -> Result<()> {
        let number = |wanted: &&Descriptor| found.manifest.layers.iter().position(|l| l.blob == **wanted);
        let layers = layers.iter().map(number).collect::<Option<Vec<usize>>>().ok_or_else(nonsense)?;
        match self.ask(&FetcherQuestion::AskOrigin { origin: origin.clone(), layers })? {
            FetcherAnswer::Done => Ok(()),
            _ => Err(nonsense()),
        }
    }

    fn fetch(&self, found: &Resolved, dir: BlobDir) -> Result<Box<dyn Fetching>> {
        let number = self.fetches.fetch_add(1, Ordering::Relaxed) + 1;
        let layers = &found.manifest.layers;
        let all: Vec<Arc<Growing>> =
            layers.iter().map(|l| Arc::new(Growing::remote(l.blob.digest, l.blob.size))).collect();
        let first =
            |at: usize| layers.iter().position(|l| l.blob.digest == layers[at].blob.digest).unwrap_or(at);
        let blob = |at: usize| RemoteBlob {
            inner: FetchedBlob::new(&all[first(at)]),
            growing: Arc::clone(&all[first(at)]),
            link: Arc::clone(&self.link),
            layer: first(at),
            read: AtomicU64::new(0),
            told: AtomicU64::new(0),
            let_go: AtomicU64::new(0),
        };
        let blobs = (0..layers.len()).map(blob).collect();
        {
            let mut now = self.link.now();
            if now.has_ended {
                return Err(ended().into());
            }
            *now = Now { number, dir: Some(dir), growing: all, has_ended: false };
        }
        match self.ask(&FetcherQuestion::Fetch { number })? {
            FetcherAnswer::Done => Ok(Box::new(RemoteLayers(blobs))),
            _ => Err(nonsense()),
        }
    }
}

/// Follows documents from the digest of a name to an image: each must have the digest that the one before says.
fn follow(
    image: &Named,
    platform: &Platform,
    digest: Digest,
    documents: Vec<(String, Option<String>)>,
    config_bytes: Vec<u8>,
) -> Result<Resolved> {
    let image = image.clone().with_default_tag();
    let name = image.to_string();
    if image.digest().is_some_and(|pinned| *pinned != digest) || documents.len() > MAX_INDEXES {
        return Err(nonsense());
    }
    let mut wanted = digest;
    let kept = documents.iter().map(|(text, kind)| (text.clone().into_bytes(), kind.clone())).collect();
    for (text, kind) in documents {
        let bytes = text.into_bytes();
        if digest_like(&wanted, &bytes) != wanted {
            return Err(nonsense());
        }
        match manifest::parse(&name, &bytes, kind.as_deref())? {
            Document::Index(index) => wanted = index.choose(&name, platform)?.digest,
            Document::Manifest(manifest) => {
                let object = format!("the configuration of {name}");
                manifest.config.check(&object, &config_bytes)?;
                let config = ImageConfig::parse(&object, &config_bytes)?;
                manifest.check_config(&name, &config, platform)?;
                return Ok(Resolved {
                    name: image,
                    digest,
                    manifest_digest: wanted,
                    manifest,
                    manifest_bytes: bytes,
                    documents: kept,
                    config,
                    config_bytes,
                    source: Repositories::elsewhere(),
                });
            }
        }
    }
    Err(nonsense())
}

/// The fetcher goes on with these until the next ones are asked for, or nobody asks any more.
struct RemoteLayers(Vec<RemoteBlob>);

impl Fetching for RemoteLayers {
    fn blobs(&self) -> Vec<&dyn Blob> {
        self.0.iter().map(|blob| blob as &dyn Blob).collect()
    }

    fn arrived(&self, layer: usize) -> u64 {
        self.0[layer].growing.progress().0
    }
}

/// A layer that another process fetches into a file. It is hashed here, as it is read.
struct RemoteBlob {
    inner: FetchedBlob,
    growing: Arc<Growing>,
    link: Arc<Link>,
    layer: usize,
    /// How far it was read in order; how much of that was told; how much has left the page cache.
    read: AtomicU64,
    told: AtomicU64,
    let_go: AtomicU64,
}

impl RemoteBlob {
    fn note_read(&self, begin: u64, end: u64) {
        let before = self.read.load(Ordering::Relaxed);
        if begin > before || end <= before {
            return;
        }
        self.read.store(end, Ordering::Relaxed);
        if end - self.told.load(Ordering::Relaxed) >= TELL || end == self.growing.size() {
            self.told.store(end, Ordering::Relaxed);
            self.link
                .say(&FetcherQuestion::Read { layer: self.layer, read: end })
                .ignore_error("who has gone shows in the next read that waits");
        }
        if end - self.let_go.load(Ordering::Relaxed) >= LET_GO {
            self.let_go.store(end, Ordering::Relaxed);
            self.growing.let_go(end);
        }
    }
}

impl Blob for RemoteBlob {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn digest(&self) -> Option<Digest> {
        Some(*self.growing.digest())
    }

    fn has(&self, end: u64) -> bool {
        self.inner.has(end)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> skiff_image::Result<()> {
        let end = offset.saturating_add(buffer.len() as u64);
        if !self.inner.has(end) {
            let read = self.read.load(Ordering::Relaxed);
            self.told.store(read, Ordering::Relaxed);
            self.link.say(&FetcherQuestion::Want { layer: self.layer, begin: offset, end, read })?;
        }
        self.inner.read_at(buffer, offset)?;
        self.note_read(offset, end);
        Ok(())
    }

    fn settle(&self, got: Option<Digest>) -> skiff_image::Result<()> {
        let round = self.inner.reader().round();
        let got = got.map(|got| got.to_string());
        let is_right = got.is_none();
        self.link.say(&FetcherQuestion::Settle { layer: self.layer, round, got })?;
        // Until it is released, or comes anew.
        self.inner.settle(None)?;
        if is_right { Ok(()) } else { Err(WrongDigest { layer: self.name().into() }) }
    }

    fn restart(&self) {
        for counter in [&self.read, &self.told, &self.let_go] {
            counter.store(0, Ordering::Relaxed);
        }
        self.inner.restart();
    }

    fn abandon(&self) {
        self.inner.abandon();
    }
}
