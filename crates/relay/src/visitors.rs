//! Who has connected to a listener that anybody can reach. Those who have not proven that they may are few, and make way for others.

use std::collections::BTreeMap;
use std::io::Result;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skiff_sys::IgnoreError;

/// Most that have not proven yet that they may be here: the oldest goes for a new one.
const MOST_UNPROVEN: usize = 16;
/// Most of the others. A pull has eight connections, and a node is asked by two others; more only come when some have failed.
const MOST_PROVEN: usize = 64;

/// With more of these, whoever could ask another node is refused.
const MANY: usize = 5;

/// All connections to a listener.
#[derive(Default)]
pub(crate) struct Visitors {
    proven: AtomicUsize,
    /// By number, in the order of their coming.
    unproven: Mutex<BTreeMap<u64, TcpStream>>,
    count: AtomicU64,
}

/// A connection. Dropped when it ends.
pub(crate) struct Visitor {
    of: Arc<Visitors>,
    number: u64,
    is_proven: bool,
}

impl Visitors {
    /// Somebody connects. The oldest who has not proven anything is disconnected, if they are too many.
    pub(crate) fn come(self: &Arc<Self>, socket: &TcpStream) -> Result<Visitor> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let mut unproven = self.unproven();
        unproven.insert(number, socket.try_clone()?);
        if unproven.len() > MOST_UNPROVEN
            && let Some((_, oldest)) = unproven.pop_first()
        {
            oldest.shutdown(Shutdown::Both).ignore_error("they have gone by themselves");
        }
        Ok(Visitor { of: Arc::clone(self), number, is_proven: false })
    }

    fn unproven(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.unproven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Visitor {
    /// Whether there are enough of them for one node.
    pub(crate) fn are_many(&self) -> bool {
        self.of.proven.load(Ordering::Relaxed) > MANY
    }

    /// Notes that this visitor may be here. Gives whether there is room for one more of those.
    pub(crate) fn prove(&mut self) -> bool {
        if !self.is_proven {
            self.of.unproven().remove(&self.number);
            self.is_proven = true;
            return self.of.proven.fetch_add(1, Ordering::Relaxed) < MOST_PROVEN;
        }
        true
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        match self.is_proven {
            true => drop(self.of.proven.fetch_sub(1, Ordering::Relaxed)),
            false => drop(self.of.unproven().remove(&self.number)),
        }
    }
}
