//! A depot that somebody else reads.

#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Mutex;

use skiff_snapshot::{Depot, DepotPiece, PieceCounts, PieceFile, PieceReader, SnapshotId, fetch};

use crate::common::{World, noise};

const LARGE: usize = 3 << 20;

/// Has all files of a depot in memory, and gives what it likes of them.
#[derive(Debug)]
struct Reader {
    files: HashMap<String, Vec<u8>>,
    gives: fn(&DepotPiece, Vec<u8>) -> Option<Vec<u8>>,
    planned: Mutex<VecDeque<DepotPiece>>,
    counts: Mutex<PieceCounts>,
}

impl PieceReader for Reader {
    fn begin(&self, pieces: &[DepotPiece]) {
        *self.planned.lock().unwrap() = pieces.iter().copied().collect();
    }

    fn read(&self, piece: &DepotPiece) -> Option<Vec<u8>> {
        assert_eq!(self.planned.lock().unwrap().pop_front(), Some(*piece), "not as it was said");
        let name = match piece.file {
            PieceFile::List(layer) => format!("layers/{layer}.chunks"),
            PieceFile::Pack(pack) => format!("packs/{pack}.pack"),
        };
        let all = self.files.get(&name)?;
        let from = usize::try_from(piece.at).unwrap().min(all.len());
        let to = (from + piece.length as usize).min(all.len());
        self.counts.lock().unwrap().relayed += (to - from) as u64;
        (self.gives)(piece, all[from..to].to_vec())
    }

    fn counts(&self) -> PieceCounts {
        *self.counts.lock().unwrap()
    }
}

fn world() -> (World, SnapshotId) {
    let world = World::new();
    std::fs::write(world.upper().join("noise"), noise(1, LARGE)).unwrap();
    std::fs::write(world.upper().join("text"), "a line of text\n".repeat(100_000)).unwrap();
    let id = world.push().id;
    (world, id)
}

pub fn depot(world: &World, gives: fn(&DepotPiece, Vec<u8>) -> Option<Vec<u8>>) -> Depot {
    let mut files = HashMap::new();
    for part in ["layers", "packs"] {
        for entry in std::fs::read_dir(world.path("depot").join(part)).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{part}/{}", entry.file_name().to_str().unwrap());
            files.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    let reader = Reader { files, gives, planned: Mutex::default(), counts: Mutex::default() };
    Depot::open_existing(&world.path("depot")).unwrap().read_by(Box::new(reader))
}

/// The large file as a job sees it; what is unpacked is removed.
fn unpacked(world: &World, depot: &Depot, id: &SnapshotId) -> skiff_snapshot::Result<Vec<u8>> {
    let layers = fetch(depot, id, &world.cache)?;
    let seen = std::fs::read(layers[0].path.join("noise")).unwrap();
    let all: Vec<PathBuf> = layers.into_iter().map(|layer| layer.path.parent().unwrap().to_owned()).collect();
    all.iter().for_each(|dir| std::fs::remove_dir_all(dir).unwrap());
    Ok(seen)
}

#[test]
fn what_somebody_else_has_read_needs_no_file_of_the_depot() {
    let (world, id) = world();
    let depot = depot(&world, |_, bytes| Some(bytes));
    for part in ["layers", "packs"] {
        for entry in std::fs::read_dir(world.path("depot").join(part)).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
    assert!(unpacked(&world, &depot, &id).unwrap() == noise(1, LARGE));
    assert!(depot.piece_counts().relayed > LARGE as u64 && depot.has_reader());
    // Without them, nothing is left.
    assert!(unpacked(&world, &depot.read_directly(), &id).is_err());
}

#[test]
fn what_nobody_else_has_is_read_from_the_depot() {
    let (world, id) = world();
    let nothing = depot(&world, |_, _| None);
    assert!(unpacked(&world, &nothing, &id).unwrap() == noise(1, LARGE));
    let lists_only = depot(&world, |piece, bytes| matches!(piece.file, PieceFile::List(_)).then_some(bytes));
    assert!(unpacked(&world, &lists_only, &id).unwrap() == noise(1, LARGE));
    // What is too short was not whole, and a list that is damaged is none.
    let short = depot(&world, |_, bytes| Some(bytes[..bytes.len() / 2].to_vec()));
    assert!(unpacked(&world, &short, &id).unwrap() == noise(1, LARGE));
}

#[test]
fn what_somebody_else_has_changed_is_refused() {
    let (world, id) = world();
    let changed = depot(&world, |piece, mut bytes| {
        let is_noise = matches!(piece.file, PieceFile::Pack(_)) && piece.length > 100_000;
        if is_noise {
            bytes[100] ^= 1;
        }
        Some(bytes)
    });
    let refused = unpacked(&world, &changed, &id).expect_err("a layer that was changed").to_string();
    assert!(refused.contains("layer"), "{refused}");
    assert!(unpacked(&world, &changed.read_directly(), &id).unwrap() == noise(1, LARGE));
}
