//! `--environment=NAME|none` of srun, sbatch and salloc. Slurm also carries its value to the nodes.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

use crate::ffi::{RawOption, Spank};

/// The value that switches environments off.
pub const NONE: &CStr = c"none";

static VALUE: Mutex<Option<CString>> = Mutex::new(None);

struct StaticOption(RawOption);
// SAFETY: its pointers are to string literals.
unsafe impl Sync for StaticOption {}

static OPTION: StaticOption = StaticOption(RawOption {
    name: c"environment".as_ptr(),
    argument: c"NAME|none".as_ptr(),
    usage: c"run in this environment of Skiff; none: on the bare node".as_ptr(),
    has_argument: 1,
    value: 0,
    callback: Some(store),
});

/// Makes the option known; Slurm's error code if it refuses.
pub fn register(spank: &Spank) -> c_int {
    spank.register(&OPTION.0)
}

/// The value given, if any.
pub fn value() -> Option<CString> {
    VALUE.lock().ok()?.clone()
}

/// The value given in this very command's own words. One may also have come from the words of the sbatch or salloc whose job
/// this is, which Slurm repeats in every srun of the job.
pub fn own_value() -> Option<CString> {
    // getopt takes any beginning that fits one option only.
    let typed = std::env::args_os().any(|word| word.as_bytes().starts_with(b"--en"));
    value().filter(|_| typed)
}

/// # Safety
/// Called by Slurm with the option's argument.
unsafe extern "C" fn store(_: c_int, argument: *const c_char, _remote: c_int) -> c_int {
    if argument.is_null() {
        return -1;
    }
    // SAFETY: Slurm gives a C string.
    let argument = unsafe { CStr::from_ptr(argument) };
    if argument.is_empty() {
        return -1;
    }
    match VALUE.lock() {
        Ok(mut value) => *value = Some(argument.to_owned()),
        Err(_) => return -1,
    }
    0
}
