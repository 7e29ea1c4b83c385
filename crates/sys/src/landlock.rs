//! Landlock: what a process may still change of the file system, by its own decision and for good.
//!
//! <https://docs.kernel.org/userspace-api/landlock.html>. Kernels differ in how much they can refuse; what one cannot, it lets pass.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{FileType, fstat};

/// To execute; to read files and directories; to write, remove and make files; then what later versions added: to move between
/// directories, to truncate, `ioctl` on devices.
const EXECUTE: u64 = 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const CHANGES: u64 = 1 << 1 | 0x1ff0;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
const BIND_TCP: u64 = 1;
/// Abstract Unix sockets and signals, beyond those who are confined alike.
const SCOPES: u64 = 3;

const VERSION_FLAG: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

#[repr(C)]
struct Attributes {
    file_system: u64,
    network: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

/// The version that the kernel has; nothing if it has none, or was started without.
#[must_use]
pub fn version() -> Option<u32> {
    // SAFETY: no attributes are read where their length is 0.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<Attributes>(), 0usize, VERSION_FLAG)
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// From now on this thread, and what it starts, changes files only below `dir`, executes nothing, listens on no TCP port, and reaches with
/// signals and abstract sockets only who is confined with it; as far as the kernel knows of these. Gives the kernel's version. Needs
/// `no_new_privs`.
///
/// # Errors
/// Of the kernel, where it has Landlock.
pub fn confine_changes_to(dir: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    confine(dir, None)
}

/// The same; and it opens nothing for reading but what is below `dir`, or is one of these files or below one of these directories.
///
/// # Errors
/// Of the kernel, where it has Landlock.
pub fn confine_to(dir: BorrowedFd<'_>, readable: &[OwnedFd]) -> io::Result<Option<u32>> {
    confine(dir, Some(readable))
}

fn confine(dir: BorrowedFd<'_>, readable: Option<&[OwnedFd]>) -> io::Result<Option<u32>> {
    let Some(version) = version() else { return Ok(None) };
    let since = |first: u32, access: u64| if version >= first { access } else { 0 };
    let changes = CHANGES | since(2, REFER) | since(3, TRUNCATE) | since(5, IOCTL_DEV);
    let reads = if readable.is_some() { READ_FILE | READ_DIR } else { 0 };
    let attributes = Attributes {
        file_system: changes | EXECUTE | reads,
        network: since(4, BIND_TCP),
        scoped: since(6, SCOPES),
    };
    let length = match version {
        ..4 => 8,
        4..6 => 16,
        _ => size_of::<Attributes>(),
    };
    // SAFETY: the kernel reads so many bytes of the attributes, which live through the call.
    let rules =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, length, 0u32) };
    let rules = i32::try_from(rules).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just given us this descriptor; nobody else has it.
    let rules = unsafe { OwnedFd::from_raw_fd(rules) };
    allow_below(rules.as_fd(), dir, changes | reads)?;
    for place in readable.unwrap_or_default() {
        let is_dir = FileType::from_raw_mode(fstat(place)?.st_mode) == FileType::Directory;
        // The kernel refuses rights over directories for what is none.
        allow_below(rules.as_fd(), place.as_fd(), if is_dir { READ_FILE | READ_DIR } else { READ_FILE })?;
    }
    // SAFETY: plain integers.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0u32) } {
        0 => Ok(Some(version)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn allow_below(rules: BorrowedFd<'_>, place: BorrowedFd<'_>, allowed: u64) -> io::Result<()> {
    let beneath = Beneath { allowed, parent: place.as_raw_fd() };
    // SAFETY: the kernel reads the rule, which lives through the call, and borrows the descriptors for it.
    let added = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            rules.as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const beneath,
            0u32,
        )
    };
    if added == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, create_dir, rename, write};
    use std::io::{ErrorKind, Write};

    #[test]
    fn files_change_only_below_the_directory() {
        if version().is_none() {
            assert!(std::env::var_os("CI").is_none(), "the kernel has no Landlock");
            // Past the harness, which keeps what a passing test prints to itself.
            std::io::stderr().write_all(b"SKIPPED: the kernel has no Landlock\n").expect("said");
            return;
        }
        let base = std::env::temp_dir().join(format!("skiff-landlock-test-{}", std::process::id()));
        let (inside, outside) = (base.join("inside"), base.join("outside"));
        for dir in [&base, &inside, &outside, &inside.join("sub")] {
            create_dir(dir).expect("a directory");
        }
        write(outside.join("file"), "x").expect("a file");
        let dir = File::open(&inside).expect("opened");
        // Only this thread is confined.
        let confined = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_no_new_privs(true).expect("no_new_privs");
                confine_changes_to(dir.as_fd()).expect("confined");
                write(inside.join("file"), "x").expect("written inside");
                rename(inside.join("file"), inside.join("sub/file")).expect("moved inside");
                assert_eq!(std::fs::read_to_string(outside.join("file")).expect("read"), "x");
                let denied = |result: io::Result<()>, what: &str| {
                    assert_eq!(result.expect_err(what).kind(), ErrorKind::PermissionDenied, "{what}");
                };
                denied(write(outside.join("file"), "y"), "to write outside");
                denied(write(outside.join("new"), "y"), "to make a file outside");
                denied(create_dir(outside.join("dir")), "to make a directory outside");
                denied(std::fs::remove_file(outside.join("file")), "to remove outside");
                denied(std::process::Command::new("/bin/true").status().map(drop), "to execute");
            });
            thread.join()
        });
        std::fs::remove_dir_all(base).expect("removed");
        confined.expect("as promised");
    }

    #[test]
    fn nothing_else_is_read() {
        if version().is_none() {
            assert!(std::env::var_os("CI").is_none(), "the kernel has no Landlock");
            // Past the harness, which keeps what a passing test prints to itself.
            std::io::stderr().write_all(b"SKIPPED: the kernel has no Landlock\n").expect("said");
            return;
        }
        let base = std::env::temp_dir().join(format!("skiff-landlock-read-test-{}", std::process::id()));
        let (inside, open, shut) = (base.join("inside"), base.join("open"), base.join("shut"));
        for dir in [&base, &inside, &open, &shut] {
            create_dir(dir).expect("a directory");
            write(dir.join("file"), "x").expect("a file");
        }
        write(shut.join("known"), "x").expect("a file");
        let dir = File::open(&inside).expect("opened");
        let readable = [&open, &shut.join("known")].map(|path| File::open(path).expect("opened").into());
        let confined = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_no_new_privs(true).expect("no_new_privs");
                confine_to(dir.as_fd(), &readable).expect("confined");
                for path in [inside.join("file"), open.join("file"), shut.join("known")] {
                    assert_eq!(std::fs::read_to_string(path).expect("read"), "x");
                }
                write(inside.join("file"), "y").expect("written");
                let denied = |path: &std::path::Path| {
                    let error = std::fs::read(path).expect_err("to read elsewhere");
                    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                };
                denied(&shut.join("file"));
                denied(&base.join("file"));
                let written = write(open.join("file"), "y").expect_err("to write where it reads");
                assert_eq!(written.kind(), ErrorKind::PermissionDenied);
            });
            thread.join()
        });
        std::fs::remove_dir_all(base).expect("removed");
        confined.expect("as promised");
    }
}
