//! The system calls that nothing in an environment may make.
//!
//! A short list of refusals, not a list of permissions: an HPC program may use whatever its user could use outside (perf,
//! io_uring, ptrace of his own, user namespaces); what goes is what only a real root has, and what would let a
//! program reach out of the environment through something it shares with the host: the terminal and the keyrings.

use std::io;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const MISSING: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

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
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_vhangup,
];

/// Terminal requests that type into, or paste into, the terminal the environment shares with the user's login
/// (CVE-2017-5226 taught this to others).
const IOCTLS: &[libc::Ioctl] = &[libc::TIOCSTI, libc::TIOCLINUX];

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// Loads the filter for this process and all it will ever start. Needs `no_new_privs` or `SYS_ADMIN`.
///
/// # Errors
/// `EACCES` without either, `EINVAL` on a kernel without seccomp filters.
pub fn load() -> io::Result<()> {
    let mut program = filter();
    let fprog = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: fprog points to len instructions that live through the call; the kernel copies and checks them.
    let r = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const fprog) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The filter: other architectures (32-bit, x32) get no system call from the list's blind spot, they get `ENOSYS`.
fn filter() -> Vec<libc::sock_filter> {
    const NR: u32 = 0;
    const ARCH_AT: u32 = 4;
    const ARG1_LOW: u32 = 24;
    let mut f = vec![load_word(ARCH_AT), jump(ARCH, 1, 0), ret(MISSING), load_word(NR)];
    // x32 calls carry bit 30; all of them are refused as unknown.
    f.extend([jump_at_least(0x4000_0000, 0, 1), ret(MISSING)]);
    for call in CALLS {
        f.extend([jump(*call as u32, 0, 1), ret(REFUSE)]);
    }
    let ioctls = IOCTLS.len() as u8;
    f.extend([jump(libc::SYS_ioctl as u32, 0, 1 + 2 * ioctls), load_word(ARG1_LOW)]);
    for request in IOCTLS {
        f.extend([jump(*request as u32, 0, 1), ret(REFUSE)]);
    }
    f.push(ret(ALLOW));
    f
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
fn load_word(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}
fn jump(equal: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, then, otherwise, equal)
}
fn jump_at_least(value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, then, otherwise, value)
}
fn ret(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}
