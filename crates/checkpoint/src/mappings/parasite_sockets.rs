//! Accepts for CRIU the connections of the processes that it saves. CRIU listens under an abstract name, which every process of its network namespace
//! can connect to: on the host's network all users of the host. CRIU takes whoever comes first for the process that it saves, and then waits for
//! ever.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fs, io};

use rustix::fs::fstat;
use rustix::net::{SocketFlags, accept_with, listen};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use skiff_sys::intercept::{OpenListener, SocketCall};
use skiff_sys::{socket_option, written};

/// So many may wait to be accepted; the kernel takes `net.core.somaxconn` if that is less.
const BACKLOG: i32 = 4096;
/// Of sockets, as the kernel numbers them on x86-64 and on 64-bit ARM. Source: `asm-generic/socket.h`.
const SOL_SOCKET: i32 = 1;
const SO_PEERCRED: i32 = 17;
const AF_UNIX: i32 = 1;

/// The sockets at which CRIU listens: one for each network namespace of what it saves.
#[derive(Default)]
pub(super) struct ParasiteSockets(Vec<ListeningSocket>);

struct ListeningSocket {
    /// A copy of CRIU's. Nobody else accepts from it.
    socket: OwnedFd,
    inode: u64,
    /// Who listens.
    criu: Pid,
    accepted: VecDeque<OwnedFd>,
    waiting: Option<SocketCall>,
}

impl ParasiteSockets {
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|one| one.socket.as_fd()).collect()
    }

    /// Listens for CRIU. From here on connections are accepted at once: those of strangers never fill the queue, and a saved process is let in.
    ///
    /// # Errors
    /// When the kernel refuses to have the call answered.
    pub(super) fn listen(&mut self, listener: &OpenListener, call: SocketCall) -> io::Result<()> {
        let is_unix = |socket: &OwnedFd| {
            socket_option::kind(socket.as_fd()).is_ok_and(|[domain, ..]| domain == AF_UNIX)
        };
        let socket = copy_of(call).ok().filter(is_unix);
        // Of another kind CRIU tries what the kernel can do.
        let Some(socket) = socket.filter(|socket| listen(socket, BACKLOG).is_ok()) else {
            return listener.proceed_socket(call);
        };
        let inode = fstat(&socket)?.st_ino;
        let (accepted, waiting) = (VecDeque::new(), None);
        self.0.push(ListeningSocket { socket, inode, criu: call.pid, accepted, waiting });
        listener.listened(call)
    }

    /// Gives CRIU the next connection of a process that it saves, as soon as there is one.
    ///
    /// # Errors
    /// As [`ParasiteSockets::listen`].
    pub(super) fn accept(&mut self, listener: &OpenListener, call: SocketCall) -> io::Result<()> {
        let inode = copy_of(call).and_then(|socket| Ok(fstat(&socket)?.st_ino));
        let known = inode.ok().and_then(|inode| self.0.iter_mut().find(|one| one.inode == inode));
        let Some(known) = known else { return listener.proceed_socket(call) };
        known.waiting = Some(call);
        known.serve(listener)
    }

    /// Takes a connection, and closes it if it is a stranger's.
    ///
    /// # Errors
    /// As [`ParasiteSockets::listen`].
    pub(super) fn take_connection(&mut self, listener: &OpenListener, place: usize) -> io::Result<()> {
        let Some(one) = self.0.get_mut(place) else { return Ok(()) };
        match accept_with(&one.socket, SocketFlags::CLOEXEC) {
            Ok(connection) if is_traced_by(connection.as_fd(), one.criu) => {
                one.accepted.push_back(connection)
            }
            Ok(_) => {}
            // From here on the kernel answers.
            Err(_) => {
                let waiting = self.0.remove(place).waiting;
                return waiting.map_or(Ok(()), |call| listener.proceed_socket(call));
            }
        }
        self.0.get_mut(place).map_or(Ok(()), |one| one.serve(listener))
    }
}

impl ListeningSocket {
    fn serve(&mut self, listener: &OpenListener) -> io::Result<()> {
        let Some(call) = self.waiting else { return Ok(()) };
        let Some(connection) = self.accepted.pop_front() else { return Ok(()) };
        self.waiting = None;
        listener.accepted(call, connection.as_fd())
    }
}

/// A copy of the socket that a call is about.
fn copy_of(call: SocketCall) -> io::Result<OwnedFd> {
    let pidfd = pidfd_open(call.pid, PidfdFlags::empty())?;
    written::copy_of(pidfd.as_fd(), call.socket)
}

/// Whether at the other end is a process that CRIU traces, which it saves then. The kernel says 0 of one that is not in this PID namespace.
fn is_traced_by(connection: BorrowedFd<'_>, criu: Pid) -> bool {
    let credentials = socket_option::get(connection, SOL_SOCKET, SO_PEERCRED).ok();
    let pid = credentials.and_then(|all| Some(i32::from_ne_bytes(all.get(..4)?.try_into().ok()?)));
    let Some(pid @ 1..) = pid else { return false };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok();
    let tracer = status.as_deref().and_then(|status| {
        status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse::<i32>().ok()
    });
    tracer == Some(criu.as_raw_nonzero().get())
}
