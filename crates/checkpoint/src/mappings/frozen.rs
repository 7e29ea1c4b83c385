//! What processes have mapped and open while they stand still.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;

use super::copy::copy;
use super::mapping::{MEMFD, Mapping, ObjectId, ObjectKind, memory_device, nameless, object, of_process};
use super::named_files::{named_files, tmpfs_device};

/// What processes had when they stood still.
pub(super) struct FrozenMappings {
    mappings: Vec<(i32, Mapping)>,
    /// Where an object is open that has no name.
    open: HashMap<(ObjectKind, ObjectId), PathBuf>,
    /// The kernel's own device of files in memory.
    memory: (u32, u32),
    /// The device of `/dev/shm`, if that is in memory. Behind it: its files with names, and whether these are all.
    shared: Option<(u32, u32)>,
    named: (HashMap<ObjectId, PathBuf>, bool),
}

impl FrozenMappings {
    /// Of all processes but this one and CRIU.
    pub(super) fn of(criu: i32) -> Result<Self> {
        let about = || "processes";
        let own = std::process::id().cast_signed();
        let (mut mappings, mut open) = (vec![], HashMap::new());
        for entry in fs::read_dir("/proc").context(about)?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if pid == own || pid == criu {
                continue;
            }
            let all = of_process(pid).default_on_error("one that has ended has nothing");
            mappings.extend(all.into_iter().map(|mapping| (pid, mapping)));
            for fd in fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten() {
                let Some(object) = fd.path().metadata().ok().and_then(|file| nameless(&file)) else {
                    continue;
                };
                let link = fs::read_link(fd.path()).default_on_error("it has just been closed");
                let is_memfd = link.to_string_lossy().starts_with(MEMFD);
                let kind = if is_memfd { ObjectKind::Memfd } else { ObjectKind::File };
                open.insert((kind, object), fd.path());
            }
        }
        let shared = tmpfs_device("/dev/shm");
        let is_it = |(_, one): &(i32, Mapping)| one.is_deleted() && Some(one.device()) == shared;
        let named = match shared {
            Some(device) if mappings.iter().any(is_it) => named_files(device),
            _ => (HashMap::new(), true),
        };
        Ok(Self { mappings, open, memory: memory_device()?, shared, named })
    }

    /// The file of a mapping whose name is gone, if it has another.
    fn by_name(&self, wanted: &Mapping) -> io::Result<Option<File>> {
        let (files, is_whole) = &self.named;
        if let Some(path) = files.get(&wanted.object) {
            let file = File::open(path)?;
            return match object(&file.metadata()?) == wanted.object {
                true => Ok(Some(file)),
                false => Err(io::Error::other("it has been given another name just now")),
            };
        }
        is_whole.then_some(None).ok_or_else(|| io::Error::other("whether it has another name cannot be seen"))
    }

    /// What stands for a mapped object; nothing if CRIU sees it as it is.
    pub(super) fn file(&self, wanted: &Mapping) -> io::Result<Option<File>> {
        if let Some(path) = self.open.get(&wanted.key()) {
            return File::open(path).map(Some);
        }
        if wanted.device() != self.memory {
            if Some(wanted.device()) != self.shared {
                return wanted.by_its_own_name();
            }
            if let Some(file) = self.by_name(wanted)? {
                return Ok(Some(file));
            }
        }
        let mut views: Vec<&(i32, Mapping)> =
            self.mappings.iter().filter(|(_, mapping)| mapping.key() == wanted.key()).collect();
        // CRIU reads memory that is shared by `mmap` as if the first mapping of it that it comes by were of the whole.
        let whole = views.iter().map(|(_, view)| view.offset + (view.end - view.start)).max().unwrap_or(0);
        let is_plain = |(_, view): &&(i32, Mapping)| view.offset == 0 && view.end - view.start == whole;
        if wanted.is_anonymous() && views.iter().all(is_plain) {
            return Ok(None);
        }
        views.sort_by_key(|(_, view)| (!view.is_shared(), view.offset));
        copy(&views).map(Some)
    }
}
