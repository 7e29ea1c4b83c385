//! Apptainer's format: a header, a table of what follows, and among that a squashfs with the container's files.
//! Definition: <https://github.com/sylabs/sif/blob/main/pkg/sif/sif.go>.

use std::sync::Arc;

use skiff_oci::platform::Platform;

use crate::error::{Error, Result};
use crate::transport::FilePart;

const HEADER: usize = 128;
/// What a script's first line needs.
const LAUNCH: usize = 32;
const MAGIC: &[u8] = b"SIF_MAGIC\0";
const VERSION: &[u8] = b"01\0";
const DESCRIPTOR: usize = 585;
/// Apptainer makes room for 48.
const MOST_DESCRIPTORS: u64 = 4096;

const DATA_PARTITION: u32 = 0x4004;
const DATA_OCI_ROOT: u32 = 0x400a;
/// Where in a descriptor's own part of a partition's the kinds stand.
const EXTRA: usize = 201;
const PRIMARY_SYSTEM: u32 = 2;

/// Where the container's files lie.
pub(crate) struct Sif {
    /// The squashfs.
    pub squashfs: FilePart,
    /// What it runs on, if that is known.
    pub platform: Option<Platform>,
}

/// Whether it begins like one.
pub(crate) fn is_one(part: &FilePart) -> bool {
    let mut magic = [0; MAGIC.len()];
    part.read(&mut magic, LAUNCH as u64).is_ok() && magic == *MAGIC
}

/// Finds the primary partition.
///
/// # Errors
/// It is no such file, is damaged, or has its files in another form.
pub(crate) fn open(part: &FilePart) -> Result<Sif> {
    let bad = |why: &str| Error::Foreign { object: part.name.clone(), why: why.into(), hint: None };
    let mut header = [0; HEADER];
    if part.size < HEADER as u64 {
        return Err(bad("it is shorter than a SIF header"));
    }
    part.read(&mut header, 0)?;
    let (magic, version) = (&header[LAUNCH..][..MAGIC.len()], &header[LAUNCH + MAGIC.len()..][..3]);
    if magic != MAGIC {
        return Err(bad("it has no SIF header"));
    }
    if version != VERSION {
        return Err(bad(&format!("it is of version {} of SIF; 01 is known", version.escape_ascii())));
    }
    let (total, table) = (u64_at(&header, 88), u64_at(&header, 96));
    if total > MOST_DESCRIPTORS {
        return Err(bad(&format!("it has {total} descriptors; {MOST_DESCRIPTORS} are the limit")));
    }
    let mut has_oci = false;
    for number in 0..total {
        let mut descriptor = [0; DESCRIPTOR];
        let at = table.checked_add(number * DESCRIPTOR as u64).filter(|at| *at <= part.size);
        let at = at.ok_or_else(|| bad("its table of contents does not lie in it"))?;
        part.read(&mut descriptor, at).map_err(|_| bad("its table of contents is cut off"))?;
        let (data_type, used) = (u32_at(&descriptor, 0), descriptor[4] != 0);
        has_oci |= used && data_type == DATA_OCI_ROOT;
        if used && data_type == DATA_PARTITION && u32_at(&descriptor, EXTRA + 4) == PRIMARY_SYSTEM {
            return partition(part, &descriptor);
        }
    }
    let hint = has_oci.then_some("it is an OCI-SIF: convert it, or pull the image that it was made from");
    Err(Error::Foreign { object: part.name.clone(), why: "it has no primary system partition".into(), hint })
}

fn partition(part: &FilePart, descriptor: &[u8]) -> Result<Sif> {
    let bad = |why: String, hint| Error::Foreign { object: part.name.clone(), why, hint };
    let (why, hint) = match u32_at(descriptor, EXTRA) {
        1 => ("", None),
        2 => ("an ext3 file system", Some("rebuild it: apptainer build NEW.sif OLD.sif")),
        5 => ("encrypted", Some("decrypt it by running it with apptainer, and build another")),
        _ => ("of a kind that is not known", None),
    };
    if !why.is_empty() {
        return Err(bad(format!("its primary partition is {why}, and no squashfs"), hint));
    }
    let (offset, size) = (u64_at(descriptor, 17), u64_at(descriptor, 25));
    if offset.checked_add(size).is_none_or(|end| end > part.size) {
        return Err(bad("its primary partition does not lie in it".into(), None));
    }
    let squashfs = FilePart {
        file: Arc::clone(&part.file),
        name: part.name.clone(),
        offset: part.offset + offset,
        size,
    };
    Ok(Sif { squashfs, platform: platform(&descriptor[EXTRA + 8..][..2]) })
}

fn platform(code: &[u8]) -> Option<Platform> {
    let (architecture, variant) = match code {
        b"01" => ("386", None),
        b"02" => ("amd64", None),
        b"03" => ("arm", None),
        b"04" => ("arm64", Some("v8")),
        b"05" => ("ppc64", None),
        b"06" => ("ppc64le", None),
        b"11" => ("s390x", None),
        b"12" => ("riscv64", None),
        _ => return None,
    };
    Some(Platform::linux(architecture, variant))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}
