use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};

use rustix::fs::XattrFlags;

use super::super::aside::ACL;
use super::super::{FileTimes, WrittenFile, digest};
use super::*;

struct Bench(tempfile::TempDir);

impl Bench {
    fn new(files: &[(&str, &str)]) -> Self {
        let temp = tempfile::tempdir().expect("a directory");
        files.iter().for_each(|(name, text)| fs::write(temp.path().join(name), text).expect("written"));
        Self(temp)
    }
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }
    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("read")
    }
    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).expect("listed");
        let mut names: Vec<String> =
            names.map(|entry| entry.expect("one").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }
    /// Five bytes long each, by name, whether it is appended to and whether it is compared.
    fn was(&self, names: &[(&str, bool, bool)]) -> BTreeMap<String, Was> {
        let was = |(name, appended, compared): &(&str, bool, bool)| {
            let number = fs::metadata(self.path(name)).map_or(0, |found| found.ino());
            let noted = WrittenFile { number, ..WrittenFile::default() };
            let (appended, compared) = (*appended, *compared);
            (self.path(name), Was { size: 5, noted: Some(noted), read: None, appended, compared })
        };
        names.iter().map(was).collect()
    }
    /// As it is now, five bytes of it, with its times and the digest of its content.
    fn noted(&self, name: &str, (appended, compared): (bool, bool)) -> Was {
        let file = File::open(self.path(name)).expect("opened");
        let of = fstat(&file).expect("known");
        let noted = WrittenFile {
            path: self.path(name),
            size: 5,
            number: of.st_ino,
            owner: Some((of.st_uid, of.st_gid, of.st_mode & 0o7777)),
            times: Some(FileTimes::of(&of)),
            digest: digest(&file, 5).expect("read").filter(|_| compared),
            ..WrittenFile::default()
        };
        Was { size: 5, noted: Some(noted), read: None, appended, compared }
    }
    fn fit_one(&self, name: &str, was: Was, copy: Option<&str>, way: GrownFiles) -> Result<Vec<String>> {
        let path = self.path(name);
        let copies = copy.map(|text| (path.as_str(), copy_of(text))).into_iter().collect();
        fit(&BTreeMap::from([(path.clone(), was)]), &copies, &rules(way)).map(|(said, _)| said)
    }
    fn fit(&self, names: &[(&str, bool, bool)], way: GrownFiles) -> Result<Vec<String>> {
        fit(&self.was(names), &BTreeMap::new(), &rules(way)).map(|(said, _)| said)
    }
}

fn rules(way: GrownFiles) -> FileRules {
    FileRules::for_all(way)
}

fn copy_of(text: &str) -> OwnedFd {
    let mut file = tempfile::tempfile().expect("a file");
    io::Write::write_all(&mut file, text.as_bytes()).expect("written");
    file.into()
}

const FINE: [(&str, bool, bool); 3] = [("same", false, true), ("log", true, true), ("absent", true, true)];

fn bench() -> Bench {
    Bench::new(&[("same", "12345"), ("log", "12345more"), ("base", "12345more"), ("short", "1")])
}

#[test]
fn logs_are_cut_as_the_user_says_and_nothing_is_lost_without_that() {
    let bench = bench();
    for way in [GrownFiles::Keep, GrownFiles::Refuse] {
        let why = bench.fit(&FINE, way).expect_err("refused").to_string();
        assert!(why.contains("log has 9 bytes, and had 5"), "{why}");
    }
    assert_eq!(bench.fit(&FINE, GrownFiles::Restore).expect("cut").len(), 1);
    assert_eq!((bench.text("log"), bench.text("log.after-checkpoint")), ("12345".into(), "more".into()));
    assert!(bench.fit(&FINE, GrownFiles::Restore).expect("nothing to do").is_empty());
    fs::write(bench.path("log"), "123456").expect("written");
    bench.fit(&FINE, GrownFiles::Restore).expect("cut");
    assert_eq!(bench.text("log.after-checkpoint.2"), "6");
    fs::write(bench.path("log"), "123456").expect("written");
    let said = bench.fit(&FINE, GrownFiles::Truncate).expect("cut");
    assert!(said[0].contains("1 written since are gone"), "{said:?}");
    assert_eq!((bench.text("log"), bench.names().len()), ("12345".into(), 6));
}

