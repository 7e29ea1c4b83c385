//! Descriptors that cannot be saved, and sockets in which something waits that would be lost.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::PollFlags;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statfs, statx};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, getsockname};
use skiff_sys::IgnoreError;
use skiff_sys::signal_owner::{has_owner, is_thread};
use skiff_sys::socket_option::{self, poll_events};

use super::{ONCE_IT_HAS, ONCE_IT_HAS_BEEN};
use crate::locks::copied;

/// Magic number of the file system that POSIX message queues are in. Source: `linux/magic.h`.
const MQUEUE_MAGIC: u64 = 0x1980_0202;
/// `O_DIRECT` in octal `flags` of `/proc/PID/fdinfo`, on x86-64 and on 64-bit ARM.
const O_DIRECT: u32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };

/// What of a program asks for another way.
pub(super) const IO_URING: &str = "io_uring; many programs have a setting that does without";

/// CRIU knows by it only that the process has a terminal. Source: `tty_verify_ctty` of CRIU.
const OWN_TERMINAL: &str =
    "/dev/tty (open), by which CRIU does not find the terminal; an interactive dash has that, bash does not";

/// What is in the way of a descriptor, by what its link says.
pub(super) fn descriptor(target: &str) -> Option<String> {
    let plain = ["null", "zero", "full", "random", "urandom", "ptmx"].map(|name| format!("/dev/{name}"));
    if plain.iter().any(|name| name == target)
        || ["/dev/shm/", "/dev/pts/", "/dev/mqueue/"].iter().any(|d| target.starts_with(d))
    {
        return None;
    }
    if target == "/dev/tty" {
        return Some(OWN_TERMINAL.into());
    }
    if target.starts_with("/dev/") && Path::new(target) != Path::new("/dev/") {
        return Some(device_in_the_way(target, "open"));
    }
    if target.starts_with("/secretmem") {
        return Some("secret memory (memfd_secret)".into());
    }
    match target.strip_prefix("anon_inode:")?.trim_matches(['[', ']']) {
        "eventfd" | "eventpoll" | "signalfd" | "timerfd" | "pidfd" => None,
        "io_uring" => Some(IO_URING.into()),
        "inotify" => {
            Some("inotify: a watch on files, which cannot be put back without the host's rights".into())
        }
        "fanotify" => {
            Some("fanotify: a watch on files, which cannot be put back without the host's rights".into())
        }
        kind => Some(format!("a descriptor of kind {kind}")),
    }
}

/// What is in the way of a descriptor that its link does not tell: `path` is that link, and `info` the text of its `fdinfo`.
pub(super) fn kind(target: &str, path: &Path, info: &str) -> Option<String> {
    if target.starts_with("pipe:") {
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
        return (flags & O_DIRECT != 0).then(|| "a pipe of packets (O_DIRECT)".into());
    }
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if target == "anon_inode:[eventfd]" {
        let is_semaphore = field("eventfd-semaphore:") == Some("1");
        return is_semaphore.then(|| "an eventfd that counts down by one (EFD_SEMAPHORE)".into());
    }
    if target.trim_matches(['[', ']']).ends_with("pidfd") {
        let flags = u32::from_str_radix(field("flags:")?, 8).ok()?;
        return (flags & O_EXCL != 0).then(|| "a pidfd of a thread (PIDFD_THREAD)".into());
    }
    if info.lines().any(|line| line.starts_with("lock:") && line.contains("LEASE") && line.contains("WRITE"))
    {
        return Some(format!("a lease on {target} against readers (F_SETLEASE); try again once it has none"));
    }
    if is_terminal(target)
        && copied_by(path).is_some_and(|copy| poll_events(copy.as_fd()).contains(PollFlags::HUP))
    {
        return Some(format!("a terminal whose other end is closed ({target})"));
    }
    // Most descriptors need not be asked: a queue's name has no directory.
    let is_queue = target.starts_with('/')
        && !target[1..].contains('/')
        && statfs(path).is_ok_and(|of| u64::try_from(of.f_type) == Ok(MQUEUE_MAGIC));
    is_queue.then(|| format!("POSIX message queue {target} (open): CRIU knows no descriptor of one"))
}

fn is_terminal(target: &str) -> bool {
    target.starts_with("/dev/pts/") || target == "/dev/ptmx"
}

/// A copy of the descriptor that `/proc/PID/fd/NUMBER` leads to.
fn copied_by(path: &Path) -> Option<OwnedFd> {
    let fd = path.file_name()?.to_str()?.parse().ok()?;
    let outer = path.parent()?.parent()?.file_name()?.to_str()?.parse().ok()?;
    copied(outer, fd).ok()
}

