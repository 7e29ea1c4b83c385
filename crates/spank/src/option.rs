//! The options of srun, sbatch and salloc: `--environment=NAME|none`, `--environment-commit`, and those of containers, which are called as
//! in Pyxis. Slurm also carries their values to the nodes.

use std::ffi::{CStr, CString, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::ffi::{self, RawOption, Spank, unset_own_variable};

static ENVIRONMENT: Mutex<Option<CString>> = Mutex::new(None);
/// The value of `--environment-commit`.
static COMMIT: Mutex<Option<CString>> = Mutex::new(None);
/// Options of containers as they were typed, `--container-image=...`.
static CONTAINER: Mutex<Vec<CString>> = Mutex::new(vec![]);
/// This command's own words, as they were before srun parsed them: it writes its name over the `:` between the parts of a heterogeneous job.
static WORDS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Whether sbatch has read a part of a heterogeneous job, and goes on to the next.
static PART_READ: AtomicBool = AtomicBool::new(false);

/// How many options are of environments.
const OF_ENVIRONMENTS: usize = 2;

struct Options([RawOption; 20]);
// SAFETY: their pointers are to string literals.
unsafe impl Sync for Options {}

/// All options. The options of environments are the first [`OF_ENVIRONMENTS`]. An option's value is its index, by which the callback finds it.
static OPTIONS: Options = Options([
    with_value(0, c"environment", c"NAME|none", c"run in this environment of Skiff; none: on the bare node"),
    RawOption {
        has_argument: OPTIONAL,
        ..with_value(
            1,
            c"environment-commit",
            c"rank0|all|NODE",
            c"[skiff] keep what the job changes in it as a snapshot",
        )
    },
    with_value(
        2,
        c"container-image",
        c"[SERVER#]IMAGE[:TAG]|FILE",
        c"[skiff] run in a container of this image",
    ),
    with_value(
        3,
        c"container-mounts",
        c"SRC[:DST[:FLAGS]],...",
        c"[skiff] mount these directories or files of the node",
    ),
    with_value(4, c"container-workdir", c"DIR", c"[skiff] start in this directory of the container"),
    with_value(
        5,
        c"container-name",
        c"NAME[:auto|create|exec|no_exec]",
        c"[skiff] keep the container's changes for later steps of the job",
    ),
    with_value(6, c"container-env", c"NAME,...", c"[skiff] keep these variables, whatever the image says"),
    flag(7, c"container-mount-home", c"[skiff] mount your home (default)"),
    flag(8, c"no-container-mount-home", c"[skiff] do not mount your home"),
    flag(9, c"container-remap-root", c"[skiff] be root inside"),
    flag(10, c"no-container-remap-root", c"[skiff] be yourself inside (default)"),
    flag(11, c"container-entrypoint", c"[skiff] run the image's entry point"),
    flag(12, c"no-container-entrypoint", c"[skiff] do not (default)"),
    flag(13, c"container-writable", c"[skiff] let the container's files be changed (default)"),
    flag(14, c"container-readonly", c"[skiff] do not let them"),
    with_value(
        15,
        c"container-save",
        c"FILE",
        c"[skiff] write the container's files to this file at the end",
    ),
    with_value(
        16,
        c"container-unshare",
        c"net|ipc|uts,...",
        c"[skiff] give the container these namespaces of its own",
    ),
    flag(17, c"container-entrypoint-log", c"[skiff] show what the entry point prints (always so)"),
    with_value(
        18,
        c"container-module",
        c"NAME,...",
        c"[skiff] add these modules of the site's, as of its fabric (skiff module list)",
    ),
    with_value(
        19,
        c"container-mpi",
        c"host|image|auto",
        c"[skiff] run with the host's MPI, the image's (default), or the host's if it fits",
    ),
]);

/// What `--environment-commit` means without a value.
const RANK0: &CStr = c"rank0";

/// What Slurm, as `getopt`, calls an argument that may be left out.
const OPTIONAL: c_int = 2;

const fn with_value(place: c_int, name: &CStr, argument: &CStr, usage: &CStr) -> RawOption {
    RawOption {
        name: name.as_ptr(),
        argument: argument.as_ptr(),
        usage: usage.as_ptr(),
        has_argument: 1,
        value: place,
        callback: Some(store),
    }
}

const fn flag(place: c_int, name: &CStr, usage: &CStr) -> RawOption {
    RawOption { argument: std::ptr::null(), has_argument: 0, ..with_value(place, name, c"", usage) }
}

/// Makes the options known, those of containers if the site wants them; Slurm's error code if it refuses.
pub fn register(spank: &Spank, containers: bool) -> c_int {
    WORDS.get_or_init(own_words);
    let wanted = if containers { &OPTIONS.0[..] } else { &OPTIONS.0[..OF_ENVIRONMENTS] };
    wanted.iter().map(|option| spank.register(option)).find(|code| *code != 0).unwrap_or(0)
}

/// Forgets what sbatch or salloc said of a container, or of changes: Slurm repeats it in every srun of the job, where it would be mixed with what that
/// one says. What the job runs in its spec says.
pub fn forget_jobs_container() {
    forget(&OPTIONS.0[1..]);
}

/// In sbatch, when a part of a heterogeneous job has been read. Slurm then makes variables of its options, and reads these in the next part
/// after the lines of the script: they would win over what a line of that part says.
pub fn end_part() {
    PART_READ.store(true, Ordering::Relaxed);
}

fn forget(options: &[RawOption]) {
    for name in options.iter().map(name) {
        let name = name.to_string_lossy().replace('-', "_");
        // By the first salloc's own command gets it, by the second a job's script.
        for prefix in ["", "SLURM_SPANK_"] {
            unset_own_variable(&format!("{prefix}_SLURM_SPANK_OPTION_skiff_{name}"));
        }
    }
}

/// The value of `--environment`, if any.
pub fn environment() -> Option<CString> {
    ENVIRONMENT.lock().ok()?.clone()
}

/// On a node: the environment that the step is to run in. One that the job was submitted with, which Slurm repeats here, gives way to a
/// container: that can only be of the step's own words.
pub fn step_environment() -> Option<CString> {
    environment().filter(|_| container().is_empty())
}

/// The value given in this very command's own words. One may also have come from the words of the sbatch or salloc whose job
/// this is, which Slurm repeats in every srun of the job.
pub fn own_environment() -> Option<CString> {
    let value = environment()?;
    let words = WORDS.get_or_init(own_words);
    is_typed(words, ffi::words_parsed(), value.to_bytes()).then_some(value)
}

fn own_words() -> Vec<OsString> {
    std::env::args_os().collect()
}

/// The words in which a command line's options are: those in front of `end`, where `getopt` has met the program that is to run. That program may
/// have options of the same names.
fn options_of(words: &[OsString], end: Option<usize>) -> &[OsString] {
    // Each part of a heterogeneous job is parsed by itself, and counted from its own beginning.
    let is_one_part = || !words.iter().any(|word| word == ":");
    let end = end.filter(|end| (1..words.len()).contains(end) && is_one_part()).unwrap_or(words.len());
    &words[..end]
}

/// Whether `--environment` has this value among the options of a command line.
fn is_typed(words: &[OsString], end: Option<usize>, value: &[u8]) -> bool {
    // The option's argument may be the word in front of the program.
    let is_value = |at: usize| words.get(at).is_some_and(|next| next.as_bytes() == value);
    // getopt takes a beginning only if it fits one option.
    options_of(words, end).iter().enumerate().any(|(at, word)| {
        match word.as_bytes().strip_prefix(b"--environment") {
            Some(b"") => is_value(at + 1),
            Some([b'=', typed @ ..]) => typed == value,
            _ => false,
        }
    })
}

/// Whether this command's own words name a job that is there already, as `srun --jobid=JOB` does for a step of it.
pub fn names_job() -> bool {
    has_option(WORDS.get_or_init(own_words), ffi::words_parsed(), b"--jobid")
}

/// Whether this command's own words have Slurm's option `--container`.
pub fn has_slurms_container() -> bool {
    has_option(WORDS.get_or_init(own_words), ffi::words_parsed(), b"--container")
}

fn has_option(words: &[OsString], end: Option<usize>, option: &[u8]) -> bool {
    let is_it = |word: &OsString| matches!(word.as_bytes().strip_prefix(option), Some(b"" | [b'=', ..]));
    options_of(words, end).iter().any(is_it)
}

/// The value of `--environment-commit`, if it was given.
pub fn commit() -> Option<CString> {
    COMMIT.lock().ok()?.clone()
}

/// What is said of a container, in words that `skiff slurm submit` takes.
pub fn container() -> Vec<CString> {
    // Poisoned by a panic, which ends srun.
    CONTAINER.lock().map_or_else(|_| vec![], |words| words.clone())
}

fn name(option: &RawOption) -> &'static CStr {
    // SAFETY: a literal, as all names in the table.
    unsafe { CStr::from_ptr(option.name) }
}

