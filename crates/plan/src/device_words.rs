//! Words for devices that vendors describe (CDI), which stand among those for mounts.

use skiff_cdi::{DeviceName, DeviceRequest, WhichGpus};
use skiff_spec::fault::{Fault, Result};

/// In front of a device's path, or the name by which a vendor describes it; `--device` makes it.
pub const DEVICE: &str = "device:";
/// In front of the GPUs that are asked for; `--gpus`, `--nv` and `--rocm` make it.
pub const GPUS: &str = "gpus:";
/// In a word for GPUs: those of the job, if it has some, as an image's maker wants them.
pub const GRANTED: &str = "granted";
/// In a word for GPUs: those of AMD's.
pub const AMD: &str = "amd";
/// In a word for GPUs: those of NVIDIA's.
pub const NVIDIA: &str = "nvidia";

/// The described device or the GPUs that a word of the mounts asks for; nothing if it is a mount.
pub fn request(word: &str) -> Result<Option<DeviceRequest>> {
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
