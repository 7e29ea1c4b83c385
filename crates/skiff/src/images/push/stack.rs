//! The images that an image was made of, as far as the store has them, and the layers that follow from that.
//!
//! The lowest layers are those of an image that was pulled, as its registry has them. Each image above it has a layer of what it changed. What no registry is known
//! to have is one layer with all files.

use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use serde_json::Value;
use skiff_image::export::{ImageLayerSource, OpenImage, PackedLayer, PackedLayerFile};
use skiff_image::source::temporary;
use skiff_oci::digest::Digest;
use skiff_oci::manifest::{Compression, Descriptor};
use skiff_oci::platform::Platform;
use skiff_oci::reference::Named;
use skiff_registry::Client;
use skiff_spec::fault::Result;
use skiff_spec::image::ImageId;
use skiff_store::index::{ImageName, Names};
use skiff_store::{ImageLayer, client, ours};
use skiff_user::context::UserContext;

use super::memory::{LayerKey, MadeLayer, PushMemory};

/// An image and what it was made of, each open.
pub struct ImageStack {
    /// The image itself first.
    images: Vec<StackedImage>,
}

struct StackedImage {
    id: ImageId,
    open: OpenImage,
    /// The name that it was pulled by.
    registry: Option<Named>,
    /// Layers of the image as they came.
    layers: Vec<ImageLayer>,
}

impl ImageStack {
    /// Opens an image, and those below it that the store still has.
    pub fn open(context: &UserContext, entry: &ImageName) -> Result<Self> {
        let known = Names::of(context)?.all_but(|_| ())?;
        let open = |id: ImageId, own: Option<Named>, name: &str| -> Result<StackedImage> {
            let (record, file) = client::open_file(context, id, name)?;
            let registry =
                own.or_else(|| known.iter().filter(|other| other.id == id).find_map(ImageName::in_registry));
            let open = OpenImage { name: id.to_string(), config: record.config, file };
            Ok(StackedImage { id, open, registry, layers: record.layers })
        };
        let mut images = vec![open(entry.id, entry.in_registry(), &entry.reference)?];
        images[0].open.config = entry.config.clone();
        for base in &entry.bases {
            let named = base.reference.parse().ok().filter(|named: &Named| !named.is_local());
            // One that the user has no longer is skipped: what it changed is in the layer of the image above.
            images.extend(open(base.id, named, &base.reference).ok());
        }
        Ok(Self { images })
    }

    /// The image's own configuration.
    pub fn config(&self) -> &Value {
        &self.images[0].open.config
    }

    /// The layers of the image. Those that must be made and are not remembered are made now.
    pub fn plan(&self, planning: &Planning<'_>) -> Result<LayerPlan<'_>> {
        let from_registry =
            self.images.iter().enumerate().filter(|_| planning.use_registry).find_map(|(at, image)| {
                Some((at, image.registry.clone()?, image.layers_in_registry(planning.client)?))
            });
        let mut plan = LayerPlan { layers: vec![], below: None, sockets: 0 };
        let made = match from_registry {
            Some((at, registry, layers)) => {
                plan.below = Some(&self.images[at].open.config);
                plan.layers.extend(layers.into_iter().map(|layer| PlannedLayer::below(layer, &registry)));
                at
            }
            None => self.images.len(),
        };
        for (at, image) in self.images[..made].iter().enumerate().rev() {
            plan.add(planning, image, self.images.get(at + 1))?;
        }
        Ok(plan)
    }
}

impl StackedImage {
    /// The layers of an image that was pulled, if all that a manifest needs is known of them.
    fn layers_in_registry(&self, client: &Client) -> Option<Vec<PackedLayer>> {
        let ids = self.open.config.get("rootfs")?.get("diff_ids")?.as_array()?;
        let ids: Vec<Digest> = ids.iter().map(|id| id.as_str()?.parse().ok()).collect::<Option<_>>()?;
        if ids.len() != self.layers.len() || ids.is_empty() {
            return None;
        }
        let types: Option<Vec<String>> = self.layers.iter().map(|layer| layer.media_type.clone()).collect();
        // Older records do not have them; the manifest has, which is named by its digest.
        let types = types.or_else(|| self.types_in_registry(client))?;
        let layers = self.layers.iter().zip(ids).zip(types).map(|((layer, diff_id), media_type)| {
            Some(PackedLayer { media_type, digest: layer.digest.parse().ok()?, size: layer.size, diff_id })
        });
        layers.collect()
    }

    fn types_in_registry(&self, client: &Client) -> Option<Vec<String>> {
        let named = self.registry.as_ref()?;
        let exact = Named::new(named.server(), named.repository(), None, Some(Digest::Sha256(self.id.0)));
        let found = client.resolve(&exact.ok()?, &Platform::host()).ok()?;
        let layers = found.manifest.layers;
        let is_same = layers.len() == self.layers.len()
            && layers
                .iter()
                .zip(&self.layers)
                .all(|(one, other)| one.blob.digest.to_string() == other.digest && one.is_distributable());
        is_same.then(|| layers.iter().map(|layer| layer.compression.layer_type().to_owned()).collect())
    }
}

/// How layers are planned.
pub struct Planning<'a> {
    pub client: &'a Client,
    pub memory: &'a PushMemory,
    pub compression: Compression,
    /// Whether layers of pulled images are to be taken from where these came from.
    pub use_registry: bool,
    /// Is told before files are read.
    pub reading: &'a dyn Fn(),
}

