//! The system calls that nothing in an environment may make.
//!
//! A short list of refusals, not a list of permissions: an HPC program may use whatever its user could use outside (perf,
//! io_uring, ptrace of their own, user namespaces); what goes is what only a real root has, and what would let a
//! program reach out of the environment through something it shares with the host: the terminal and the keyrings.

mod untrusted;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

pub(crate) const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
pub(crate) const MISSING: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Refused whatever the arguments.
const CALLS: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_vhangup,
];

/// Refused besides to a privileged process that starts no program: what whoever took it over would go on with.
const PRIVILEGED_CALLS: &[libc::c_long] = &[
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_io_uring_setup,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_userfaultfd,
];

/// Terminal requests that type into, or paste into, the terminal the environment shares with the user's login
/// (CVE-2017-5226 taught this to others).
const IOCTLS: &[libc::Ioctl] = &[libc::TIOCSTI, libc::TIOCLINUX];

/// The kernel's word for the architecture of a call (`AUDIT_ARCH_*`).
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// The 32-bit calls that the kernel takes beside its own: architecture, the number of `ioctl`, and the same refusals.
#[cfg(target_arch = "x86_64")]
const OLD: Option<Old> = Some(Old {
    arch: 0x4000_0003,
    ioctl: 54,
    // acct, init_module, delete_module, swapon, swapoff, reboot, settimeofday, stime, vhangup, quotactl, clock_settime (and
    // 64), kexec_load, add_key, request_key, keyctl, open_by_handle_at, clock_adjtime (and 64), finit_module, quotactl_fd
    calls: &[
        51, 128, 129, 87, 115, 88, 79, 25, 111, 131, 264, 404, 283, 286, 287, 288, 342, 343, 405, 350, 443,
    ],
});
#[cfg(target_arch = "aarch64")]
const OLD: Option<Old> = None;

struct Old {
    arch: u32,
    ioctl: u32,
    calls: &'static [u32],
}

/// Loads the filter for this process and all it will ever start. Needs `no_new_privs` or `SYS_ADMIN`.
///
/// # Errors
/// `EACCES` without either, `EINVAL` on a kernel without seccomp filters.
pub fn load() -> io::Result<()> {
    install(&mut filter(CALLS, OLD))
}

/// Loads a filter for a privileged process that starts no program and is none of the old architecture's.
///
/// # Errors
/// As [`load`].
pub fn load_without_exec() -> io::Result<()> {
    install(&mut filter(&[CALLS, PRIVILEGED_CALLS].concat(), None))
}

/// Whether this process has a filter.
#[must_use]
pub fn is_loaded() -> bool {
    // SAFETY: plain integers; it only asks.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) == libc::SECCOMP_MODE_FILTER as libc::c_int }
}

/// An instruction of a filter's program, as the kernel has it (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfInstruction {
    /// What it does: `BPF_*` values.
    pub code: u16,
    /// How many instructions are skipped where a comparison holds.
    pub then: u8,
    /// The same where it does not.
    pub otherwise: u8,
    /// What it is done with.
    pub operand: u32,
}

/// The kernel's word for the architecture that this is built for, as filters see it.
pub const NATIVE_ARCHITECTURE: u32 = ARCH;

/// Flags with which a filter of somebody else's making can be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterFlags {
    /// Answers that are no permission are logged by the kernel.
    pub log: bool,
    /// The processor's guards against speculation stay off.
    pub allow_speculation: bool,
}

/// Loads a filter of somebody else's making. Needs `no_new_privs` or `SYS_ADMIN`.
///
/// # Errors
/// `EACCES` without either, `EINVAL` for a program that the kernel does not take.
pub fn load_program(program: &[BpfInstruction], flags: FilterFlags) -> io::Result<()> {
    let mut program: Vec<libc::sock_filter> = program
        .iter()
        .map(|i| libc::sock_filter { code: i.code, jt: i.then, jf: i.otherwise, k: i.operand })
        .collect();
    let log = if flags.log { libc::SECCOMP_FILTER_FLAG_LOG } else { 0 };
    let speculation = if flags.allow_speculation { libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW } else { 0 };
    install_with(&mut program, log | speculation)
}

