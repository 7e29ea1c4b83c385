//! The reader against archives as programs write them, as nobody should, and against another reader.

use std::convert::Infallible;
use std::io::Read;

use proptest::prelude::*;

use super::build::{RawEntry as Tar, archive};
use super::{ByteStream, EntryKind, Error, Segment, TarEntry, TarReader};

/// An entry and its data.
type Member = (TarEntry, Vec<u8>);

/// All entries with their data.
pub(crate) fn read_all(bytes: &[u8]) -> Result<Vec<Member>, String> {
    let why = |error| match error {
        Error::Bad(why) => why,
        Error::Stream(never) => match never {},
    };
    let mut reader = TarReader::new(bytes);
    let mut all = vec![];
    while let Some(entry) = reader.next_entry().map_err(why)? {
        let mut data = vec![];
        loop {
            let piece = reader.data().map_err(why)?;
            if piece.is_empty() {
                break;
            }
            // An odd number, so that borders fall anywhere.
            let used = piece.len().min(97);
            data.extend_from_slice(&piece[..used]);
            reader.consume(used);
        }
        all.push((entry, data));
    }
    Ok(all)
}

fn only(tar: Tar) -> Member {
    let mut all = read_all(&archive(&[tar])).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn refused(bytes: &[u8], because: &str) {
    let why = read_all(bytes).unwrap_err();
    assert!(why.contains(because), "{why:?} does not say {because:?}");
}

#[test]
fn names_come_from_the_header_its_prefix_gnu_or_pax() {
    let long = "d/".repeat(150) + "file";
    assert_eq!(only(Tar::file("a/b", "x")).0.path, b"a/b");
    assert_eq!(only(Tar::file("b", "x").raw(345..348, b"a/c")).0.path, b"a/c/b");
    let gnu = Tar::file("b", "x").raw(257..265, b"ustar  \0").raw(345..348, b"a/c");
    assert_eq!(only(gnu).0.path, b"b", "GNU tar has no prefix");
    let star = Tar::file("b", "x").raw(345..348, b"a/c").raw(476..479, b"123").raw(508..512, b"tar\0");
    assert_eq!(only(star).0.path, b"a/c/b", "star's is shorter");
    assert_eq!(only(Tar::file(&long, "x")).0.path, long.as_bytes());
    assert_eq!(only(Tar::file("short", "x").pax("path", &long)).0.path, long.as_bytes());
    assert_eq!(only(Tar::file("a", "x").pax("path", b"\xff\xfe\n=")).0.path, b"\xff\xfe\n=", "not UTF-8");
    let (link, _) = only(Tar::symlink("l", &long));
    assert_eq!(link.kind, EntryKind::Symlink(long.clone().into()));
    let (link, _) = only(Tar::hard_link("l", "x").pax("linkpath", &long));
    assert_eq!(link.kind, EntryKind::HardLink(long.into()));
}

#[test]
fn numbers_too_large_for_octal_are_read() {
    let (entry, _) =
        only(Tar::file("a", "").raw(108..116, b"\x80\0\0\0\xff\xff\xff\xfe").raw(136..148, &[0xff; 12]));
    assert_eq!((entry.uid, entry.mtime), (u32::MAX - 1, -1));
    let (entry, _) =
        only(Tar::file("a", "").pax("uid", "70000").pax("gid", "4000000000").pax("mtime", "-1.25"));
    assert_eq!(
        (entry.uid, entry.gid, entry.mtime, entry.mtime_nsec),
        (70000, 4_000_000_000, -2, 750_000_000)
    );
    for id in ["-1", "4294967295", "99999999999"] {
        refused(&archive(&[Tar::file("a", "").pax("uid", id)]), "owner or group");
    }
}

#[test]
fn global_headers_are_defaults() {
    let global = Tar::new(b'g', "g").data(super::build::pax_record(b"mtime", b"77.5"));
    let all =
        read_all(&archive(&[global, Tar::file("a", ""), Tar::file("b", "").pax("mtime", "3")])).unwrap();
    assert_eq!((all[0].0.mtime, all[0].0.mtime_nsec, all[1].0.mtime), (77, 500_000_000, 3));
    let global = Tar::new(b'g', "g").data(super::build::pax_record(b"size", b"512"));
    refused(&archive(&[global, Tar::file("a", "")]), "global");
}

/// CVE-2025-62518: a header that says 0 beside a PAX size let one reader skip a file, and another read its data as headers.
#[test]
fn the_size_of_pax_is_the_datas_length() {
    let hidden = archive(&[Tar::file("hidden", "x")]);
    let all = read_all(&archive(&[
        Tar::file("a", &hidden).size(0).pax("size", hidden.len().to_string()),
        Tar::file("b", ""),
    ]));
    let all = all.unwrap();
    assert_eq!(all.iter().map(|(entry, _)| &entry.path[..]).collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(all[0].1, hidden);
    // The other way round.
    let all =
        read_all(&archive(&[Tar::file("a", "").size(9999).pax("size", "0"), Tar::file("b", "y")])).unwrap();
    assert_eq!((all[0].1.len(), &all[1].1[..]), (0, &b"y"[..]));
}

/// GHSA-3cv2-h65g-fgmm: an extended header between PAX header and file must not take the size meant for the file.
/// An archive with a hole in it that nobody need read through.
struct Hollow<'a> {
    before: &'a [u8],
    hole: u64,
    behind: &'a [u8],
}

impl ByteStream for Hollow<'_> {
    type Error = Infallible;

    fn fill(&mut self) -> Result<&[u8], Infallible> {
        let zeros = &[0; 4096][..self.hole.min(4096) as usize];
        Ok([self.before, zeros, self.behind].into_iter().find(|part| !part.is_empty()).unwrap_or_default())
    }

    fn consume(&mut self, used: usize) {
        match (self.before.len(), self.hole) {
            (0, 0) => self.behind = &self.behind[used..],
            (0, _) => self.hole -= used as u64,
            _ => self.before = &self.before[used..],
        }
    }

    fn skip(&mut self, most: u64) -> Result<u64, Infallible> {
        let have =
            if self.before.is_empty() && self.hole > 0 { self.hole } else { self.fill()?.len() as u64 };
        let used = most.min(have);
        self.consume(used as usize);
        Ok(used)
    }
}