/// The layers of an image.
pub struct LayerPlan<'a> {
    /// The lowest first.
    pub layers: Vec<PlannedLayer<'a>>,
    /// Configuration of the image whose layers the lower ones are.
    pub below: Option<&'a Value>,
    /// How many sockets were left out.
    pub sockets: u64,
}

impl<'a> LayerPlan<'a> {
    /// Adds the layer of an image over the one below it.
    fn add(
        &mut self,
        planning: &Planning<'_>,
        image: &'a StackedImage,
        below: Option<&'a StackedImage>,
    ) -> Result<()> {
        let key = LayerKey::new(image.id, below.map(|below| below.id), planning.compression);
        let make = LayerMaking {
            above: &image.open,
            below: below.map(|below| &below.open),
            compression: planning.compression,
            key,
        };
        let (known, file) = match planning.memory.made(&make.key) {
            Some(known) => (known, None),
            None => {
                (planning.reading)();
                let made = make.make()?;
                let known = MadeLayer::of(made.as_ref());
                planning.memory.remember(&make.key, &known);
                (known, made)
            }
        };
        self.sockets += known.sockets;
        let Some(layer) = known.layer else { return Ok(()) };
        let source = ImageLayerSource::Made { layer, steps: image.open.steps() };
        let file = file.map_or_else(OnceCell::new, |made| OnceCell::from(made.file));
        self.layers.push(PlannedLayer {
            source,
            from: LayerOrigin::Made(make),
            file,
            fault: RefCell::default(),
        });
        Ok(())
    }

    /// Why a layer of an image below cannot be had.
    pub fn missing(&self) -> Option<String> {
        self.layers
            .iter()
            .filter(|layer| matches!(layer.from, LayerOrigin::Registry(_)))
            .find_map(PlannedLayer::fault)
    }

    /// Layers that came out differently from what is remembered of them.
    pub fn outdated(&self) -> impl Iterator<Item = &LayerKey> {
        self.layers.iter().filter(|layer| layer.fault().is_some()).filter_map(|layer| match &layer.from {
            LayerOrigin::Made(make) => Some(&make.key),
            LayerOrigin::Registry(_) => None,
        })
    }
}

/// How a layer is made.
struct LayerMaking<'a> {
    above: &'a OpenImage,
    below: Option<&'a OpenImage>,
    compression: Compression,
    key: LayerKey,
}

impl LayerMaking<'_> {
    fn make(&self) -> Result<Option<PackedLayerFile>> {
        let (file, _, room) = temporary().map_err(ours)?;
        let name = format!("a temporary file in {room}");
        self.above.make_layer(self.below, self.compression, (file, &name)).map_err(ours)
    }
}

/// Where a layer's bytes come from.
enum LayerOrigin<'a> {
    /// The image whose layer it is.
    Registry(Named),
    Made(LayerMaking<'a>),
}

/// A layer that the image is to have, whose bytes may be needed.
pub struct PlannedLayer<'a> {
    /// Where the layer comes from, for the configuration.
    pub source: ImageLayerSource,
    from: LayerOrigin<'a>,
    /// The bytes, once they were needed.
    file: OnceCell<File>,
    /// Why they cannot be had.
    fault: RefCell<Option<String>>,
}

impl PlannedLayer<'_> {
    fn below(layer: PackedLayer, image: &Named) -> Self {
        let from = LayerOrigin::Registry(image.clone());
        let source = ImageLayerSource::Below(layer);
        Self { source, from, file: OnceCell::new(), fault: RefCell::default() }
    }

    /// The image that the layer is known to be of.
    pub fn origin(&self) -> Option<&Named> {
        match &self.from {
            LayerOrigin::Registry(image) => Some(image),
            LayerOrigin::Made(_) => None,
        }
    }

    fn fault(&self) -> Option<String> {
        self.fault.borrow().clone()
    }

    /// The bytes from `begin` on.
    pub fn read_from(&self, client: &Client, begin: u64) -> std::io::Result<Box<dyn Read>> {
        let file = match self.file.get() {
            Some(file) => file,
            None => {
                let had = self.fetch(client).map_err(|fault| {
                    self.fault.replace(Some(fault.clone()));
                    std::io::Error::other(fault)
                })?;
                self.file.get_or_init(|| had)
            }
        };
        let mut file = file.try_clone()?;
        file.seek(SeekFrom::Start(begin))?;
        Ok(Box::new(file))
    }

    fn fetch(&self, client: &Client) -> std::result::Result<File, String> {
        let layer = self.source.layer();
        match &self.from {
            LayerOrigin::Registry(image) => {
                let PackedLayer { media_type, digest, size, .. } = layer.clone();
                let (file, ..) = temporary().map_err(|e| e.to_string())?;
                let wanted =
                    Descriptor { media_type, digest, size, urls: vec![], annotations: Default::default() };
                client.layer(image, &wanted, &file).map_err(|e| e.to_string())?;
                Ok(file)
            }
            LayerOrigin::Made(make) => match make.make().map_err(|fault| fault.to_string())? {
                Some(made) if made.layer == *layer => Ok(made.file),
                _ => Err("it was made by another version of Skiff".into()),
            },
        }
    }
}
