//! `skiff cp`: files between the host and whatever `skiff exec` enters. A process that has joined the container reads and writes there, and a
//! tar stream goes between it and one outside: neither follows a path of the other's.

use std::ffi::OsStr;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::dup;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::{stdin, stdout};
use skiff_cli::{CopyArgs, CopyEnd};
use skiff_copy::{CopyError, Destination, NotCopied, Packed, Rights, pack, unpack, unpack_archive};
use skiff_ipc::ReportingChild;
use skiff_output as output;
use skiff_runtime::control::Live;
use skiff_sandbox::inside::begin_inside;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::process::own_umask;
use skiff_user::context::UserContext;
use skiff_user::own_place;

use crate::named;

type Copied = skiff_copy::Result<NotCopied>;

/// Copies from one end to the other.
pub fn copy(args: &CopyArgs) -> Result<()> {
    let (from, to) = (CopyEnd::read(&args.source)?, CopyEnd::read(&args.destination)?);
    refuse_useless(&from, &to)?;
    let context = UserContext::load()?;
    for end in [&from, &to] {
        if let CopyEnd::Host(path) = end {
            own_place::refuse(&context.config, path)?;
        }
    }
    let (from, to) = (OpenedEnd::new(&context, from)?, OpenedEnd::new(&context, to)?);
    let left_out = transfer(&from, &to, args)?;
    left_out.notes().iter().for_each(|note| output::note(note));
    for live in [from.live, to.live].into_iter().flatten() {
        live.leave();
    }
    left_out.complete()
}

fn refuse_useless(from: &CopyEnd, to: &CopyEnd) -> Result<()> {
    let is_inside = |end: &CopyEnd| matches!(end, CopyEnd::Inside(..));
    if !is_inside(from) && !is_inside(to) {
        return Err(Fault::new("cp: neither path is in an instance or environment")
            .hint("that is written NAME:PATH: skiff cp web:/etc/issue ."));
    }
    if *to == CopyEnd::Stream && stdout().is_terminal() {
        return Err(Fault::new("cp: standard output is a terminal, and a tar stream is not for it")
            .hint("skiff cp NAME:PATH - | tar tv"));
    }
    Ok(())
}

/// One end of the copy, and how to get there.
struct OpenedEnd {
    end: CopyEnd,
    live: Option<Live>,
    /// In front of paths in messages: `web:`.
    of: String,
}

impl OpenedEnd {
    fn new(context: &UserContext, end: CopyEnd) -> Result<Self> {
        let (live, of) = match &end {
            CopyEnd::Inside(name, _) => (Some(named::enter(context, name, "cp")?), format!("{name}:")),
            CopyEnd::Host(_) | CopyEnd::Stream => (None, String::new()),
        };
        Ok(Self { end, live, of })
    }

    fn path(&self) -> Option<&Path> {
        match &self.end {
            CopyEnd::Stream => None,
            CopyEnd::Host(path) | CopyEnd::Inside(_, path) => Some(path),
        }
    }

    /// Says where to look for the reason of a fault at this end, and that a copy of several files is not whole.
    fn explain(&self, fault: Fault) -> Fault {
        match &self.end {
            _ if !fault.hint.is_empty() => fault,
            CopyEnd::Inside(name, path) => {
                fault.hint(format!("look there: skiff exec {name} ls -ld {}", path.display()))
            }
            CopyEnd::Host(path) if path.is_dir() => {
                fault.hint("the copy is not whole: mend this, and copy again")
            }
            CopyEnd::Host(_) | CopyEnd::Stream => fault,
        }
    }

    /// Has `act` done where this end is: in a process there, or at the end in this one.
    fn begin<'a>(&self, pipe: OwnedFd, act: impl FnOnce(File) -> Copied + 'a) -> Result<Begun<'a>> {
        match &self.live {
            Some(live) => {
                let begun = begin_inside(live.init.as_fd(), &[pipe.as_fd()], || {
                    let own = dup(&pipe).context(|| "pipe")?;
                    act(File::from(own))
                })?;
                Ok(Begun::There(begun))
            }
            None => Ok(Begun::Here(Box::new(move || act(File::from(pipe))))),
        }
    }
}

