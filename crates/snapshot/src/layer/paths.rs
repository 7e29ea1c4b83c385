//! What a layer has, without the contents.

use std::io::Read;

use super::{LayerReader, LayerRecord};
use crate::digest::LayerId;
use crate::error::Result;
use crate::tree::{join, split};

/// A path in a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerPath {
    pub(crate) path: Vec<u8>,
    /// Whether a directory there in the layers below is hidden, with all that is in it.
    pub(crate) hides: bool,
}

/// All paths of the layer that this has to be, in tree order.
pub(crate) fn paths<R: Read>(mut reader: LayerReader<R>, id: &LayerId) -> Result<Vec<LayerPath>> {
    let (mut found, mut dir) = (vec![], Vec::new());
    while let Some(record) = reader.record()? {
        match record {
            LayerRecord::Dir { name, opaque, .. } => {
                // The root's name is empty.
                dir = if name.is_empty() { Vec::new() } else { join(&dir, &name) };
                found.push(LayerPath { path: dir.clone(), hides: opaque });
            }
            LayerRecord::File { name, .. }
            | LayerRecord::Symlink { name, .. }
            | LayerRecord::Fifo { name, .. }
            | LayerRecord::Whiteout { name }
            | LayerRecord::Link { name, .. } => {
                found.push(LayerPath { path: join(&dir, &name), hides: true });
            }
            LayerRecord::Up => dir.truncate(split(&dir).0.len()),
            LayerRecord::End { .. } => {}
        }
    }
    reader.finish_as(id)?;
    Ok(found)
}
