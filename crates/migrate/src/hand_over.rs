//! The sender's part from the offer to the end: the processes are stopped and dumped, all that belongs to them is sent, and when they
//! stand ready on the other side they are given away.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{Shutdown, shutdown};
use skiff_checkpoint::criu::{self, CriuEvent, CriuProcess};
use skiff_checkpoint::inside_reader::{InsideContents, InsideReader};
use skiff_checkpoint::member::SavedInterface;
use skiff_checkpoint::memory;
use skiff_checkpoint::obstacles::{Moment, description_locks, look, look_for_policies};
use skiff_checkpoint::place::NewCheckpoint;
use skiff_checkpoint::probe;
use skiff_checkpoint::record::{Checkpoint, IMAGES, sums};
use skiff_checkpoint::required_criu;
use skiff_checkpoint::restore::IMAGE;
use skiff_checkpoint::running::RunningInstance;
use skiff_checkpoint::tries::{CheckpointAction, refuse_interrupted};
use skiff_cli::{MigrateArgs, Mode};
use skiff_criu::rpc::{Options, PageServer, RequestType};
use skiff_sandbox::idle::INTERVAL;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_sys::signal::Signals;
use skiff_user::checkpoints::home;

use crate::direct;
use crate::direct::{MemoryRanges, PageRun};
use crate::hear::{DestinationProgress, hear_progress, last_words, refusal, said, strange};
use crate::leaving::{self, InDoubtRecord};
use crate::lock_hand_over::{self, HeldLocks};
use crate::page_link::{Pages, Sorted};
use crate::parcel;
use crate::peer::{ControlChannel, wait};
use crate::progress::Progress;
use crate::rounds::{self, RoundReport};
use crate::talk::{DestinationMessage, FileLocation, Offer, RestoreRequest, SourceMessage};
use crate::way::ReceiverLink;

/// How long the other side may take to look at the offer: it may have to get an image.
const CONSIDERING: Duration = Duration::from_secs(600);
/// How long it may take to make the processes, at least.
const MAKING: Duration = Duration::from_secs(60);
/// And as long as it takes to do so with so many bytes a second.
const SLOWEST: u64 = 64 << 20;
/// How long it may take to let them go.
const STARTING: Duration = Duration::from_secs(30);

/// One that is to be moved.
pub struct Migration<'a> {
    pub instance: RunningInstance<'a>,
    pub member: Option<SavedInterface>,
    pub words: &'a MigrateArgs,
}

/// What has become of it, if it is not simply still here.
pub enum SwitchoverOutcome {
    /// The instance runs on the destination.
    Gone(TransferStats),
    /// The instance was given away, and nobody has said whether it has been taken. It stands still here.
    Unknown(Error),
}

/// One that has gone.
pub struct TransferStats {
    /// How long it stood still.
    pub frozen: Duration,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of that by the link.
    pub sent: u64,
    /// Bytes of all else.
    pub files: u64,
    /// What of its memory went before it stood still.
    pub rounds: Vec<RoundReport>,
}

/// Where CRIU writes what is no page, and we what is no process. It goes when this is dropped.
enum DumpDir {
    Memory(OwnedFd),
    Shared(NewCheckpoint),
}

impl DumpDir {
    fn dir(&self) -> PathBuf {
        match self {
            Self::Memory(dir) => PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())),
            Self::Shared(new) => new.dir.clone(),
        }
    }

    /// The same, if the destination is to see it.
    fn shared(&self) -> Option<PathBuf> {
        match self {
            Self::Memory(_) => None,
            Self::Shared(new) => Some(new.dir.clone()),
        }
    }
}

/// Why it was not given away: it goes on here, unless that is not known.
enum SwitchoverError {
    Stays(Error),
    Unknown(Error),
}

impl From<Error> for SwitchoverError {
    fn from(why: Error) -> Self {
        Self::Stays(why)
    }
}