#[test]
fn nothing_is_changed_if_anything_is_in_the_way() {
    for other in [("base", false, true), ("short", true, true)] {
        for way in [GrownFiles::Truncate, GrownFiles::Restore] {
            let bench = bench();
            let why = bench.fit(&[FINE[0], FINE[1], other], way).expect_err("refused").to_string();
            assert!(why.contains(other.0) && !why.contains("log"), "{why}");
            assert_eq!((bench.text("log"), bench.names().len()), ("12345more".into(), 4));
        }
    }
}

#[test]
fn what_is_appended_to_goes_on_behind_its_end() {
    let bench = bench();
    let shared = [("log", true, false), ("short", true, false)];
    for way in [GrownFiles::Keep, GrownFiles::Restore] {
        let said = bench.fit(&shared, way).expect("goes on");
        assert!(said.len() == 1 && said[0].contains("4 bytes that were written since"), "{said:?}");
    }
    assert!(bench.fit(&shared, GrownFiles::Refuse).expect_err("refused").to_string().contains("log"));
    assert_eq!(bench.text("log"), "12345more");
    bench.fit(&shared, GrownFiles::Truncate).expect("cut");
    assert_eq!((bench.text("log"), bench.names().len()), ("12345".into(), 4));
}

#[test]
fn a_copy_takes_the_place_of_what_has_changed() {
    let bench = Bench::new(&[("base", "other"), ("grown", "12345more"), ("same", "12345")]);
    let all = ["base", "grown", "same", "gone"].map(|name| (name, false, true));
    let was = bench.was(&all);
    let of = |name: &str| bench.path(name);
    let paths = all.map(|(name, ..)| of(name));
    let copies: BTreeMap<&str, OwnedFd> =
        paths.iter().map(|path| (path.as_str(), copy_of("12345"))).collect();
    let why = fit(&was, &copies, &rules(GrownFiles::Refuse)).expect_err("refused").to_string();
    assert!(why.contains("grown has 9 bytes"), "{why}");
    let (said, numbers) = fit(&was, &copies, &rules(GrownFiles::Restore)).expect("as it was");
    assert_eq!(numbers.len(), 4);
    assert_eq!(said.len(), 3, "{said:?}");
    all.iter().for_each(|(name, ..)| assert_eq!(bench.text(name), "12345", "{name}"));
    assert_eq!(bench.text("base.before-restore"), "other");
    assert_eq!(bench.text("grown.before-restore"), "12345more");
    assert_eq!(bench.names().len(), 6);
    assert!(fit(&was, &copies, &rules(GrownFiles::Restore)).expect("as it was").0.is_empty());
}

#[test]
fn what_is_written_between_the_copy_and_the_cut_is_kept() {
    let bench = bench();
    let base = bench.path("base");
    let was = bench.was(&[("log", true, true), ("base", false, true)]);
    let copies = BTreeMap::from([(base.as_str(), copy_of("12345"))]);
    let rules = rules(GrownFiles::Restore);
    let mut all = FileChanges::default();
    for (path, was) in &was {
        all.prepare(path, was, copies.get(path.as_str()), rules.way(path));
    }
    assert_eq!((all.prepared.len(), &all.wrong), (2, &vec![]));
    // By the same description: another one would wait for the end of the lease, which those of other hosts do not see.
    for one in &all.prepared {
        one.file.write_all_at(b"12345more and more", 0).expect("written");
    }
    let (said, _) = all.carry_out().expect("as they were");
    assert!(said.iter().any(|said| said.contains("13 written since are in")), "{said:?}");
    assert_eq!(
        (bench.text("log"), bench.text("log.after-checkpoint")),
        ("12345".into(), "more and more".into())
    );
    assert_eq!(
        (bench.text("base"), bench.text("base.before-restore")),
        ("12345".into(), "12345more and more".into())
    );
}

