//! Files outside an instance made as they were. What is there now is kept beside them before anything is changed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::PathBuf;

use rustix::fs::{FileType, OFlags, fstat, stat};
use skiff_cli::GrownFiles;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::{IgnoreError, lease};

use super::{COPIES, FileRules, open, stamp};

/// Behind a file's name: what was written since it was saved, and what it was before it was put back.
pub(super) const AFTER: &str = "after-checkpoint";
pub(super) const BEFORE: &str = "before-restore";
/// So many files of a name are kept beside one.
const MOST_KEPT: usize = 1000;
/// Bytes that are compared at once.
const PIECE: usize = 1 << 17;
/// Why a file is neither cut nor replaced.
const OPEN_ELSEWHERE: &str = "another process has it open";
const WRITTEN_TO: &str = "another process writes to it";

/// A file that the processes want as it was.
pub(super) struct Was {
    pub(super) size: u64,
    pub(super) number: Option<u64>,
    pub(super) owner: Option<(u32, u32, u32)>,
    /// Whether all who had it open to be written write only behind what was its end.
    pub(super) appended: bool,
    /// Whether CRIU takes it only with this length: not one that is opened to be appended to.
    pub(super) compared: bool,
}

/// What is to be done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileChange {
    /// Nothing: the file is as it was, or nobody minds.
    None,
    /// The process goes on behind so many bytes that were written since.
    GoOn(u64),
    /// The file is cut; whether what was written since is kept beside it.
    Cut { kept: bool },
    /// The copy takes its place.
    Replace,
    /// The file is missing, and made of the copy.
    Make,
    /// The file is in the way; whether it may be cut.
    InTheWay { may_be_cut: bool },
}

/// A change that can be carried out: all that may be refused has been asked.
struct PreparedChange<'a> {
    path: &'a str,
    was: &'a Was,
    file: File,
    copy: Option<&'a OwnedFd>,
    /// What was there, beside it.
    aside: Option<KeptAside>,
    /// How long it is; nothing of one that was missing.
    is: Option<u64>,
}

/// Content of a file from a place on, in a new file beside it.
struct KeptAside {
    path: PathBuf,
    into: File,
    from: u64,
    /// Length of the file when it was copied, and when it had been written to last, in seconds and nanoseconds.
    of: (u64, i64, i64),
}

/// What all files come to.
#[derive(Default)]
struct FileChanges<'a> {
    said: Vec<String>,
    prepared: Vec<PreparedChange<'a>>,
    /// What is in the way.
    wrong: Vec<String>,
    /// Whether some of that would be cut or put back with another way.
    may_be_restored: bool,
    /// Whether some of that is open elsewhere.
    are_open: bool,
}

/// Inside: changes those that are not as they were, if that is wanted and none is in the way; what was done, in words.
pub(super) fn fit(
    wanted: &BTreeMap<String, Was>,
    copies: &BTreeMap<&str, OwnedFd>,
    rules: &FileRules,
) -> Result<Vec<String>> {
    let mut all = FileChanges::default();
    for (path, was) in wanted {
        all.prepare(path, was, copies.get(path.as_str()), rules.way(path));
    }
    all.carry_out()
}

impl<'a> FileChanges<'a> {
    fn prepare(&mut self, path: &'a str, was: &'a Was, copy: Option<&'a OwnedFd>, way: GrownFiles) {
        let is = stat(path).ok().map(|found| found.st_size.cast_unsigned());
        let prepared = match change(path, was, (is, copy), way) {
            Ok(FileChange::None) => return,
            Ok(FileChange::GoOn(more)) => {
                let said =
                    format!("{path}: it has {more} bytes that were written since, and goes on behind them");
                return self.said.push(said);
            }
            Ok(FileChange::InTheWay { may_be_cut }) => {
                self.may_be_restored |= may_be_cut || copy.is_some() && way != GrownFiles::Restore;
                let is = is.map_or_else(|| "none".into(), |is| is.to_string());
                return self.wrong.push(format!("{path} has {is} bytes, and had {}", was.size));
            }
            Ok(change) => PreparedChange::of(path, was, copy, change),
            Err(e) => Err(e),
        };
        match prepared {
            Ok(prepared) => self.prepared.push(prepared),
            Err(e) => {
                self.are_open |= e.message == OPEN_ELSEWHERE;
                self.wrong.push(format!("{path} cannot be changed: {e}"));
            }
        }
    }