impl Migration<'_> {
    /// Does it. If it fails, the instance goes on here and nothing is left on either side.
    pub fn carry_out(
        &self,
        mut way: ReceiverLink,
        token: String,
        progress: &mut Progress,
    ) -> Result<SwitchoverOutcome> {
        let done = self.hand_over(&mut way, token, progress);
        match done {
            Ok(SwitchoverOutcome::Gone(_)) => way.leave(),
            Ok(SwitchoverOutcome::Unknown(_)) => {}
            Err(_) => way.give_up(),
        }
        done
    }

    fn hand_over(
        &self,
        way: &mut ReceiverLink,
        token: String,
        progress: &mut Progress,
    ) -> Result<SwitchoverOutcome> {
        let scratch = match self.words.mode {
            Mode::Diskless | Mode::Precopy => DumpDir::Memory(memory::make(memory::available()? / 2)?),
            Mode::Disk => DumpDir::Shared(self.shared_dir()?),
        };
        let images = scratch.dir().join(IMAGES);
        let images = File::open(&images).context(|| images.display().to_string())?;
        let folder = required_criu()?;
        let mut pages = Pages::prepare()?;
        let RunningInstance { started, init, inside, found, .. } = self.instance;
        let planned = (inside, &started.plan);
        let criu = CriuProcess::start_to_dump(&folder, planned, Some(images.as_fd()), &[pages.descriptor()])?;
        let version = probe::version(&criu)?;
        let ranges = direct::ranges(init)?;
        let outline = self.instance.outline(&version, found.processes.clone())?;
        self.offer(&mut way.peer, &token, (outline, scratch.shared(), &ranges))?;
        if self.words.mode.is_diskless() {
            pages.choose(way, self.words.compress)?;
        }
        progress.done("prepare");
        let (mut ranges, mut rounds) = (ranges, vec![]);
        if self.words.mode == Mode::Precopy {
            rounds = rounds::send(&mut pages, way, (inside, &ranges), progress)?;
            ranges = direct::ranges(init)?;
            // Not while they stand still, which is to be short.
            look_for_policies(init)?.refuse(CheckpointAction::Move)?;
            progress.done("ahead");
        }
        let stopped = Instant::now();
        let dumped = self.dump(&criu, way, (&mut pages, ranges), progress);
        // Of two errors that of the dump says more.
        let ended = pages.end(way);
        if let Err(why) = dumped {
            return Err(criu.end_failed(why));
        }
        let Sorted { runs, sent } = ended.inspect_err(|_| criu.take_back())?;
        progress.done("dump");
        // From here on CRIU waits for a word of ours. If we end without one, it lets the processes go on, unless it is stopped.
        let files = self.send(way, &scratch, (&criu, &version), progress);
        let given = files.and_then(|(files, locks)| {
            let (plain, more) = self.fill(way, (&mut pages, &runs), progress)?;
            refuse_interrupted(CheckpointAction::Move)?;
            self.give_away(&criu, &mut way.peer, token, locks)?;
            Ok((files, sent.unwrap_or(plain) + more))
        });
        match given {
            Ok((files, sent)) => {
                let frozen = stopped.elapsed();
                leaving::end(self.instance.record)?;
                progress.done("start");
                criu.end();
                let memory = progress.bytes();
                Ok(SwitchoverOutcome::Gone(TransferStats { frozen, memory, sent, files, rounds }))
            }
            Err(SwitchoverError::Unknown(why)) => Ok(SwitchoverOutcome::Unknown(why)),
            Err(SwitchoverError::Stays(why)) => {
                criu.take_back();
                criu.end();
                Err(why)
            }
        }
    }

    /// Asks the destination whether the instance could come, of which nothing is sent.
    pub fn ask(&self) -> Result<()> {
        let checkpoint = self.instance.outline_now()?;
        let mut way = ReceiverLink::open(self.instance.context, &self.words.node)?;
        let asked = self.ask_by(&mut way.peer, checkpoint);
        way.give_up();
        asked
    }

    fn ask_by(&self, peer: &mut ControlChannel, checkpoint: Checkpoint) -> Result<()> {
        let shared = match self.words.mode {
            Mode::Diskless | Mode::Precopy => None,
            Mode::Disk => Some(self.shared_dir()?),
        };
        let (dir, ranges) = (shared.as_ref().map(|new| new.dir.clone()), direct::ranges(self.instance.init)?);
        let offer = Offer::of(self.instance.record, checkpoint, self.words.mode)?;
        peer.tell(&SourceMessage::Consider(Box::new(Offer { dir, direct: ranges, ..offer })))?;
        let until = Instant::now() + CONSIDERING;
        let answer = loop {
            match peer.hear_unless_interrupted(until)? {
                DestinationMessage::Beat => {}
                answer => break answer,
            }
        };
        refusal(answer)?.map_or(Ok(()), |why| Err(why.about(&self.words.node)))
    }

    /// A directory in the home for what goes by the disk.
    fn shared_dir(&self) -> Result<NewCheckpoint> {
        NewCheckpoint::make(&home(self.instance.context)?, &self.instance.record.name)
    }

    fn offer(
        &self,
        peer: &mut ControlChannel,
        token: &str,
        (checkpoint, dir, ranges): (Checkpoint, Option<PathBuf>, &MemoryRanges),
    ) -> Result<()> {
        let offer = Offer::of(self.instance.record, checkpoint, self.words.mode)?;
        let (token, direct) = (token.into(), ranges.clone());
        peer.tell(&SourceMessage::Offer(Box::new(Offer { token, dir, direct, ..offer })))?;
        match peer.hear_unless_interrupted(Instant::now() + CONSIDERING)? {
            DestinationMessage::Welcome => Ok(()),
            DestinationMessage::Failed(message, hint) => Err(Error::new(message).hint(hint)),
            other => Err(strange(&other)),
        }
    }

    /// Has CRIU stop and dump the processes, until it waits for what becomes of them.
    fn dump(
        &self,
        criu: &CriuProcess,
        way: &mut ReceiverLink,
        (pages, ranges): (&mut Pages, MemoryRanges),
        progress: &mut Progress,
    ) -> Result<()> {
        let page_server = match self.words.mode {
            mode if mode.is_diskless() => Some(pages.begin(way, self.instance.init, ranges)?),
            _ => None,
        };
        let options = Options {
            pid: self.instance.first_process(),
            // They are ended by us, if they have gone. Of terminals whose processes it is to end itself, CRIU keeps what waits in them, and
            // has reading no longer wait, also if it then lets them go on.
            leave_running: Some(true),
            page_server: page_server.map(|socket| PageServer { fd: Some(socket), ..PageServer::default() }),
            ..criu::options(self.instance.inside.net)
        };
        criu.ask(RequestType::Dump, options)?;
        let mut stall = criu.stall();
        loop {
            let both = [(criu.news(), PollFlags::IN), (way.peer.as_fd(), PollFlags::IN)];
            let ready = wait(&both, Some(INTERVAL))?;
            let heard = match ready[1].is_empty() {
                true => Ok(false),
                false => hear_progress(&mut way.peer, progress),
            };
            let heard =
                heard.and_then(|held| if held { Err(strange(&DestinationMessage::Held)) } else { Ok(()) });
            if let Err(why) = heard.and_then(|()| refuse_interrupted(CheckpointAction::Move)) {
                // CRIU then finds that there is nobody to send to.
                shutdown(&way.goods, Shutdown::Both)
                    .ignore_error("a connection that is lost has ended already");
                criu.take_back();
                return Err(why);
            }
            if ready[0].is_empty() {
                criu.end_if_stalled(&mut stall)?;
                continue;
            }
            match criu.next_event()? {
                CriuEvent::Stage(stage) if stage == "post-dump" => return Ok(()),
                CriuEvent::Stage(_) => criu.proceed(true)?,
                CriuEvent::Done(_) => return Err(Error::new("CRIU does not say when it has dumped all")),
            }
        }
    }

    /// Sends all but the memory; how many bytes that were, and which locks on files are to be handed over.
    fn send(
        &self,
        way: &mut ReceiverLink,
        scratch: &DumpDir,
        (criu, version): (&CriuProcess, &str),
        progress: &mut Progress,
    ) -> std::result::Result<(u64, HeldLocks), SwitchoverError> {
        let dir = scratch.dir();
        let RunningInstance { context, record, started, init, inside, .. } = self.instance;
        // Now that they stand still.
        let found = look(init, (inside, &started.plan), Moment::Frozen)?
            .with_bound_locks(&started.plan)
            .with_images(&dir.join(IMAGES))?;
        refuse_interrupted(CheckpointAction::Move)?;
        found.refuse(CheckpointAction::Move)?;
        if self.words.mode != Mode::Precopy {
            look_for_policies(init)?.refuse(CheckpointAction::Move)?;
        }
        let reader = InsideReader::begin(inside, &started.plan, record, &dir)?;
        let InsideContents { sysv, posix_queues, trees, written, .. } =
            reader.read(&found.processes, criu)?;
        if let Some(entry) = record.image()? {
            entry.write(&dir.join(IMAGE)).map_err(skiff_store::ours)?;
        }
        let member = self.member.as_ref().map(|member| member.renewed(context, started));
        member.transpose()?.iter().try_for_each(|member| member.write(&dir))?;
        let outline = self.instance.outline(version, found.processes.clone())?;
        let mut checkpoint = Checkpoint { trees, written, sysv, posix_queues, ..outline };
        let size;
        if let DumpDir::Shared(new) = scratch {
            checkpoint.files = sums(&new.dir)?;
            checkpoint.write(&new.dir)?;
            size = checkpoint.size();
            way.peer.tell(&SourceMessage::Restore(Box::new(RestoreRequest {
                checkpoint,
                files: FileLocation::Lie(dir),
            })))?;
        } else {
            let pieces = parcel::contents(&dir)?;
            size = pieces.iter().map(|piece| piece.size).sum();
            let files = FileLocation::Follow(pieces.clone());
            way.peer.tell(&SourceMessage::Restore(Box::new(RestoreRequest { checkpoint, files })))?;
            parcel::send(&dir, &pieces, way.goods.as_fd()).map_err(|lost| last_words(&mut way.peer, lost))?;
        }
        progress.done("files");
        Ok((size, description_locks(&found.processes)))
    }

    /// Waits until the processes are there, has the rest of their memory sent into them, and waits until they have it; how many bytes they had before, and how many
    /// more went by the link.
    fn fill(
        &self,
        way: &mut ReceiverLink,
        (pages, runs): (&mut Pages, &[PageRun]),
        progress: &mut Progress,
    ) -> std::result::Result<(u64, u64), SwitchoverError> {
        if !self.words.mode.is_diskless() {
            self.wait_until_held(&mut way.peer, false, progress)?;
            progress.done("memory");
            return Ok((0, 0));
        }
        let until = Instant::now() + MAKING + Duration::from_secs(progress.size() / SLOWEST);
        while said(way.peer.hear_unless_interrupted(until)?, progress)? != DestinationProgress::Made {}
        progress.done("make");
        let before = progress.bytes();
        let sending = pages.send(way, self.instance.inside, runs)?;
        let mut held = false;
        // It may say that it has all before we know that all has been sent.
        while !held {
            let both = [(sending.news(), PollFlags::IN), (way.peer.as_fd(), PollFlags::IN)];
            let ready = wait(&both, Some(INTERVAL))?;
            if !ready[0].is_empty() {
                break;
            }
            let heard = match ready[1].is_empty() {
                true => Ok(false),
                false => hear_progress(&mut way.peer, progress),
            };
            match heard.and_then(|all| refuse_interrupted(CheckpointAction::Move).map(|()| all)) {
                Ok(all) => held = all,
                Err(why) => {
                    // Whoever sends finds that there is nobody to send to.
                    shutdown(&way.goods, Shutdown::Both)
                        .ignore_error("a connection that is lost has ended already");
                    sending.end().ignore_error("why the other side failed says more");
                    return Err(why.into());
                }
            }
        }
        let sent = sending.end().map_err(|lost| last_words(&mut way.peer, lost))?;
        self.wait_until_held(&mut way.peer, held, progress)?;
        progress.done("memory");
        Ok((before, sent))
    }

    fn wait_until_held(
        &self,
        peer: &mut ControlChannel,
        mut held: bool,
        progress: &mut Progress,
    ) -> Result<()> {
        let until = Instant::now() + MAKING + Duration::from_secs(progress.size() / SLOWEST);
        while !held {
            held = said(peer.hear_unless_interrupted(until)?, progress)? == DestinationProgress::Held;
        }
        Ok(())
    }

    /// Gives them away, which all stand ready there.
    fn give_away(
        &self,
        criu: &CriuProcess,
        peer: &mut ControlChannel,
        token: String,
        locks: HeldLocks,
    ) -> std::result::Result<(), SwitchoverError> {
        let RunningInstance { record, inside, .. } = self.instance;
        // A key on the terminal does not come in between, from here until all is said.
        let _signals = Signals::block(&[]).context(|| "signals")?;
        let leaving = InDoubtRecord::begin(record, criu.number()?, &self.words.node, token, locks)?;
        // There it has the address, too, and is heard from then on.
        let port = self.member.as_ref().map(SavedInterface::port);
        let shut = || port.map_or(Ok(()), |port| port.shut(inside));
        if let Err(why) = shut().and_then(|()| lock_hand_over::share(inside, &leaving.locks)) {
            let locked = lock_hand_over::take_back(inside, &leaving.locks);
            leaving.stay(record)?;
            return Err(locked.err().unwrap_or(why).into());
        }
        match lock_hand_over::give(peer, (inside, &leaving.locks), STARTING) {
            Ok(DestinationMessage::Running) => Ok(()),
            Ok(DestinationMessage::Failed(message, hint)) => {
                port.map_or(Ok(()), |port| port.open(inside))?;
                let locked = lock_hand_over::take_back(inside, &leaving.locks);
                leaving.stay(record)?;
                Err(locked.err().unwrap_or(Error::new(message).hint(hint)).into())
            }
            Ok(other) => Err(SwitchoverError::Unknown(strange(&other))),
            Err(why) => Err(SwitchoverError::Unknown(why)),
        }
    }
}
