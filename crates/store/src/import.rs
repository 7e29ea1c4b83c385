//! From a file or directory to an image in a store.
//!
//! What is imported belongs to someone, who may change it meanwhile: every byte that goes into an image is the one that its
//! digest was taken of. Layers are checked as they are unpacked; a file system's file is copied first.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::fs::{Mode, OFlags, fstat, ftruncate, open};
use serde_json::{Value, json};
use skiff_erofs::tree::BLOCK;
use skiff_image::Error::{Foreign, WrongDigest};
use skiff_image::assemble::{AssemblyProgress, ImageLimits, WrittenImage};
use skiff_image::blob::{Blob, FileBlob};
use skiff_image::convert;
use skiff_image::source::{Form, ImageSource};
use skiff_image::spill::new_file;
use skiff_image::trailer;
use skiff_image::transport::{self, FilePart, ImageFiles, OpenedImage};
use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_oci::manifest::ImageConfig;
use skiff_oci::platform::Platform;
use skiff_registry::policy::Policies;
use skiff_spec::image::ImageId;
use skiff_sys::positional::write_all_at;

use crate::error::{Error, Result};
use crate::pull::{
    LayerProgress, PullWatch, Pulled, TICK, WatchedLayers, WithinQuota, assemble_into, check_and_sync,
    has_room, keeps_whiteouts, watched,
};
use crate::store::{Begun, ImageLayer, ImageMetadata, Patience, Store, TemporaryFiles, UnfinishedImage};
use skiff_sys::SystemContext;

const COPY: usize = 1 << 20;
/// So many bytes are copied between two looks at what the copy takes.
const BETWEEN_CHECKS: u64 = 16 << 20;

/// What is to be imported, and for whom.
pub struct ImportJob<'a> {
    /// Where to.
    pub store: &'a Store,
    /// Where from.
    pub source: &'a ImageSource,
    /// What must be true of it.
    pub policies: &'a Policies,
    /// The machine it is for.
    pub platform: &'a Platform,
    /// Who may use it then.
    pub uid: u32,
}

/// Imports an image, unless it is there. Its digest is that of its manifest, or that of the file if it is a file system's.
///
/// # Errors
/// It is not sound, must not be used, or the store cannot hold it. Then the store is as it was.
pub fn import(import: &ImportJob<'_>, watch: &mut dyn PullWatch) -> Result<Pulled> {
    let source = import.source;
    let temporary = import.store.temporary_files(import.uid)?;
    if source.form().is_file_system() {
        import.policies.admit_file(source.form().transport(), source.real_path().as_deref())?;
        return file_system(import, &temporary, watch);
    }
    let (room, room_name) = room(import.store)?;
    let files = unpacked_files(source, (room.as_fd(), &room_name), &temporary)?;
    let (form, layout) = source.layout(&*files)?;
    import.policies.admit_file(form.transport(), source.real_path().as_deref())?;
    let opened = transport::open(&*files, &layout, import.platform)?;
    layered(import, &opened, &temporary, watch)
}

/// The files of a source. An archive is inflated as long as the user may have that much.
fn unpacked_files<'s>(
    source: &'s ImageSource,
    room: (BorrowedFd<'_>, &str),
    temporary: &TemporaryFiles<'_>,
) -> Result<Box<dyn ImageFiles + 's>> {
    let why = RefCell::new(None);
    let goes_on = || {
        let checked = temporary.check();
        let goes_on = checked.is_ok();
        why.replace(checked.err());
        goes_on
    };
    let files = source.files(room, &goes_on);
    files.map_err(|error| why.take().unwrap_or_else(|| error.into()))
}

/// Whether one who opened it and has others import it wants it themselves, by policies that they do not see.
///
/// # Errors
/// They do not.
pub fn admit(source: &ImageSource, policies: &Policies) -> Result<()> {
    let path = source.real_path();
    // Which kind an archive is shows when it is read, and it may have to be inflated for that: it must be wanted as either.
    let forms = match source.form() {
        Form::Archive => vec![Form::DockerArchive, Form::OciArchive],
        form => vec![form],
    };
    Ok(forms.iter().try_for_each(|form| policies.admit_file(form.transport(), path.as_deref()))?)
}

