//! The version that Slurm compares with its own before it runs anything of a plug-in.
//!
//! It must equal the running release (year and month; the patch level is not compared), so a constant would tie this
//! file to one release. A constructor sets it while the file is being loaded, before Slurm looks.

use std::ffi::{c_long, c_uint};
use std::mem::transmute;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ffi::lookup;

/// Slurm looks this up by name and reads it as an unsigned integer.
#[unsafe(no_mangle)]
pub static plugin_version: AtomicU32 = AtomicU32::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static SET_VERSION: extern "C" fn() = set_version;

extern "C" fn set_version() {
    if let Some(function) = lookup(c"slurm_api_version") {
        // SAFETY: slurm.h declares it as `long slurm_api_version(void)`.
        let api =
            unsafe { transmute::<*mut std::ffi::c_void, extern "C" fn() -> c_long>(function.as_ptr())() };
        plugin_version.store(release_of(api), Ordering::Relaxed);
    }
}

/// The release (22.05 is `22 << 16 | 5 << 8`) whose API version is `api`.
///
/// The API's major number has gone up by one with every release: 38 is 22.05, 39 is 23.02, 40 is 23.11; from then on
/// May and November alternate (41 is 24.05). Unknown ones give a number that Slurm refuses, with a message.
fn release_of(api: c_long) -> c_uint {
    let major = c_uint::try_from((api >> 16) & 0xff).unwrap_or(0);
    let (year, month) = match major {
        38 => (22, 5),
        39 => (23, 2),
        40.. => (23 + (major - 39) / 2, if major % 2 == 0 { 11 } else { 5 }),
        _ => (0, 0),
    };
    (year << 16) | (month << 8)
}

#[cfg(test)]
mod tests {
    use super::release_of;

    #[test]
    fn releases_follow_the_api_number() {
        let known = [
            (38, 22, 5),
            (39, 23, 2),
            (40, 23, 11),
            (41, 24, 5),
            (42, 24, 11),
            (43, 25, 5),
            (44, 25, 11),
            (45, 26, 5),
        ];
        for (api, year, month) in known {
            assert_eq!(release_of(api << 16 | 7), (year << 16) | (month << 8), "API version {api}");
        }
        assert_eq!(release_of(37 << 16), 0);
    }
}
