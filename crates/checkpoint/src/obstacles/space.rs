//! What belongs to no process: System V objects and POSIX message queues of the instance's IPC namespace. CRIU works in that namespace, takes
//! it for its own, and leaves all of it out.

use std::fs;
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;

use super::keys;

/// What there is of these and of keys in the instance, as it is told to the user; and what may be of it.
///
/// # Errors
/// When the instance has ended.
pub(super) fn look(inside: EnterTarget<'_>) -> Result<keys::KeyReport> {
    enter::run(EnterTarget { number: None, ..inside }, &[], || {
        let mut found = vec![];
        for (file, what) in [
            ("sem", "System V semaphores"),
            ("msg", "System V message queues"),
            ("shm", "System V shared memory"),
        ] {
            let table = fs::read_to_string(Path::new("/proc/sysvipc").join(file));
            let table = table.default_on_error("a kernel without System V IPC has no such objects");
            found.extend(objects(&table).map(|keys| format!("{what} ({keys}): they would be gone")));
        }
        found.extend(
            queues()?.into_iter().map(|name| format!("POSIX message queue /{name}: it would be empty")),
        );
        let (held, apart) = keys::look()?;
        found.extend(held);
        Ok((found, apart))
    })
}

/// The keys of a table of `/proc/sysvipc`, if there are any.
fn objects(table: &str) -> Option<String> {
    let key = |line: &str| line.split_whitespace().next()?.parse::<i32>().ok();
    let keys: Vec<String> =
        table.lines().skip(1).filter_map(key).map(|key| format!("key {key:#x}")).collect();
    (!keys.is_empty()).then(|| keys.join(", "))
}

/// The names of the namespace's queues, whether or not anybody has mounted them.
fn queues() -> Result<Vec<String>> {
    let about = || "POSIX message queues";
    let Ok(context) = fsopen("mqueue", FsOpenFlags::FSOPEN_CLOEXEC) else {
        // A kernel without them.
        return Ok(vec![]);
    };
    fsconfig_create(&context).context(about)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).context(about)?;
    let root = openat(&mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let entries = Dir::new(root.context(about)?).context(about)?;
    let name = |entry: rustix::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let names =
        entries.map(|entry| entry.map(name)).collect::<rustix::io::Result<Vec<_>>>().context(about)?;
    Ok(names.into_iter().filter(|name| name != "." && name != "..").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_told_by_their_keys() {
        let head = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";
        assert_eq!(objects(head), None);
        assert_eq!(objects(""), None);
        let table = format!(
            "{head}     24122          0   600          2     0     0     0     0          0 1795686000\n         0          1   600\n"
        );
        assert_eq!(objects(&table).as_deref(), Some("key 0x5e3a, key 0x0"));
    }
}
