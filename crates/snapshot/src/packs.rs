//! Layers in a depot: lists of chunks, and the packs that hold these.
//!
//! Whoever relies on a pack that is already there marks it as used first, and looks for it again when the manifest is written.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::chunk::{
    ChunkList, ChunkReader, ChunkWriter, ListFault, MAX_LIST, NearLayer, PackSource, Written,
};
use crate::depot::{Depot, LAYERS, LOOKS, PACKS};
use crate::digest::{LayerId, PackId};
use crate::error::{Error, Result};
use crate::file::{Temp, read_to_end, write_durably};
use crate::layer::LayerReader;
use crate::manifest::LayerRef;
use skiff_sys::error::show;
use skiff_sys::{SystemContext, SystemError};

/// A layer is sent in pieces of this size.
const SENT_AT_ONCE: usize = 256 << 10;

/// A source of ours says itself what is wrong.
fn not_read(layer: &LayerRef, error: io::Error) -> Error {
    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
    error
        .downcast()
        .unwrap_or_else(|_| SystemError::new("read layer", layer.digest.to_string(), errno).into())
}

/// A layer that has been added.
pub(crate) struct Added {
    pub(crate) layer: LayerRef,
    /// What it relies on.
    pub(crate) packs: Vec<PackId>,
    /// Bytes written for it.
    pub(crate) bytes: u64,
}

/// The bytes of a layer.
pub(crate) enum LayerSource<'a> {
    Chunks(Box<ChunkReader<'a>>),
    /// As versions before wrote it.
    Whole(File),
}

impl Read for LayerSource<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            LayerSource::Chunks(chunks) => chunks.read(out),
            LayerSource::Whole(file) => file.read(out),
        }
    }
}

/// A layer of a depot that is to be sent.
pub struct OpenLayer<'a> {
    layer: LayerRef,
    source: LayerSource<'a>,
}

impl OpenLayer<'_> {
    /// The list of its chunks, as the depot has it; nothing of one that versions before wrote in one piece.
    #[must_use]
    pub fn list(&self) -> Option<Vec<u8>> {
        self.chunk_list().map(ChunkList::bytes)
    }

    pub(crate) fn chunk_list(&self) -> Option<&ChunkList> {
        match &self.source {
            LayerSource::Chunks(chunks) => Some(chunks.list()),
            LayerSource::Whole(_) => None,
        }
    }

    /// Takes chunks from these layers where they have them.
    pub fn take_from(&mut self, near: Vec<NearLayer>) {
        if let LayerSource::Chunks(chunks) = &mut self.source {
            chunks.take_from(near);
        }
    }

    /// Gives the layer's bytes, as they are, to whoever is to check them: [`stream::LayerReader`](crate::stream::LayerReader) reads them.
    ///
    /// # Errors
    /// Something of it is not in the depot, or damaged there; or nobody takes it.
    pub fn send(self, to: &mut dyn io::Write) -> Result<()> {
        let Self { layer, mut source } = self;
        let mut buffer = vec![0; SENT_AT_ONCE];
        loop {
            let read = match source.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(not_read(&layer, e)),
            };
            to.write_all(&buffer[..read]).on("send layer", layer.digest.to_string())?;
        }
    }
}

impl PackSource for Depot {
    fn open_pack(&self, pack: &PackId) -> Result<OwnedFd> {
        let what = || format!("pack {pack}");
        Ok(self.find(self.packs(what)?, &[&pack_name(pack)], LOOKS, what)?.1)
    }
}

impl Depot {
    fn packs(&self, what: impl Fn() -> String) -> Result<&OwnedFd> {
        let missing =
            || Error::Missing { what: what(), depot: show(self.path().as_os_str().as_encoded_bytes()) };
        self.packs.as_ref().ok_or_else(missing)
    }

