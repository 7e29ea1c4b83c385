//! Whether what lies in a depot is what its names say.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use crate::collect::{DepotContents, DepotManifest};
use crate::depot::{Depot, manifest_name};
use crate::digest::{LayerId, SnapshotId};
use crate::error::{Error, Result};
use crate::layer::LayerReader;
use crate::manifest::LayerRef;

/// What came out about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DepotVerdict {
    /// What its name says.
    Sound,
    /// Not what its name says, for this reason.
    Damaged(String),
    /// Missing, although a manifest names the file.
    Missing,
    /// Of a format that this version does not know.
    Unknown(String),
}

/// A file of a depot that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepotCheck {
    /// Name of the file.
    pub name: String,
    /// Whether the file is a layer; else it is a manifest.
    pub is_layer: bool,
    /// What came out.
    pub verdict: DepotVerdict,
    /// Snapshots that need the file.
    pub snapshots: BTreeSet<SnapshotId>,
}

impl DepotCheck {
    /// Whether the snapshots that need the file can be used.
    pub fn is_sound(&self) -> bool {
        self.verdict == DepotVerdict::Sound
    }
}

impl Depot {
    /// Reads all manifests and layers, or those of some snapshots.
    pub fn verify(
        &self,
        contents: &DepotContents,
        only: Option<&BTreeSet<SnapshotId>>,
    ) -> Result<Vec<DepotCheck>> {
        let mut checked = vec![];
        let mut named: BTreeMap<LayerId, (u64, BTreeSet<SnapshotId>)> = BTreeMap::new();
        for (id, snapshot) in &contents.snapshots {
            if only.is_some_and(|only| !only.contains(id)) {
                continue;
            }
            for layer in snapshot.sound().iter().flat_map(|manifest| &manifest.layers) {
                named.entry(layer.digest).or_insert((layer.size, BTreeSet::new())).1.insert(*id);
            }
            let verdict = match &snapshot.manifest {
                DepotManifest::Sound(_) => DepotVerdict::Sound,
                DepotManifest::Unknown(why) => DepotVerdict::Unknown(why.clone()),
                DepotManifest::Damaged(why) => DepotVerdict::Damaged(why.clone()),
            };
            let (name, snapshots) = (manifest_name(id), BTreeSet::from([*id]));
            checked.push(DepotCheck { name, is_layer: false, verdict, snapshots });
        }
        if only.is_none() {
            let unused = contents.layers.iter().map(|(id, file)| (*id, (file.len, BTreeSet::new())));
            for (id, unused) in unused {
                named.entry(id).or_insert(unused);
            }
        }
        for (digest, (size, snapshots)) in named {
            let verdict = self.check_layer(&LayerRef { digest, size })?;
            checked.push(DepotCheck {
                name: contents.layer_name(&digest),
                is_layer: true,
                verdict,
                snapshots,
            });
        }
        Ok(checked)
    }

    /// Removes what was found to be damaged. The next submission that needs such a layer writes it again.
    pub fn remove_damaged(&self, checked: &[DepotCheck]) -> Result<()> {
        let mut damaged = checked.iter().filter(|check| matches!(check.verdict, DepotVerdict::Damaged(_)));
        damaged.try_for_each(|check| self.remove_file(&check.name, check.is_layer))
    }

    fn check_layer(&self, layer: &LayerRef) -> Result<DepotVerdict> {
        match self.read_layer(layer).and_then(read_through) {
            Ok(id) if id == layer.digest => Ok(DepotVerdict::Sound),
            Ok(id) => Ok(DepotVerdict::Damaged(format!("its content has the digest {id}"))),
            Err(Error::Missing { what, .. }) if what.starts_with("layer") => Ok(DepotVerdict::Missing),
            Err(Error::Missing { what, .. }) => Ok(DepotVerdict::Damaged(format!("{what} is missing"))),
            Err(Error::OtherVersion { version, .. }) => {
                Ok(DepotVerdict::Unknown(format!("version {version} is unknown here")))
            }
            Err(Error::BadLayer { why, .. }) => Ok(DepotVerdict::Damaged(why)),
            // The disk cannot read it.
            Err(Error::Io(error)) => Ok(DepotVerdict::Damaged(error.to_string())),
            Err(error) => Err(error),
        }
    }
}

/// Reads all of a layer; its digest, as computed from what was read.
fn read_through<R: Read>(mut reader: LayerReader<R>) -> Result<LayerId> {
    while reader.record()?.is_some() {}
    reader.finish()
}