#[test]
fn what_is_cut_between_the_copy_and_the_cut_is_in_the_way() {
    let bench = bench();
    let was = bench.was(&[("log", true, true)]);
    let rules = rules(GrownFiles::Restore);
    let mut all = FileChanges::default();
    for (path, was) in &was {
        all.prepare(path, was, None, rules.way(path));
    }
    all.prepared[0].file.set_len(2).expect("cut");
    let why = all.carry_out().expect_err("cut").to_string();
    assert!(why.contains("it has been cut meanwhile"), "{why}");
    assert_eq!((bench.text("log"), bench.names().len()), ("12".into(), 4));
}

#[test]
fn only_the_file_that_it_was_and_that_nobody_writes_to_is_changed() {
    let bench = bench();
    let number = fs::metadata(bench.path("log")).expect("there").ino();
    std::os::unix::fs::symlink("log", bench.path("link")).expect("a link");
    let fit_one = |name, number: Option<u64>, way| {
        let noted = number.map(|number| WrittenFile { number, ..WrittenFile::default() });
        let was = Was { size: 5, noted, read: None, appended: true, compared: true };
        bench.fit_one(name, was, None, way)
    };
    for way in [GrownFiles::Truncate, GrownFiles::Restore] {
        for (name, number) in [("link", Some(number)), ("log", Some(0)), ("log", None)] {
            fit_one(name, number, way).expect_err("another");
            assert_eq!(bench.text("log"), "12345more");
        }
    }
    let open = File::open(bench.path("log")).expect("opened");
    let is_known = lease::is_alone(open.as_fd()).is_ok();
    drop(open);
    // Who only reads it does not count.
    let _reader = File::open(bench.path("log")).expect("opened");
    let writer = File::options().append(true).open(bench.path("log")).expect("opened");
    if is_known {
        let why = fit_one("log", Some(number), GrownFiles::Restore).expect_err("open");
        assert!(why.to_string().contains("another process has it open to write to it"), "{why}");
        assert!(why.hint.contains("fuser -v FILE"));
        assert_eq!((bench.text("log"), bench.names().len()), ("12345more".into(), 5));
    }
    fit_one("log", Some(number), GrownFiles::Truncate).expect("the user's word");
    assert_eq!(bench.text("log"), "12345");
    fs::write(bench.path("log"), "123456").expect("written");
    drop(writer);
    // A child that another test starts may have a copy of the descriptor until it executes its program.
    let wait = || std::thread::sleep(std::time::Duration::from_millis(10));
    let cut = || fit_one("log", Some(number), GrownFiles::Restore);
    assert!((0..100).any(|_| cut().is_ok() || (wait(), false).1));
    assert_eq!((bench.text("log"), bench.text("log.after-checkpoint")), ("12345".into(), "6".into()));
}

/// Changes a file and then gives it the time that it had.
fn write_unseen(bench: &Bench, name: &str, text: &str) {
    let file = File::options().write(true).open(bench.path(name)).expect("opened");
    let then = file.metadata().expect("known").modified().expect("a time");
    file.write_all_at(text.as_bytes(), 0).expect("written");
    file.set_modified(then).expect("set");
}

#[test]
fn other_content_of_the_same_length_is_in_the_way_whatever_the_way() {
    for (appended, copy) in [(false, Some("12345")), (false, None), (true, None)] {
        for way in [GrownFiles::Truncate, GrownFiles::Keep, GrownFiles::Refuse, GrownFiles::Restore] {
            let bench = bench();
            let was = || bench.noted("same", (appended, true));
            assert!(bench.fit_one("same", was(), copy, way).expect("as it was").is_empty());
            let was = was();
            write_unseen(&bench, "same", "54321");
            let fitted = bench.fit_one("same", was, copy, way);
            if copy.is_some() && way == GrownFiles::Restore {
                fitted.expect("put back");
                assert_eq!(bench.text("same"), "12345");
                continue;
            }
            let why = fitted.expect_err("other content");
            assert!(why.to_string().contains("same has other content than it had"), "{why}");
            let can_be_restored = why.hint.contains("--files restore");
            assert_eq!(can_be_restored, copy.is_some(), "{way:?}");
            assert_eq!((bench.text("same"), bench.names().len()), ("54321".into(), 4));
        }
    }
}