/// Loads one.
pub(crate) fn install(program: &mut [libc::sock_filter]) -> io::Result<()> {
    install_with(program, 0)
}

fn install_with(program: &mut [libc::sock_filter], flags: libc::c_ulong) -> io::Result<()> {
    let fprog = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: fprog points to len instructions that live through the call; the kernel copies and checks them.
    let r =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const fprog) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Loads one whose calls of user notification wait for the listener that is given.
pub(crate) fn install_listener(
    program: &mut [libc::sock_filter],
    flags: libc::c_ulong,
) -> io::Result<OwnedFd> {
    let fprog = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let flags = flags | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // SAFETY: fprog points to len instructions that live through the call; the kernel copies and checks them.
    let r =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const fprog) };
    match i32::try_from(r) {
        // SAFETY: the kernel has just made this descriptor, and nobody else has it.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Loads the filter for a program that nobody trusts, beside that of [`load`].
///
/// # Errors
/// As [`load`].
pub fn load_untrusted() -> io::Result<()> {
    install(&mut untrusted::filter())
}

/// x32 calls are of the native architecture and carry bit 30.
pub(crate) const X32: u32 = 0x4000_0000;

/// How each filter begins: calls from the number `unknown` on, and those of an architecture that the filter does not know, whose numbers would
/// mean other calls, do not exist. For calls of `old`'s architecture, if there is one, `old` is the whole filter; for native ones the
/// filter goes on behind this, with their number loaded.
pub(crate) fn only_known(unknown: u32, old: Option<(u32, Vec<libc::sock_filter>)>) -> Vec<libc::sock_filter> {
    const NR: u32 = 0;
    const ARCH_AT: u32 = 4;
    let mut f = vec![load_word(ARCH_AT)];
    if let Some((arch, old)) = old {
        // Over the number's load and what follows.
        f.extend([jump(arch, 0, old.len() as u8 + 1), load_word(NR)]);
        f.extend(old);
    }
    f.extend([jump(ARCH, 1, 0), ret(MISSING), load_word(NR)]);
    f.extend([jump_at_least(unknown, 0, 1), ret(MISSING)]);
    f
}

fn filter(calls: &[libc::c_long], old: Option<Old>) -> Vec<libc::sock_filter> {
    let calls: Vec<u32> = calls.iter().map(|call| *call as u32).collect();
    let mut f = only_known(X32, old.map(|Old { arch, ioctl, calls }| (arch, refusals(calls, ioctl))));
    f.extend(refusals(&calls, libc::SYS_ioctl as u32));
    f
}

/// With the number loaded: what these calls get, and all others.
///
/// When a filter is loaded, the kernel follows it once for each number there is, 900 times in all. Comparing with one call after the other, a
/// filter took 110 microseconds of a start; a search that halves takes 70.
fn refusals(calls: &[u32], ioctl: u32) -> Vec<libc::sock_filter> {
    const ARG1_LOW: u32 = 24;
    let mut f = Backwards::default();
    let refuse = f.put(|_| ret(REFUSE));
    let allow = f.put(|_| ret(ALLOW));
    let mut otherwise = allow;
    for request in IOCTLS {
        otherwise = f.put(|to| jump(*request as u32, to(refuse), to(otherwise)));
    }
    let request = f.put(|_| load_word(ARG1_LOW));
    let mut cases: Vec<_> = calls.iter().map(|call| (*call, refuse)).chain([(ioctl, request)]).collect();
    cases.sort_unstable();
    f.search(&cases, allow);
    f.0.reverse();
    f.0
}

/// Instructions, the last one first: they jump forward only, so where a jump leads to is there before it.
#[derive(Default)]
struct Backwards(Vec<libc::sock_filter>);

/// An instruction, counted from the end.
type FromEnd = usize;

impl Backwards {
    /// Puts an instruction before all others, which is told how far it is from it to a place.
    fn put(&mut self, instruction: impl FnOnce(&dyn Fn(FromEnd) -> u8) -> libc::sock_filter) -> FromEnd {
        let here = self.0.len();
        self.0.push(instruction(&|place| {
            u8::try_from(here - place - 1).expect("a filter of less than 256 instructions")
        }));
        here
    }

    /// Puts a search for the number among these cases, in their order; for all others it leads to `otherwise`.
    fn search(&mut self, cases: &[(u32, FromEnd)], otherwise: FromEnd) -> FromEnd {
        match cases {
            [] => otherwise,
            [(number, place)] => self.put(|to| jump(*number, to(*place), to(otherwise))),
            _ => {
                let (lower, upper) = cases.split_at(cases.len() / 2);
                let first = upper[0].0;
                let upper = self.search(upper, otherwise);
                let lower = self.search(lower, otherwise);
                self.put(|to| jump_at_least(first, to(upper), to(lower)))
            }
        }
    }
}

pub(crate) fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
pub(crate) fn load_word(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}
pub(crate) fn jump(equal: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, then, otherwise, equal)
}
fn jump_at_least(value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, then, otherwise, value)
}
pub(crate) fn ret(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter answers, run as the kernel runs it.
    fn answer(arch: u32, number: u32, second_argument: u32) -> u32 {
        answer_of(&filter(CALLS, OLD), arch, number, second_argument)
    }

    fn answer_of(filter: &[libc::sock_filter], arch: u32, number: u32, second_argument: u32) -> u32 {
        run(filter, |offset| match offset {
            0 => number,
            4 => arch,
            24 => second_argument,
            other => panic!("it looks at {other}"),
        })
    }

    /// What a filter answers to a call, whose words are at these offsets.
    pub(super) fn run(filter: &[libc::sock_filter], call: impl Fn(u32) -> u32) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let i = filter[at];
            at += 1;
            match u32::from(i.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    word = call(i.k);
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if word == i.k { i.jt } else { i.jf });
                }
                code if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => {
                    at += usize::from(if word >= i.k { i.jt } else { i.jf });
                }
                code if code == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => {
                    at += usize::from(if word & i.k != 0 { i.jt } else { i.jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return i.k,
                other => panic!("instruction {other}"),
            }
        }
    }

    #[test]
    fn privileged_processes_start_no_program() {
        let filter = filter(&[CALLS, PRIVILEGED_CALLS].concat(), None);
        for call in CALLS.iter().chain(PRIVILEGED_CALLS) {
            assert_eq!(answer_of(&filter, ARCH, *call as u32, 0), REFUSE, "{call}");
        }
        for call in [libc::SYS_read, libc::SYS_setns, libc::SYS_mount, libc::SYS_sendmsg] {
            assert_eq!(answer_of(&filter, ARCH, call as u32, 0), ALLOW, "{call}");
        }
        if let Some(old) = OLD {
            assert_eq!(answer_of(&filter, old.arch, 1, 0), MISSING, "no 32-bit call");
        }
    }

    #[test]
    fn calls_are_refused_by_any_of_their_numbers() {
        let typed_in = libc::TIOCSTI as u32;
        for call in CALLS {
            assert_eq!(answer(ARCH, *call as u32, 0), REFUSE, "{call}");
        }
        assert_eq!(answer(ARCH, libc::SYS_ioctl as u32, typed_in), REFUSE);
        for call in (0..600).filter(|call| !CALLS.contains(call)) {
            assert_eq!(answer(ARCH, call as u32, 0), ALLOW, "{call}");
        }
        for call in [libc::SYS_read, libc::SYS_execve, libc::SYS_ioctl, libc::SYS_clone3, libc::SYS_ptrace] {
            assert_eq!(answer(ARCH, call as u32, 0), ALLOW, "{call}");
            assert_eq!(answer(ARCH, call as u32 | 0x4000_0000, 0), MISSING, "x32 {call}");
            assert_eq!(answer(0x1234, call as u32, 0), MISSING, "{call} of another architecture");
        }
        if let Some(old) = OLD {
            for call in old.calls {
                assert_eq!(answer(old.arch, *call, 0), REFUSE, "32-bit {call}");
            }
            assert_eq!(answer(old.arch, old.ioctl, typed_in), REFUSE);
            for call in (0..600).filter(|call| !old.calls.contains(call)) {
                assert_eq!(answer(old.arch, call, 0), ALLOW, "32-bit {call}");
            }
        }
    }
}