/// The store's directory for what is needed only meanwhile.
fn room(store: &Store) -> Result<(OwnedFd, String)> {
    let path = store.path().join("tmp");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let name = path.display().to_string();
    Ok((open(&path, flags, Mode::empty()).on("open", &*name)?, name))
}

fn layered(
    import: &ImportJob<'_>,
    opened: &OpenedImage,
    temporary: &TemporaryFiles<'_>,
    watch: &mut dyn PullWatch,
) -> Result<Pulled> {
    let ImportJob { store, platform, uid, .. } = *import;
    let id = id_of(&opened.digest)?;
    let (record, there) = loop {
        let had = match store.begin((id, uid), Patience::default(), &mut || watch.waiting())? {
            Begun::There(record) => {
                // Who only knows the manifest of someone else's image does not have that image.
                if !store.permitted(uid, id) {
                    opened.layers.iter().try_for_each(prove)?;
                }
                (record, true)
            }
            Begun::New(making) => (unpack(import, (opened, temporary), making, watch)?, false),
        };
        if is_kept(store, (uid, id))? {
            break had;
        }
    };
    store.remember(uid, &opened.digest, platform, id)?;
    Ok(Pulled { id, digest: opened.digest, record, there })
}

/// Lets a user use an image; whether it is there. Whoever else had it may have removed it meanwhile. By the permit it stays from now on.
fn is_kept(store: &Store, (uid, id): (u32, ImageId)) -> Result<bool> {
    store.permit_more(uid, id)?;
    Ok(store.find(id)?.is_some())
}

pub(crate) fn id_of(digest: &Digest) -> Result<ImageId> {
    match digest {
        Digest::Sha256(bytes) => Ok(ImageId(*bytes)),
        other => Err(Error::unsound(other.to_string(), "it is not a SHA-256 digest")),
    }
}

/// Whether a layer is what its digest says.
fn prove(layer: &FileBlob) -> Result<()> {
    let Some(digest) = layer.digest() else { return Ok(()) };
    let mut hasher = Hasher::like(&digest);
    let mut buffer = vec![0; COPY];
    let mut at = 0;
    while at < layer.size() {
        let piece = &mut buffer[..(layer.size() - at).min(COPY as u64) as usize];
        layer.read_at(piece, at)?;
        hasher.update(piece);
        at += piece.len() as u64;
    }
    if hasher.finish() == digest { Ok(()) } else { Err(WrongDigest { layer: layer.name().into() }.into()) }
}

