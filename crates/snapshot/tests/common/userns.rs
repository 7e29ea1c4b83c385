//! Runs the tests of whole snapshots once more as an ordinary user: as root of their own user namespace, which is where all of this is used.

#![allow(dead_code, clippy::unwrap_used)]

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::time::Duration;

const INSIDE: &str = "SKIFF_TEST_USERNS";
/// Inside 0 to 65535 are these ids outside; no account has them.
const FIRST: u32 = 300_000;

/// Whether this is the second run.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// The modules whose tests these are.
const AGAIN: [&str; 4] = ["cache::", "history::", "incremental::", "roundtrip::"];

#[test]
fn all_of_it_in_the_users_namespace() {
    if !super::is_root("all_of_it_in_the_users_namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Neither the build's directory nor root's need be open to other users.
    let binary = dir.path().join("tests");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    for path in [dir.path(), &binary] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(dir.path(), Some(FIRST), Some(FIRST)).unwrap();
    let id = FIRST.to_string();
    let mut child = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "unshare", "-U", "-m"])
        // Only a program started after the map is written gets the namespace's capabilities.
        .args(["sh", "-c", "read -r mapped; exec \"$0\" \"$@\""])
        .arg(&binary)
        .args(AGAIN)
        .env(INSIDE, "1")
        .env("TMPDIR", dir.path())
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user"));
    let pid = child.id().to_string();
    while namespace(&pid).unwrap() == namespace("self").unwrap() {
        std::thread::sleep(Duration::from_millis(2));
    }
    for map in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{pid}/{map}"), format!("0 {FIRST} 65536")).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"mapped\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "some tests failed in the user's namespace: {said}");
    for module in AGAIN {
        assert!(
            said.contains(&format!("test {module}")),
            "no test of {module} ran in the user's namespace: {said}"
        );
    }
}
