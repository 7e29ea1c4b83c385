//! The ways by which a snapshot gets to all nodes, each as seconds until a node has what it needs.

use super::engine::{Engine, PieceSet, Topology, all};
use super::model::Model;
use crate::random::Random;

/// A way, by its name in table and picture.
pub struct Way {
    pub name: &'static str,
    /// How often the snapshot is read from the shared file system, given the number of nodes.
    pub reads: fn(&Model, usize) -> f64,
    pub run: fn(&Model, usize, u64) -> Vec<f64>,
}

const EACH: fn(&Model, usize) -> f64 = |_, nodes| nodes as f64;
const FIRST: fn(&Model, usize) -> f64 = |model, nodes| nodes as f64 * model.first;
const ONCE: fn(&Model, usize) -> f64 = |_, _| 1.0;

pub const ALL: [Way; 8] = [
    Way { name: "NFS, read whole", reads: EACH, run: |m, n, seed| in_place(m, n, seed, m.nfs, 1.0) },
    Way {
        name: "NFS, mounted in place",
        reads: FIRST,
        run: |m, n, seed| in_place(m, n, seed, m.nfs, m.first),
    },
    Way { name: "Lustre, read whole", reads: EACH, run: |m, n, seed| in_place(m, n, seed, m.lustre, 1.0) },
    Way {
        name: "Lustre, mounted in place",
        reads: FIRST,
        run: |m, n, seed| in_place(m, n, seed, m.lustre, m.first),
    },
    Way { name: "sbcast", reads: ONCE, run: sbcast },
    Way {
        name: "FaaSNet's binary tree",
        reads: ONCE,
        run: |m, n, seed| Engine::new(m, one_tree(m, n), seed).run(),
    },
    Way {
        name: "swarm like BitTorrent's",
        reads: ONCE,
        run: |m, n, seed| Engine::new(m, swarm(m, n, seed), seed).run(),
    },
    Way {
        name: "relay by two trees",
        reads: ONCE,
        run: |m, n, seed| Engine::new(m, two_trees(m, n), seed).run(),
    },
];

/// Every node reads a share of the bytes from servers that give so many each second.
fn in_place(model: &Model, nodes: usize, seed: u64, servers: f64, share: f64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let bytes = model.bytes * share;
    let servers = (nodes as f64 * bytes / servers).max(nodes as f64 / model.opens);
    let seconds = |_| {
        let rate = model.link * if random.unit() < model.stragglers { model.slowness } else { 1.0 };
        // What is read whole is checked and written while it comes.
        let work = if share < 1.0 { 0.0 } else { bytes / model.work };
        servers.max(bytes / rate).max(work)
    };
    (0..nodes).map(seconds).collect()
}

/// A block goes down the whole tree, and when all have it, the next one does. One node that fails fails all: it is begun again without it.
fn sbcast(model: &Model, nodes: usize, seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let width = model.sbcast_width as usize;
    let rates: Vec<f64> = (0..=nodes)
        .map(|_| model.link * if random.unit() < model.stragglers { model.slowness } else { 1.0 })
        .collect();
    let mut arrives = vec![0.0; nodes + 1];
    for node in 1..=nodes {
        let parent = (node - 1) / width;
        // Its siblings share the link of the one above.
        let turn = ((node - 1) % width + 1) as f64;
        let own = if parent == 0 { model.link } else { rates[parent] };
        arrives[node] = arrives[parent]
            + model.latency
            + (turn * model.sbcast_block / own).max(model.sbcast_block / rates[node]);
    }
    let block = arrives.iter().copied().fold(0.0, f64::max);
    let whole = block * (model.bytes / model.sbcast_block).ceil();
    let fails = (0..nodes).any(|_| random.unit() < model.failures);
    let lost = if fails { whole * random.unit() + model.notice } else { 0.0 };
    // The work begins when the file is there.
    vec![lost + whole + model.bytes / model.work; nodes]
}

/// Each node sends all pieces to two others.
fn one_tree(model: &Model, nodes: usize) -> Topology {
    let mut topology = empty(nodes);
    let order: Vec<u32> = (1..=nodes as u32).collect();
    add_tree(&mut topology, &order, all(model.pieces));
    topology
}

/// The pieces of even number go down one tree, the others down another. Whoever sends in one tree only receives in the other: so its link carries
/// everything once in each direction. The receivers of a node that fails or is slow are given to its parent.
fn two_trees(model: &Model, nodes: usize) -> Topology {
    let mut topology = Topology { to_leave_slow: Some(model.trial), ..empty(nodes) };
    let even = (PieceSet::MAX / 3) & all(model.pieces);
    let order: Vec<u32> = (1..=nodes as u32).collect();
    let reversed: Vec<u32> = order.iter().rev().copied().collect();
    add_tree(&mut topology, &order, even);
    add_tree(&mut topology, &reversed, all(model.pieces) & !even);
    topology
}

