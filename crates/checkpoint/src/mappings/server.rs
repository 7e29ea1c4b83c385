//! Answers CRIU where it opens what processes have mapped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};

use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::intercept::{InterceptedCall, ListenerEvent, OpenCall, OpenListener};
use skiff_sys::memory::read_of;

use super::frozen::FrozenMappings;
use super::mapping::{Mapping, ObjectId, ObjectKind, of_process, program};
use super::parasite_sockets::ParasiteSockets;
use super::placeholder::Placeholders;
use crate::page_scan::ScanAnswers;
use crate::sysv_tables::table;

/// In messages.
const NAME: &str = "what processes have mapped";
/// In messages about sockets.
const SOCKETS: &str = "connections of saved processes to CRIU";
/// Longest path that says which mapping is wanted: two addresses.
const LONGEST: usize = 64;

/// Answers CRIU's calls as long as it runs.
///
/// # Errors
/// The first that could not be answered rightly: that call has failed.
pub(crate) fn serve(
    listener: OwnedFd,
    placeholders: &Placeholders,
    mut scans: Option<ScanAnswers<'_>>,
) -> Result<()> {
    let listener = OpenListener::from(listener);
    let (mut server, mut sockets) = (Server::new(placeholders), ParasiteSockets::default());
    let mut served = Ok(());
    while let Some(event) = listener.next_event(&sockets.descriptors()).context(|| NAME)? {
        let call = match event {
            ListenerEvent::Call(InterceptedCall::Open(call)) => call,
            ListenerEvent::Call(InterceptedCall::Scan(call)) => {
                let answer = scans.as_mut().map_or(Ok(None), |scans| scans.answer(call));
                let about = || "pages that have not changed";
                // Where that fails the kernel answers, and all is read. What was noted by then is found twice, and the save fails.
                listener.answer_scan(call, answer.default_on_error("all is read")).context(about)?;
                continue;
            }
            ListenerEvent::Call(InterceptedCall::Listen(call)) => {
                sockets.listen(&listener, call).context(|| SOCKETS)?;
                continue;
            }
            ListenerEvent::Call(InterceptedCall::Accept(call)) => {
                sockets.accept(&listener, call).context(|| SOCKETS)?;
                continue;
            }
            ListenerEvent::Readable(place) => {
                sockets.take_connection(&listener, place).context(|| SOCKETS)?;
                continue;
            }
        };
        let answered = match server.wanted(call) {
            Ok(Some(file)) => listener.give(call, file.as_fd()),
            Ok(None) => listener.proceed(call),
            Err(why) => {
                served = served.and(Err(why));
                listener.fail(call)
            }
        };
        answered.context(|| NAME)?;
    }
    if server.has_placeholders {
        placeholders.remove_all();
    }
    served
}

struct Server<'a> {
    frozen: Option<FrozenMappings>,
    /// What processes have mapped, as far as it has been asked for.
    maps: HashMap<i32, Vec<Mapping>>,
    given: HashMap<(ObjectKind, ObjectId), File>,
    /// Files with names, by the numbers of their mappings: where it is another one by its name.
    overlaid: HashMap<ObjectId, Option<File>>,
    /// The one that was given last.
    program: Option<File>,
    placeholders: &'a Placeholders,
    has_placeholders: bool,
}

impl<'a> Server<'a> {
    fn new(placeholders: &'a Placeholders) -> Self {
        Self {
            frozen: None,
            maps: HashMap::new(),
            given: HashMap::new(),
            overlaid: HashMap::new(),
            program: None,
            placeholders,
            has_placeholders: false,
        }
    }

