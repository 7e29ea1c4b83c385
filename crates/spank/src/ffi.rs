//! Slurm's side of the border: its functions, looked up by name in the process that loaded us, behind a safe handle.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::mem::transmute;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr::NonNull;

/// Numbers of `spank_item_t` in spank.h that are 32-bit values.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum SpankItem {
    JobUid = 0,
    JobGid = 1,
    JobId = 2,
    StepId = 3,
    /// Of the step, not of the job, whatever spank.h calls it.
    Node = 5,
    LocalTasks = 6,
}
const S_JOB_ARGV: c_int = 9;
/// `ESPANK_NOSPACE` of slurm_errno.h: the value is longer than the buffer.
const NO_SPACE: c_int = 3005;
/// Longer values than this are not ours.
const MAX_VARIABLE: usize = 1 << 20;

/// Step ids that Slurm gives to steps it starts itself (slurm.h).
pub const STEP_BATCH: u32 = 0xffff_fffb;
pub const STEP_EXTERN: u32 = 0xffff_fffc;
pub const STEP_INTERACTIVE: u32 = 0xffff_fffa;

/// In which process a hook runs (`spank_context_t`).
#[derive(Clone, Copy, PartialEq)]
pub enum HookContext {
    /// srun
    Local,
    /// slurmstepd
    Remote,
    /// sbatch, salloc
    Allocator,
    /// The prolog's or epilog's process
    JobScript,
    /// slurmd itself, or unknown
    Other,
}

/// `struct spank_option`.
#[repr(C)]
pub struct RawOption {
    pub name: *const c_char,
    pub argument: *const c_char,
    pub usage: *const c_char,
    pub has_argument: c_int,
    pub value: c_int,
    pub callback: Option<unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int>,
}

type GetItem = unsafe extern "C" fn(*mut c_void, c_int, ...) -> c_int;
type GetVariable = unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_char, c_int) -> c_int;
type SetVariable = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, c_int) -> c_int;
type UnsetVariable = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;
type RegisterOption = unsafe extern "C" fn(*mut c_void, *const RawOption) -> c_int;
type Prepend = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type Message = unsafe extern "C" fn(*const c_char, ...);
type Duplicate = unsafe extern "C" fn(*const c_char) -> *mut c_char;

/// The address of a symbol of the running process.
pub fn lookup(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: dlsym only reads the name.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// Gives a function of Slurm's as `$kind`, or `None` where this release has no such function.
macro_rules! slurm {
    ($name:literal as $kind:ty) => {
        // SAFETY: the type is the one that spank.h (slurm.h, xstring.h) declares for this name.
        lookup($name).map(|address| unsafe { transmute::<*mut c_void, $kind>(address.as_ptr()) })
    };
}

/// How many words of the command line the last run of `getopt` has taken: behind the options the program begins. Slurm's commands stop there,
/// and tell their plug-ins of the program only later.
pub fn words_parsed() -> Option<usize> {
    let optind = lookup(c"optind")?;
    // SAFETY: the C library's variable of this name is an `int`, and Slurm's commands parse their options in this very thread.
    usize::try_from(unsafe { optind.cast::<c_int>().read() }).ok()
}

/// Slurm's handle, valid during one hook.
pub struct Spank(*mut c_void);

impl Spank {
    /// # Safety
    /// `handle` must be what Slurm gave to the hook that is running.
    pub unsafe fn new(handle: *mut c_void) -> Self {
        Self(handle)
    }

    /// In which process we are.
    pub fn context(&self) -> HookContext {
        let Some(function) = slurm!(c"spank_context" as unsafe extern "C" fn() -> c_int) else {
            return HookContext::Other;
        };
        // SAFETY: takes nothing and only reads Slurm's state.
        match unsafe { function() } {
            1 => HookContext::Local,
            2 => HookContext::Remote,
            3 => HookContext::Allocator,
            5 => HookContext::JobScript,
            _ => HookContext::Other,
        }
    }

    /// A 32-bit item of the job.
    pub fn item(&self, item: SpankItem) -> Option<u32> {
        let mut value = 0u32;
        let function = slurm!(c"spank_get_item" as GetItem)?;
        // SAFETY: all of `SpankItem` are 32-bit values that Slurm writes through the pointer.
        (unsafe { function(self.0, item as c_int, &raw mut value) } == 0).then_some(value)
    }

    /// The command as Slurm will run it: Slurm's own array, whose elements may be exchanged.
    pub fn command(&self) -> Option<TaskCommand> {
        let (mut count, mut array) = (0 as c_int, std::ptr::null_mut::<*mut c_char>());
        let function = slurm!(c"spank_get_item" as GetItem)?;
        // SAFETY: S_JOB_ARGV takes `int *, char ***`.
        let answer = unsafe { function(self.0, S_JOB_ARGV, &raw mut count, &raw mut array) };
        let count = usize::try_from(count).ok().filter(|count| *count > 0)?;
        (answer == 0).then_some(())?;
        Some(TaskCommand { array: NonNull::new(array)?, count })
    }

    /// A variable of the task's environment (in slurmstepd).
    pub fn variable(&self, name: &str) -> Option<OsString> {
        let name = c_string(name)?;
        let function = slurm!(c"spank_getenv" as GetVariable)?;
        let mut size = 4096;
        while size <= MAX_VARIABLE {
            let mut buffer = vec![0u8; size];
            let length = c_int::try_from(size).ok()?;
            // SAFETY: the buffer has that length; Slurm ends what it writes with a zero.
            let answer = unsafe { function(self.0, name.as_ptr(), buffer.as_mut_ptr().cast(), length) };
            let end = buffer.iter().position(|byte| *byte == 0);
            match (answer, end) {
                (0, Some(end)) => {
                    buffer.truncate(end);
                    return Some(OsString::from_vec(buffer));
                }
                (NO_SPACE, _) => size *= 8,
                _ => return None,
            }
        }
        None
    }

    /// Sets a variable of the task's environment (in slurmstepd); false if Slurm refused.
    #[must_use]
    pub fn set_variable(&self, name: &str, value: &CStr) -> bool {
        self.set_by(slurm!(c"spank_setenv" as SetVariable), name, value)
    }

    /// Removes a variable of the task's environment (in slurmstepd); false if Slurm refused.
    #[must_use]
    pub fn unset_variable(&self, name: &str) -> bool {
        let Some((function, name)) = slurm!(c"spank_unsetenv" as UnsetVariable).zip(c_string(name)) else {
            return false;
        };
        // SAFETY: Slurm only reads the name.
        unsafe { function(self.0, name.as_ptr()) == 0 }
    }

    /// Sets a variable that the prolog and epilog will see as `SPANK_NAME`; false if Slurm refused.
    #[must_use]
    pub fn set_job_control_variable(&self, name: &str, value: &CStr) -> bool {
        self.set_by(slurm!(c"spank_job_control_setenv" as SetVariable), name, value)
    }

    fn set_by(&self, function: Option<SetVariable>, name: &str, value: &CStr) -> bool {
        let Some((function, name)) = function.zip(c_string(name)) else { return false };
        // SAFETY: Slurm copies both strings.
        unsafe { function(self.0, name.as_ptr(), value.as_ptr(), 1) == 0 }
    }

    /// Registers an option; it must live as long as the process.
    pub fn register(&self, option: &'static RawOption) -> c_int {
        // SAFETY: Slurm copies the structure and keeps the strings, which are static.
        slurm!(c"spank_option_register" as RegisterOption)
            .map_or(-1, |function| unsafe { function(self.0, option) })
    }

    /// Puts words before the task's command, where Slurm (23.11 and later) has a function for that.
    pub fn prepend(&self, words: &[&CStr]) -> Option<bool> {
        let function = slurm!(c"spank_prepend_task_argv" as Prepend)?;
        let pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).ok()?;
        // SAFETY: Slurm copies the words.
        Some(unsafe { function(self.0, count, pointers.as_ptr()) } == 0)
    }
}