    /// Begins to read a layer, which has to have the length that the manifest says.
    pub(crate) fn read_layer(&self, layer: &LayerRef) -> Result<LayerReader<LayerSource<'_>>> {
        LayerReader::new(self.layer_source(layer)?, layer.digest.to_string())
    }

    /// Opens a layer that is to be sent.
    pub fn open_layer(&self, layer: &LayerRef) -> Result<OpenLayer<'_>> {
        Ok(OpenLayer { layer: *layer, source: self.layer_source(layer)? })
    }

    fn layer_source(&self, layer: &LayerRef) -> Result<LayerSource<'_>> {
        let id = layer.digest;
        let by_reader = self.list_by_reader(&id).and_then(|bytes| ChunkList::parse(&bytes).ok());
        if let Some(list) = by_reader.filter(|list| list.length() == layer.size) {
            return self.chunks(id, list);
        }
        let names = [list_name(&id), whole_name(&id)];
        let [list, whole] = names.each_ref().map(String::as_str);
        let (name, file) = self.find(&self.layers, &[list, whole], LOOKS, || format!("layer {id}"))?;
        let object = self.object(LAYERS, name);
        let bad = |why: String| Error::BadLayer { layer: id.to_string(), why };
        let (source, length) = if name == whole {
            let length = rustix::fs::fstat(&file).on("look at", object)?.st_size.cast_unsigned();
            (LayerSource::Whole(File::from(file)), length)
        } else {
            let bytes = read_to_end(file.as_fd(), MAX_LIST).on("read", object)?;
            let list = bytes.map_or(Err(ListFault::TOO_LONG), |bytes| ChunkList::parse(&bytes));
            let list = list.map_err(|fault| fault.of(id.to_string()))?;
            let length = list.length();
            (self.chunks(id, list)?, length)
        };
        if length != layer.size {
            return Err(bad(format!("it has {length} bytes, the manifest says {}", layer.size)));
        }
        Ok(source)
    }

    fn chunks(&self, id: LayerId, list: ChunkList) -> Result<LayerSource<'_>> {
        let reader = ChunkReader::new(self, self.reader.as_deref(), id, list)?;
        Ok(LayerSource::Chunks(Box::new(reader)))
    }

    /// The chunks of a layer; nothing if there is no such list, or none that is whole.
    pub(crate) fn chunk_list(&self, layer: &LayerId) -> Result<Option<ChunkList>> {
        Ok(self.stored_list(layer)?.and_then(std::result::Result::ok))
    }

    /// The same, with what is wrong with one that cannot be read; nothing if there is none.
    pub(crate) fn stored_list(
        &self,
        layer: &LayerId,
    ) -> Result<Option<std::result::Result<ChunkList, ListFault>>> {
        let name = list_name(layer);
        let file = match self.find(&self.layers, &[&name], 1, String::new) {
            Ok((_, file)) => file,
            Err(Error::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = read_to_end(file.as_fd(), MAX_LIST).on("read", self.object(LAYERS, &name))?;
        Ok(Some(bytes.map_or(Err(ListFault::TOO_LONG), |bytes| ChunkList::parse(&bytes))))
    }

    /// All layers in the depot, and how they lie there.
    pub(crate) fn layer_ids(&self) -> Result<Vec<(LayerId, LayerForm)>> {
        Ok(self.list(&self.layers)?.iter().filter_map(|(name, _)| layer_of(name)).collect())
    }

    /// The lists of these layers, as far as all that they rely on is there.
    pub(crate) fn known(&self, layers: impl IntoIterator<Item = LayerId>) -> Result<Vec<ChunkList>> {
        let mut seen = HashMap::new();
        let mut known = vec![];
        for layer in layers {
            let Some(list) = self.chunk_list(&layer)? else { continue };
            if self.has_all(list.pack_lengths(), &mut seen)? {
                known.push(list);
            }
        }
        Ok(known)
    }

    /// Whether all of these packs are there.
    pub(crate) fn has_packs(&self, packs: &[PackId]) -> Result<bool> {
        self.has_all(packs.iter().map(|pack| (*pack, 0)), &mut HashMap::new())
    }

    /// The same, each with so many bytes at least.
    fn has_all(
        &self,
        packs: impl IntoIterator<Item = (PackId, u64)>,
        seen: &mut HashMap<PackId, Option<u64>>,
    ) -> Result<bool> {
        for (pack, least) in packs {
            let length = match seen.get(&pack) {
                Some(length) => *length,
                None => self.pack_length(&pack)?,
            };
            seen.insert(pack, length);
            if length.is_none_or(|length| length < least) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn pack_length(&self, pack: &PackId) -> Result<Option<u64>> {
        let Some(packs) = &self.packs else { return Ok(None) };
        let name = pack_name(pack);
        match rustix::fs::statat(packs, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.st_size.cast_unsigned())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(SystemError::new("look at", self.object(PACKS, &name), errno).into()),
        }
    }

    /// Begins a layer. Of its chunks those are written that no list in `known` has.
    pub(crate) fn begin_layer(&self, known: Vec<ChunkList>) -> Result<(Temp<'_>, ChunkWriter)> {
        let packs = self.packs(|| PACKS.into())?;
        let (temp, file) = Temp::create(packs.as_fd())?;
        let object = self.object(PACKS, temp.name());
        Ok((temp, ChunkWriter::new(file, object, known)?))
    }

    /// Makes a layer part of the depot whose new chunks are in `temp`. On return it is on disk.
    pub(crate) fn add_layer(&self, temp: Temp<'_>, written: Written, digest: LayerId) -> Result<Added> {
        let Written { list, pack } = written;
        let layer = LayerRef { digest, size: list.length() };
        if self.mark_layer_used(&layer)?
            && self.mark_packs_used(&layer)?
            && let Some(found) = self.chunk_list(&digest)?
        {
            return Ok(Added { layer, packs: found.packs, bytes: 0 });
        }
        let (new, mut bytes) = pack.as_ref().map_or((None, 0), |(_, id, length)| (Some(*id), *length));
        for pack in list.packs.iter().filter(|pack| Some(**pack) != new) {
            if !self.mark_pack_used(pack)? {
                return Err(Error::Moved { object: format!("the depot {}", self.path().display()) });
            }
        }
        if let (Some((file, id, _)), Some(packs)) = (pack, &self.packs) {
            let name = pack_name(&id);
            let object = self.object(PACKS, &name);
            rustix::fs::fsync(&file).on("sync", &object)?;
            temp.publish(&name).on("rename into place", &object)?;
            rustix::fs::fsync(packs).on("sync", &object)?;
        }
        let listed = list.bytes();
        bytes += listed.len() as u64;
        write_durably(self.layers.as_fd(), &list_name(&digest), &listed)?;
        Ok(Added { layer, packs: list.packs, bytes })
    }

    fn mark_pack_used(&self, pack: &PackId) -> Result<bool> {
        let Some(packs) = &self.packs else { return Ok(false) };
        Ok(self.touch(packs, PACKS, &pack_name(pack))?.is_some())
    }

    /// Marks a layer as used now, so that no collection removes it; false if it is not there, or not of its length.
    pub(crate) fn mark_layer_used(&self, layer: &LayerRef) -> Result<bool> {
        if self.touch(&self.layers, LAYERS, &list_name(&layer.digest))?.is_some() {
            return Ok(true);
        }
        let whole = self.touch(&self.layers, LAYERS, &whole_name(&layer.digest))?;
        Ok(whole.is_some_and(|stat| stat.st_size.cast_unsigned() == layer.size))
    }

    /// Marks the packs that a layer relies on as used now; false if one is missing. The layer's list alone would not keep them: while one collector has
    /// set that aside, another finds nothing that names the packs.
    pub(crate) fn mark_packs_used(&self, layer: &LayerRef) -> Result<bool> {
        let (list, packs) = match (self.stored_list(&layer.digest)?, &self.packs) {
            (Some(Ok(list)), Some(packs)) => (list, packs),
            (Some(Ok(list)), None) => return Ok(list.packs.is_empty()),
            (Some(Err(_)), _) => return Ok(false),
            // In one piece.
            (None, _) => return Ok(true),
        };
        for (pack, least) in list.pack_lengths() {
            let touched = self.touch(packs, PACKS, &pack_name(&pack))?;
            if touched.is_none_or(|stat| stat.st_size.cast_unsigned() < least) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

pub(crate) fn list_name(id: &LayerId) -> String {
    format!("{id}.chunks")
}

pub(crate) fn whole_name(id: &LayerId) -> String {
    format!("{id}.layer")
}

pub(crate) fn pack_name(id: &PackId) -> String {
    format!("{id}.pack")
}

/// How a layer lies in a depot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerForm {
    Chunks,
    Whole,
}

/// The layer that a file in `layers` is, and how.
pub(crate) fn layer_of(name: &[u8]) -> Option<(LayerId, LayerForm)> {
    let name = std::str::from_utf8(name).ok()?;
    let forms = [(".chunks", LayerForm::Chunks), (".layer", LayerForm::Whole)];
    forms.into_iter().find_map(|(end, form)| Some((name.strip_suffix(end)?.parse().ok()?, form)))
}

/// The pack that a file in `packs` is.
pub(crate) fn pack_of(name: &[u8]) -> Option<PackId> {
    std::str::from_utf8(name).ok()?.strip_suffix(".pack")?.parse().ok()
}
