//! What a program that nobody trusts may not ask of the kernel, beyond what nothing inside may.
//!
//! No user of these calls is missed by a computation that reads and writes files: they are for debuggers, container engines and drivers, and
//! most of the kernel's holes that ordinary users could use were behind them. Docker's, Podman's and Flatpak's lists were the model. What can
//! only be told by memory that a call points to (`clone3`, `openat2`) does not exist here: the C libraries then use the older calls.

use super::{ALLOW, MISSING, REFUSE, instruction, jump, load_word, only_known, ret};

/// What a C library takes for a kernel without this kind of socket.
const NO_FAMILY: u32 = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;
/// Later calls than this one (`mseal`, Linux 6.10) nobody has looked at yet. The numbers are those of all architectures.
const LAST_KNOWN: u32 = 462;

/// Refused whatever the arguments.
const CALLS: &[libc::c_long] = &[
    // Other roots, mounts and namespaces.
    libc::SYS_chroot,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
    // Other processes' memory and descriptors.
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    // Parts of the kernel that are for drivers, monitors and servers.
    libc::SYS_bpf,
    libc::SYS_fanotify_init,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_lookup_dcookie,
    libc::SYS_name_to_handle_at,
    libc::SYS_nfsservctl,
    libc::SYS_perf_event_open,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_vmsplice,
];

/// System calls that are refused, too, on the architectures that have them.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[libc::c_long] = &[
    libc::SYS__sysctl,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_modify_ldt,
    libc::SYS_sysfs,
    libc::SYS_uselib,
    libc::SYS_ustat,
];
#[cfg(target_arch = "aarch64")]
const OLD_CALLS: &[libc::c_long] = &[];

/// Calls that do not exist: what they are to do is in memory, which a filter does not see.
const UNSEEN: &[libc::c_long] = &[libc::SYS_clone3, libc::SYS_openat2];

/// All `CLONE_NEW...` that clone(2) takes.
const NEW_SPACES: u32 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS) as u32;
/// A program with these bits runs as its owner, whoever starts it: left in a directory of the user's, it would give others the user's rights.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// With one of these, open(2) takes a mode; without, whatever is in its place means nothing.
const CREATE: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

/// A call, and of some arguments bits: it is refused if each of these has any of them.
type Bits = (libc::c_long, &'static [(u32, u32)]);

const BITS: &[Bits] = &[
    (libc::SYS_clone, &[(0, NEW_SPACES)]),
    (libc::SYS_fchmod, &[(1, SET_ID)]),
    (libc::SYS_fchmodat, &[(2, SET_ID)]),
    (libc::SYS_fchmodat2, &[(2, SET_ID)]),
    (libc::SYS_mknodat, &[(2, SET_ID)]),
    (libc::SYS_openat, &[(2, CREATE), (3, SET_ID)]),
];
#[cfg(target_arch = "x86_64")]
const OLD_BITS: &[Bits] = &[
    (libc::SYS_chmod, &[(1, SET_ID)]),
    (libc::SYS_creat, &[(1, SET_ID)]),
    (libc::SYS_mknod, &[(1, SET_ID)]),
    (libc::SYS_open, &[(1, CREATE), (2, SET_ID)]),
];
#[cfg(target_arch = "aarch64")]
const OLD_BITS: &[Bits] = &[];

/// The only values that are let through: `socket` for what networks and the own host are spoken to by, `personality` for what
/// `setarch -R` and `uname26` want.
const VALUES: &[(libc::c_long, u32, &[u32])] = &[
    (
        libc::SYS_socket,
        NO_FAMILY,
        &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, libc::AF_NETLINK as u32],
    ),
    (libc::SYS_personality, REFUSE, &[0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff]),
];

/// The filter. Calls of another architecture, 32-bit ones included, do not exist.
pub(super) fn filter() -> Vec<libc::sock_filter> {
    // x32 calls have higher numbers, too.
    let mut f = only_known(LAST_KNOWN + 1, None);
    let answers = |calls: &[libc::c_long], answer| {
        calls.iter().flat_map(move |call| [jump(*call as u32, 0, 1), ret(answer)]).collect::<Vec<_>>()
    };
    f.extend(answers(CALLS, REFUSE));
    f.extend(answers(OLD_CALLS, REFUSE));
    f.extend(answers(UNSEEN, MISSING));
    for (call, arguments) in BITS.iter().chain(OLD_BITS) {
        let count = arguments.len() as u8;
        f.push(jump(*call as u32, 0, 2 * count + 2));
        for (later, (argument, bits)) in (0..count).rev().zip(*arguments) {
            // Over the other arguments and the refusal.
            f.extend([load_argument(*argument), jump_if_any(*bits, 0, 2 * later + 1)]);
        }
        f.extend([ret(REFUSE), ret(ALLOW)]);
    }
    for (call, otherwise, values) in VALUES {
        let count = values.len() as u8;
        f.extend([jump(*call as u32, 0, count + 3), load_argument(0)]);
        f.extend((0..).zip(*values).map(|(at, value)| jump(*value, count - at, 0)));
        f.extend([ret(*otherwise), ret(ALLOW)]);
    }
    f.push(ret(ALLOW));
    f
}

