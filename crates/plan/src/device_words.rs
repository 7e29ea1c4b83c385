//! Words for devices that vendors describe (CDI) and for a site's modules, which stand among those for mounts.

use skiff_cdi::{DeviceName, DeviceRequest, WhichGpus};
use skiff_spec::fault::{Fault, Result};

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
        Some("host") => return Ok(Some(HostRequest::Mpi { must_fit: true })),
        Some("auto") => return Ok(Some(HostRequest::Mpi { must_fit: false })),
        Some(other) => {
            return Err(Fault::new(format!("--mpi {other}: not host, image or auto")));
        }
        None => {}
    }
    Ok(device(word)?.map(HostRequest::Device))
}

fn device(word: &str) -> Result<Option<DeviceRequest>> {
    if let Some(name) = word.strip_prefix(DEVICE).filter(|name| DeviceName::is_meant(name)) {
        let name = DeviceName::parse(name).map_err(|why| {
            Fault::new(format!("--device {name}: {why}"))
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
