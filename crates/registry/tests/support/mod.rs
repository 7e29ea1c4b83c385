//! Real registries on loopback, a token service, and a proxy that breaks what passes through it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unused_result_ok, reason = "what goes wrong here is what the tests are about")]

pub mod faults;
pub mod images;
pub mod server;
pub mod token;
pub mod uploads;
pub mod web;

use std::process::{Command, Stdio};

/// Whether all of these programs are there. If not, the test says so and is over; in CI it fails.
pub fn have(programs: &[&str]) -> bool {
    let is_there = |program: &&str| {
        let found =
            Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    let missing: Vec<_> = programs.iter().copied().filter(|program| !is_there(program)).collect();
    if missing.is_empty() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "CI lacks {missing:?}: see packaging/debian-packages");
    eprintln!("SKIPPED: {missing:?} not found; see packaging/debian-packages");
    false
}
