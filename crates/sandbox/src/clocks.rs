//! Clocks of an environment that can be saved: a time namespace of its own, in which monotonic and boot time go on from where they were when
//! its processes are restored. On another host, or after a restart of this one, the host's own clocks may say less, and whoever waits for a
//! moment of theirs would wait for days.
//!
//! The time namespace belongs to the environment's user namespace, so all of this needs no privilege on the host. The clocks of a time
//! namespace differ by offsets that can only be set before a process is in it. Source: `time_namespaces(7)`.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::ns;
use skiff_sys::process::pid_of;

const SECOND: i128 = 1_000_000_000;

/// What the clocks say that begin at a moment of the kernel's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic: u64,
    /// `CLOCK_BOOTTIME`, in nanoseconds.
    pub boot: u64,
}

impl Clocks {
    /// Clocks of the environment whose process 1 is `init`.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of(init: Pid) -> Result<Self> {
        let theirs =
            Offsets::of(&init.as_raw_nonzero().to_string()).context(|| "clocks of the environment")?;
        let of_kernel = of_kernel().context(|| "clocks")?;
        Ok(Self {
            monotonic: clock(of_kernel.monotonic + theirs.monotonic),
            boot: clock(of_kernel.boot + theirs.boot),
        })
    }
}

/// Differences of clocks, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offsets {
    monotonic: i128,
    boot: i128,
}

impl Offsets {
    /// Clocks of a process: nothing without time namespaces.
    fn of(process: &str) -> io::Result<Self> {
        match fs::read_to_string(format!("/proc/{process}/timens_offsets")) {
            Ok(text) => Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            Err(e) if e.kind() == io::ErrorKind::NotFound && fs::exists(format!("/proc/{process}"))? => {
                Ok(Self::default())
            }
            Err(e) => Err(e),
        }
    }

    /// From lines of a clock's name, seconds and nanoseconds.
    fn parse(text: &str) -> Option<Self> {
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let (seconds, nanoseconds) = line.trim().split_once(char::is_whitespace)?;
            let seconds: i64 = seconds.parse().ok()?;
            Some(i128::from(seconds) * SECOND + nanoseconds.trim().parse::<i128>().ok()?)
        };
        Some(Self { monotonic: of("monotonic")?, boot: of("boottime")? })
    }

    /// As the kernel takes them.
    fn text(self) -> String {
        let of = |name: &str, offset: i128| {
            format!("{name} {} {}\n", offset.div_euclid(SECOND), offset.rem_euclid(SECOND))
        };
        of("monotonic", self.monotonic) + &of("boottime", self.boot)
    }
}

/// In process 1, before anything else is in the environment: moves it into a time namespace of its own, where the clocks go on from `from`, or
/// are the host's.
///
/// # Errors
/// When clocks are to go on and the kernel cannot do that, so that they would go back.
pub(crate) fn become_own(from: Option<Clocks>) -> Result<()> {
    let about = || "clocks of the environment";
    let host = of_kernel().context(about)?;
    match ns::unshare_time() {
        Ok(()) => {}
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INVAL | Errno::NOSPC | Errno::NOSYS)) => {
            return refuse_backward(from, host);
        }
        Err(e) => return Err(e).context(about),
    }
    if let Some(from) = from {
        let monotonic = i128::from(from.monotonic) - host.monotonic;
        let offsets = Offsets { monotonic, boot: i128::from(from.boot) - host.boot };
        fs::write("/proc/self/timens_offsets", offsets.text()).context(about)?;
    }
    // Until now only its children would be in it.
    let space = File::open("/proc/self/ns/time_for_children").context(about)?;
    move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Time)).context(about)
}

/// Where there are no time namespaces.
fn refuse_backward(from: Option<Clocks>, host: Offsets) -> Result<()> {
    let goes_back =
        |from: Clocks| i128::from(from.monotonic) > host.monotonic || i128::from(from.boot) > host.boot;
    if from.is_none_or(|from| !goes_back(from)) {
        return Ok(());
    }
    Err(Fault::new(
        "its clocks would go back: this host has been up for less time than the one where it was saved",
    )
    .hint("the kernel needs CONFIG_TIME_NS, and user.max_time_namespaces must allow one more"))
}

/// The kernel's clocks, whatever time namespace this process is in.
fn of_kernel() -> io::Result<Offsets> {
    let ours = Offsets::of("self")?;
    let now = |clock| {
        let now = clock_gettime(clock);
        i128::from(now.tv_sec) * SECOND + i128::from(now.tv_nsec)
    };
    Ok(Offsets {
        monotonic: now(ClockId::Monotonic) - ours.monotonic,
        boot: now(ClockId::Boottime) - ours.boot,
    })
}

fn clock(nanoseconds: i128) -> u64 {
    u64::try_from(nanoseconds).default_on_error("no clock of the kernel is below zero")
}

/// What else to enter of the environment whose process 1 is `init`: its time namespace, if it has one of its own.
///
/// # Errors
/// When the environment is gone.
pub(crate) fn space(init: BorrowedFd<'_>) -> Result<ThreadNameSpaceType> {
    let about = || "the environment's clocks";
    let number = pid_of(init).ok_or_else(|| Fault::new("the environment has ended"))?;
    let open = |kind: &str| File::open(format!("/proc/{}/ns/{kind}", number.as_raw_nonzero()));
    let time = match open("time") {
        Ok(time) => time,
        // A kernel without time namespaces.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(ThreadNameSpaceType::empty()),
        Err(e) => return Err(e).context(about),
    };
    let user = open("user").context(about)?;
    let is_own = ns::belongs_to(time.as_fd(), user.as_fd())
        .default_on_error("the kernel does not say whose it is if that is nobody below us");
    Ok(if is_own { ThreadNameSpaceType::TIME } else { ThreadNameSpaceType::empty() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_and_written_as_the_kernel_has_them() {
        let text = "monotonic          -3  250000000\nboottime          1000         0\n";
        let offsets = Offsets { monotonic: -2_750_000_000, boot: 1_000_000_000_000 };
        assert_eq!(Offsets::parse(text), Some(offsets));
        assert_eq!(offsets.text(), "monotonic -3 250000000\nboottime 1000 0\n");
        assert_eq!(Offsets::parse(&offsets.text()), Some(offsets));
        assert_eq!(Offsets::parse("monotonic 1\nboottime 2 0\n"), None);
        assert_eq!(Offsets::parse(""), None);
    }

    #[test]
    fn our_own_clocks_are_found() {
        let own = Clocks::of(rustix::process::getpid()).expect("there");
        let now = clock_gettime(ClockId::Monotonic);
        let seconds = own.monotonic / 1_000_000_000;
        assert!(now.tv_sec.cast_unsigned().abs_diff(seconds) <= 1, "{own:?} {now:?}");
        assert!(own.boot >= own.monotonic);
    }

    #[test]
    fn without_time_namespaces_clocks_may_leap_and_not_go_back() {
        let host = Offsets { monotonic: 50, boot: 60 };
        assert!(refuse_backward(None, host).is_ok());
        assert!(refuse_backward(Some(Clocks { monotonic: 50, boot: 60 }), host).is_ok());
        assert!(refuse_backward(Some(Clocks { monotonic: 51, boot: 60 }), host).is_err());
        assert!(refuse_backward(Some(Clocks { monotonic: 1, boot: 61 }), host).is_err());
    }
}