#[test]
fn files_beyond_4_gib_are_as_long_as_they_say() {
    const GIB: u64 = 1 << 30;
    let base_256 = |size: u64| [&[0x80, 0, 0, 0][..], &size.to_be_bytes()].concat();
    let large = |size: u64| {
        let octal = (size < 8 * GIB).then(|| Tar::file("large", "").size(size));
        octal.into_iter().chain([
            Tar::file("large", "").raw(124..136, &base_256(size)),
            Tar::file("large", "").pax("size", size.to_string()),
            Tar::file("large", "").size(7).pax("size", size.to_string()),
        ])
    };
    let behind = archive(&[Tar::file("behind", "x")]);
    for size in [4 * GIB - 1, 4 * GIB, 4 * GIB + 1, 8 * GIB - 1, 8 * GIB, 700 * GIB + 513] {
        for tar in large(size) {
            let before = tar.bytes();
            let hole = size.next_multiple_of(512);
            let mut reader = TarReader::new(Hollow { before: &before, hole, behind: &behind });
            let entry = reader.next_entry().unwrap().unwrap();
            assert_eq!((entry.kind, reader.at()), (EntryKind::File(size), before.len() as u64));
            assert_eq!(reader.data().unwrap().len(), 4096);
            reader.consume(4096);
            let entry = reader.next_entry().unwrap().unwrap();
            assert_eq!((&entry.path[..], entry.kind), (&b"behind"[..], EntryKind::File(1)));
            assert_eq!(reader.at(), before.len() as u64 + hole + 512);
            assert_eq!(reader.data().unwrap(), b"x");
            assert!(reader.next_entry().unwrap().is_none());
        }
    }
}

#[test]
fn a_long_name_between_pax_header_and_file_has_its_own_size() {
    let long = "n".repeat(200);
    let all =
        read_all(&archive(&[Tar::file(&long, "data").size(0).pax("size", "4"), Tar::file("b", "")])).unwrap();
    assert_eq!((all[0].0.path.len(), &all[0].1[..], &all[1].0.path[..]), (200, &b"data"[..], &b"b"[..]));
}

#[test]
fn links_and_directories_have_no_data_whatever_size_they_give() {
    for flag in [b'1', b'2', b'3', b'4', b'5', b'6'] {
        let entry = Tar::new(flag, "a").raw(157..158, b"t").size(512);
        let all = read_all(&archive(&[entry, Tar::file("b", "y")])).unwrap();
        assert_eq!((all.len(), &all[1].0.path[..]), (2, &b"b"[..]), "type {}", char::from(flag));
    }
    let (entry, data) = only(Tar::new(0, "d/").raw(257..265, &[0; 8]));
    assert_eq!((entry.kind, data.len()), (EntryKind::Directory, 0), "V7");
}

#[test]
fn devices_have_their_numbers() {
    assert_eq!(only(Tar::new(b'3', "a").device(0, 0)).0.kind, EntryKind::CharDevice(0, 0));
    assert_eq!(only(Tar::new(b'4', "a").device(259, 70000)).0.kind, EntryKind::BlockDevice(259, 70000));
    assert_eq!(only(Tar::new(b'6', "a")).0.kind, EntryKind::Fifo);
}

