//! Copies of objects that no process has open, made of what their mappings show.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use skiff_sys::IgnoreError;
use skiff_sys::memory::page_size;

use super::mapping::Mapping;

/// Content is read in pieces of this size.
const PIECE: usize = 1 << 20;
/// Of a page of `/proc/PID/pagemap`: it is in memory, in swap space, of a file. Source: `admin-guide/mm/pagemap.rst`.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
/// The end of a mapping, where nothing can be read, is looked at up to this length.
const LONGEST_END: u64 = 1 << 30;
/// So many pages of a process are looked at at once.
const ENTRIES: u64 = 8192;

/// A memfd with what processes see by their mappings of one object. To read what was never written makes the object take memory, and no process has
/// told the kernel of each page that is there: so there must be room for all that may not be.
pub(super) fn copy(views: &[&(i32, Mapping)]) -> io::Result<File> {
    let room = room();
    let mut absent = views.iter().map(|(_, view)| view.end - view.start).fold(0, u64::saturating_add);
    if absent > room {
        absent = 0;
        for (pid, view) in views {
            absent += absent_pages(*pid, view, room.saturating_sub(absent))?;
            refuse_without_room(absent)?;
        }
    }
    let file = File::from(memfd_create("", MemfdFlags::CLOEXEC)?);
    let mut seen: Vec<(u64, u64)> = vec![];
    let mut length = 0;
    for (pid, view) in views {
        let range = (view.offset, view.end - view.start);
        if view.is_shared() && seen.contains(&range) {
            continue;
        }
        length = length.max(copy_view(*pid, view, &file)?);
        seen.push(range);
    }
    ftruncate(&file, length)?;
    Ok(file)
}

/// Half of the memory that the host has free: so much may be taken beside what processes have.
fn room() -> u64 {
    let said = fs::read_to_string("/proc/meminfo")
        .default_on_error("then the free memory is unknown, and the copy is tried");
    let free = said.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    free.and_then(|kilobytes| kilobytes.parse().ok()).map_or(u64::MAX, |free: u64| free.saturating_mul(512))
}

/// Refuses to take so much memory only to see what is there.
///
/// # Errors
/// When it is too much.
pub(crate) fn refuse_without_room(bytes: u64) -> io::Result<()> {
    let why = || {
        let (bytes, room) = (skiff_output::size(bytes), skiff_output::size(room()));
        let why = format!(
            "to read it may take {bytes} of memory, as the kernel does not say what of it was ever written; there is room for {room}"
        );
        io::Error::other(why)
    };
    (bytes <= room()).then_some(()).ok_or_else(why)
}

/// How many bytes of a mapping its process has no pages of. More than the limit are not counted to the end.
fn absent_pages(pid: i32, view: &Mapping, limit: u64) -> io::Result<u64> {
    let pages = File::open(format!("/proc/{pid}/pagemap"))?;
    let page = page_size() as u64;
    let (mut at, end, mut absent) = (view.start / page, view.end / page, 0);
    let mut entries = vec![0; 8 * ENTRIES as usize];
    while at < end && absent <= limit {
        let count = ENTRIES.min(end - at);
        let wanted = &mut entries[..8 * count as usize];
        pages.read_exact_at(wanted, at * 8)?;
        let is_absent = |entry: &&[u8]| {
            let entry = <[u8; 8]>::try_from(*entry).map_or(0, u64::from_ne_bytes);
            entry & PRESENT == 0
        };
        absent += wanted.chunks(8).filter(is_absent).count() as u64 * page;
        at += count;
    }
    Ok(absent)
}

/// Refuses a mapping of which something is hidden: from there to its end nothing must be readable because the object ends there.
fn refuse_hidden((memory, pages): (&File, &File), view: &Mapping, from: u64) -> io::Result<()> {
    let hidden = || io::Error::other("a part of it cannot be read");
    let (page, mut byte) = (page_size() as u64, [0]);
    if !view.rights.starts_with('r') || view.end - from > LONGEST_END {
        return Err(hidden());
    }
    let mut at = from;
    while at < view.end {
        // What is guarded, or broken, has an entry.
        let is_none = entry(pages, at / page)? & (PRESENT | SWAPPED) == 0;
        match memory.read_at(&mut byte, at) {
            Err(e) if is_none && Errno::from_io_error(&e) == Some(Errno::IO) => at += page,
            _ => return Err(hidden()),
        }
    }
    Ok(())
}

/// Copies one; up to where the object goes, as far as it shows.
fn copy_view(pid: i32, view: &Mapping, into: &File) -> io::Result<u64> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let pages = File::open(format!("/proc/{pid}/pagemap"))?;
    let page = page_size();
    let (mut at, mut piece) = (view.start, vec![0; PIECE]);
    while at < view.end {
        let wanted = usize::try_from(view.end - at).unwrap_or(PIECE).min(PIECE);
        let got = match memory.read_at(&mut piece[..wanted], at) {
            // The process has ended.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // Beyond the end of the object there is nothing.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::IO) => {
                refuse_hidden((&memory, &pages), view, at)?;
                break;
            }
            got => got?,
        };
        for (number, bytes) in piece[..got].chunks(page).enumerate() {
            let address = at + (number * page) as u64;
            if bytes.iter().all(|byte| *byte == 0)
                || !view.is_shared() && is_own(&pages, address / page as u64)?
            {
                continue;
            }
            into.write_all_at(bytes, view.offset + (address - view.start))?;
        }
        at += got as u64;
    }
    Ok(view.offset + (at - view.start))
}

/// Whether a page of a private mapping is the process's own, and no longer the object's.
fn is_own(pages: &File, number: u64) -> io::Result<bool> {
    let entry = entry(pages, number)?;
    Ok(entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0)
}

fn entry(pages: &File, number: u64) -> io::Result<u64> {
    let mut entry = [0; 8];
    pages.read_exact_at(&mut entry, number * 8)?;
    Ok(u64::from_ne_bytes(entry))
}

#[cfg(test)]
mod tests {
    use super::super::mapping::own;
    use super::*;

    #[test]
    fn what_is_hidden_is_not_taken_for_the_end() {
        let pid = std::process::id().cast_signed();
        let all = own().expect("its own");
        let stack = all.into_iter().find(|one| one.path == "[stack]").expect("a stack");
        let open = |name: &str| File::open(format!("/proc/self/{name}")).expect("opened");
        let files = (&open("mem"), &open("pagemap"));
        refuse_hidden(files, &stack, stack.end).expect("nothing follows");
        refuse_hidden(files, &stack, stack.start).expect_err("something follows");
        let size = stack.end - stack.start;
        let absent = absent_pages(pid, &stack, u64::MAX).expect("counted");
        assert!(absent < size, "{absent} of {size}");
        let hidden = Mapping { rights: "---s".into(), ..stack.clone() };
        refuse_hidden(files, &hidden, stack.start).expect_err("nobody knows");
        refuse_without_room(0).expect("none");
        refuse_without_room(u64::MAX - 1).expect_err("nobody has that");
    }
}
