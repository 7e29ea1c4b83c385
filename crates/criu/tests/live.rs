//! A process is dumped and restored by the real CRIU: of the folder `criu` beside the build, which `packaging/get-criu` makes.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use skiff_criu::rpc::{Options, RequestType};
use skiff_criu::{CarryOutError, Criu, Error, Installation};

/// The folder, or why the test is skipped.
fn program(test: &str) -> Option<Installation> {
    let beside = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("criu");
    let why = match (beside.join("criu").exists(), rustix::process::geteuid().is_root()) {
        (true, true) => return Some(Installation::Folder(relative(&beside))),
        (false, _) => format!("{} is not there", beside.display()),
        _ => "it needs root".into(),
    };
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
    None
}

/// The same by a path from this directory, as users may give it.
fn relative(path: &Path) -> PathBuf {
    let up = std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect::<PathBuf>();
    up.join(path.strip_prefix("/").unwrap())
}

fn options() -> Options {
    Options { notify_scripts: Some(true), ..Options::default() }
}

#[test]
fn a_process_goes_on_where_it_was() {
    let Some(program) = program("a_process_goes_on_where_it_was") else { return };
    let dir = tempfile::tempdir().unwrap();
    // So deep that a relative path to the folder leads elsewhere from here.
    let (images, ticks) = (dir.path().join("1/2/3/4/5/6/7/8/9/images"), dir.path().join("ticks"));
    fs::create_dir_all(&images).unwrap();
    // A session of its own, with nothing open that leads to this one.
    // And without children, which nobody might reap.
    let count = "for ((n = 1; ; n++)); do echo $n >>ticks; read -t 0.02 -u 3; done";
    let mut child = Command::new("setsid")
        .args(["bash", "-c", &format!("echo $$; mkfifo pipe; exec >/dev/null 3<>pipe; {count}")])
        .current_dir(&dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let pid: i32 = pid.trim().parse().unwrap();
    let _ended = Killed(pid);
    wait(&ticks, 3);

    let mut stages = vec![];
    let criu = Criu::spawn(&program, Some(&images)).unwrap();
    let dump = Options { pid: Some(pid), ..options() };
    criu.carry_out(RequestType::Dump, dump, |stage| {
        stages.push(stage.to_owned());
        Ok::<(), Infallible>(())
    })
    .unwrap();
    drop(criu);
    assert_eq!(stages.last().map(String::as_str), Some("post-dump"));
    child.wait().unwrap();
    let at = lines(&ticks);

    let criu = Criu::spawn(&program, Some(&images)).unwrap();
    let answer = criu.carry_out(RequestType::Restore, options(), |_| Ok::<(), Infallible>(()));
    assert_eq!(answer.unwrap().restored.unwrap().pid, pid);
    wait(&ticks, at + 3);
    let text = fs::read_to_string(&ticks).unwrap();
    // The last line may be half written.
    let whole = &text[..=text.rfind('\n').unwrap()];
    let counted: Vec<usize> = whole.lines().map(|line| line.parse().unwrap()).collect();
    assert!(counted.iter().copied().eq(1..=counted.len()), "{counted:?}");
}

#[test]
fn criu_says_itself_why_it_failed() {
    let Some(program) = program("criu_says_itself_why_it_failed") else { return };
    let dir = tempfile::tempdir().unwrap();
    let criu = Criu::spawn(&program, Some(dir.path())).unwrap();
    assert!(criu.version().unwrap().is_at_least(4, 1));
    criu.features().unwrap();
    // A process that there cannot be.
    let dump = Options { pid: Some(i32::MAX), ..options() };
    let dumped = criu.carry_out(RequestType::Dump, dump, |_| Ok::<(), Infallible>(()));
    let Err(CarryOutError::Criu(Error::Failed { why, .. })) = dumped else { panic!("{dumped:?}") };
    // Of its log, which says more than its answer.
    assert!(why.contains(&i32::MAX.to_string()) && why.contains("; "), "{why}");
}

/// A process that ends with the test, whatever comes of that.
struct Killed(i32);

impl Drop for Killed {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.0).unwrap();
        // If CRIU could not restore it, it is gone already.
        let (Ok(()) | Err(_)) = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn lines(file: &Path) -> usize {
    fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

/// Waits for so many lines.
fn wait(file: &Path, count: usize) {
    for _ in 0..500 {
        if lines(file) >= count {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{} has {} lines, not {count}", file.display(), lines(file));
}