fn segments(pairs: &[(u64, u64)]) -> Vec<Segment> {
    pairs.iter().map(|&(offset, len)| Segment { offset, len }).collect()
}

#[test]
fn sparse_files_of_all_versions_are_read() {
    let wanted = EntryKind::Sparse { size: 10_000, map: segments(&[(100, 3), (5000, 2), (10_000, 0)]) };
    let flat = "100,3,5000,2,10000,0";
    let old = Tar::file("old", "abcde").raw(156..157, b"S").raw(257..265, b"ustar  \0");
    let old = [100, 3, 5000, 2, 10000, 0]
        .iter()
        .zip((386..).step_by(12))
        .fold(old, |tar, (n, at)| tar.octal(at..at + 12, *n));
    let zero = ["100", "5000", "10000"].iter().zip(["3", "2", "0"]).fold(
        Tar::file("v0.0", "abcde").pax("GNU.sparse.size", "10000").pax("GNU.sparse.numblocks", "3"),
        |tar, (offset, len)| tar.pax("GNU.sparse.offset", offset).pax("GNU.sparse.numbytes", len),
    );
    let one = Tar::file("x", "abcde").pax("GNU.sparse.size", "10000").pax("GNU.sparse.numblocks", "3");
    let one = one.pax("GNU.sparse.name", "v0.1").pax("GNU.sparse.map", flat);
    let mut body = super::build::padded(format!("3\n{}\n", flat.replace(',', "\n")).into_bytes());
    body.extend(b"abcde");
    let new = Tar::file("x", body).pax("GNU.sparse.major", "1").pax("GNU.sparse.minor", "0");
    let new = new.pax("GNU.sparse.name", "v1.0").pax("GNU.sparse.realsize", "10000");
    let entries = [old.octal(483..495, 10000), zero, one, new, Tar::file("next", "")];
    let all = read_all(&archive(&entries)).unwrap();
    let names: Vec<_> = all.iter().map(|(entry, _)| String::from_utf8_lossy(&entry.path)).collect();
    assert_eq!(names, ["old", "v0.0", "v0.1", "v1.0", "next"]);
    for (entry, data) in &all[..4] {
        assert_eq!(
            (&entry.kind, &data[..]),
            (&wanted, &b"abcde"[..]),
            "{}",
            String::from_utf8_lossy(&entry.path)
        );
    }
}

#[test]
fn old_sparse_maps_go_on_in_extensions() {
    let mut extension = [0; 512];
    let field = |at: usize, value: u64, to: &mut [u8; 512]| {
        to[at..at + 12].copy_from_slice(format!("{value:011o}\0").as_bytes())
    };
    field(0, 4096, &mut extension);
    field(12, 1, &mut extension);
    let tar = Tar::file("a", "xy").raw(156..157, b"S").raw(257..265, b"ustar  \0").raw(482..483, b"\x01");
    let tar = tar.octal(386..398, 0).octal(398..410, 1).octal(483..495, 9000).extension(&extension);
    let (entry, data) = only(tar);
    assert_eq!(entry.kind, EntryKind::Sparse { size: 9000, map: segments(&[(0, 1), (4096, 1)]) });
    assert_eq!(data, b"xy");
}

#[test]
fn hostile_sparse_maps_are_refused() {
    let one = |map: &str, data: &str, size: &str| {
        archive(&[Tar::file("a", data).pax("GNU.sparse.size", size).pax("GNU.sparse.map", map)])
    };
    refused(&one("0,4", "abc", "10"), "3 bytes of data where its map has 4");
    refused(&one("8,4", "abcd", "10"), "beyond its end");
    refused(&one("4,2,0,2", "abcd", "10"), "not in order");
    refused(&one("0,18446744073709551615,1,5", "abcd", "10"), "beyond its end");
    let new = |body: &str| {
        let tar = Tar::file("a", body).pax("GNU.sparse.major", "1").pax("GNU.sparse.minor", "0");
        archive(&[tar.pax("GNU.sparse.realsize", "10")])
    };
    refused(&new("99999999\n"), "more than the");
    refused(&new("2\n0\n1\n"), "not one of numbers");
    refused(&new("1\n0\n0\n"), "no end");
    refused(&new("x\n"), "number belongs");
}

