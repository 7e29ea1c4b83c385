//! The receiver: takes what the sender has, makes the instance of it, and holds that until it is told to let it go.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{Shutdown, shutdown};
use rustix::process::Signal;
use skiff_checkpoint::member::SavedInterface;
use skiff_checkpoint::memory;
use skiff_checkpoint::notes::RestoreNotes;
use skiff_checkpoint::obstacles::description_locks;
use skiff_checkpoint::record::{Checkpoint, IMAGES};
use skiff_checkpoint::required_criu;
use skiff_checkpoint::restore::{CriuRestorer, Gate, make_again};
use skiff_cli::Mode;
use skiff_launch::callback;
use skiff_runtime::control::{self, ControlRequest, Live};
use skiff_runtime::record::InstanceDir;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_sandbox::mounts::open_dir;
use skiff_sandbox::start::detach_stdio;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_sys::signal::Signals;
use skiff_user::context::UserContext;

use crate::direct;
use crate::direct::Stock;
use crate::early::PrecopyBuffer;
use crate::job::member;
use crate::memory_need::{MemoryNeed, SLACK};
use crate::pages::Arrival;
use crate::parcel;
use crate::peer::{ControlChannel, wait};
use crate::populate::Reserve;
use crate::squeeze;
use crate::talk::{CONTROL, DestinationMessage, FileLocation, GOODS, Offer, RestoreRequest, SourceMessage};
use crate::{consider, decision, in_step, lock_hand_over};

/// Who has started us.
const SENDER: &str = "the sender";
/// How long it may take to get there; a connection that is lost shows before that.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How long it may take to say `go`, once all stands ready.
const DECIDING: Duration = Duration::from_secs(60);
/// How often it is told how many bytes have come.
const STEP: u64 = 16 << 20;

/// Serves the sender; the exit code.
pub fn receive(context: &UserContext) -> Result<i32> {
    let call = callback::read(Path::new("-"))?;
    let mut peer = ControlChannel::over(callback::dial(&call, CONTROL, SENDER)?, SENDER)?;
    let goods = callback::dial(&call, GOODS, SENDER)?;
    match serve(context, &mut peer, goods) {
        Ok(None) => Ok(0),
        Ok(Some((record, true))) => {
            stay(&record, true)?;
            let code = member::exit_code(&record);
            peer.tell(&DestinationMessage::Ended(code))
                .ignore_error("whoever does not wait any more does not hear of it");
            Ok(0)
        }
        Ok(Some((record, false))) => {
            drop(peer);
            stay(&record, in_step())
        }
        Err(why) => {
            peer.tell(&DestinationMessage::Failed(why.message.clone(), why.hint.clone()))
                .ignore_error("if it does not hear that, it has heard that we are gone");
            Ok(0)
        }
    }
}

/// What runs in a step of Slurm's ends with that, and a step with its programs: so we stay there as long as the instance does, which ends with us.
fn stay(record: &InstanceDir, to_its_end: bool) -> Result<i32> {
    detach_stdio();
    if to_its_end && let Some(live) = Live::connect(&record.dir, ControlRequest::Status)? {
        let signals = Signals::block(&[]).context(|| "signals")?;
        while wait(&[(live.init.as_fd(), PollFlags::IN), (signals.as_fd(), PollFlags::IN)], None)?[0]
            .is_empty()
        {
            if signals.next().is_ok_and(|signal| signal.is_some_and(|s| s.number == Signal::TERM.as_raw())) {
                control::stop_at(&record.dir)?;
            }
        }
    }
    Ok(0)
}

/// Does what the sender wants; the instance, if one has come, and whether the sender waits for its end.
fn serve(
    context: &UserContext,
    peer: &mut ControlChannel,
    goods: OwnedFd,
) -> Result<Option<(InstanceDir, bool)>> {
    match peer.hear(Instant::now() + PATIENCE)? {
        SourceMessage::Ask(instance, token) => {
            peer.tell(&DestinationMessage::Taken(decision::ask(context, &instance, &token)?))?;
            Ok(None)
        }
        SourceMessage::Offer(offer) => take(context, peer, goods, &offer).map(|taken| Some((taken, false))),
        SourceMessage::Consider(offer) => consider::consider(context, peer, &offer).map(|()| None),
        SourceMessage::Watch(instance, version) => {
            member::watch(context, peer, (&instance, &version)).map(|()| None)
        }
        SourceMessage::Save(order) => member::save(context, peer, &order).map(|()| None),
        SourceMessage::Load(order) => {
            member::restore(context, peer, &order).map(|record| Some((record, order.wait)))
        }
        other => Err(Error::new(format!("unexpected message: {other:?}"))),
    }
}

