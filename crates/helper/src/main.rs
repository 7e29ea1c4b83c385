//! The privileged part of Skiff, installed setuid root.
//!
//! It does one of a few things per call and ends: it maps the ids of a user namespace that the caller has just made and
//! gives a harmless view of the host's root (`base`) or an image of the trusted store (`image`), and layers from there (`layer`), lets go of images that
//! are gone from there (`release`), and starts its writer as its owner (`store`); it starts a program as the caller, without privilege, in
//! namespaces that the caller owns (`join`); it puts the caller on a network of the site's (`network`, `follow`), or a network namespace of theirs (`connect`),
//! whose address it keeps for them when they ask (`leave`) until they want it no more (`free`); it makes such a view forget what it has cached (`refresh`).
//!
//! What makes this safe is stated where it is done; in general: it decides only by what the kernel says of the caller,
//! of processes and of namespaces; it takes no path from the caller; it reads no file of the caller; it looks at no
//! variable of its environment; it runs nothing as root.

mod base;
mod caller;
mod confine;
mod connect;
mod files;
mod image;
mod join;
mod limits;
mod locked;
mod mask;
mod names;
mod namespaces;
mod network;
mod owned;
mod quota;
mod refresh;
mod shims;
mod site;
mod stand_ins;
mod state;
mod writer;

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::Given;
use caller::Caller;
use join::{Filter, OrderedCommand};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{getgid, getuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::wire::{MOST_BYTES, MOST_LAYERS, MOST_ORDERED, Reply, Request};
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;

/// Seconds that a caller has for its next message: a helper that nobody talks to is in the way of its user's others.
const PATIENCE: i64 = 10;

#[global_allocator]
static MEMORY: skiff_sys::alloc::Arena = skiff_sys::alloc::Arena::new(16 << 10);

fn main() {
    // Before anything else: what a panic prints by itself includes a backtrace if a variable of the caller's says so, for
    // which files would be read.
    std::panic::set_hook(Box::new(|_| skiff_sys::process::exit_now(125)));
    let code = match socket() {
        Ok(socket) => serve(&socket),
        Err(e) => {
            // A person typed our name: there is nobody else to tell.
            eprintln!("skiff-helper: {e}");
            eprintln!("hint: this program is called by skiff, not by people");
            125
        }
    };
    std::process::exit(code);
}

fn serve(socket: &OwnedFd) -> i32 {
    let (uid, gid) = (getuid(), getgid());
    let mut asked_by = AskedBy::Another;
    let Err(Error { message, hint, .. }) = answer(socket, &mut asked_by) else { return 0 };
    if asked_by == AskedBy::Another {
        fdpass::send(socket.as_fd(), &Reply::Refused { message, hint }.encode(), &[])
            .ignore_error("if the caller has gone meanwhile there is nobody to tell");
    } else if set_thread_res_gid(gid, gid, gid).and_then(|()| set_thread_res_uid(uid, uid, uid)).is_ok() {
        // As the caller: what they have opened to be written to may be a file for which it matters who writes.
        let hint = if hint.is_empty() { hint } else { format!("hint: {hint}\n") };
        // At once: srun mixes what the tasks of a job say.
        std::io::stderr()
            .write_all(format!("skiff: {message}\n{hint}").as_bytes())
            .ignore_error("if standard error is gone there is nobody to tell");
    }
    125
}

/// Where a request comes from, and so who hears of its refusal.
#[derive(PartialEq, Eq)]
enum AskedBy {
    /// A process at the other end of the socket.
    Another,
    /// The program that has become this helper: nobody is at the other end.
    Replaced,
}

impl AskedBy {
    fn of(request: Option<&Request>) -> Self {
        match request {
            Some(Request::Network { .. } | Request::Follow { .. }) => Self::Replaced,
            _ => Self::Another,
        }
    }
}

fn answer(socket: &OwnedFd, asked_by: &mut AskedBy) -> Result<()> {
    let caller = Caller::take_over().inspect_err(|_| {
        // Nobody is waited for any more, but a program that has become this helper has asked beforehand.
        if wait(socket.as_fd(), PollFlags::IN, 0).contains(PollFlags::IN)
            && let Ok((bytes, _)) = receive(socket)
        {
            *asked_by = AskedBy::of(Request::decode(&bytes).as_ref());
        }
    })?;
    let (bytes, fds) = receive(socket)?;
    let tell = |reply: &Reply, fds: &[BorrowedFd<'_>]| {
        fdpass::send(socket.as_fd(), &reply.encode(), fds).context(|| "answer")
    };
    let done = |()| tell(&Reply::Done, &[]);
    let request = Request::decode(&bytes);
    *asked_by = AskedBy::of(request.as_ref());
    let request = request.ok_or_else(unknown)?;
    confine::to(&request)?;
    match request {
        Request::Layer { .. } | Request::Prepare { .. } | Request::Base { .. } | Request::Image { .. } => {
            environment(&caller, socket, request)
        }
        Request::Order { .. } => {
            confine::to_environment()?;
            command(&caller, socket, request, Filter::Loaded)
        }
        Request::Unfiltered => {
            confine::to_unfiltered()?;
            command(&caller, socket, next(socket)?, Filter::None)
        }
        Request::Refresh => refresh::forget(&fds).and_then(done),
        Request::Network { name } => network::enter(&caller, &name),
        Request::Follow { pid } => network::follow(&caller, pid),
        Request::Connect { pid, name, reserved } => {
            let (address, between) = connect::make(&caller, pid, &name, reserved.as_ref())?;
            tell(&Reply::Address(address), &[between.as_fd()])
        }
        Request::Leave { name, address } => {
            let reservation = connect::leave(&caller, &name, address)?;
            tell(&Reply::Kept(reservation), &[])
        }
        Request::Free { name, address } => connect::free(&caller, &name, address).and_then(done),
        Request::Store => writer::start(&caller, fds, socket),
        Request::Release => image::release(&caller).and_then(done),
        Request::Join { .. } | Request::Go => Err(unknown()),
    }
}

fn unknown() -> Error {
    Error::new("a request that this helper does not know").hint("install skiff and its helper together")
}

/// The next request of those that come several to one helper; it ends with nobody there to make one.
fn next(socket: &OwnedFd) -> Result<Request> {
    let (bytes, _) = receive(socket)?;
    Request::decode(&bytes).ok_or_else(unknown)
}

/// A message, with what came along.
fn receive(socket: &OwnedFd) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    if wait(socket.as_fd(), PollFlags::IN, PATIENCE).is_empty() {
        return Err(Error::new(format!("helper: no request within {PATIENCE} s")).hint("try again"));
    }
    fdpass::receive(socket.as_fd(), MOST_BYTES).context(|| "request")
}