    fn carry_out(mut self) -> Result<Vec<String>> {
        for one in &mut self.prepared {
            if let Err(e) = one.catch_up() {
                self.are_open |= e.message == WRITTEN_TO;
                self.wrong.push(format!("{} cannot be changed: {e}", one.path));
            }
        }
        if self.wrong.is_empty() {
            for one in &mut self.prepared {
                self.said.push(one.carry_out()?);
            }
            return Ok(self.said);
        }
        self.prepared.iter().for_each(PreparedChange::forget);
        let hint = if self.are_open {
            "end what has them open first; an instance that still runs is ended by `skiff instance stop`"
        } else if self.may_be_restored {
            "--files restore cuts those that are only written at their end, puts others back from the checkpoint's copies, and keeps what is there now beside them"
        } else {
            "restore these files to their former contents, or start the instance anew"
        };
        Err(Fault::new(format!("files have changed since: {}", self.wrong.join("; "))).hint(hint))
    }
}

/// What is to be done with one, that `is` so long now.
fn change(
    path: &str,
    was: &Was,
    (is, copy): (Option<u64>, Option<&OwnedFd>),
    way: GrownFiles,
) -> Result<FileChange> {
    let copy = copy.filter(|_| way == GrownFiles::Restore);
    let Some(is) = is else {
        // One that is missing CRIU names, unless it was the name of another file.
        return Ok(if copy.is_some() { FileChange::Make } else { FileChange::None });
    };
    if let Some(copy) = copy {
        let same = is == was.size && is_same(path, copy)?;
        return Ok(if same { FileChange::None } else { FileChange::Replace });
    }
    // Without its number nobody wrote to it.
    let longer = is > was.size && was.appended && was.number.is_some();
    Ok(match way {
        _ if is == was.size => FileChange::None,
        GrownFiles::Truncate if longer => FileChange::Cut { kept: false },
        GrownFiles::Restore if longer && was.compared => FileChange::Cut { kept: true },
        GrownFiles::Keep | GrownFiles::Restore if longer && !was.compared => FileChange::GoOn(is - was.size),
        GrownFiles::Refuse => FileChange::InTheWay { may_be_cut: longer },
        _ if was.compared => FileChange::InTheWay { may_be_cut: longer },
        _ => FileChange::None,
    })
}

/// Whether a file holds what its copy does.
fn is_same(path: &str, copy: &OwnedFd) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open(path, flags).context(|| path.to_owned())?);
    let copy = File::from(copy.try_clone().context(|| path.to_owned())?);
    let (mut one, mut other, mut at) = (vec![0; PIECE], vec![0; PIECE], 0);
    loop {
        let read = file.read_at(&mut one, at).context(|| path.to_owned())?;
        if read == 0 {
            return Ok(copy.read_at(&mut other, at).context(|| path.to_owned())? == 0);
        }
        let there = copy.read_exact_at(&mut other[..read], at);
        if there.is_err() || one[..read] != other[..read] {
            return Ok(false);
        }
        at += read as u64;
    }
}

impl<'a> PreparedChange<'a> {
    fn of(path: &'a str, was: &'a Was, copy: Option<&'a OwnedFd>, change: FileChange) -> Result<Self> {
        if change == FileChange::Make {
            let (uid, gid, mode) = was.owner.unwrap_or((0, 0, 0o600));
            let file = create_new(path, mode).context(|| "it is missing, and cannot be made")?;
            fchown(&file, Some(uid), Some(gid)).ignore_error("then it is the user's");
            return Ok(Self { path, was, file, copy, aside: None, is: None });
        }
        let keeps = change != FileChange::Cut { kept: false };
        let file = open_same(path, was.number, keeps)?;
        let is = Some(file.metadata().context(|| "its length")?.len());
        let aside = match change {
            FileChange::Cut { kept: true } => Some(KeptAside::of(path, &file, AFTER, was.size)?),
            FileChange::Replace => Some(KeptAside::of(path, &file, BEFORE, 0)?),
            _ => None,
        };
        let copy = copy.filter(|_| change == FileChange::Replace);
        Ok(Self { path, was, file, copy, aside, is })
    }

