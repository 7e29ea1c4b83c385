//! Writes layer files by hand, from the format's description and not by the code under test: good ones and bad ones.

#![allow(dead_code, clippy::unwrap_used)]

use skiff_snapshot::{Depot, LayerId, SnapshotId, SnapshotManifest};

pub const FILE: u8 = 2;

/// A layer in the making. `meta` counts for the layer's digest, file data does not.
pub struct Craft {
    pub bytes: Vec<u8>,
    catalog: Vec<u8>,
    pub records: u64,
    pub data: u64,
}

impl Craft {
    /// Up to and with the root directory.
    pub fn new() -> Craft {
        Craft::bare().dir(b"")
    }

    /// Only the header.
    pub fn bare() -> Craft {
        let craft = Craft { bytes: Vec::new(), catalog: Vec::new(), records: 0, data: 0 };
        craft.meta(b"SKIFFLAY").meta(&1u32.to_le_bytes()).meta(&[0; 4])
    }

    pub fn meta(mut self, bytes: &[u8]) -> Craft {
        self.bytes.extend(bytes);
        self.catalog.extend(bytes);
        self
    }

    fn short(self, bytes: &[u8]) -> Craft {
        self.meta(&(bytes.len() as u16).to_le_bytes()).meta(bytes)
    }

    pub fn head(mut self, tag: u8, name: &[u8]) -> Craft {
        self.records += 1;
        self.meta(&[tag]).short(name)
    }

    pub fn attr(self, mode: u32, ids: (u32, u32), nanoseconds: u32, xattrs: &[(&[u8], &[u8])]) -> Craft {
        let mut craft = self
            .meta(&mode.to_le_bytes())
            .meta(&ids.0.to_le_bytes())
            .meta(&ids.1.to_le_bytes())
            .meta(&1_000_000_000i64.to_le_bytes())
            .meta(&nanoseconds.to_le_bytes())
            .meta(&(xattrs.len() as u16).to_le_bytes());
        for (name, value) in xattrs {
            craft = craft.short(name).meta(&(value.len() as u32).to_le_bytes()).meta(value);
        }
        craft
    }

    fn plain(self) -> Craft {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        self.attr(0o755, (uid, gid), 0, &[])
    }

    pub fn dir(self, name: &[u8]) -> Craft {
        self.head(1, name).plain().meta(&[0])
    }

    pub fn file(self, name: &[u8], linked: bool, content: &[u8]) -> Craft {
        let head = self.file_head(name, linked, content.len() as u64);
        let head = if content.is_empty() { head } else { head.extent(0, content) };
        head.end_content(content)
    }

    pub fn file_head(self, name: &[u8], linked: bool, size: u64) -> Craft {
        self.head(FILE, name).plain().meta(&[u8::from(linked)]).meta(&size.to_le_bytes())
    }

    pub fn extent(self, offset: u64, data: &[u8]) -> Craft {
        self.extent_of(offset, data.len() as u64, data)
    }

    /// An extent whose length need not be that of its data.
    pub fn extent_of(self, offset: u64, length: u64, data: &[u8]) -> Craft {
        let mut craft = self.meta(&offset.to_le_bytes()).meta(&length.to_le_bytes());
        craft.bytes.extend(data);
        craft.data = craft.data.wrapping_add(length);
        craft
    }

    pub fn end_content(self, content: &[u8]) -> Craft {
        self.meta(&u64::MAX.to_le_bytes()).meta(blake3::hash(content).as_bytes())
    }

    pub fn symlink(self, name: &[u8], target: &[u8]) -> Craft {
        self.head(3, name).plain().short(target)
    }

    pub fn fifo(self, name: &[u8]) -> Craft {
        self.head(4, name).plain()
    }

    pub fn whiteout(self, name: &[u8]) -> Craft {
        self.head(5, name)
    }

    pub fn link(self, name: &[u8], number: u32) -> Craft {
        self.head(6, name).meta(&number.to_le_bytes())
    }

    pub fn up(mut self) -> Craft {
        self.records += 1;
        self.meta(&[7])
    }

    /// Ends the root and the layer.
    pub fn end(self) -> Craft {
        let craft = self.up();
        let (records, data) = (craft.records, craft.data);
        craft.meta(&[8]).meta(&records.to_le_bytes()).meta(&data.to_le_bytes())
    }

    /// The digest that names it.
    pub fn id(&self) -> LayerId {
        LayerId(*blake3::hash(&self.catalog).as_bytes())
    }

    /// Puts it into a depot with a manifest.
    pub fn ship(&self, depot: &Depot) -> SnapshotId {
        ship(depot, &self.bytes, &self.id(), self.bytes.len() as u64)
    }
}

/// Puts bytes into a depot as the layer `id`, with a manifest that says they are `size` long.
pub fn ship(depot: &Depot, bytes: &[u8], id: &LayerId, size: u64) -> SnapshotId {
    std::fs::write(depot.path().join(format!("layers/{id}.layer")), bytes).unwrap();
    let manifest = format!(
        r#"{{"format":1,"environment":"e","base":{{}},"created":0,"layers":[{{"digest":"{id}","size":{size}}}]}}"#
    );
    let id = SnapshotId(*blake3::hash(manifest.as_bytes()).as_bytes());
    std::fs::write(depot.path().join(format!("snapshots/{id}.json")), &manifest).unwrap();
    let _: SnapshotManifest = depot.manifest(&id).unwrap();
    id
}
