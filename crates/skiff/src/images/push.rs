//! `skiff push`: an image of the user's, by their own process and with their own login, to a registry.

mod memory;
mod stack;

use std::cell::{Cell, RefCell};
use std::io::{Cursor, Read};
use std::time::{Duration, Instant};

use serde::Serialize;
use skiff_cli::{LayerPacking, PushArgs};
use skiff_image::export::ImageDocuments;
use skiff_image::unpack::LeftOut;
use skiff_oci::digest::Digest;
use skiff_oci::manifest::Compression;
use skiff_oci::reference::{ImageReference, Named};
use skiff_output as output;
use skiff_plan::progress::PullProgress;
use skiff_registry::auth::Credentials;
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{BlobArrival, Certificates, Client, ClientSettings, PushSummary, Upload};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_store::file::parse;
use skiff_store::index::ImageName;
use skiff_store::protocol::LayerState;
use skiff_store::{find, ours};
use skiff_user::context::UserContext;

use memory::PushMemory;
use stack::{ImageStack, LayerPlan, PlannedLayer, Planning};

/// Between two pictures of how far it is.
const PAUSE: Duration = Duration::from_millis(100);
/// How often layers are planned: as is remembered, anew, and without what a registry does not give any more.
const MOST_PLANS: usize = 4;
/// Digits of a digest that tell layers apart for a person.
const SHOWN_DIGITS: usize = 12;

/// Pushes the image; prints its digest in the registry.
pub fn push(args: &PushArgs) -> Result<()> {
    let PushArgs { shown, compression, image, destination } = args;
    let context = UserContext::load()?;
    let entry = find(&context, image)?;
    let to = place(&entry, image, destination.as_deref())?;
    let pushing = Pushing {
        args,
        to,
        client: registries()?,
        memory: PushMemory::open(&context)?,
        stack: ImageStack::open(&context, &entry)?,
        compression: match compression {
            LayerPacking::Gzip => Compression::Gzip,
            LayerPacking::Zstd => Compression::Zstd,
            LayerPacking::None => Compression::Plain,
        },
    };
    let PushedImage { digest, summary, layers, sockets } = pushing.push()?;
    LeftOut { sockets, ..LeftOut::default() }.notes().iter().for_each(|text| output::note(text));
    match shown.json {
        true => output::json(&ShownPush {
            image,
            destination: pushing.to.to_string(),
            digest: digest.to_string(),
            bytes_sent: summary.sent,
            sockets_left_out: sockets,
            layers,
        }),
        false => output::line(&digest.to_string()),
    }
}

/// A push, for programs.
#[derive(Serialize)]
struct ShownPush<'a> {
    image: &'a str,
    destination: String,
    digest: String,
    bytes_sent: u64,
    sockets_left_out: u64,
    layers: Vec<ShownLayer>,
}

/// A layer of the image.
#[derive(Serialize)]
struct ShownLayer {
    digest: String,
    size: u64,
    /// How it came to be in the repository: `exists`, `mounted` or `sent`.
    state: &'static str,
}

/// An image on its way.
struct Pushing<'a> {
    args: &'a PushArgs,
    to: Named,
    client: Client,
    memory: PushMemory,
    stack: ImageStack,
    compression: Compression,
}

/// What came of it.
struct PushedImage {
    digest: Digest,
    summary: PushSummary,
    layers: Vec<ShownLayer>,
    sockets: u64,
}