#[test]
fn what_was_changed_before_its_former_end_is_not_cut() {
    for way in [GrownFiles::Truncate, GrownFiles::Restore] {
        let bench = bench();
        let was = bench.noted("log", (true, true));
        write_unseen(&bench, "log", "HEAD5");
        let why = bench.fit_one("log", was, None, way).expect_err("its header").to_string();
        assert!(why.contains("log has other content than it had"), "{why}");
        assert_eq!(bench.text("log"), "HEAD5more");
        let was = bench.noted("log", (true, true));
        bench.fit_one("log", was, None, way).expect("cut");
        assert_eq!(bench.text("log"), "HEAD5");
    }
}

#[test]
fn of_what_is_too_large_to_be_compared_the_time_tells() {
    let large = |bench: &Bench, name: &str, appended| {
        let was = bench.noted(name, (appended, true));
        let noted = was.noted.map(|noted| WrittenFile { digest: None, ..noted });
        Was { noted, ..was }
    };
    let bench = bench();
    let was = || large(&bench, "same", false);
    assert!(bench.fit_one("same", was(), None, GrownFiles::Refuse).expect("as it was").is_empty());
    for way in [GrownFiles::Restore, GrownFiles::Truncate, GrownFiles::Refuse, GrownFiles::Keep] {
        let mut was = was();
        was.noted.iter_mut().for_each(|noted| {
            let times = noted.times.expect("known");
            noted.times = Some(FileTimes { changed: (times.changed.0 - 1, 0), ..times });
        });
        let fitted = bench.fit_one("same", was, None, way);
        if way == GrownFiles::Keep {
            let said = fitted.expect("kept");
            assert!(said[0].contains("same: written to since, as its time says"), "{said:?}");
        } else {
            let why = fitted.expect_err("its time");
            assert!(why.to_string().contains("same has been written to since"), "{why}");
            assert!(why.hint.contains("--files keep"));
        }
    }
    let said = bench.fit_one("log", large(&bench, "log", true), None, GrownFiles::Restore).expect("cut");
    assert!(said[0].ends_with("whether these are as they were is not known"), "{said:?}");
}

#[test]
fn inputs_that_were_written_to_are_told_in_one_line() {
    let bench = Bench::new(&[("a", "12345"), ("b", "12345"), ("c", "12345")]);
    let of = |name: &str, seconds| {
        let modified = bench.noted(name, (true, true)).noted.and_then(|noted| noted.times).expect("known");
        let read = Some((modified.modified.0 - seconds, modified.modified.1));
        (bench.path(name), Was { size: 5, noted: None, read, appended: true, compared: true })
    };
    let was = BTreeMap::from([of("a", 1), of("b", 1), of("c", 0)]);
    let (said, _) = fit(&was, &BTreeMap::new(), &rules(GrownFiles::Keep)).expect("goes on");
    let begin =
        format!("{}, {}: open to be read only, and written to since", bench.path("a"), bench.path("b"));
    assert!(said.len() == 1 && said[0].starts_with(&begin), "{said:?}");
    fit(&was, &BTreeMap::new(), &rules(GrownFiles::Refuse)).map(drop).expect_err("changed");
}

#[test]
fn another_file_a_link_and_a_fifo_are_in_the_way() {
    const WAYS: [GrownFiles; 4] =
        [GrownFiles::Restore, GrownFiles::Truncate, GrownFiles::Keep, GrownFiles::Refuse];
    for (compared, copy) in [(true, None), (false, None), (true, Some("12345"))] {
        let bench = bench();
        let was = || bench.noted("kept", (copy.is_none(), compared));
        fs::rename(bench.path("same"), bench.path("kept")).expect("moved");
        let in_the_way = |what: &str, ways: &[GrownFiles]| {
            for way in ways {
                let why = bench.fit_one("same", was(), copy, *way).expect_err(what).to_string();
                assert!(why.contains(&format!("same is {what}")), "{why}");
            }
            fs::remove_file(bench.path("same")).expect("removed");
        };
        std::os::unix::fs::symlink("kept", bench.path("same")).expect("a link");
        in_the_way("reached by a symbolic link now", &WAYS);
        let fifo = rustix::fs::mknodat(
            rustix::fs::CWD,
            bench.path("same"),
            FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        );
        fifo.expect("a FIFO");
        in_the_way("not a regular file now", &WAYS);
        fs::write(bench.path("same"), "54321").expect("written");
        fs::hard_link(bench.path("same"), bench.path("other name")).expect("a second name");
        in_the_way("another file now", &WAYS);
        // A new log may be appended to if the user says so.
        fs::write(bench.path("same"), "54321").expect("written");
        match compared {
            true => in_the_way("another file now", &WAYS),
            false => {
                let said = bench.fit_one("same", was(), copy, GrownFiles::Keep).expect("the user's word");
                assert!(said[0].contains("another file now: the processes append to that"), "{said:?}");
                in_the_way("another file now", &WAYS[..2]);
            }
        }
        // What was made again of the copy is another file with the same content.
        fs::write(bench.path("same"), "12345").expect("written");
        assert_eq!(bench.fit_one("same", was(), copy, GrownFiles::Restore).is_ok(), compared);
    }
}