/// # Safety
/// Called by Slurm with the option's own value and its argument, if it takes one.
unsafe extern "C" fn store(place: c_int, argument: *const c_char, _remote: c_int) -> c_int {
    let option = usize::try_from(place).ok().and_then(|place| OPTIONS.0.get(place));
    let Some(option) = option else { return -1 };
    let argument = match option.has_argument {
        0 => None,
        OPTIONAL if argument.is_null() => None,
        _ if argument.is_null() => return -1,
        // SAFETY: Slurm gives a C string.
        _ => Some(unsafe { CStr::from_ptr(argument) }),
    };
    // Where Slurm carries an option without an argument, it has an empty one.
    let argument = argument.filter(|text| option.has_argument != OPTIONAL || !text.is_empty());
    if PART_READ.load(Ordering::Relaxed) {
        forget(&OPTIONS.0);
    }
    if argument.is_some_and(CStr::is_empty) {
        return -1;
    }
    let stored = match (place, argument) {
        (0, argument) => ENVIRONMENT.lock().map(|mut value| *value = argument.map(CStr::to_owned)).is_ok(),
        (1, argument) => {
            let value = argument.unwrap_or(RANK0).to_owned();
            COMMIT.lock().map(|mut commit| *commit = Some(value)).is_ok()
        }
        (_, argument) => add(name(option), argument).is_some(),
    };
    if stored { 0 } else { -1 }
}

