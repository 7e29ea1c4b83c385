//! Nodes that pass pieces of one file on to each other, event by event.
//!
//! A node sends one piece at a time, at the rate of its link, and receives one at a time, at that rate. In a tree no second piece is on its way
//! from one node to another. Nodes may be slow, and may fail.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::model::Model;
use crate::random::Random;

/// A set of pieces, by number: 128 at most.
pub type PieceSet = u128;

/// Who sends to whom.
pub struct Topology {
    /// For each node: to whom it sends, and which pieces. Node 0 has the file.
    pub sends: Vec<Vec<(u32, PieceSet)>>,
    /// For each node: who takes its receivers over when it fails, for each set of pieces.
    pub parents: Vec<Vec<(u32, PieceSet)>>,
    /// Whether a receiver is chosen at random, as in a swarm, and not the one that has least.
    pub random: bool,
    /// Seconds until the receivers of a slow node are taken over; nothing if they stay.
    pub to_leave_slow: Option<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    /// `from` may send again.
    Free {
        from: u32,
    },
    Arrives {
        from: u32,
        to: u32,
        piece: u8,
    },
    Fails {
        node: u32,
    },
    /// The receivers of this node are taken over.
    Replaced {
        node: u32,
    },
}

#[derive(PartialEq)]
struct Event {
    at: f64,
    what: What,
}

impl Eq for Event {}

impl Ord for Event {
    /// The earliest is the greatest: the heap gives that first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at)
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone)]
struct Node {
    has: PieceSet,
    /// On their way to it.
    coming: PieceSet,
    slow: bool,
    failed: bool,
    sending: bool,
    /// Until when its link is taken by pieces that come.
    receives_until: f64,
    /// Until when it is at work on the pieces that have come.
    works_until: f64,
    /// When it has all, and has done all its work.
    done: Option<f64>,
}

pub struct Engine<'a> {
    model: &'a Model,
    topology: Topology,
    nodes: Vec<Node>,
    events: BinaryHeap<Event>,
    random: Random,
}

impl<'a> Engine<'a> {
    pub fn new(model: &'a Model, topology: Topology, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut events = BinaryHeap::new();
        let mut nodes = vec![];
        for number in 0..topology.sends.len() {
            let slow = number > 0 && random.unit() < model.stragglers;
            if number > 0 && random.unit() < model.failures {
                // While most nodes still receive.
                let at = random.unit() * 2.0 * model.bytes / model.link;
                events.push(Event { at, what: What::Fails { node: number as u32 } });
            }
            if let Some(at) = topology.to_leave_slow.filter(|_| slow) {
                events.push(Event { at, what: What::Replaced { node: number as u32 } });
            }
            let has = if number == 0 { all(model.pieces) } else { 0 };
            nodes.push(Node {
                has,
                coming: 0,
                slow,
                failed: false,
                sending: false,
                receives_until: 0.0,
                works_until: 0.0,
                done: None,
            });
        }
        events.push(Event { at: 0.0, what: What::Free { from: 0 } });
        Self { model, topology, nodes, events, random }
    }

    /// When each node that has not failed has all; infinite where it never has.
    pub fn run(mut self) -> Vec<f64> {
        while let Some(Event { at, what }) = self.events.pop() {
            match what {
                What::Free { from } => {
                    self.nodes[from as usize].sending = false;
                    self.send(from, at);
                }
                What::Arrives { from, to, piece } => self.arrived(from, to, piece, at),
                What::Fails { node } => {
                    self.nodes[node as usize].failed = true;
                    self.events.push(Event { at: at + self.model.notice, what: What::Replaced { node } });
                }
                What::Replaced { node } => self.replace(node, at),
            }
        }
        let alive = self.nodes.iter().skip(1).filter(|node| !node.failed);
        alive.map(|node| node.done.unwrap_or(f64::INFINITY)).collect()
    }

    fn rate(&self, node: u32) -> f64 {
        self.model.link * if self.nodes[node as usize].slow { self.model.slowness } else { 1.0 }
    }