    /// Keeps what another process has written to it since it was copied.
    fn catch_up(&mut self) -> Result<()> {
        let Some(aside) = &mut self.aside else { return Ok(()) };
        self.is = Some(aside.catch_up(&self.file)?);
        Ok(())
    }

    /// Does it; what was done.
    fn carry_out(&mut self) -> Result<String> {
        self.catch_up().map_err(|e| e.about(self.path))?;
        let Self { path, was, file, copy, aside, is } = self;
        let about = || (*path).to_owned();
        let beside = aside.iter().map(|aside| aside.path.display().to_string()).collect::<String>();
        let Some(copy) = copy else {
            let was = was.size;
            let more = is.map_or(0, |is| is.saturating_sub(was));
            file.set_len(was).context(about)?;
            return Ok(match beside.is_empty() {
                true => format!("{path}: cut to the {was} bytes that it had; {more} written since are gone"),
                false => format!(
                    "{path}: cut to the {was} bytes that it had; {more} written since are in {beside}"
                ),
            });
        };
        let mut from = File::from(copy.try_clone().context(about)?);
        let mut into = &*file;
        from.seek(SeekFrom::Start(0)).and_then(|_| file.set_len(0)).context(about)?;
        into.seek(SeekFrom::Start(0)).and_then(|_| io::copy(&mut from, &mut into)).context(about)?;
        file.sync_all().context(about)?;
        Ok(match beside.is_empty() {
            true => format!("{path}: it was missing, and is as it was"),
            false => format!("{path}: it is as it was; what was there is in {beside}"),
        })
    }

    /// Takes away what was made beside it, or in its place.
    fn forget(&self) {
        let made = match self.is {
            None => Some(PathBuf::from(self.path)),
            Some(_) => self.aside.as_ref().map(|aside| aside.path.clone()),
        };
        made.into_iter().for_each(|made| fs::remove_file(made).ignore_error("it stays as a copy"));
    }
}

/// Opens a file to be changed, if it is the one that it was. If it is not cut by the user's own word, nobody else may have it open.
fn open_same(path: &str, number: Option<u64>, alone: bool) -> Result<File> {
    let access = if alone { OFlags::RDWR } else { OFlags::WRONLY };
    let file = open(path, access | OFlags::NONBLOCK | OFlags::NOCTTY).context(|| path.to_owned())?;
    let found = fstat(&file).context(|| path.to_owned())?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || Some(found.st_ino) != number {
        return Err(Fault::new("it is another file now"));
    }
    // Where there are no leases nobody knows. What is cut or replaced is kept in any case.
    match alone && !lease::is_alone(file.as_fd()).unwrap_or(true) {
        true => Err(Fault::new(OPEN_ELSEWHERE)),
        false => Ok(file.into()),
    }
}

