//! The system calls of a program that reads what is foreign: a list of permissions. All others do not exist for it (`ENOSYS`), so that
//! a program that was taken over finds little of the kernel to attack.
//!
//! The list is what pulls, imports, exports, verification and collection were seen to make (`strace -f`, musl on x86_64), and what
//! stands beside these: the other ways to read, write, wait and ask for the time that the C library may choose.

use std::io;

use crate::seccomp::{ALLOW, MISSING, X32, install, instruction, jump, load_word, only_known, ret};

/// Allowed whatever the arguments.
const CALLS: &[libc::c_long] = &[
    // Files
    libc::SYS_close,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_ioctl,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sendfile,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_write,
    libc::SYS_writev,
    // Memory, threads, time
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Sockets that are there, and connected
    libc::SYS_getsockopt,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// What a program needs besides that uses the network.
const NETWORK_CALLS: &[libc::c_long] = &[
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_sendmmsg,
    libc::SYS_sendto,
];

/// What the store's writer needs besides: it closes directories by ACLs.
const LOCAL_CALLS: &[libc::c_long] = &[libc::SYS_fsetxattr];

/// The older forms of some of these, which other machines than x86 never had.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_stat,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[libc::c_long] = &[];

/// What sockets may be of: the Internet. glibc asks the system's name services besides.
#[cfg(target_env = "musl")]
const FAMILIES: &[libc::c_int] = &[libc::AF_INET, libc::AF_INET6];
#[cfg(not(target_env = "musl"))]
const FAMILIES: &[libc::c_int] = &[libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK];

/// Whether a program uses the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkAccess {
    /// The process makes sockets of the Internet.
    Used,
    /// The process makes no socket: what it has it was given.
    Unused,
}

/// From now on this thread, and those that it starts, make only these calls. No process can be started any more, no privilege gained, no other
/// process traced or signalled. Needs `no_new_privs`.
///
/// # Errors
/// `EACCES` without it, `EINVAL` on a kernel without seccomp filters.
pub fn only_listed(network: NetworkAccess) -> io::Result<()> {
    install(&mut filter(network))
}

fn filter(network: NetworkAccess) -> Vec<libc::sock_filter> {
    let mut f = only_known(X32, None);
    let of_one = if network == NetworkAccess::Used { NETWORK_CALLS } else { LOCAL_CALLS };
    for call in CALLS.iter().chain(OLD_CALLS).chain(of_one) {
        f.extend([jump(*call as u32, 0, 1), ret(ALLOW)]);
    }
    if network == NetworkAccess::Used {
        let families: Vec<u32> = FAMILIES.iter().map(|family| *family as u32).collect();
        f.extend(with_first(libc::SYS_socket, &families));
    } else {
        // What `send` is, too: to whom the socket is connected, and nobody else.
        f.extend([jump(libc::SYS_sendto as u32, 0, 6), load_word(FIFTH_LOW), jump(0, 0, 2)]);
        f.extend([load_word(FIFTH_LOW + 4), jump(0, 1, 0), ret(MISSING), ret(ALLOW)]);
    }
    // The name of a thread.
    f.extend(with_first(libc::SYS_prctl, &[libc::PR_SET_NAME as u32]));
    // Threads, no processes.
    let is_thread =
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, libc::CLONE_THREAD as u32);
    f.extend([jump(libc::SYS_clone as u32, 0, 3), load_word(FIRST_LOW), is_thread, ret(ALLOW)]);
    f.push(ret(MISSING));
    f
}

/// Where the lower half of the first argument is, and of the fifth.
const FIRST_LOW: u32 = 16;
const FIFTH_LOW: u32 = 48;

/// A call that is allowed with these first arguments only.
fn with_first(call: libc::c_long, values: &[u32]) -> Vec<libc::sock_filter> {
    let length = 2 * values.len() as u8 + 2;
    let mut f = vec![jump(call as u32, 0, length), load_word(FIRST_LOW)];
    values.iter().for_each(|value| f.extend([jump(*value, 0, 1), ret(ALLOW)]));
    f.push(ret(MISSING));
    f
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// In a thread of its own, which alone is confined.
    fn confined(network: NetworkAccess, work: impl FnOnce() + Send) {
        let done = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_no_new_privs(true).expect("no_new_privs");
                only_listed(network).expect("a filter");
                work();
            });
            thread.join().is_ok()
        });
        assert!(done);
    }

    #[test]
    fn a_program_without_network_sets_acls() {
        let set = || {
            let dir =
                rustix::fs::open(std::env::temp_dir(), rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::fsetxattr(dir.expect("open"), "no.such.attribute", b"", flags)
        };
        confined(NetworkAccess::Used, || missing(set(), "fsetxattr"));
        confined(NetworkAccess::Unused, || assert_eq!(set(), Err(rustix::io::Errno::OPNOTSUPP)));
    }

    fn missing<T>(result: Result<T, rustix::io::Errno>, what: &str) {
        assert!(matches!(result, Err(rustix::io::Errno::NOSYS)), "{what}");
    }

    #[test]
    fn work_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        confined(NetworkAccess::Used, || {
            let path = std::env::temp_dir().join(format!("skiff-allow-test-{}", std::process::id()));
            std::fs::write(&path, "x").expect("written");
            assert_eq!(std::fs::read(&path).expect("read"), b"x");
            std::fs::remove_file(&path).expect("removed");
            TcpStream::connect(address).expect("connected");
            let thread = std::thread::Builder::new().name("another".into()).spawn(|| 7);
            assert_eq!(thread.expect("a thread").join().expect("its result"), 7);
            std::thread::sleep(std::time::Duration::from_millis(1));
        });
    }

    #[test]
    fn nothing_else_does() {
        confined(NetworkAccess::Used, || {
            let child = std::process::Command::new("/bin/true").spawn();
            assert_eq!(child.expect_err("a process").kind(), ErrorKind::Unsupported);
            let own = rustix::process::getpid();
            missing(rustix::process::test_kill_process(own), "a signal");
            missing(rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()), "a pidfd");
            let packets = rustix::net::AddressFamily::PACKET;
            missing(rustix::net::socket(packets, rustix::net::SocketType::RAW, None), "raw packets");
            missing(rustix::process::chroot("/"), "another root");
        });
    }

    #[test]
    fn without_the_network_only_what_is_there_is_talked_to() {
        let (mut ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        confined(NetworkAccess::Unused, || {
            use std::io::{Read, Write};
            ours.write_all(b"x").expect("written");
            theirs.read_exact(&mut [0]).expect("read");
            TcpStream::connect(address).expect_err("a connection");
            let to = rustix::net::SocketAddrUnix::new("/nobody").expect("a name");
            let sent = rustix::net::sendto(&ours, b"x", rustix::net::SendFlags::NOSIGNAL, &to);
            missing(sent, "a message to somebody else");
            std::os::unix::net::UnixDatagram::unbound().expect_err("a socket");
        });
    }
}
