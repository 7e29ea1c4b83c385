//! Child processes: what they say through a pipe, and their end.

use std::os::fd::BorrowedFd;

use rustix::process::{Pid, WaitOptions, wait, waitpid};

/// Takes the exit status of a child that has ended or is about to.
pub fn reap(pid: Pid) {
    while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(rustix::io::Errno::INTR)) {}
}

/// Takes the exit statuses of all children until this one's: as long as another that is in its PID namespace has not given its own away, it
/// cannot end. (`waitpid(None)` takes those of this process group only.)
pub fn reap_all_until(last: Pid) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, _))) if pid != last => {}
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// No report is longer: what comes behind so many bytes is not read.
pub(crate) const LONGEST: usize = 1 << 20;

/// All that comes until the other side closes.
pub(crate) fn read_all(fd: BorrowedFd<'_>) -> Vec<u8> {
    let mut all = vec![];
    let mut buffer = [0; 1024];
    while all.len() < LONGEST {
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => return all,
            Ok(n) => all.extend(&buffer[..n]),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return all,
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn of_a_report_without_end_so_much_is_read() {
        let (report, mut reporter) = std::io::pipe().expect("a pipe");
        // Ends with an error when nobody reads any more.
        let writer = std::thread::spawn(move || while reporter.write_all(&[b'-'; 4096]).is_ok() {});
        assert_eq!(read_all(report.as_fd()).len(), LONGEST);
        drop(report);
        writer.join().expect("the writer");
    }
}
