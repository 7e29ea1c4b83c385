//! Tests that want namespaces of their own. (The tests of `checkpoint` have this file, too.)

use std::io::Write;
use std::process::Command;

/// Whether this process is root, process 1 and alone in namespaces of its own. If not, the named test is run once more, in a process that
/// is: what is forked beside the threads of other tests could wait for a lock of theirs.
pub(crate) fn is_apart(test: &str) -> bool {
    const INSIDE: &str = "SKIFF_APART_TEST";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let unshare =
        ["unshare", "--user", "--map-root-user", "--mount", "--ipc", "--pid", "--fork", "--kill-child"];
    let tried = Command::new(unshare[0]).args(&unshare[1..]).arg("true").output().expect("unshare");
    if !tried.status.success() {
        let why = format!("{test}: namespaces are refused: {}", String::from_utf8_lossy(&tried.stderr));
        assert!(std::env::var_os("CI").is_none(), "{why}");
        // Past the harness, which keeps what a passing test prints to itself.
        std::io::stderr().write_all(format!("SKIPPED {}\n", why.trim()).as_bytes()).expect("told");
        return false;
    }
    let own = std::env::current_exe().expect("this program");
    let mut child = Command::new("timeout");
    child.args(["--signal", "KILL", "60"]).args(unshare).arg(own);
    child.args(["--exact", test, "--test-threads", "1", "--nocapture"]).env(INSIDE, "1");
    let child = child.output().expect("timeout");
    let has_run = String::from_utf8_lossy(&child.stdout).contains("1 passed");
    assert!(child.status.success() && has_run, "{child:?}");
    false
}