enum Begun<'a> {
    There(ReportingChild<Copied>),
    Here(Box<dyn FnOnce() -> Copied + 'a>),
}

impl Begun<'_> {
    fn is_here(&self) -> bool {
        matches!(self, Self::Here(_))
    }

    fn end(self) -> Copied {
        match self {
            Self::There(child) => child.end()?,
            Self::Here(act) => act(),
        }
    }
}

fn transfer(from: &OpenedEnd, to: &OpenedEnd, args: &CopyArgs) -> Result<NotCopied> {
    let (follow, umask) = (args.follow_link, if args.archive { 0 } else { own_umask() });
    let destination =
        |base| to.path().map(|path| Destination { path, base, of: &to.of, umask, rights: Rights::Plain });
    let Some(source) = from.path() else {
        let stream = dup(stdin()).context(|| "standard input")?;
        let unpacked = to.begin(stream, |stream| match destination(None) {
            Some(to) => unpack_archive(to, stream),
            None => Err(Fault::new("cp: no destination").into()),
        })?;
        return unpacked.end().map_err(|e| to.explain(e.into_fault()));
    };
    let base = base(source);
    let packed = |name, holes| Packed { path: source, follow, name, of: &from.of, holes };
    let Some(destination) = destination(base) else {
        let stream = dup(stdout()).context(|| "standard output")?;
        let name = base.map_or(&b"."[..], OsStr::as_bytes);
        let sent = from.begin(stream, |stream| pack(packed(name, false), stream))?.end();
        return match sent {
            // A reader that has had enough (`| head`) is no failure.
            Err(CopyError::Stream(_)) if nobody_reads() => Ok(NotCopied::default()),
            sent => sent.map_err(|e| from.explain(e.into_fault())),
        };
    };
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    // What is done in this process comes last. Until then the other has begun, and this one keeps no end that is not its own.
    let packing = from.begin(write, |stream| pack(packed(b".", true), stream))?;
    let unpacking = to.begin(read, |stream| unpack(destination, stream))?;
    let (packed, unpacked) = if packing.is_here() {
        (packing.end(), unpacking.end())
    } else {
        let unpacked = unpacking.end();
        (packing.end(), unpacked)
    };
    match (packed, unpacked) {
        (Ok(packed), Ok(unpacked)) => Ok(packed.and(unpacked)),
        // Of two faults the stream's is the other's doing.
        (Err(CopyError::Here(fault)), _) => Err(from.explain(fault)),
        (_, Err(CopyError::Here(fault))) => Err(to.explain(fault)),
        (Err(CopyError::Stream(fault)), _) | (_, Err(CopyError::Stream(fault))) => Err(fault),
    }
}

/// Whether nobody reads standard output any more.
fn nobody_reads() -> bool {
    let stdout = stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// What a source is called where it is copied to; nothing if its contents are meant: `DIR/.`, or the root.
fn base(source: &Path) -> Option<&OsStr> {
    let is_contents = [&b"/."[..], b"/.."].iter().any(|end| source.as_os_str().as_bytes().ends_with(end));
    let is_here = [".", ".."].iter().any(|name| source.as_os_str() == *name);
    if is_contents || is_here { None } else { source.file_name() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_is_called() {
        for (path, want) in [
            ("/a/b", Some("b")),
            ("/a/b/", Some("b")),
            ("b", Some("b")),
            ("/a/b/.", None),
            (".", None),
            ("..", None),
            ("/a/..", None),
            ("/", None),
        ] {
            assert_eq!(base(Path::new(path)), want.map(OsStr::new), "{path}");
        }
    }
}