fn take(
    context: &UserContext,
    peer: &mut ControlChannel,
    goods: OwnedFd,
    offer: &Offer,
) -> Result<InstanceDir> {
    let record = consider::admit(context, offer)?;
    consider::get_inputs(context, offer)?;
    let images = match offer.mode {
        mode if mode.is_diskless() => Some(Images::prepare(offer)?),
        _ => None,
    };
    peer.tell(&DestinationMessage::Welcome)?;
    let images = images.map(|images| images.receive(peer, goods)).transpose()?;
    let SourceMessage::Restore(load) = peer.hear(Instant::now() + PATIENCE)? else { return Err(strange()) };
    let RestoreRequest { checkpoint, files } = *load;
    let dir = match (&files, &images) {
        (FileLocation::Follow(pieces), Some(images)) => {
            parcel::receive(images.dir.as_fd(), pieces, images.goods.as_fd())?;
            path(&images.dir)
        }
        (FileLocation::Lie(dir), None) => {
            visible(dir, &checkpoint)?;
            dir.clone()
        }
        _ => return Err(Error::new("the files do not come by the way that was said")),
    };
    restore(context, (peer, &offer.token), &record, (&checkpoint, &dir), images.as_ref())?;
    peer.tell(&DestinationMessage::Running)?;
    Ok(record)
}

/// Checks that this host sees what the sender has written.
fn visible(dir: &Path, checkpoint: &Checkpoint) -> Result<()> {
    let there = Checkpoint::read(dir).map_err(|e| {
        Error::new(format!("the instance's memory cannot be read here: {e}"))
            .hint("--mode disk needs a home that both hosts see; --mode diskless does not")
    })?;
    if there != *checkpoint {
        return Err(Error::new(format!("{}: it is not what the sender has written", dir.display())));
    }
    checkpoint.verify(dir)
}

/// Makes the processes, and lets them go when the sender says so.
fn restore(
    context: &UserContext,
    (peer, token): (&ControlChannel, &str),
    record: &InstanceDir,
    (checkpoint, dir): (&Checkpoint, &Path),
    images: Option<&Received>,
) -> Result<()> {
    let control = peer.as_fd();
    let ours = images.iter().flat_map(|images| images.descriptors().chain([images.dir.as_fd()]));
    let kept: Vec<BorrowedFd<'_>> = ours.chain([control]).collect();
    let over = |control: BorrowedFd<'_>| {
        ControlChannel::over(control.try_clone_to_owned().context(|| SENDER)?, SENDER)
    };
    // In the supervisor, which has a copy of the connections.
    let ask = |inside: EnterTarget<'_>| {
        let mut peer = over(control)?;
        if let Some(images) = images {
            peer.tell(&DestinationMessage::Made)?;
            let kept: Vec<BorrowedFd<'_>> = images.descriptors().chain([control]).collect();
            enter::run(inside, &kept, || images.fill(&mut over(control)?))?;
        }
        may_run(&mut peer, &record.dir, token)?;
        lock_hand_over::take(&mut peer, inside, &description_locks(&checkpoint.processes))
    };
    let gate = Some(Gate { kept: &kept, ask: &ask, bound: in_step(), moves: true });
    let (folder, member) = (required_criu()?, SavedInterface::read(dir)?);
    let used_up = images.is_some();
    let revived = CriuRestorer {
        folder,
        checkpoint,
        member,
        dir,
        images: &dir.join(IMAGES),
        read: None,
        files: None,
        notes: RestoreNotes::of(&record.dir),
        used_up,
        gate,
    };
    make_again(context, record, &revived, vec![])
}

/// All stands ready: whether it is to run here.
fn may_run(peer: &mut ControlChannel, dir: &Path, token: &str) -> Result<()> {
    decision::announce(dir, token)?;
    peer.tell(&DestinationMessage::Held)?;
    match peer.hear(Instant::now() + DECIDING)? {
        SourceMessage::Go if decision::take(dir)? => Ok(()),
        SourceMessage::Go => Err(Error::new("the sender has said in the meantime that it stays there")),
        other => Err(Error::new(format!("unexpected message: {other:?}"))),
    }
}