impl KeptAside {
    /// Copies a file from a place on into a new one beside it, on the disk.
    fn of(path: &str, file: &File, suffix: &str, from: u64) -> Result<Self> {
        let about = || "what was written since cannot be kept beside it";
        let of = file.metadata().context(about)?;
        let names = (1..=MOST_KEPT).map(|n| match n {
            1 => format!("{path}.{suffix}"),
            n => format!("{path}.{suffix}.{n}"),
        });
        for name in names {
            let into = match create_new(&name, of.mode() & 0o777) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                new => new.context(about)?,
            };
            fchown(&into, Some(of.uid()), Some(of.gid())).ignore_error("then it is the user's");
            let mut aside = Self { path: name.clone().into(), into, from, of: (0, 0, 0) };
            return match aside.copy(file).context(about) {
                Ok(()) => Ok(aside),
                Err(e) => {
                    fs::remove_file(&name).ignore_error("the first error is the one to tell");
                    Err(e)
                }
            };
        }
        Err(Fault::new(format!("there are {MOST_KEPT} files {path}.{suffix}")))
    }

    fn copy(&mut self, mut file: &File) -> io::Result<()> {
        let Self { into, from, of, .. } = self;
        // Before it is copied: what is written meanwhile shows afterwards.
        *of = stamp(file)?;
        into.set_len(0)?;
        into.rewind()?;
        file.seek(SeekFrom::Start(*from))?;
        io::copy(&mut file.take(u64::MAX), into)?;
        into.sync_all()
    }

    /// Copies it again if it has been written to since; its length. (Of a process of another host the lease does not tell.)
    fn catch_up(&mut self, file: &File) -> Result<u64> {
        let about = || "what was written since cannot be kept beside it";
        for _ in 0..COPIES {
            let now = stamp(file).context(about)?;
            if now.0 < self.from {
                return Err(Fault::new("it has been cut meanwhile"));
            }
            if now == self.of {
                return Ok(now.0);
            }
            self.copy(file).context(about)?;
        }
        Err(Fault::new(WRITTEN_TO))
    }
}

fn create_new(path: &str, mode: u32) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
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
                let number = Some(fs::metadata(self.path(name)).map_or(0, |found| found.ino()));
                let (appended, compared) = (*appended, *compared);
                (self.path(name), Was { size: 5, number, owner: None, appended, compared })
            };
            names.iter().map(was).collect()
        }
        fn fit(&self, names: &[(&str, bool, bool)], way: GrownFiles) -> Result<Vec<String>> {
            fit(&self.was(names), &BTreeMap::new(), &rules(way))
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

    const FINE: [(&str, bool, bool); 3] =
        [("same", false, true), ("log", true, true), ("absent", true, true)];

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
        let said = fit(&was, &copies, &rules(GrownFiles::Restore)).expect("as it was");
        assert_eq!(said.len(), 3, "{said:?}");
        all.iter().for_each(|(name, ..)| assert_eq!(bench.text(name), "12345", "{name}"));
        assert_eq!(bench.text("base.before-restore"), "other");
        assert_eq!(bench.text("grown.before-restore"), "12345more");
        assert_eq!(bench.names().len(), 6);
        assert!(fit(&was, &copies, &rules(GrownFiles::Restore)).expect("as it was").is_empty());
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
        let said = all.carry_out().expect("as they were");
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
    fn only_the_file_that_it_was_and_that_nobody_has_open_is_changed() {
        let bench = bench();
        let number = Some(fs::metadata(bench.path("log")).expect("there").ino());
        std::os::unix::fs::symlink("log", bench.path("link")).expect("a link");
        let fit_one = |name, number, way| {
            let was = Was { size: 5, number, owner: None, appended: true, compared: true };
            fit(&BTreeMap::from([(bench.path(name), was)]), &BTreeMap::new(), &rules(way))
        };
        for way in [GrownFiles::Truncate, GrownFiles::Restore] {
            for (name, number) in [("link", number), ("log", Some(0)), ("log", None)] {
                fit_one(name, number, way).expect_err("another");
                assert_eq!(bench.text("log"), "12345more");
            }
        }
        let open = File::open(bench.path("log")).expect("opened");
        let is_known = lease::is_alone(open.as_fd()).is_ok();
        drop(open);
        let _writer = File::options().append(true).open(bench.path("log")).expect("opened");
        if is_known {
            let why = fit_one("log", number, GrownFiles::Restore).expect_err("open").to_string();
            assert!(why.contains("another process has it open"), "{why}");
            assert_eq!((bench.text("log"), bench.names().len()), ("12345more".into(), 5));
        }
        fit_one("log", number, GrownFiles::Truncate).expect("the user's word");
        assert_eq!(bench.text("log"), "12345");
    }
}
