//! How many bytes of pages CRIU is likely to send: memory for them is found before the processes stand still, and finding it for all takes seconds.

use std::fs::{self, File};
use std::os::fd::AsFd as _;

use rustix::process::Pid;
use skiff_spec::fault::Result;
use skiff_sys::IgnoreError;

use crate::obstacles::{children, number_inside};
use crate::previous_pages::PreviousPages;

/// Memory that pages are sent of, in `/proc/PID/status`: what is in memory and of no file, and what is in swap space.
const SENT: [&str; 3] = ["RssAnon:", "RssShmem:", "VmSwap:"];

/// Bytes that the processes below this one have and the checkpoint before has not, as it is now. An eighth more is said, as they go on. What they share
/// counts for each.
///
/// # Errors
/// When the kernel does not show the processes.
pub(crate) fn expected(init: Pid, previous: Option<&PreviousPages>) -> Result<u64> {
    below(init, |outer| previous.map_or(0, |previous| unchanged(outer, previous)))
}

/// The same, where so many bytes of a process are `unchanged`.
fn below(init: Pid, unchanged: impl Fn(i32) -> u64) -> Result<u64> {
    let (mut open, mut bytes) = (vec![init.as_raw_nonzero().get()], 0_u64);
    while let Some(outer) = open.pop() {
        open.extend(children(outer)?);
        let status = fs::read(format!("/proc/{outer}/status")).default_on_error("what has ended has none");
        let all = sent(&String::from_utf8_lossy(&status));
        let changed = all.saturating_sub(unchanged(outer));
        bytes = bytes.saturating_add(all.min(changed.saturating_add(changed / 8)));
    }
    Ok(bytes)
}

/// How many bytes of a process, as numbered out here, need not be sent.
fn unchanged(outer: i32, previous: &PreviousPages) -> u64 {
    let ranges = number_inside(outer).and_then(|pid| {
        let pagemap = File::open(format!("/proc/{outer}/pagemap")).ok()?;
        previous.unchanged(pid, pagemap.as_fd()).ok()
    });
    ranges.iter().flatten().map(|(start, end)| end - start).sum()
}

/// What `/proc/PID/status` says of a process's memory, in bytes.
fn sent(status: &str) -> u64 {
    let kibibytes = |line: &str| {
        let of = SENT.iter().find_map(|name| line.strip_prefix(name))?;
        of.split_whitespace().next()?.parse::<u64>().ok()
    };
    status.lines().filter_map(kibibytes).fold(0, u64::saturating_add).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use skiff_sys::memory::page_size;

    use super::*;

    #[test]
    fn files_are_not_sent() {
        let status = "VmRSS:\t900 kB\nRssAnon:\t     100 kB\nRssFile:\t     700 kB\nRssShmem:\t20 kB\nVmSwap:\t 3 kB\n";
        assert_eq!(sent(status), 123 << 10);
        assert_eq!(sent("Name:\tRssAnon:\n"), 0);
    }

    #[test]
    fn what_is_unchanged_is_not_expected() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("started");
        let (own, pid) = (rustix::process::getpid(), i32::try_from(child.id()).expect("a number"));
        let all = below(own, |_| 0).expect("known");
        assert!(all >= page_size() as u64, "{all}");
        let of_child = below(own, |outer| if outer == pid { 0 } else { u64::MAX }).expect("known");
        assert!((1..all).contains(&of_child), "{of_child} of {all}");
        assert_eq!(below(own, |_| u64::MAX).expect("known"), 0);
        child.kill().and_then(|()| child.wait()).expect("ended");
    }
}