#[test]
fn what_is_cut_off_or_no_tar_is_refused() {
    let whole = archive(&[Tar::file("a", [b'x'; 700])]);
    refused(&whole[..300], "within a header");
    refused(&whole[..600], "before its file does");
    assert!(read_all(&whole[..1212]).is_ok(), "some writers leave the last padding out");
    assert!(read_all(&whole[..1536]).is_ok(), "and some the end");
    assert!(read_all(&[]).unwrap().is_empty());
    let mut wrong = whole.clone();
    wrong[5] ^= 1;
    refused(&wrong, "checksum");
    refused(&b"<html>".repeat(200), "checksum");
    let mut amid = whole.clone();
    amid.splice(..0, [0; 512]);
    refused(&amid, "single record of zeros");
    let mut garbage = whole.clone();
    garbage.extend([b'g'; 5000]);
    assert_eq!(read_all(&garbage).unwrap().len(), 1, "what follows the end is not looked at");
}

#[test]
fn what_is_too_long_is_refused() {
    refused(&archive(&[Tar::file("n".repeat(4097), "")]), "more than the 4096");
    refused(&archive(&[Tar::new(b'x', "x").size(1 << 30)]), "more than the 4194304");
    refused(&archive(&[Tar::new(b'L', "x").size(1 << 30)]), "more than the 4194304");
    let many = (0..1001).fold(Tar::file("a", ""), |tar, n| tar.pax(format!("SCHILY.xattr.user.{n}"), "x"));
    refused(&archive(&[many]), "more than 1000 extended attributes");
    refused(&archive(&[Tar::new(b'Q', "a")]), "unknown type 'Q'");
    refused(&archive(&[Tar::file("a", "").raw(124..136, &[0xff; 12])]), "a size of -1");
}

/// Names of all lengths in the forms that writers choose between.
fn entries() -> impl Strategy<Value = Vec<Tar>> {
    let name = prop_oneof!["[a-z]{1,20}", "[a-z]{1,60}/[a-z]{90,200}", "([a-z]{1,9}/){1,80}x"];
    let data = proptest::collection::vec(any::<u8>(), 0..3000);
    let entry = (name, data, 0..7u8, any::<[bool; 3]>(), 0..0o10000u64, 0..2_000_000u64, any::<u32>());
    let entry = entry.prop_map(|(name, data, kind, [pax_size, pax_name, pax_time], mode, id, time)| {
        let tar = match kind {
            0 => Tar::directory(name.clone() + "/"),
            1 => Tar::symlink(&name, "target/".repeat(usize::from(id as u8))),
            2 => Tar::hard_link(&name, "other"),
            3 => Tar::new(b'3', &name).device(4, id),
            _ if pax_size => Tar::file(&name, &data).pax("size", data.len().to_string()).size(0),
            _ => Tar::file(&name, &data),
        };
        let tar = tar.mode(mode).owner(id, id / 2).mtime(time.into());
        let tar = if pax_name { tar.pax("path", format!("{name}/p")) } else { tar };
        if pax_time { tar.pax("mtime", format!("{time}.5")).mtime(1) } else { tar }
    });
    proptest::collection::vec(entry, 0..12)
}

/// Path, type, owner, mode and data.
type Common = (Vec<u8>, u8, u64, u64, Vec<u8>);

/// What the `tar` crate makes of it.
fn read_by_other(bytes: &[u8]) -> Vec<Common> {
    let mut archive = tar::Archive::new(bytes);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let header = entry.header();
        let kind = header.entry_type().as_byte();
        let (uid, mode) = (header.uid().unwrap(), u64::from(header.mode().unwrap()));
        let path = entry.path_bytes().into_owned();
        let mut data = vec![];
        entry.read_to_end(&mut data).unwrap();
        (path, kind, uid, mode, data)
    });
    entries.collect()
}

fn flag(kind: &EntryKind) -> u8 {
    match kind {
        EntryKind::File(_) | EntryKind::Sparse { .. } => b'0',
        EntryKind::HardLink(_) => b'1',
        EntryKind::Symlink(_) => b'2',
        EntryKind::CharDevice(..) => b'3',
        EntryKind::BlockDevice(..) => b'4',
        EntryKind::Directory => b'5',
        EntryKind::Fifo => b'6',
    }
}

proptest! {
    #[test]
    fn another_reader_sees_the_same(entries in entries()) {
        let bytes = archive(&entries);
        let ours: Vec<_> = read_all(&bytes).unwrap().into_iter()
            .map(|(entry, data)| (entry.path, flag(&entry.kind), u64::from(entry.uid), u64::from(entry.mode), data)).collect();
        prop_assert_eq!(ours, read_by_other(&bytes));
    }

    #[test]
    fn damage_is_an_error_or_harmless(entries in entries(), flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
        let mut bytes = archive(&entries);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        // Any result will do; what it may not do is panic, or give more data than there is.
        if let Ok(all) = read_all(&bytes) {
            prop_assert!(all.iter().map(|(_, data)| data.len()).sum::<usize>() <= bytes.len());
        }
    }
}