impl Pushing<'_> {
    /// Sends what the registry lacks.
    fn push(&self) -> Result<PushedImage> {
        let use_registry = Cell::new(true);
        for last in (0..MOST_PLANS).map(|tried| tried + 1 == MOST_PLANS) {
            let plan = self.stack.plan(&Planning {
                client: &self.client,
                memory: &self.memory,
                compression: self.compression,
                use_registry: use_registry.get(),
                reading: &|| self.note(&format!("reading the files of {}", self.args.image)),
            })?;
            let pushed = self.bring(&plan);
            let (missing, outdated) = (plan.missing(), plan.outdated().count());
            if pushed.is_ok() || last || (missing.is_none() && outdated == 0) {
                return pushed;
            }
            plan.outdated().try_for_each(|key| self.memory.forget(key))?;
            if let Some(why) = missing {
                use_registry.set(false);
                self.note(&format!(
                    "the layers of the image below cannot be had: {why}; its files are sent as one layer"
                ));
            }
        }
        unreachable!("the last plan's push is returned")
    }

    fn note(&self, text: &str) {
        if !self.args.shown.quiet {
            output::note(text);
        }
    }

    /// Sends what the registry lacks of these layers.
    fn bring(&self, plan: &LayerPlan<'_>) -> Result<PushedImage> {
        let sources: Vec<_> = plan.layers.iter().map(|layer| layer.source.clone()).collect();
        let documents = ImageDocuments::new(self.stack.config(), plan.below, &sources);
        let shown =
            Shown::new(PullProgress::new(self.args.shown.progress, self.args.shown.quiet), plan, &documents);
        let summary = self.send(plan, &documents, &shown);
        shown.end();
        let summary = summary?;
        self.memory.note_place(&documents.config_digest, &self.to);
        let layers = plan.layers.iter().zip(&summary.arrivals);
        let layers = layers.map(|(layer, arrival)| self.arrived(layer, *arrival)).collect();
        Ok(PushedImage { digest: documents.digest, summary, layers, sockets: plan.sockets })
    }

    fn send(&self, plan: &LayerPlan<'_>, documents: &ImageDocuments, shown: &Shown) -> Result<PushSummary> {
        let known: Vec<Option<Named>> = plan.layers.iter().map(|layer| self.elsewhere(layer)).collect();
        let known_config = self.memory.place(&documents.config_digest, &self.to);
        let read = |layer: &PlannedLayer<'_>, begin| layer.read_from(&self.client, begin);
        let reads: Vec<_> = plan.layers.iter().map(|layer| move |begin| read(layer, begin)).collect();
        let tells: Vec<_> = (0..=plan.layers.len()).map(|blob| move |at| shown.sent(blob, at)).collect();
        let uploads = plan.layers.iter().enumerate().map(|(at, layer)| {
            let (digest, size) = (layer.source.layer().digest, layer.source.layer().size);
            Upload { digest, size, from: known[at].as_ref(), read: &reads[at], sent: &tells[at] }
        });
        let read_config = |begin| {
            let mut config = Cursor::new(documents.config.clone());
            config.set_position(begin);
            Ok(Box::new(config) as Box<dyn Read>)
        };
        let config = Upload {
            digest: documents.config_digest,
            size: documents.config.len() as u64,
            from: known_config.as_ref(),
            read: &read_config,
            sent: &tells[plan.layers.len()],
        };
        let uploads: Vec<Upload<'_>> = uploads.chain([config]).collect();
        let manifest = (ImageDocuments::MEDIA_TYPE, &documents.manifest[..]);
        self.client.push(&self.to, &uploads, manifest).map_err(ours)
    }

    /// Another repository of the registry that has a layer.
    fn elsewhere(&self, layer: &PlannedLayer<'_>) -> Option<Named> {
        let is_there = |image: &&Named| image.server() == self.to.server();
        let origin = layer.origin().filter(is_there).cloned();
        origin.or_else(|| self.memory.place(&layer.source.layer().digest, &self.to))
    }

    /// Says how a layer came to be in the repository, and notes that it is there.
    fn arrived(&self, layer: &PlannedLayer<'_>, arrival: BlobArrival) -> ShownLayer {
        let (digest, size) = (layer.source.layer().digest, layer.source.layer().size);
        self.memory.note_place(&digest, &self.to);
        let digits: String = digest.hex().chars().take(SHOWN_DIGITS).collect();
        let (state, text) = match arrival {
            BlobArrival::Exists => ("exists", "exists".into()),
            BlobArrival::Mounted => ("mounted", "mounted from another repository of the registry".into()),
            BlobArrival::Sent => ("sent", format!("sent, {}", output::size(size))),
        };
        self.note(&format!("layer {digits}: {text}"));
        ShownLayer { digest: digest.to_string(), size, state }
    }
}