/// Options whose values add up. Of any other one the later word wins: one that was typed comes after those of the script.
const LISTS: [&CStr; 4] = [c"container-mounts", c"container-unshare", c"container-env", c"container-module"];

fn add(name: &CStr, argument: Option<&CStr>) -> Option<()> {
    let mut words = CONTAINER.lock().ok()?;
    add_to(&mut words, name, argument)
}

/// Adds an option; Slurm may repeat one.
fn add_to(words: &mut Vec<CString>, name: &CStr, argument: Option<&CStr>) -> Option<()> {
    let mut word = [b"--", name.to_bytes()].concat();
    if let Some(argument) = argument {
        word.push(b'=');
        word.extend_from_slice(argument.to_bytes());
    }
    let word = CString::new(word).ok()?;
    let name_of = |word: &CString| word.to_bytes().split(|byte| *byte == b'=').next().map(<[u8]>::to_vec);
    // In its place: of two parts of a heterogeneous job the words are compared.
    let is_same = |known: &CString| match LISTS.contains(&name) {
        true => *known == word,
        false => name_of(known) == name_of(&word),
    };
    match words.iter().position(is_same) {
        Some(at) => words[at] = word,
        None => words.push(word),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_the_program_is_not_one_of_sruns() {
        for (line, end, value, want) in [
            ("srun --environment=dev prog", Some(2), "dev", true),
            ("srun --environment dev prog", Some(3), "dev", true),
            ("srun --environment=dev --environment=new prog", Some(3), "new", true),
            ("srun prog --environment=dev", Some(1), "dev", false),
            ("srun -n1 prog --environment dev", Some(2), "dev", false),
            ("srun -n1 prog --environment=test", None, "dev", false),
            ("srun -n1 prog --environment", None, "dev", false),
            ("srun --environment-commit=dev prog", Some(2), "dev", false),
            // Where it is not known where the options end, as in the second part of a heterogeneous job, all words count.
            ("srun --environment=dev a : --environment=dev b", Some(2), "dev", true),
            ("srun -n1 a : -n1 --environment=dev b", Some(3), "dev", true),
            ("srun --environment=dev prog", Some(0), "dev", true),
            ("srun --environment=dev prog", Some(9), "dev", true),
            ("srun --environment=dev", Some(2), "dev", true),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(is_typed(&words, end, value.as_bytes()), want, "{line} {end:?}");
        }
    }

    #[test]
    fn the_later_of_two_values_wins() {
        let mut words = vec![];
        for (name, value) in [
            (c"container-image", Some(c"a")),
            (c"container-mounts", Some(c"/a")),
            (c"container-writable", None),
            (c"container-image", Some(c"b")),
            (c"container-mounts", Some(c"/b")),
            (c"container-mounts", Some(c"/a")),
            (c"container-writable", None),
        ] {
            add_to(&mut words, name, value).expect("no zero byte");
        }
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        assert_eq!(
            words,
            ["--container-image=b", "--container-mounts=/a", "--container-writable", "--container-mounts=/b"]
        );
    }

    #[test]
    fn slurms_own_options_are_found_among_a_commands_own_words() {
        for (line, end, jobid, container) in [
            ("srun --jobid=3 --overlap prog", Some(3), true, false),
            ("srun --jobid 3 prog", Some(3), true, false),
            ("srun prog --jobid=3", Some(1), false, false),
            ("srun --container=/b --container-image=x prog", Some(3), false, true),
            ("srun --container-image=x prog --container=/b", Some(2), false, false),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(has_option(&words, end, b"--jobid"), jobid, "{line}");
            assert_eq!(has_option(&words, end, b"--container"), container, "{line}");
        }
    }
}
