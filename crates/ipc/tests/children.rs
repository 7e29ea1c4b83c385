//! However a child ends, its maker learns how, and in time. Without the usual harness: whoever forks has one thread.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_spec::fault::Fault;
use skiff_sys::process::{CloneFlags, exit_now};

type Outcome = Result<u32, Fault>;

/// How the child comes to its end; what its maker learns.
type Case = (&'static str, fn() -> Outcome, Result<u32, &'static str>);

const CASES: [Case; 6] = [
    ("a report", || Ok(7), Ok(7)),
    ("a fault", || Err(Fault::new("no room").hint("make some")), Err("no room")),
    ("no report", || exit_now(0), Err("child: exited without a report")),
    ("an exit code", || exit_now(3), Err("child: exited with code 3 without a report")),
    ("a signal", || die(Signal::KILL), Err("child: ended by signal 9")),
    ("another signal", || die(Signal::ABORT), Err("child: ended by signal 6")),
];

fn die(signal: Signal) -> Outcome {
    kill_process(getpid(), signal).expect("a signal to itself");
    std::thread::sleep(Duration::from_secs(10));
    Ok(0)
}

fn begin(act: impl FnOnce() -> Outcome) -> ReportingChild<u32> {
    ReportingChild::begin("child", CloneFlags::NONE, Descriptors::Only(&[]), act).expect("a process")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn main() {
    for (name, act, expected) in CASES {
        let said = |outcome: Outcome| outcome.map_err(|fault| fault.message);
        assert_eq!(said(begin(act).end()), expected.map_err(String::from), "{name}");
        let by = begin(act).end_by(soon()).map(|done| done.expect("in time"));
        assert_eq!(said(by), expected.map_err(String::from), "{name}, with a deadline");
        let watched = begin(act).end_watched(Duration::from_millis(1), || ());
        assert_eq!(said(watched), expected.map_err(String::from), "{name}, watched");
    }
    who_waits_hears_how_long();
    hints_come_along();
    a_report_that_is_not_whole_is_none();
    who_is_late_is_killed();
    who_reports_without_end_is_killed();
    who_has_begun_serves_on();
    who_becomes_a_program_says_nothing();
    only_what_is_kept_is_open();
}

fn who_waits_hears_how_long() {
    let child = begin(|| {
        std::thread::sleep(Duration::from_millis(200));
        Ok(7)
    });
    let mut times = 0;
    assert_eq!(child.end_watched(Duration::from_millis(20), || times += 1), Ok(7));
    assert!((1..=10).contains(&times), "{times}");
}

fn hints_come_along() {
    let fault = begin(|| Err(Fault::new("no room").hint("make some"))).end().expect_err("a fault");
    assert_eq!(fault.hint, "make some");
}

fn a_report_that_is_not_whole_is_none() {
    for (text, end, expected) in [
        (&b"{\"Ok\":"[..], None, "child: invalid report"),
        (b"{\"Ok\":", Some(Signal::KILL), "child: ended by signal 9"),
        (b"{\"Ok\":7}{\"Ok\":8}", None, "child: invalid report"),
    ] {
        let child = ReportingChild::<u32>::fork("child", CloneFlags::NONE, |reporter| {
            let pipe = reporter.as_fd().try_clone_to_owned().expect("a copy");
            File::from(pipe).write_all(text).expect("a reader");
            if let Some(signal) = end {
                die(signal).expect("does not return");
            }
            exit_now(0)
        });
        let fault = child.expect("a process").end().expect_err("no report");
        assert!(fault.message.starts_with(expected), "{fault}");
    }
}

fn who_is_late_is_killed() {
    let begun = Instant::now();
    let child = begin(|| {
        std::thread::sleep(Duration::from_secs(60));
        Ok(0)
    });
    let pid = child.pid();
    assert_eq!(child.end_by(begun + Duration::from_millis(100)), Ok(None));
    assert!(begun.elapsed() < Duration::from_secs(10));
    let there = rustix::process::test_kill_process(pid);
    assert_eq!(there, Err(rustix::io::Errno::SRCH), "it is still there");
}

fn who_reports_without_end_is_killed() {
    let child = ReportingChild::<u32>::fork("child", CloneFlags::NONE, |reporter| {
        let mut pipe = File::from(reporter.as_fd().try_clone_to_owned().expect("a copy"));
        while pipe.write_all(&[b' '; 4096]).is_ok() {}
        exit_now(0)
    });
    let fault = child.expect("a process").end_by(soon()).expect_err("too much");
    assert!(fault.message.starts_with("child: "), "{fault}");
}

fn who_has_begun_serves_on() {
    let child = ReportingChild::fork("child", CloneFlags::NONE, |reporter| {
        i32::from(!reporter.tell(&Ok(7)) || die(Signal::TERM).is_err())
    });
    let (child, reported) = child.expect("a process").begun().expect("it begins");
    assert_eq!(reported, 7);
    let ended = rustix::process::waitpid(Some(child.pid), rustix::process::WaitOptions::empty());
    let (_, status) = ended.expect("our child").expect("its end");
    assert_eq!(status.terminating_signal(), Some(Signal::TERM.as_raw()));
    let child = ReportingChild::<u32>::fork("child", CloneFlags::NONE, |reporter| {
        reporter.tell(&Err(Fault::new("no room")));
        std::thread::sleep(Duration::from_secs(60));
        exit_now(0)
    });
    assert_eq!(child.expect("a process").begun().err(), Some(Fault::new("no room")));
}

fn who_becomes_a_program_says_nothing() {
    for (program, expected) in [("/bin/true", Ok(())), ("/nowhere", Err("no program"))] {
        let child = begin(|| {
            skiff_sys::process::exec(program.as_ref(), &[c"x".to_owned()], &[]);
            Err(Fault::new("no program"))
        });
        let started = child.started().map(|child| {
            rustix::process::waitpid(Some(child.pid), rustix::process::WaitOptions::empty())
                .expect("its end");
        });
        assert_eq!(started.map_err(|fault| fault.message), expected.map_err(String::from));
    }
}

fn only_what_is_kept_is_open() {
    let kept = File::open("/dev/null").expect("a file");
    let _closed = File::open("/dev/null").expect("another");
    let count = || std::fs::read_dir("/proc/self/fd").map_or(0, |dir| dir.count() as u32);
    let child =
        ReportingChild::begin("child", CloneFlags::NONE, Descriptors::Only(&[kept.as_fd()]), || Ok(count()));
    // The standard ones, the one that is kept, the pipe, and that of the directory.
    assert_eq!(child.expect("a process").end(), Ok(6));
}
