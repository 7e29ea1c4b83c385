//! Programs as root of a container, for makers that must not move into it: whoever starts one does so for good.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use skiff_output as output;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::{NetSpace, SpawnAttr, as_root};
use skiff_sys::process::close_all_except;
use skiff_sys::signal::SignalMask;

/// In a process forked for this: runs one, at our standard files, until it ends; its exit code. It ends with this process.
pub fn run(init: BorrowedFd<'_>, space: NetSpace, command: &CommandSpec, attr: SpawnAttr) -> i32 {
    // Those of its maker are its maker's.
    close_all_except(&[init]);
    let attr = SpawnAttr { death_signal: Signal::KILL.as_raw(), ..attr };
    match as_root(init, space, command, attr, SignalMask::from_bits(0)) {
        Ok(child) => waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED)
            .ok()
            .flatten()
            .and_then(|status| status.exit_status())
            .unwrap_or(-1),
        Err(why) => output::failed(why),
    }
}
