//! Words for devices that vendors describe (CDI) and for a site's modules, which stand among those for mounts.

use skiff_cdi::{DeviceName, DeviceRequest, WhichGpus};
use skiff_spec::device::Compatibility;
use skiff_spec::fault::{Fault, Result};
use skiff_spec::named_option::NamedOption;

/// In front of a device's path, or the name by which a vendor describes it; `--device` makes it.
pub const DEVICE: &str = "device:";
/// In front of the GPUs that are asked for; `--gpus`, `--nv` and `--rocm` make it.
pub const GPUS: &str = "gpus:";
/// In front of a module's name; `--module` makes it.
pub const MODULE: &str = "module:";
/// In front of whose MPI is asked for; `--mpi` makes it.
pub const MPI: &str = "mpi:";
/// In a word for GPUs: those of the job, if it has some, as an image's maker wants them.
pub const GRANTED: &str = "granted";
/// In a word for GPUs: those of AMD's.
pub const AMD: &str = "amd";
/// In a word for GPUs: those of NVIDIA's.
pub const NVIDIA: &str = "nvidia";

/// What a word of the mounts asks for, if it is no mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostRequest {
    /// A described device, or GPUs.
    Device(DeviceRequest),
    /// A module of the site's, by its name.
    Module(String),
    /// The host's MPI, where it fits the image's.
    Mpi {
        /// Whether an image that none fits is refused.
        must_fit: bool,
        /// How its version must match, if that is not left to the site.
        compatibility: Option<Compatibility>,
    },
}

/// Whether a word of the mounts asks for a module, or for an MPI.
#[must_use]
pub fn is_of_modules(word: &str) -> bool {
    word.starts_with(MODULE) || word.starts_with(MPI)
}

/// What a word of the mounts asks for beside mounts; nothing if it is a mount.
pub fn request(word: &str) -> Result<Option<HostRequest>> {
    if let Some(name) = word.strip_prefix(MODULE) {
        return Ok(Some(HostRequest::Module(name.into())));
    }
    match word.strip_prefix(MPI) {
        Some(word) => mpi(word).map(Some),
        None => Ok(device(word)?.map(HostRequest::Device)),
    }
}

/// These words without those for described devices and modules.
pub fn without(words: &[String]) -> Result<Vec<String>> {
    let is_mount = |word: &String| request(word).map(|request| request.is_none().then(|| word.clone()));
    Ok(words.iter().map(is_mount).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Picks the words that are for described devices.
///
/// # Errors
/// One is for a device, and is not sound.
pub fn pick(words: &[String]) -> Result<Vec<String>> {
    let is_device = |word: &String| request(word).map(|request| request.map(|_| word.clone()));
    Ok(words.iter().map(is_device).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// `host` or `auto`, with `:major`, `:full` or `:strict` behind.
fn mpi(word: &str) -> Result<HostRequest> {
    let (whose, rule) = word.split_once(':').map_or((word, None), |(whose, rule)| (whose, Some(rule)));
    let compatibility = rule.map(Compatibility::parse);
    match (whose, compatibility) {
        ("host" | "auto", Some(None)) => {
            let rule = rule.unwrap_or_default();
            Err(Fault::new(format!("{}: {rule} is not major, full or strict", NamedOption::Mpi.with(word))))
        }
        ("host" | "auto", compatibility) => {
            Ok(HostRequest::Mpi { must_fit: whose == "host", compatibility: compatibility.flatten() })
        }
        _ => Err(Fault::new(format!("{}: not host, image or auto", NamedOption::Mpi.with(word)))),
    }
}

fn device(word: &str) -> Result<Option<DeviceRequest>> {
    if let Some(name) = word.strip_prefix(DEVICE).filter(|name| DeviceName::is_meant(name)) {
        let name = DeviceName::parse(name).map_err(|why| {
            Fault::new(format!("device {name}: {why}"))
                .hint("it is written VENDOR/CLASS=NAME: skiff cdi list")
        })?;
        return Ok(Some(DeviceRequest::Device(name)));
    }
    let Some(which) = word.strip_prefix(GPUS) else { return Ok(None) };
    match which {
        NVIDIA => Ok(Some(DeviceRequest::nvidia())),
        AMD => Ok(Some(DeviceRequest::amd())),
        GRANTED => Ok(Some(DeviceRequest::Gpus { kind: None, which: WhichGpus::IfGranted })),
        words => DeviceRequest::gpus(words).map(Some).map_err(|why| {
            Fault::new(format!("--gpus {words}: {why}"))
                .hint("it is all, a number of GPUs, or which: 0,2 or device=UUID")
        }),
    }
}