    fn arrived(&mut self, from: u32, to: u32, piece: u8, at: f64) {
        let lost = self.nodes[from as usize].failed;
        let node = &mut self.nodes[to as usize];
        node.coming &= !(1 << piece);
        if node.failed {
            return;
        }
        if !lost {
            // The work on a piece keeps nobody below: it is passed on first.
            if node.has & (1 << piece) == 0 {
                node.works_until = node.works_until.max(at) + self.model.piece() / self.model.work;
            }
            node.has |= 1 << piece;
            if node.has == all(self.model.pieces) && node.done.is_none() {
                node.done = Some(node.works_until);
            }
        }
        self.send(to, at);
        // Its receiver is free for the next one.
        self.send(from, at);
    }

    /// Lets a node send its next piece, if it is free and somebody lacks one.
    fn send(&mut self, from: u32, at: f64) {
        let sender = &self.nodes[from as usize];
        if sender.sending || sender.failed || sender.has == 0 {
            return;
        }
        let Some((to, piece)) = self.choose(from) else { return };
        self.nodes[from as usize].sending = true;
        self.nodes[to as usize].coming |= 1 << piece;
        let (own, others) = (self.rate(from), self.rate(to));
        let free = at + self.model.piece() / own;
        let receiver = &mut self.nodes[to as usize];
        receiver.receives_until = receiver.receives_until.max(at) + self.model.piece() / others;
        let arrives = free.max(receiver.receives_until) + self.model.latency;
        self.events.push(Event { at: free, what: What::Free { from } });
        self.events.push(Event { at: arrives, what: What::Arrives { from, to, piece } });
    }

    fn choose(&mut self, from: u32) -> Option<(u32, u8)> {
        let has = self.nodes[from as usize].has;
        let receivers = &self.topology.sends[from as usize];
        let wanted = |(to, pieces): &(u32, PieceSet)| {
            let node = &self.nodes[*to as usize];
            // One at a time in a tree, where only one node sends these pieces.
            let busy = !self.topology.random && node.coming & pieces != 0;
            let lacks = if node.failed || busy { 0 } else { has & pieces & !node.has & !node.coming };
            (lacks != 0).then_some((*to, lacks))
        };
        if !self.topology.random {
            let lacking = receivers.iter().filter_map(wanted);
            let next = lacking.map(|(to, lacks)| (lacks.trailing_zeros() as u8, to));
            return next.min().map(|(piece, to)| (to, piece));
        }
        let start = self.random.below(receivers.len().max(1) as u64) as usize;
        let from_start = receivers[start..].iter().chain(&receivers[..start]);
        let (to, lacks) = from_start.filter_map(wanted).next()?;
        let turn = self.random.below(u64::from(PieceSet::BITS)) as u32;
        let piece = (lacks.rotate_right(turn).trailing_zeros() + turn) % PieceSet::BITS;
        Some((to, piece as u8))
    }

    /// Gives the receivers of a node to the next one above it that is well.
    fn replace(&mut self, node: u32, at: f64) {
        for (parent, pieces) in self.topology.parents[node as usize].clone() {
            let mut above = parent;
            while above != 0 && self.is_ill(above) {
                let next = self.topology.parents[above as usize].iter().find(|(_, of)| of & pieces != 0);
                above = next.map_or(0, |(next, _)| *next);
            }
            // Of a slow node's receivers none reads the file itself.
            if above == 0 && !self.nodes[node as usize].failed {
                continue;
            }
            let orphans: Vec<_> =
                self.topology.sends[node as usize].extract_if(.., |(_, of)| *of & pieces != 0).collect();
            for (orphan, of) in orphans {
                let parents = &mut self.topology.parents[orphan as usize];
                parents.iter_mut().filter(|(_, their)| their & of != 0).for_each(|entry| entry.0 = above);
                self.topology.sends[above as usize].push((orphan, of));
            }
            self.send(above, at);
        }
    }

    /// Whether no receivers are given to a node.
    fn is_ill(&self, node: u32) -> bool {
        let Node { failed, slow, .. } = self.nodes[node as usize];
        failed || (slow && self.topology.to_leave_slow.is_some())
    }
}

/// So many pieces.
pub fn all(pieces: u32) -> PieceSet {
    PieceSet::MAX >> (PieceSet::BITS - pieces)
}