/// Lists of rights as the kernel has them: for the owner, user 1234, the group, the mask and others.
fn list_of_rights(user: u8) -> Vec<u8> {
    let entry = |tag: u8, rights: u8, id: [u8; 4]| [[tag, 0, rights, 0].as_slice(), id.as_slice()].concat();
    let (nobody, somebody) = ([0xff; 4], 1234_u32.to_le_bytes());
    let all = [(1, 6, nobody), (2, user, somebody), (4, 0, nobody), (16, 6, nobody), (32, 0, nobody)];
    let entries = all.iter().flat_map(|(tag, rights, id)| entry(*tag, *rights, *id));
    [2, 0, 0, 0].into_iter().chain(entries).collect()
}

#[test]
fn what_is_kept_or_made_again_is_for_no_more_users_than_the_file() {
    let bench = bench();
    let set = |name: &str, list: &str| {
        let set = rustix::fs::setxattr(bench.path(name), list, &list_of_rights(6), XattrFlags::empty());
        set.expect("a file system with lists of rights");
    };
    let mode = |name: &str| {
        let found = fs::metadata(bench.path(name)).expect("there");
        let mut list = [0; 256];
        (
            found.permissions().mode() & 0o777,
            rustix::fs::getxattr(bench.path(name), ACL, &mut list[..]).is_ok(),
        )
    };
    let log = || bench.noted("log", (true, true));
    // The directory gives a list to what is made in it.
    set("", "system.posix_acl_default");
    fs::set_permissions(bench.path("log"), fs::Permissions::from_mode(0o640)).expect("set");
    bench.fit_one("log", log(), None, GrownFiles::Restore).expect("cut");
    assert_eq!(mode("log.after-checkpoint"), (0o640, false));
    set("log", ACL);
    fs::write(bench.path("log"), "12345more").expect("written");
    assert_eq!(mode("log"), (0o660, true));
    bench.fit_one("log", log(), None, GrownFiles::Restore).expect("cut");
    assert_eq!(mode("log.after-checkpoint.2"), (0o600, false));
    for acl in [vec![], list_of_rights(4)] {
        let mut was = bench.noted("same", (false, true));
        was.noted.iter_mut().for_each(|noted| {
            (noted.acl, noted.owner) = (acl.clone(), noted.owner.map(|(uid, gid, _)| (uid, gid, 0o660)));
        });
        fs::remove_file(bench.path("same")).expect("removed");
        bench.fit_one("same", was, Some("12345"), GrownFiles::Restore).expect("made again");
        assert_eq!(mode("same"), (0o660, !acl.is_empty()));
    }
}

#[test]
fn names_that_somebody_has_taken_do_not_prevent_it() {
    let bench = bench();
    fs::write(bench.path("log.after-checkpoint"), "").expect("written");
    (2..=1000)
        .for_each(|n| fs::write(bench.path(&format!("log.after-checkpoint.{n}")), "").expect("written"));
    let was = bench.noted("log", (true, true));
    let said = bench.fit_one("log", was, None, GrownFiles::Restore).expect("cut");
    assert!(said[0].contains("4 written since are in"), "{said:?}");
    assert_eq!((bench.text("log"), bench.names().len()), ("12345".into(), 1005));
}