/// What is in the way of a socket that its network's tables do not show; `path` is its link.
pub(super) fn socket(target: &str, path: &Path) -> Vec<String> {
    let mut found = vec![];
    let Some(copy) = target.strip_prefix("socket:").and_then(|_| copied_by(path)) else { return found };
    let socket = copy.as_fd();
    let of = |option| {
        let asked = socket_option::number(socket, SOL_SOCKET, option);
        asked.default_on_error("a kernel without the option has not set it")
    };
    let (domain, is_listening, kind) = (of(SO_DOMAIN), of(SO_ACCEPTCONN) != 0, of(SO_TYPE));
    let waits = !is_listening && socket_option::waiting(socket).is_ok_and(|bytes| bytes > 0);
    if domain == AF_UNIX && waits && (of(SO_PASSCRED) != 0 || of(SO_PASSPIDFD) != 0) {
        found.push(format!(
            "a message with its sender's credentials (SO_PASSCRED) that it has not read yet{ONCE_IT_HAS}"
        ));
    }
    if domain == AF_UNIX && kind == SOCK_DGRAM && waits && has_name(socket) {
        found.push(format!(
            "datagrams at its Unix socket that it has not read yet, whose senders would be lost{ONCE_IT_HAS}"
        ));
    }
    if kind == SOCK_STREAM && !is_listening && socket_option::has_urgent(socket) {
        found.push(format!("urgent data (MSG_OOB) that it has not read yet{ONCE_IT_HAS}"));
    }
    if poll_events(socket).contains(PollFlags::ERR) {
        found.push(format!("an error of a socket that it has not been told yet{ONCE_IT_HAS}"));
    }
    if is_thread(socket).is_ok_and(|is_one| is_one) {
        found.push("a socket whose signals go to one thread (F_SETOWN_EX)".into());
    }
    if kind == SOCK_STREAM
        && domain != AF_UNIX
        && socket_option::get(socket, SOL_TCP, TCP_ULP).is_ok_and(|name| !name.is_empty())
    {
        found.push("a TCP connection that the kernel encrypts (TCP_ULP)".into());
    }
    found
}

/// Whether at the other end of a Unix connection was another user than root inside, who is the user that looks at it.
pub(super) fn has_other_peer(path: &Path) -> bool {
    let Some(copy) = copied_by(path) else { return false };
    let is_unix =
        socket_option::number(copy.as_fd(), SOL_SOCKET, SO_DOMAIN).is_ok_and(|domain| domain == AF_UNIX);
    let peer = socket_option::get(copy.as_fd(), SOL_SOCKET, SO_PEERCRED)
        .default_on_error("a socket of another kind has no peer");
    let word = |at: usize| Some(u32::from_ne_bytes(peer.get(at..at + 4)?.try_into().ok()?));
    is_unix
        && word(0).is_some_and(|pid| pid != 0)
        && word(4).is_some_and(|user| user != rustix::process::getuid().as_raw())
}

/// Whether a Unix socket has a name.
fn has_name(socket: BorrowedFd<'_>) -> bool {
    getsockname(socket).is_ok_and(|name| {
        SocketAddrUnix::try_from(name)
            .is_ok_and(|name| name.path_bytes().is_some() || name.abstract_name().is_some())
    })
}

/// Of sockets, as the kernel numbers them on x86-64 and on 64-bit ARM. Sources: `asm-generic/socket.h`, `linux/net.h`, `linux/tcp.h`.
const SOL_SOCKET: i32 = 1;
const SO_TYPE: i32 = 3;
const SO_PASSCRED: i32 = 16;
const SO_PEERCRED: i32 = 17;
const SO_ACCEPTCONN: i32 = 30;
const SO_DOMAIN: i32 = 39;
const SO_PASSPIDFD: i32 = 76;
const AF_UNIX: i32 = 1;
const SOCK_STREAM: i32 = 1;
const SOCK_DGRAM: i32 = 2;
const SOL_TCP: i32 = 6;
const TCP_ULP: i32 = 31;
/// `O_EXCL` in octal `flags`, which is `PIDFD_THREAD` of a pidfd.
const O_EXCL: u32 = 0o200;

/// What is in the way of a descriptor of a directory: a watch by `F_NOTIFY`, of which the kernel says no more than that somebody gets its
/// signals. Nothing else of a directory has any.
pub(super) fn watch(outer: i32, target: &str, path: &Path) -> Option<String> {
    // The file system need not be asked: what is open is known.
    let known = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    let is_directory = target.starts_with('/')
        && known.is_ok_and(|of| FileType::from_raw_mode(of.stx_mode.into()) == FileType::Directory);
    if !is_directory {
        return None;
    }
    let fd = path.file_name()?.to_str()?.parse().ok()?;
    match copied(outer, fd).and_then(|copy| has_owner(copy.as_fd())) {
        Ok(true) => Some(format!("a watch on directory {target} (F_NOTIFY), which cannot be put back")),
        Ok(false) => None,
        // It has been closed or has ended since, or is only a path.
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::BADF | Errno::SRCH)) => None,
        Err(e) => Some(format!("directory {target}: whether it is watched (F_NOTIFY) cannot be seen: {e}")),
    }
}

