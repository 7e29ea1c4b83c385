//! What System V objects of all kinds have in common: how they are called, and who makes them again with which number.

use std::fs;
use std::io::{self, Read, Write};

use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, Fork, exit_now, fork, fork_as, positive_pid};
use skiff_sys::sysv::{self, Kind};

use crate::sysv_tables::{Entry, SystemVObject, next_number, table};

/// An object, in messages.
pub(super) fn named(kind: Kind, id: i32) -> String {
    let what = match kind {
        Kind::Semaphores => "semaphores",
        Kind::Queue => "message queue",
        Kind::Segment => "shared memory",
    };
    format!("System V {what} {id}")
}

/// Does something in a process of this number, or of another where it cannot have that, and with these ids. The kernel remembers of some objects
/// who has made or changed them last.
pub(super) fn as_process(number: i32, ids: (u32, u32), act: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let begun = match positive_pid(number) {
        Some(number) => fork_as(number, CloneFlags::NONE).or_else(|_| fork(CloneFlags::NONE)),
        None => fork(CloneFlags::NONE),
    };
    match begun? {
        Fork::Child => {
            let (uid, gid) = (Uid::from_raw(ids.0), Gid::from_raw(ids.1));
            let is_another = ids != (0, 0);
            // Ids that are none inside were those of somebody outside.
            if is_another {
                set_thread_res_gid(gid, gid, Gid::ROOT).ignore_error("then root has made it");
                set_thread_res_uid(uid, uid, Uid::ROOT).ignore_error("then root has made it");
            }
            let code = act().map_or_else(|e| e.raw_os_error().unwrap_or(255), |()| 0);
            exit_now(code)
        }
        Fork::Parent(child) => {
            let ended = rustix::process::waitpid(Some(child.pid), rustix::process::WaitOptions::empty())?;
            match ended.and_then(|(_, status)| status.exit_status()) {
                Some(0) => Ok(()),
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

impl SystemVObject {
    /// Makes it with its number, by `create`.
    pub(super) fn make(
        &self,
        kind: Kind,
        maker: i32,
        create: impl Fn(i32, u32) -> io::Result<i32>,
    ) -> Result<()> {
        let about = || named(kind, self.id);
        fs::write(next_number(kind), self.id.to_string()).context(about)?;
        as_process(maker, self.creator, || create(self.key, self.mode & 0o777).map(drop)).context(about)?;
        let is_it = |entry: &Entry| (entry.id, entry.key) == (self.id, self.key);
        table(kind)?
            .iter()
            .any(is_it)
            .then_some(())
            .ok_or_else(|| Fault::new(format!("{}: the kernel has given it another number", about())))
    }

    pub(super) fn set_owner(&self, kind: Kind, limit: u64) -> Result<()> {
        let owner = (self.uid, self.gid, self.mode & 0o777);
        sysv::set_owner(kind, self.id, owner, limit).context(|| named(kind, self.id))
    }
}

/// Writes a part of what an object holds: a message with its type, or some bytes with where they begin.
pub(super) fn write_part(into: &mut impl Write, number: u64, bytes: &[u8]) -> io::Result<()> {
    into.write_all(&number.to_le_bytes())?;
    into.write_all(&(bytes.len() as u64).to_le_bytes())?;
    into.write_all(bytes)
}

/// Reads one that is no longer than this.
pub(super) fn read_part(from: &mut impl Read, longest: usize) -> io::Result<(u64, Vec<u8>)> {
    let mut number = || {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    let (number, length) = (number()?, usize::try_from(number()?));
    let length = length.ok().filter(|length| *length <= longest);
    let mut bytes = vec![0; length.ok_or_else(|| io::Error::other("a part of what it held is too long"))?];
    from.read_exact(&mut bytes)?;
    Ok((number, bytes))
}
