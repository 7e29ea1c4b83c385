//! The pieces on this node: what is wanted, what has come, and who waits for it. What others below will ask for is kept in a file, all else only
//! in memory, for a while.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::fstatvfs;
use skiff_sys::IgnoreError;

use crate::piece::{RelayPiece, STRIPE};
use crate::tree::RelayTree;

/// So many bytes stay in memory.
const IN_MEMORY: usize = 64 << 20;
/// One part of so many of a disk stays free for what the pieces are fetched for.
const ROOM: u64 = 10;

/// Where a piece has come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceOrigin {
    Node,
    /// The depot or the registry.
    Source,
}

/// What there is of a piece after some waiting.
pub(crate) enum WaitedPiece {
    Here(Arc<Vec<u8>>, PieceOrigin),
    NotYet,
    Failed,
}

/// What is known of the pieces.
pub(crate) struct Spool {
    state: Mutex<SpoolState>,
    changed: Condvar,
    /// Whether others below will ask for a tree's pieces.
    is_kept: [bool; 2],
    file: Option<File>,
}

struct SpoolState {
    slots: HashMap<RelayPiece, PieceSlot>,
    /// By tree, what nobody has been asked for yet.
    wanted: [VecDeque<RelayPiece>; 2],
    /// What is in memory, oldest first.
    recent: VecDeque<(RelayPiece, usize)>,
    in_memory: usize,
    /// The end of what is kept in the file.
    end: u64,
    used: Instant,
    /// How often everything has been forgotten: offsets in the file are valid only within one epoch.
    epoch: u64,
    is_over: bool,
}

enum PieceSlot {
    Wanted,
    Memory { bytes: Arc<Vec<u8>>, origin: PieceOrigin, kept_at: Option<u64> },
    Kept { at: u64, length: usize, origin: PieceOrigin },
    Failed,
}