/// How a device stands in the way.
pub(super) fn device_in_the_way(device: &str, how: &str) -> String {
    let what = match device {
        d if d.starts_with("/dev/nvidia") || d.starts_with("/dev/kfd") || d.starts_with("/dev/dri") => {
            "the state of a GPU cannot be saved"
        }
        d if d.starts_with("/dev/infiniband") => "what an InfiniBand adapter knows of it cannot be saved",
        _ => "what the device knows of it cannot be saved",
    };
    format!("device {device} ({how}): {what}")
}

/// What is in the way of the process's `sockets`, by the tables of its network. `table` gives a file of `/proc/PID/net`.
pub(super) fn sockets(
    sockets: &BTreeSet<u64>,
    own_network: bool,
    table: impl Fn(&str) -> String,
) -> Vec<String> {
    let mut found = vec![];
    if sockets.is_empty() {
        return found;
    }
    let ours = |name: &str, wanted: fn(&Socket) -> bool| {
        table(name).lines().filter_map(Socket::of).any(|s| sockets.contains(&s.inode) && wanted(&s))
    };
    if !own_network && ["tcp", "tcp6"].iter().any(|name| ours(name, Socket::is_connection)) {
        found.push("an open TCP connection on a network of the host's; only those on a network of the instance's own can be saved".into());
    }
    if ["tcp", "tcp6"].iter().any(|name| ours(name, Socket::has_waiting)) {
        found.push(format!("a TCP connection that waits to be accepted{ONCE_IT_HAS_BEEN}"));
    }
    if unix_waiting(&table("unix"), sockets) {
        found.push(format!("a connection to its Unix socket that waits to be accepted{ONCE_IT_HAS_BEEN}"));
    }
    if ["udp", "udp6"].iter().any(|name| ours(name, |s| s.unsent > 0)) {
        found.push(format!(
            "a datagram that it has not completed (MSG_MORE), or that has not left yet{ONCE_IT_HAS}"
        ));
    }
    if netlink_waiting(&table("netlink"), sockets) {
        found.push(format!("messages of the kernel's (netlink) that it has not read yet{ONCE_IT_HAS}"));
    }
    if !own_network && unix_relative(&table("unix"), sockets) {
        found.push("a Unix socket whose name is relative to a directory; only on a network of the instance's own can it be saved".into());
    }
    if ["udp", "udp6", "raw", "raw6"].iter().any(|name| ours(name, |s| s.queue > 0)) {
        found.push(format!("datagrams that it has not read yet, which would be lost{ONCE_IT_HAS}"));
    }
    found
}

/// Whether a connection waits at a Unix socket of these: in `/proc/PID/net/unix` it has the socket's name, and nobody has it open.
fn unix_waiting(table: &str, sockets: &BTreeSet<u64>) -> bool {
    let line = |line: &str| -> Option<(u64, String)> {
        let mut words = line.split_whitespace().skip(6);
        Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
    };
    let named: Vec<(u64, String)> = table.lines().filter_map(line).collect();
    let ours = |name: &str| named.iter().any(|(inode, of)| sockets.contains(inode) && of == name);
    named.iter().any(|(inode, name)| *inode == 0 && ours(name))
}

/// Whether a netlink socket of these has something to read: the fifth column of `/proc/PID/net/netlink`; the last is its number.
fn netlink_waiting(table: &str, sockets: &BTreeSet<u64>) -> bool {
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let inode = words.get(9).and_then(|inode| inode.parse().ok());
        inode.is_some_and(|inode: u64| sockets.contains(&inode))
            && words.get(4).is_some_and(|queue| *queue != "0")
    })
}

/// Whether a Unix socket of these has a name that begins neither at the root nor nowhere.
fn unix_relative(table: &str, sockets: &BTreeSet<u64>) -> bool {
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(6);
        let inode = words.next().and_then(|inode| inode.parse().ok());
        inode.is_some_and(|inode: u64| sockets.contains(&inode))
            && words.next().is_some_and(|name| !name.starts_with(['/', '@']))
    })
}

/// A line of `/proc/PID/net/tcp` or `udp`.
struct Socket {
    state: u8,
    /// What has not left yet, in bytes.
    unsent: u32,
    /// What waits to be read: bytes, or of one that listens connections.
    queue: u32,
    inode: u64,
}

const TCP_CLOSE: u8 = 7;
const TCP_LISTEN: u8 = 10;