/// Each node knows eight others.
fn swarm(model: &Model, nodes: usize, seed: u64) -> Topology {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut topology = Topology { random: true, ..empty(nodes) };
    let link = |topology: &mut Topology, a: usize, b: usize| {
        if a != b {
            topology.sends[a].push((b as u32, all(model.pieces)));
            topology.sends[b].push((a as u32, all(model.pieces)));
        }
    };
    for node in 0..=nodes {
        // A ring, so that nobody is alone.
        link(&mut topology, node, (node + 1) % (nodes + 1));
        for _ in 0..3 {
            let other = random.below(nodes as u64 + 1) as usize;
            link(&mut topology, node, other);
        }
    }
    topology
}

fn empty(nodes: usize) -> Topology {
    let (sends, parents) = (vec![vec![]; nodes + 1], vec![vec![]; nodes + 1]);
    Topology { sends, parents, random: false, to_leave_slow: None }
}

/// A balanced binary tree of the nodes in this order, below node 0, for these pieces.
fn add_tree(topology: &mut Topology, order: &[u32], pieces: PieceSet) {
    for (at, node) in order.iter().enumerate() {
        let parent = if at == 0 { 0 } else { order[(at - 1) / 2] };
        topology.sends[parent as usize].push((*node, pieces));
        topology.parents[*node as usize].push((parent, pieces));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Curve {
        #[command(flatten)]
        model: Model,
    }

    fn model(words: &[&str]) -> Model {
        Curve::parse_from(
            [&["x", "--stragglers", "0", "--failures", "0", "--latency", "0", "--work", "1e15"], words]
                .concat(),
        )
        .model
    }

    fn last(name: &str, model: &Model, nodes: usize) -> f64 {
        let way = ALL.iter().find(|way| way.name.starts_with(name)).unwrap();
        (way.run)(model, nodes, 1).into_iter().fold(0.0, f64::max)
    }

    #[test]
    fn without_trouble_each_way_takes_what_its_links_take() {
        let model = model(&[]);
        let once = model.bytes / model.link;
        let near = |name: &str, nodes: usize, expected: f64, more: f64| {
            let found = last(name, &model, nodes);
            assert!(
                (expected * 0.999..=expected * more).contains(&found),
                "{name}, {nodes}: {found} of {expected}"
            );
        };
        near("relay", 1, once, 1.01);
        near("relay", 1000, once, 1.3);
        near("FaaSNet", 1000, 2.0 * once, 1.2);
        near("swarm", 1000, once, 2.5);
        near("NFS, read", 1000, 1000.0 * once, 1.01);
        near("Lustre, read", 10, once, 1.01);
        // Two levels of eight and then of eleven.
        near("sbcast", 72, 16.0 * once, 1.01);
    }

    #[test]
    fn a_node_works_on_what_comes_while_more_comes() {
        let model = Curve::parse_from(["x", "--stragglers", "0", "--failures", "0", "--work", "1e8"]).model;
        let (work, once) = (model.bytes / model.work, model.bytes / model.link);
        for (name, expected) in [("relay", work), ("NFS, read", work), ("sbcast", 8.0 * once + work)] {
            let found = last(name, &model, 8);
            assert!((expected..expected * 1.05).contains(&found), "{name}: {found} of {expected}");
        }
    }

    #[test]
    fn all_nodes_that_live_get_all() {
        for way in &ALL {
            let model = Curve::parse_from(["x", "--stragglers", "0.05", "--failures", "0.05"]).model;
            let times = (way.run)(&model, 500, 3);
            assert!(times.len() > 400, "{}", way.name);
            assert!(times.iter().all(|time| time.is_finite()), "{}", way.name);
        }
    }

    #[test]
    fn the_relay_goes_round_slow_nodes() {
        let words = ["x", "--stragglers", "0.01", "--failures", "0", "--work", "1e15"];
        let most = |trial| {
            let model = Curve::parse_from([&words[..], &["--trial", trial]].concat()).model;
            let mut times = two_trees_times(&model, 1000);
            times.sort_by(f64::total_cmp);
            times[980]
        };
        let (waiting, going_round) = (most("1e9"), most("2"));
        assert!(going_round < 0.6 * waiting, "{going_round} and {waiting}");
    }

    fn two_trees_times(model: &Model, nodes: usize) -> Vec<f64> {
        Engine::new(model, two_trees(model, nodes), 1).run()
    }

    #[test]
    fn who_sends_in_one_tree_only_receives_in_the_other() {
        let topology = two_trees(&model(&[]), 100);
        let both = |sends: &Vec<(u32, PieceSet)>| sends.windows(2).any(|two| two[0].1 != two[1].1);
        assert!(topology.sends[1..].iter().filter(|sends| both(sends)).count() <= 1);
    }
}