impl Spool {
    /// `file`: where pieces can be kept, if there is room anywhere.
    pub(crate) fn new(is_kept: [bool; 2], file: Option<File>) -> Self {
        let state = SpoolState {
            slots: HashMap::new(),
            wanted: [VecDeque::new(), VecDeque::new()],
            recent: VecDeque::new(),
            in_memory: 0,
            end: 0,
            used: Instant::now(),
            epoch: 0,
            is_over: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), is_kept, file }
    }

    /// Somebody will wait for this piece.
    pub(crate) fn want(&self, piece: RelayPiece) {
        self.want_in(&mut self.lock(), piece);
    }

    fn want_in(&self, state: &mut SpoolState, piece: RelayPiece) {
        state.used = Instant::now();
        if matches!(state.slots.get(&piece), None | Some(PieceSlot::Failed)) {
            state.slots.insert(piece, PieceSlot::Wanted);
            state.wanted[tree_of(&piece) as usize].push_back(piece);
            self.changed.notify_all();
        }
    }

    /// A piece that is here now. Nobody is asked for it.
    pub(crate) fn find(&self, piece: &RelayPiece) -> WaitedPiece {
        if self.lock().slots.contains_key(piece) {
            self.wait(piece, Duration::ZERO)
        } else {
            WaitedPiece::NotYet
        }
    }

    /// Waits for a piece, but no longer than this.
    pub(crate) fn wait(&self, piece: &RelayPiece, patience: Duration) -> WaitedPiece {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        loop {
            state.used = Instant::now();
            match state.slots.get(piece) {
                Some(PieceSlot::Memory { bytes, origin, .. }) => {
                    return WaitedPiece::Here(Arc::clone(bytes), *origin);
                }
                Some(PieceSlot::Failed) => return WaitedPiece::Failed,
                Some(PieceSlot::Kept { at, length, origin }) => {
                    let (at, length, origin, epoch) = (*at, *length, *origin, state.epoch);
                    drop(state);
                    return self.kept(piece, (at, length, epoch), origin);
                }
                Some(PieceSlot::Wanted) => {}
                // It has been dropped meanwhile.
                None => self.want_in(&mut state, *piece),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.is_over {
                return WaitedPiece::NotYet;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn kept(
        &self,
        piece: &RelayPiece,
        (at, length, epoch): (u64, usize, u64),
        origin: PieceOrigin,
    ) -> WaitedPiece {
        let mut bytes = vec![0; length];
        let read = self.file.as_ref().map(|file| file.read_exact_at(&mut bytes, at));
        let mut state = self.lock();
        match read {
            Some(Ok(())) if state.epoch == epoch => return WaitedPiece::Here(Arc::new(bytes), origin),
            _ if state.epoch == epoch => drop(state.slots.remove(piece)),
            _ => {}
        }
        WaitedPiece::NotYet
    }

    /// The next piece of a tree that somebody is to be asked for, if there is one now.
    pub(crate) fn next_wanted(&self, tree: RelayTree) -> Option<RelayPiece> {
        self.lock().wanted[tree as usize].pop_front()
    }

    /// Waits for such a piece for so long, or until the end.
    pub(crate) fn wait_for_wanted(&self, tree: RelayTree, patience: Option<Duration>) -> Option<RelayPiece> {
        let began = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(piece) = state.wanted[tree as usize].pop_front() {
                return Some(piece);
            }
            let left = patience.map(|patience| patience.saturating_sub(began.elapsed()));
            if state.is_over || left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            state = match left {
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Wants pieces again that were asked for in vain, before all others.
    pub(crate) fn still_wanted(&self, tree: RelayTree, pieces: impl DoubleEndedIterator<Item = RelayPiece>) {
        let mut state = self.lock();
        let SpoolState { slots, wanted, .. } = &mut *state;
        let missing = pieces.filter(|piece| matches!(slots.get(piece), None | Some(PieceSlot::Wanted)));
        missing.rev().for_each(|piece| wanted[tree as usize].push_front(piece));
    }

    /// A piece has come.
    pub(crate) fn put(&self, piece: RelayPiece, bytes: Arc<Vec<u8>>, origin: PieceOrigin) {
        let kept = self.keep(&piece, &bytes);
        let mut state = self.lock();
        let kept_at = kept.filter(|(_, epoch)| *epoch == state.epoch).map(|(at, _)| at);
        let length = bytes.len();
        let slot = PieceSlot::Memory { bytes, origin, kept_at };
        if !matches!(state.slots.insert(piece, slot), Some(PieceSlot::Memory { .. })) {
            state.recent.push_back((piece, length));
            state.in_memory += length;
        }
        while state.in_memory > IN_MEMORY
            && let Some((oldest, length)) = state.recent.pop_front()
        {
            state.in_memory -= length;
            state.leave_memory(oldest, length);
        }
        self.changed.notify_all();
    }

    /// Where it is kept in the file, if others will ask for it and there is more than enough room.
    fn keep(&self, piece: &RelayPiece, bytes: &[u8]) -> Option<(u64, u64)> {
        let file = self.file.as_ref().filter(|_| self.is_kept[tree_of(piece) as usize])?;
        let disk = fstatvfs(file).ok()?;
        if disk.f_bavail < disk.f_blocks / ROOM {
            return None;
        }
        let (at, epoch) = {
            let mut state = self.lock();
            let at = state.end;
            state.end += bytes.len() as u64;
            (at, state.epoch)
        };
        file.write_all_at(bytes, at).is_ok().then_some((at, epoch))
    }

    /// A piece cannot be had.
    pub(crate) fn fail(&self, piece: RelayPiece) {
        self.lock().slots.insert(piece, PieceSlot::Failed);
        self.changed.notify_all();
    }

    /// Forgets everything if nobody has asked for so long.
    pub(crate) fn forget_if_idle(&self, idle: Duration) {
        let mut state = self.lock();
        if state.used.elapsed() > idle
            && !state.slots.is_empty()
            && state.wanted.iter().all(VecDeque::is_empty)
        {
            state.slots.clear();
            state.recent.clear();
            (state.in_memory, state.end) = (0, 0);
            state.epoch += 1;
            let emptied = self.file.as_ref().map_or(Ok(()), |file| file.set_len(0));
            emptied.ignore_error("the room is free when this process ends");
        }
    }

    /// Nobody waits any longer.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, SpoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpoolState {
    fn leave_memory(&mut self, piece: RelayPiece, length: usize) {
        match self.slots.get(&piece) {
            Some(PieceSlot::Memory { kept_at: Some(at), origin, .. }) => {
                let (at, origin) = (*at, *origin);
                self.slots.insert(piece, PieceSlot::Kept { at, length, origin });
            }
            Some(PieceSlot::Memory { .. }) => {
                self.slots.remove(&piece);
            }
            _ => {}
        }
    }
}

/// The tree that a piece goes down.
pub(crate) fn tree_of(piece: &RelayPiece) -> RelayTree {
    RelayTree::BOTH[((piece.at / STRIPE + u64::from(piece.file.digest()[0])) % 2) as usize]
}