impl Socket {
    fn of(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let state = u8::from_str_radix(words.get(3)?, 16).ok()?;
        let (unsent, queue) = words.get(4)?.split_once(':')?;
        let (unsent, queue) = (u32::from_str_radix(unsent, 16).ok()?, u32::from_str_radix(queue, 16).ok()?);
        // One that nobody has any more has none.
        let inode = words.get(9)?.parse().ok().filter(|inode| *inode != 0)?;
        Some(Self { state, unsent, queue, inode })
    }

    /// Whether it is a connection, not one that only listens or is over.
    fn is_connection(&self) -> bool {
        ![TCP_CLOSE, TCP_LISTEN].contains(&self.state)
    }

    fn has_waiting(&self) -> bool {
        self.state == TCP_LISTEN && self.queue > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_in_the_way_are_named_and_nothing_else() {
        for (target, word) in [
            ("/dev/null", None),
            ("/dev/pts/3", None),
            ("/dev/infiniband/uverbs0", Some("InfiniBand")),
            ("/home/a", None),
            ("pipe:[5]", None),
            ("anon_inode:[eventpoll]", None),
            ("anon_inode:inotify", Some("inotify")),
            ("anon_inode:[io_uring]", Some("io_uring")),
            ("anon_inode:bpf-prog", Some("bpf")),
            ("anon_inode:[landlock-ruleset]", Some("landlock")),
            ("/secretmem (deleted)", Some("secret")),
        ] {
            let why = descriptor(target);
            assert_eq!(why.is_some(), word.is_some(), "{target}: {why:?}");
            assert!(why.unwrap_or_default().contains(word.unwrap_or_default()), "{target}");
        }
    }

    #[test]
    fn pipes_of_packets_are_told_from_others() {
        let info = |flags: u32| format!("pos:\t0\nflags:\t{flags:o}\nmnt_id:\t15\n");
        assert_eq!(kind("pipe:[5]", Path::new("/nowhere"), &info(0o100_001)), None);
        assert!(kind("pipe:[5]", Path::new("/nowhere"), &info(O_DIRECT | 1)).is_some());
        assert_eq!(kind("/etc", Path::new("/etc"), &info(0)), None);
    }

    #[test]
    fn only_a_directory_can_be_watched() {
        let own = std::process::id().cast_signed();
        let (dir, file) = (tempfile::tempdir().expect("a directory"), tempfile::tempfile().expect("a file"));
        let dir = std::fs::File::open(dir.path()).expect("opened");
        let of = |file: &std::fs::File| {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
            watch(own, "/a", Path::new(&path))
        };
        assert_eq!((of(&dir), of(&file)), (None, None));
    }

    #[test]
    fn a_unix_connection_that_waits_is_seen() {
        let line = |inode: u64, name: &str| format!("0: 00000002 00000000 00010000 0001 01 {inode} {name}\n");
        let head = "Num       RefCount Protocol Flags    Type St Inode Path\n";
        let ours = BTreeSet::from([5]);
        let waits = |lines: &[String]| unix_waiting(&[head.to_owned(), lines.concat()].concat(), &ours);
        assert!(waits(&[line(5, "/tmp/s"), line(0, "/tmp/s")]));
        assert!(!waits(&[line(5, "/tmp/s"), line(6, "/tmp/s")]));
        assert!(!waits(&[line(7, "/tmp/t"), line(0, "/tmp/t"), line(5, "/tmp/s")]));
    }

    #[test]
    fn connections_and_what_waits_are_told_from_listeners() {
        let line = |state: &str, queue: u32, inode: u64| {
            format!(
                "   0: 0100007F:1F90 0100007F:9C40 {state} 00000000:{queue:08X} 00:00000000 00000000  1001        0 {inode} 1 0"
            )
        };
        let look = |name: &'static str, state: &str, queue, own| {
            let text = format!("  sl  local_address rem_address   st tx_queue\n{}\n", line(state, queue, 55));
            sockets(
                &BTreeSet::from([55]),
                own,
                move |asked| if asked == name { text.clone() } else { String::new() },
            )
        };
        for (name, state, queue, own, word) in [
            ("tcp", "01", 9, false, Some("host's")),
            ("tcp6", "01", 9, true, None),
            ("tcp", "0A", 0, false, None),
            ("tcp", "0A", 1, true, Some("accepted")),
            ("tcp", "07", 0, false, None),
            ("udp", "07", 0, false, None),
            ("udp", "07", 300, false, Some("datagrams")),
        ] {
            let found = look(name, state, queue, own);
            assert_eq!(found.len(), usize::from(word.is_some()), "{name} {state} {queue}: {found:?}");
            assert!(found.concat().contains(word.unwrap_or_default()), "{found:?}");
        }
        assert!(Socket::of(&line("06", 0, 0)).is_none());
        assert!(sockets(&BTreeSet::from([56]), false, |_| line("01", 0, 55)).is_empty());
    }
}