/// An environment, and perhaps the command that it is for.
fn environment(caller: &Caller, socket: &OwnedFd, first: Request) -> Result<()> {
    let (mut first, mut layers) = (first, vec![]);
    while let Request::Layer { id } = first {
        if layers.len() == MOST_LAYERS {
            return Err(Error::new(format!("a snapshot of more than {MOST_LAYERS} layers")));
        }
        layers.push(id);
        first = next(socket)?;
    }
    let given = match first {
        Request::Prepare { image } => {
            // What is wrong is told when there is somebody to be told: behind the request.
            let prepared = base::prepare(caller, image, &layers);
            confine::to_environment()?;
            match (next(socket)?, image) {
                (Request::Base { pid }, None) => prepared?.give(caller, pid)?,
                (Request::Image { pid, id }, Some(same)) if id == same => prepared?.give(caller, pid)?,
                _ => return Err(unknown()),
            }
        }
        Request::Base { pid } if layers.is_empty() => prepare_at_once(caller, None)?.give(caller, pid)?,
        Request::Image { pid, id } if layers.is_empty() => {
            prepare_at_once(caller, Some(id))?.give(caller, pid)?
        }
        _ => return Err(unknown()),
    };
    let sent: Vec<_> = given.mounts.iter().map(AsFd::as_fd).collect();
    fdpass::send(socket.as_fd(), &Reply::Ids(given.ids).encode(), &sent).context(|| "answer")?;
    // What is the caller's by now need not be ours.
    let Given { host, mounts, .. } = given;
    drop(mounts);
    if wait(socket.as_fd(), PollFlags::IN, PATIENCE) == PollFlags::IN {
        let request = next(socket)?;
        command(caller, socket, request, Filter::Loaded)?;
    }
    if host.is_some() {
        // Until the caller needs nothing more: what we let go of costs time, which is then not theirs.
        wait(socket.as_fd(), PollFlags::RDHUP, 1);
    }
    Ok(())
}

/// For who does not ask for that ahead.
fn prepare_at_once(caller: &Caller, image: Option<ImageId>) -> Result<base::PreparedBase> {
    let prepared = base::prepare(caller, image, &[])?;
    confine::to_environment().map(|()| prepared)
}

/// A command of the caller's, in one or more messages, and where it is to run. The word to go may come before all of them have: who says
/// it need not be who tells the command.
fn command(caller: &Caller, socket: &OwnedFd, first: Request, filter: Filter) -> Result<()> {
    let (mut order, mut told, mut request) = (vec![], false, first);
    loop {
        match request {
            Request::Order { bytes } if order.len() + bytes.len() <= MOST_ORDERED => order.extend(bytes),
            Request::Order { .. } => return Err(Error::new("the command and its variables are too long")),
            Request::Go if !told => told = true,
            Request::Join { pid } => {
                return join::start(
                    caller,
                    pid,
                    &OrderedCommand { command: &order, to_go: told, filter },
                    socket,
                );
            }
            _ => return Err(unknown()),
        }
        request = next(socket)?;
    }
}

/// Waits for something to happen to the socket, or so many seconds; what has.
fn wait(socket: BorrowedFd<'_>, what: PollFlags, seconds: i64) -> PollFlags {
    let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let mut sockets = [PollFd::from_borrowed_fd(socket, what)];
    poll(&mut sockets, Some(&limit)).ignore_error("if it fails, we merely end earlier");
    sockets[0].revents()
}

/// The socket to `skiff`, whose number is our first argument.
fn socket() -> Result<OwnedFd> {
    let number = std::env::args().nth(1).and_then(|n| n.parse().ok()).filter(|n: &i32| *n > 2);
    let number = number.ok_or_else(|| Error::new("no socket given"))?;
    let fd = skiff_sys::process::inherited_fd(number).context(|| format!("descriptor {number}"))?;
    rustix::net::sockopt::socket_type(&fd).context(|| format!("descriptor {number}"))?;
    // A caller who leaves no room for an answer gets none. (For requests we wait by `poll`, which has an end.)
    rustix::io::ioctl_fionbio(&fd, true).context(|| format!("descriptor {number}"))?;
    Ok(fd)
}