/// Slurm's array of a command's words.
pub struct TaskCommand {
    array: NonNull<*mut c_char>,
    count: usize,
}

impl TaskCommand {
    /// How many words there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// A copy of one word.
    pub fn word(&self, index: usize) -> Option<CString> {
        if index >= self.count {
            return None;
        }
        // SAFETY: the array has `count` elements, each null or a C string that Slurm keeps.
        let word = NonNull::new(unsafe { *self.array.as_ptr().add(index) })?;
        // SAFETY: as above.
        Some(unsafe { CStr::from_ptr(word.as_ptr()) }.to_owned())
    }

    /// Exchanges one word; false if that is not possible.
    #[must_use]
    pub fn replace(&self, index: usize, word: &CStr) -> bool {
        // Slurm frees the word with its own xfree, which insists on memory of its own xmalloc.
        let Some(duplicate) =
            slurm!(c"slurm_xstrdup" as Duplicate).or_else(|| slurm!(c"xstrdup" as Duplicate))
        else {
            return false;
        };
        if index >= self.count {
            return false;
        }
        // SAFETY: index is inside the array; the old word is left to Slurm, which may still point to it.
        unsafe { *self.array.as_ptr().add(index) = duplicate(word.as_ptr()) };
        true
    }
}

/// An error line in Slurm's own way: on the user's terminal, or in the log and on the step's standard error.
pub fn error(text: &str) {
    say(slurm!(c"slurm_error" as Message), text);
}

/// A line for the log only.
pub fn info(text: &str) {
    say(slurm!(c"slurm_info" as Message), text);
}

/// A line: what a user's process says is not to steer the terminal on which somebody reads the log.
fn say(function: Option<Message>, text: &str) {
    let text = text.replace(char::is_control, "?");
    match (function, CString::new(text.as_str())) {
        // SAFETY: a format with one string.
        (Some(function), Ok(text)) => unsafe { function(c"skiff: %s".as_ptr(), text.as_ptr()) },
        _ => eprintln!("skiff: {text}"),
    }
}

/// A variable of this process that is set and not empty.
pub fn own_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Sets a variable of this process, which Slurm copies into the job.
pub fn set_own_variable(name: &str, value: &CStr) {
    // SAFETY: srun, sbatch and salloc are still reading their options, or waiting in this hook: no other thread of
    // theirs touches the environment meanwhile. libc's function is used because Slurm reads libc's environment.
    let set = |name: CString| unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) } == 0;
    if !c_string(name).is_some_and(set) {
        error(&format!("cannot set {name}: {}", std::io::Error::last_os_error()));
    }
}

/// Removes a variable of this process.
pub fn unset_own_variable(name: &str) {
    // SAFETY: as in `set_own_variable`.
    let unset = |name: CString| unsafe { libc::unsetenv(name.as_ptr()) } == 0;
    if !c_string(name).is_some_and(unset) {
        error(&format!("cannot unset {name}: {}", std::io::Error::last_os_error()));
    }
}

/// A string for Slurm; `None` if it has a zero inside.
pub fn c_string(text: impl AsRef<OsStr>) -> Option<CString> {
    CString::new(text.as_ref().as_bytes()).ok()
}