    /// What a call is to get; nothing if the kernel is to answer.
    fn wanted(&mut self, call: OpenCall) -> Result<Option<&File>> {
        let (pid, range) = match wanted_of(call) {
            Some(Wanted::Program(pid)) => {
                self.program = program(pid).context(|| format!("process {pid}: its program"))?;
                return Ok(self.program.as_ref());
            }
            Some(Wanted::Mapping(pid, range)) => (pid, range),
            None => return Ok(None),
        };
        let Some(mapping) = self.mapping(pid, range)? else { return Ok(None) };
        if mapping.is_system_v() {
            return self.segment(&mapping).map(Some);
        }
        if !(mapping.is_memfd() || mapping.is_deleted() || mapping.is_anonymous()) {
            return self.in_overlay(&mapping);
        }
        if self.frozen.is_none() {
            self.frozen = Some(FrozenMappings::of(call.pid.as_raw_nonzero().get())?);
        }
        let Some(frozen) = &self.frozen else { return Ok(None) };
        if let Entry::Vacant(place) = self.given.entry(mapping.key()) {
            let Some(file) = frozen.file(&mapping).context(|| mapping.path.clone())? else { return Ok(None) };
            place.insert(file);
        }
        Ok(self.given.get(&mapping.key()))
    }

    /// The file of a mapping that has a name, if CRIU cannot see that it is this one.
    fn in_overlay(&mut self, mapping: &Mapping) -> Result<Option<&File>> {
        let file = match self.overlaid.entry(mapping.object) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let file = mapping.in_overlay();
                place.insert(file.default_on_error("CRIU looks for itself, and says what is wrong"))
            }
        };
        Ok(file.as_ref())
    }

    /// A mapping of a process. It stands still: what it has mapped is read again only if CRIU asks for what was not there.
    fn mapping(&mut self, pid: i32, (start, end): (u64, u64)) -> Result<Option<Mapping>> {
        let find = |all: &[Mapping]| {
            let found = all.binary_search_by_key(&start, |one| one.start).ok().map(|place| &all[place]);
            found.filter(|one| one.end == end).cloned()
        };
        if let Some(found) = self.maps.get(&pid).and_then(|all| find(all)) {
            return Ok(Some(found));
        }
        let all = of_process(pid).context(|| format!("process {pid}"))?;
        let found = find(&all);
        self.maps.insert(pid, all);
        Ok(found)
    }

    /// The file that stands for a segment. Its mapping is made again by us.
    fn segment(&mut self, mapping: &Mapping) -> Result<&File> {
        if !self.given.contains_key(&mapping.key()) {
            let id = i32::try_from(mapping.object.2).map_err(|_| Fault::new("a segment without a number"))?;
            // No mapping leads beyond the end of its segment.
            let table = table(skiff_sys::sysv::Kind::Segment)?;
            let size = table.iter().find(|entry| entry.id == id).map(|entry| entry.size);
            let size = size.ok_or_else(|| Fault::new(format!("System V segment {id}: it is not there")))?;
            let file = self.placeholders.make(id, size)?;
            self.has_placeholders = true;
            self.given.insert(mapping.key(), file);
        }
        self.given.get(&mapping.key()).ok_or_else(|| Fault::new(NAME))
    }
}

/// What a call wants to open.
enum Wanted {
    /// What a process has mapped at these addresses.
    Mapping(i32, (u64, u64)),
    /// The program that a process runs.
    Program(i32),
}

/// Nothing if it is something else, which the kernel opens.
fn wanted_of(call: OpenCall) -> Option<Wanted> {
    let caller = call.pid.as_raw_nonzero();
    let dir = fs::read_link(format!("/proc/{caller}/fd/{}", call.dir)).ok()?;
    let dir = dir.to_str()?.strip_prefix("/proc/")?;
    let mappings = dir.strip_suffix("/map_files");
    let pid = mappings.unwrap_or(dir).parse().ok()?;
    let mut path = [0; LONGEST];
    let length = read_of(caller.get(), call.path, &mut path).ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path[..length]).ok()?.to_str().ok()?;
    if mappings.is_none() {
        return (path == "exe").then_some(Wanted::Program(pid));
    }
    let (start, end) = path.split_once('-')?;
    Some(Wanted::Mapping(pid, (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?)))
}