fn unpack(
    import: &ImportJob<'_>,
    (opened, temporary): (&OpenedImage, &TemporaryFiles<'_>),
    mut making: UnfinishedImage<'_>,
    watch: &mut dyn PullWatch,
) -> Result<ImageMetadata> {
    making.count_for(import.uid, 0)?;
    let watch = &mut WithinQuota::new((import.store, temporary), import.uid, watch);
    let blobs: Vec<&dyn Blob> = opened.layers.iter().map(|blob| blob as &dyn Blob).collect();
    let digests: Vec<Digest> = blobs.iter().filter_map(|blob| blob.digest()).collect();
    let progress = AssemblyProgress::new(blobs.len());
    let arrived = |layer: usize| blobs[layer].size();
    let layers = WatchedLayers { digests: &digests, blobs: &blobs, arrived: &arrived };
    let name = import.source.name();
    let config: Value = serde_json::from_slice(&opened.config_bytes)
        .map_err(|e| Error::unsound(name.clone(), e.to_string()))?;
    let keeps_whiteouts = keeps_whiteouts(&name, &config, blobs.len())?;
    let image = watched(watch, &layers, &progress, || {
        assemble_into((&making, import.uid), &blobs, keeps_whiteouts, &progress)
    });
    let WrittenImage { summary, data_sum } = watch.verdict(image)?;
    let layers = digests.iter().zip(&blobs);
    let record = ImageMetadata {
        size: u64::from(summary.blocks) * BLOCK,
        data_sum: Some(data_sum),
        layers: layers
            .map(|(digest, blob)| ImageLayer {
                digest: digest.to_string(),
                size: blob.size(),
                media_type: None,
            })
            .collect(),
        origins: vec![],
        layer: false,
        files: summary.inodes,
        config,
    };
    check_and_sync(&making, &name)?;
    import.store.permit(import.uid, making.id())?;
    making.publish(&record)?;
    Ok(record)
}

/// A file that is a file system: squashfs, SIF, EROFS.
fn file_system(
    import: &ImportJob<'_>,
    temporary: &TemporaryFiles<'_>,
    watch: &mut dyn PullWatch,
) -> Result<Pulled> {
    let ImportJob { store, platform, uid, .. } = *import;
    let (copy, digest) = private_copy(import, temporary)?;
    let (form, made_for) = form_of(import, &copy)?;
    let id = id_of(&digest)?;
    let layer = ImageLayer { digest: digest.to_string(), size: copy.size, media_type: None };
    let (record, there) = loop {
        let had = match store.begin((id, uid), Patience::default(), &mut || watch.waiting())? {
            // Images of registries are called by their manifests, which others may know.
            Begun::There(record) if record.layers != [layer.clone()] => {
                let why = "it is the manifest of an image, and not the image".into();
                return Err(Foreign { object: import.source.name(), why, hint: None }.into());
            }
            Begun::There(record) => (record, true),
            Begun::New(making) => {
                (rewrite(import, (form, &made_for), (&copy, temporary), &digest, making, watch)?, false)
            }
        };
        if is_kept(store, (uid, id))? {
            break had;
        }
    };
    store.remember(uid, &digest, platform, id)?;
    Ok(Pulled { id, digest, record: made_for.told(record, platform), there })
}

/// What a file system's file says of the machine that it is for.
enum MadeFor {
    /// The configuration behind it says that, or does not.
    Config,
    /// This one, in its own format.
    Platform(Platform),
    /// Nothing. So what one user says of it is nothing that the store may tell another.
    Unknown,
}

impl MadeFor {
    /// The configuration of an image that has none itself.
    fn config(&self) -> Value {
        let mut config = json!({"config": {}, "rootfs": {"type": "layers", "diff_ids": []}});
        if let Self::Platform(platform) = self {
            note_platform(&mut config, platform);
        }
        config
    }

    /// The record as a user gets it who has said that the image is for this machine.
    fn told(&self, mut record: ImageMetadata, wanted: &Platform) -> ImageMetadata {
        if matches!(self, Self::Unknown) {
            note_platform(&mut record.config, wanted);
        }
        record
    }
}

fn note_platform(config: &mut Value, Platform { os, architecture, variant }: &Platform) {
    config["os"] = json!(os);
    config["architecture"] = json!(architecture);
    if let Some(variant) = variant {
        config["variant"] = json!(variant);
    }
}

/// A file of the store's own with the same bytes, and their digest.
fn private_copy(import: &ImportJob<'_>, temporary: &TemporaryFiles<'_>) -> Result<(FilePart, Digest)> {
    let part = import.source.part()?;
    let on_disk = fstat(&*part.file).on("look at", &*part.name)?.st_blocks as u64 * 512;
    import.store.check_room(import.uid, on_disk)?;
    let (room, room_name) = room(import.store)?;
    let copy = new_file(room.as_fd(), &room_name)?;
    let mut hasher = Hasher::like(&Digest::Sha256([0; 32]));
    let mut buffer = vec![0; COPY];
    let mut at = 0;
    while at < part.size {
        let piece = &mut buffer[..(part.size - at).min(COPY as u64) as usize];
        part.read(piece, at)?;
        hasher.update(piece);
        // A file of a terabyte that is all hole is no terabyte here either.
        if piece.iter().any(|byte| *byte != 0) {
            write_all_at(copy.as_fd(), piece, at).on("write to a temporary file in", &*room_name)?;
        }
        at += piece.len() as u64;
        // What it takes on the disk its file system says, which may be the user's own; and it may grow there.
        if at.is_multiple_of(BETWEEN_CHECKS) {
            temporary.check()?;
        }
    }
    ftruncate(&copy, part.size).on("set the length of a temporary file in", &*room_name)?;
    Ok((FilePart { file: Arc::new(copy), ..part }, hasher.finish()))
}

/// What policies were asked about must be what is read; and be for the platform, if it says for which it is.
fn form_of(import: &ImportJob<'_>, copy: &FilePart) -> Result<(Form, MadeFor)> {
    let form = import.source.form();
    if Form::of_file_system(copy).is_some_and(|found| found != form) {
        let why = "it has changed meanwhile".into();
        return Err(Foreign { object: copy.name.clone(), why, hint: Some("try again") }.into());
    }
    let (said, made_for) = match trailer::split(copy)?.1 {
        Some(config) => {
            let config =
                ImageConfig::parse(&copy.name, config.to_string().as_bytes()).map_err(Error::from)?;
            (config.platform, MadeFor::Config)
        }
        None => match form.platform(copy)? {
            Some(platform) => (Some(platform.clone()), MadeFor::Platform(platform)),
            None => (None, MadeFor::Unknown),
        },
    };
    import.platform.check(import.source.name(), said.as_ref())?;
    Ok((form, made_for))
}

fn rewrite(
    import: &ImportJob<'_>,
    (form, made_for): (Form, &MadeFor),
    (copy, temporary): (&FilePart, &TemporaryFiles<'_>),
    digest: &Digest,
    mut making: UnfinishedImage<'_>,
    watch: &mut dyn PullWatch,
) -> Result<ImageMetadata> {
    making.count_for(import.uid, 0)?;
    let watch = &mut WithinQuota::new((import.store, temporary), import.uid, watch);
    let (room, room_name) = room(import.store)?;
    let name = making.name();
    let mut ticker = Ticker { watch, digest: *digest, size: copy.size, told: None };
    let mut tick = |read| ticker.tick(read);
    let on_disk = fstat(&*copy.file).on("look at", &*copy.name)?.st_blocks as u64 * 512;
    let refusal = Mutex::new(None);
    let job = convert::ConversionJob {
        image: making.file(),
        name: &name,
        source: &copy.name,
        scratch: room.as_fd(),
        scratch_name: &room_name,
        limits: ImageLimits::of(on_disk),
        watch: &mut tick,
        room: &|bytes| has_room((&making, import.uid), bytes, &refusal),
    };
    let (file_system, config) = trailer::split(copy)?;
    let image = form.convert(&file_system, job).map_err(Error::from);
    let refusal = refusal.into_inner().unwrap_or_else(PoisonError::into_inner);
    let WrittenImage { summary, data_sum } = watch.verdict(refusal.map_or(image, Err))?;
    Ticker { watch, digest: *digest, size: copy.size, told: None }.tick(copy.size);
    check_and_sync(&making, &copy.name)?;
    let record = ImageMetadata {
        size: u64::from(summary.blocks) * BLOCK,
        data_sum: Some(data_sum),
        layers: vec![ImageLayer { digest: digest.to_string(), size: copy.size, media_type: None }],
        origins: vec![],
        layer: false,
        files: summary.inodes,
        config: config.unwrap_or_else(|| made_for.config()),
    };
    import.store.permit(import.uid, making.id())?;
    making.publish(&record)?;
    Ok(record)
}

/// Tells whoever watches, but not all the time.
struct Ticker<'a> {
    watch: &'a mut dyn PullWatch,
    digest: Digest,
    size: u64,
    told: Option<Instant>,
}

impl Ticker<'_> {
    fn tick(&mut self, read: u64) -> bool {
        if read < self.size && self.told.is_some_and(|told| told.elapsed() < TICK) {
            return true;
        }
        self.told = Some(Instant::now());
        let progress = LayerProgress { size: self.size, fetched: self.size, unpacked: read.min(self.size) };
        self.watch.layers(&[self.digest], &[progress])
    }
}