/// Asks registries as the user.
fn registries() -> Result<Client> {
    let conf = RegistriesConf::load().map_err(ours)?;
    let certificates = Certificates::of_user(|_| true).map_err(ours)?;
    let settings = ClientSettings { certificates, ..ClientSettings::default() };
    Ok(Client::new(settings, conf, Credentials::load().map_err(ours)?))
}

/// Where the image goes: where the user says, else where its own name says.
fn place(entry: &ImageName, image: &str, destination: Option<&str>) -> Result<Named> {
    let refuse = |name: &str, why: &str| {
        let hint = format!("name the registry: skiff push {image} SERVER/NAME:TAG");
        Err(Error::new(format!("push to {name}: {why}")).hint(hint))
    };
    let name = destination.unwrap_or(&entry.reference);
    let named = match parse(name) {
        Ok(ImageReference::Registry(named)) => named,
        Ok(ImageReference::Short(_)) => return refuse(name, "this names no registry"),
        Ok(_) => return refuse(name, "this names a file"),
        Err(e) if destination.is_some() => return Err(e.into()),
        Err(_) => return refuse(name, "this names no registry"),
    };
    if named.is_local() {
        return refuse(name, "no registry has names of localhost/");
    }
    if named.digest().is_some() {
        return refuse(name, "an image's digest follows from what is in it");
    }
    Ok(named.with_default_tag())
}

/// How far it is, as the user wants to see it.
struct Shown(RefCell<State>);

struct State {
    progress: PullProgress,
    blobs: Vec<LayerState>,
    told: Instant,
}

impl Shown {
    fn new(progress: PullProgress, plan: &LayerPlan<'_>, documents: &ImageDocuments) -> Self {
        let state =
            |digest: Digest, size| LayerState { digest: digest.to_string(), size, fetched: 0, unpacked: 0 };
        let layers = plan.layers.iter().map(|layer| layer.source.layer());
        let layers = layers.map(|layer| state(layer.digest, layer.size));
        let config = state(documents.config_digest, documents.config.len() as u64);
        let blobs = layers.chain([config]).collect();
        Self(RefCell::new(State { progress, blobs, told: Instant::now() }))
    }

    fn sent(&self, blob: usize, bytes: u64) {
        let State { progress, blobs, told } = &mut *self.0.borrow_mut();
        blobs[blob].fetched = bytes;
        blobs[blob].unpacked = bytes;
        if told.elapsed() >= PAUSE {
            *told = Instant::now();
            progress.layers(&blobs[..]);
        }
    }

    fn end(&self) {
        self.0.borrow_mut().progress.end();
    }
}

#[cfg(test)]
mod tests {
    use skiff_spec::image::ImageId;

    use super::*;

    #[test]
    fn where_an_image_goes() {
        let entry = |reference: &str| ImageName {
            reference: reference.into(),
            id: ImageId([1; 32]),
            pulled: 1,
            size: 1,
            config: serde_json::json!({}),
            origin: None,
            pulled_as: None,
            bases: vec![],
        };
        for (own, destination, to) in [
            ("r.example/a/b:1", None, Some("r.example/a/b:1")),
            ("docker.io/library/debian:12", None, Some("docker.io/library/debian:12")),
            ("localhost/web:2", Some("r.example/web"), Some("r.example/web:latest")),
            ("localhost/web:2", Some("docker://r.example:5000/web:3"), Some("r.example:5000/web:3")),
            ("localhost/web:2", None, None),
            ("/srv/x.sqsh", None, None),
            (
                "r.example/a@sha256:0101010101010101010101010101010101010101010101010101010101010101",
                None,
                None,
            ),
            ("r.example/a/b:1", Some("web:3"), None),
            ("r.example/a/b:1", Some("oci:/srv/x"), None),
            ("r.example/a/b:1", Some("localhost/web:3"), None),
            ("r.example/a/b:1", Some("R/x y"), None),
        ] {
            let found = place(&entry(own), "web", destination);
            if let Err(e) = &found {
                assert!(!e.hint.is_empty(), "{own} {destination:?}: {e}");
            }
            assert_eq!(found.ok().map(|named| named.to_string()).as_deref(), to, "{own} {destination:?}");
        }
    }
}