fn path(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

/// A directory in memory, with room for what comes.
struct Images {
    dir: OwnedFd,
    arrival: Arrival,
    reserve: Reserve,
    early: Option<PrecopyBuffer>,
}

/// The same when what processes are made of has come.
struct Received {
    dir: OwnedFd,
    /// By which the rest of their memory comes.
    goods: OwnedFd,
    packed: bool,
    /// Memory for that.
    reserve: Reserve,
    /// What of it has come before they were stopped.
    early: Option<PrecopyBuffer>,
    /// Bytes of their memory that are there.
    bytes: u64,
}

impl Images {
    /// Makes it.
    fn prepare(offer: &Offer) -> Result<Self> {
        let MemoryNeed { images, twice, all, available } = MemoryNeed::of(offer)?;
        let dir = memory::make(available - twice)?;
        let into = open_dir(dir.as_fd(), Path::new(IMAGES)).context(|| "directory in memory")?;
        let ahead = offer.mode == Mode::Precopy;
        let early =
            ahead.then(|| PrecopyBuffer::new(&offer.direct, available - twice - SLACK)).transpose()?;
        // What has come early gives back as much as it takes to have it in the processes.
        let straight = if ahead { 0 } else { all - images.iter().map(|(_, bytes)| bytes).sum::<u64>() };
        let reserve = Reserve::new(straight)?;
        Ok(Self { dir, arrival: Arrival::prepare(into, &images, &reserve)?, reserve, early })
    }

    /// Takes what CRIU says of the memory of all processes.
    fn receive(self, peer: &mut ControlChannel, goods: OwnedFd) -> Result<Received> {
        let packed = loop {
            match peer.hear(Instant::now() + PATIENCE)? {
                SourceMessage::Probe(bytes) => {
                    swallow(&goods, bytes)?;
                    peer.tell(&DestinationMessage::Probed)?;
                }
                SourceMessage::Memory { packed } => break packed,
                _ => return Err(strange()),
            }
        };
        if let Some(early) = &self.early {
            let mut steps = Steps::from(peer, 0);
            unpacked(&goods, packed, |socket| early.receive(&mut file(socket)?, |more| steps.more(more)))?;
            steps.end()?;
        }
        let mut told = Ok(());
        let tell = |bytes| {
            // If it does not hear that, the connection for pages is lost, too.
            told = peer.tell(&DestinationMessage::Received(bytes));
        };
        let bytes = unpacked(&goods, packed, |socket| self.arrival.receive(socket, tell))?;
        told.map(|()| Received {
            dir: self.dir,
            goods,
            packed,
            reserve: self.reserve,
            early: self.early,
            bytes,
        })
    }
}

impl Received {
    /// Takes the rest of their memory, inside.
    fn fill(&self, peer: &mut ControlChannel) -> Result<()> {
        let mut steps = Steps::from(peer, self.bytes);
        let stock = Stock { reserve: &self.reserve, early: self.early.as_ref() };
        unpacked(&self.goods, self.packed, |socket| {
            direct::fill(&mut file(socket)?, stock, |more| steps.more(more))
        })?;
        steps.end()
    }

    /// What of it is needed until all memory is there.
    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.goods.as_fd(), self.reserve.as_fd()]
            .into_iter()
            .chain(self.early.as_ref().map(PrecopyBuffer::as_fd))
    }
}

/// Tells the sender from time to time how many bytes have come.
struct Steps<'a> {
    peer: &'a mut ControlChannel,
    bytes: u64,
    told: u64,
    lost: Result<()>,
}

impl<'a> Steps<'a> {
    fn from(peer: &'a mut ControlChannel, bytes: u64) -> Self {
        Self { peer, bytes, told: bytes, lost: Ok(()) }
    }

    fn more(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes - self.told >= STEP {
            self.told = self.bytes;
            // If it does not hear that, the connection for pages is lost, too.
            self.lost = self.peer.tell(&DestinationMessage::Received(self.bytes));
        }
    }

    fn end(self) -> Result<()> {
        self.lost?;
        self.peer.tell(&DestinationMessage::Received(self.bytes))
    }
}

fn file(socket: BorrowedFd<'_>) -> Result<File> {
    socket.try_clone_to_owned().map(File::from).context(|| "connection for pages")
}

/// Has somebody take what comes on the connection, as it was before it was packed.
fn unpacked<T>(goods: &OwnedFd, packed: bool, take: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
    if !packed {
        return take(goods.as_fd());
    }
    let (end, ours) = squeeze::pair()?;
    let taking = squeeze::Taking::begin(ours, goods.as_fd())?;
    let taken = take(end.as_fd());
    drop(end);
    if taken.is_err() {
        // Nobody reads what still comes.
        shutdown(goods, Shutdown::Both).ignore_error("a connection that is lost has ended already");
    }
    let ended = taking.end();
    taken.and_then(|taken| ended.map(|()| taken))
}

fn strange() -> Error {
    Error::new("unexpected message")
}

fn swallow(goods: &OwnedFd, bytes: u64) -> Result<()> {
    let about = || "connection for pages";
    let goods = File::from(goods.try_clone().context(about)?);
    match io::copy(&mut goods.take(bytes), &mut io::sink()).context(about)? {
        n if n == bytes => Ok(()),
        _ => Err(Error::new(format!("{}: it is lost", about()))),
    }
}