/// The lower half of an argument: all of these are 32 bits wide for the kernel, or their upper half means nothing.
fn load_argument(number: u32) -> libc::sock_filter {
    load_word(16 + 8 * number)
}
fn jump_if_any(bits: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, then, otherwise, bits)
}

#[cfg(test)]
mod tests {
    use super::super::ARCH;
    use super::super::tests::run;
    use super::*;

    fn answer(arch: u32, call: u32, arguments: [u32; 4]) -> u32 {
        run(&filter(), |offset| match offset {
            0 => call,
            4 => arch,
            offset => arguments[(offset as usize - 16) / 8],
        })
    }

    #[test]
    fn what_no_computation_needs_is_refused() {
        let plain = |call: libc::c_long| answer(ARCH, call as u32, [0; 4]);
        for call in CALLS.iter().chain(OLD_CALLS) {
            assert_eq!(plain(*call), REFUSE, "{call}");
        }
        for call in UNSEEN {
            assert_eq!(plain(*call), MISSING, "{call}");
        }
        for call in [
            libc::SYS_read,
            libc::SYS_execve,
            libc::SYS_clone,
            libc::SYS_openat,
            libc::SYS_mmap,
            libc::SYS_mbind,
            libc::SYS_sched_setaffinity,
            libc::SYS_seccomp,
            libc::SYS_memfd_create,
            i64::from(LAST_KNOWN),
        ] {
            assert_eq!(plain(call), ALLOW, "{call}");
            assert_eq!(answer(ARCH, call as u32 | 0x4000_0000, [0; 4]), MISSING, "x32 {call}");
            assert_eq!(answer(0x4000_0003, call as u32, [0; 4]), MISSING, "32-bit {call}");
        }
        assert_eq!(answer(ARCH, LAST_KNOWN + 1, [0; 4]), MISSING);
    }

    #[test]
    fn arguments_are_told_apart() {
        let threads = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u32;
        for (call, arguments, wanted) in [
            (libc::SYS_clone, [libc::SIGCHLD as u32, 0, 0, 0], ALLOW),
            (libc::SYS_clone, [threads, 0, 0, 0], ALLOW),
            (libc::SYS_clone, [libc::CLONE_NEWUSER as u32 | libc::SIGCHLD as u32, 0, 0, 0], REFUSE),
            (libc::SYS_clone, [libc::CLONE_NEWCGROUP as u32, 0, 0, 0], REFUSE),
            (libc::SYS_fchmodat, [0, 0, 0o755, 0], ALLOW),
            (libc::SYS_fchmodat, [0, 0, 0o4755, 0], REFUSE),
            (libc::SYS_fchmod, [0, 0o2755, 0, 0], REFUSE),
            (libc::SYS_fchmod, [0, 0o1777, 0, 0], ALLOW),
            (libc::SYS_openat, [0, 0, libc::O_CREAT as u32, 0o6755], REFUSE),
            (libc::SYS_openat, [0, 0, libc::O_TMPFILE as u32, 0o4700], REFUSE),
            (libc::SYS_openat, [0, 0, libc::O_CREAT as u32, 0o755], ALLOW),
            (libc::SYS_openat, [0, 0, libc::O_DIRECTORY as u32, 0o6755], ALLOW),
            (libc::SYS_socket, [libc::AF_INET as u32, 1, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_NETLINK as u32, 3, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_VSOCK as u32, 1, 0, 0], NO_FAMILY),
            (libc::SYS_socket, [libc::AF_ALG as u32, 5, 0, 0], NO_FAMILY),
            (libc::SYS_socket, [libc::AF_PACKET as u32, 3, 0, 0], NO_FAMILY),
            (libc::SYS_personality, [0, 0, 0, 0], ALLOW),
            (libc::SYS_personality, [0x4_0000, 0, 0, 0], ALLOW),
            (libc::SYS_personality, [0x040_0000, 0, 0, 0], REFUSE),
        ] {
            assert_eq!(answer(ARCH, call as u32, arguments), wanted, "{call} {arguments:x?}");
        }
    }
}
