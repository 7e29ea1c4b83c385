//! One file of a vendor's as typed data, by the specification's versions 0.3 to 1.1.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use crate::fields::{At, MapKeys, Notes, Problem};
use crate::hook::{self, CdiHook};
use crate::name::{check_device, check_kind};
use crate::node::LinedNode;

/// The versions, the oldest first.
const VERSIONS: [&str; 8] = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// When a hook may run, as runtimes call it.
const HOOK_NAMES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// Places that are the container's own: nothing of a vendor's may cover them.
const OWN_PLACES: [&str; 4] = ["/proc", "/sys", "/dev", "/run/skiff"];

/// What one file describes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiDescription {
    /// `vendor.com/class`.
    pub kind: String,
    /// The devices, in the file's order.
    pub devices: Vec<CdiDevice>,
    /// What each of the devices needs.
    pub edits: Edits,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiDevice {
    /// The name.
    pub name: String,
    /// What it needs.
    pub edits: Edits,
}

/// What a container needs for a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Variables.
    pub variables: Vec<(String, String)>,
    /// Device nodes.
    pub nodes: Vec<DeviceNode>,
    /// Mounts of the host's files.
    pub mounts: Vec<HostMount>,
    /// Programs that a runtime would start.
    pub hooks: Vec<CdiHook>,
    /// Groups that may use it.
    pub groups: Vec<u32>,
    /// What is asked for and is not there, in the file's words.
    pub ignored: Vec<&'static str>,
    /// Network devices that would have to be moved.
    pub network_devices: Vec<String>,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// Where it is on the host.
    pub host: String,
    /// Where it is inside.
    pub inside: String,
    /// Whether writing is not asked for.
    pub read_only: bool,
}

/// A mount of the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    /// What is mounted.
    pub host: String,
    /// Where.
    pub inside: String,
    /// Whether writing is refused.
    pub read_only: bool,
}

impl CdiDescription {
    /// Reads a file's text; `is_json` by its name. Without problems the description is sound.
    #[must_use]
    pub fn parse(text: &str, is_json: bool) -> (Self, Vec<Problem>) {
        let tree = if is_json { LinedNode::from_json(text) } else { LinedNode::from_yaml(text) };
        match tree {
            Ok(tree) => {
                let mut notes = Notes::default();
                let description = read(&At::root(&tree), &mut notes);
                (description, notes.0)
            }
            Err(e) => {
                let problem = Problem::of_file(e.why, "");
                (Self::default(), vec![Problem { line: (e.line > 0).then_some(e.line), ..problem }])
            }
        }
    }
}

fn read(at: &At<'_>, notes: &mut Notes) -> CdiDescription {
    let keys = at.keys(&["cdiVersion", "kind", "annotations", "devices", "containerEdits"], notes);
    let version = version(&keys, notes);
    let kind = keys.text("kind", notes).unwrap_or_default();
    if let (Some(at), Err(why)) = (keys.get("kind"), check_kind(kind))
        && !kind.is_empty()
    {
        notes.add(&at, why, "as vendor.com/gpu");
    }
    let mut names = BTreeSet::new();
    let devices = keys.list("devices", notes).read_each(|at| {
        let device = device(&at, version, notes);
        if !device.name.is_empty() && !names.insert(device.name.clone()) {
            notes.add(&at, format!("a second device {:?}", device.name), "");
        }
        Some(device)
    });
    if keys.need("devices", notes).is_some() && devices.is_empty() {
        notes.add(at, "no devices in it", "");
    }
    annotations(&keys, version, notes);
    let edits = keys.get("containerEdits").map(|at| edits(&at, version, notes)).unwrap_or_default();
    CdiDescription { kind: kind.into(), devices, edits }
}

/// The version as its place among those that there are.
fn version(keys: &MapKeys<'_>, notes: &mut Notes) -> usize {
    let newest = VERSIONS.len() - 1;
    let Some(at) = keys.need("cdiVersion", notes) else { return newest };
    let Some(text) = at.text(notes) else { return newest };
    let number = text.strip_prefix('v').unwrap_or(text);
    VERSIONS.iter().position(|version| *version == number).unwrap_or_else(|| {
        let hint = format!("the versions are {} to {}", VERSIONS[0], VERSIONS[newest]);
        notes.add(&at, format!("version {text:?} is not known"), hint);
        newest
    })
}

/// Notes what a file's version does not have yet.
fn since(at: &At<'_>, version: usize, first: &str, notes: &mut Notes) {
    if VERSIONS.iter().position(|known| *known == first).is_some_and(|first| version < first) {
        let hint = format!("cdiVersion: {first}");
        notes.add(at, format!("it needs version {first}, and the file says {}", VERSIONS[version]), hint);
    }
}

fn annotations(keys: &MapKeys<'_>, version: usize, notes: &mut Notes) {
    if let Some(at) = keys.get("annotations") {
        since(&at, version, "0.6.0", notes);
    }
}

fn device(at: &At<'_>, version: usize, notes: &mut Notes) -> CdiDevice {
    let keys = at.keys(&["name", "annotations", "containerEdits"], notes);
    let name = keys.text("name", notes).unwrap_or_default();
    if let (Some(at), false) = (keys.get("name"), name.is_empty()) {
        if let Err(why) = check_device(name) {
            notes.add(&at, why, "");
        }
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            since(&at, version, "0.5.0", notes);
        }
    }
    annotations(&keys, version, notes);
    let edits = keys.get("containerEdits").map(|at| edits(&at, version, notes)).unwrap_or_default();
    CdiDevice { name: name.into(), edits }
}

const EDITS: [&str; 7] =
    ["env", "deviceNodes", "netDevices", "mounts", "hooks", "additionalGids", "intelRdt"];

fn edits(at: &At<'_>, version: usize, notes: &mut Notes) -> Edits {
    let keys = at.keys(&EDITS, notes);
    let variables = keys.list("env", notes).read_each(|at| variable(&at, notes));
    let nodes = keys.list("deviceNodes", notes).read_each(|at| node(&at, version, notes));
    let mounts = keys.list("mounts", notes).read_each(|at| mount(&at, version, notes));
    let hooks = keys.list("hooks", notes).read_each(|at| hook(&at, notes));
    let mut edits = Edits { variables, nodes, mounts, hooks, ..Edits::default() };
    if let Some(at) = keys.get("additionalGids") {
        since(&at, version, "0.7.0", notes);
        let most = i64::from(u32::MAX);
        let numbers =
            at.list(notes).filter_map(|at| at.number(0, notes)).filter(|gid| (1..most).contains(gid));
        edits.groups = numbers.filter_map(|gid| u32::try_from(gid).ok()).collect();
    }
    if let Some(at) = keys.get("intelRdt") {
        since(&at, version, "0.7.0", notes);
        let known = [
            "closID",
            "l3CacheSchema",
            "memBwSchema",
            "schemata",
            "enableMonitoring",
            "enableCMT",
            "enableMBM",
        ];
        at.keys(&known, notes);
        edits.ignored.push("intelRdt");
    }
    if let Some(at) = keys.get("netDevices") {
        since(&at, version, "1.1.0", notes);
        for at in at.list(notes) {
            let keys = at.keys(&["hostInterfaceName", "name"], notes);
            keys.text("name", notes);
            edits.network_devices.extend(keys.text("hostInterfaceName", notes).map(String::from));
        }
    }
    edits
}

fn variable(at: &At<'_>, notes: &mut Notes) -> Option<(String, String)> {
    match at.text(notes)?.split_once('=') {
        Some((name, value)) if !name.is_empty() => Some((name.into(), value.into())),
        _ => {
            notes.add(at, "not NAME=VALUE", "");
            None
        }
    }
}

fn node(at: &At<'_>, version: usize, notes: &mut Notes) -> Option<DeviceNode> {
    let known = ["path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"];
    let keys = at.keys(&known, notes);
    let inside = keys.text("path", notes)?;
    let path = keys.get("path")?;
    check_path(&path, inside, notes);
    if !inside.starts_with("/dev/") {
        notes.add(&path, format!("device node {inside:?} is not below /dev"), "");
    }
    let host = match keys.get("hostPath") {
        Some(at) => {
            since(&at, version, "0.5.0", notes);
            let text = at.text(notes)?;
            check_path(&at, text, notes);
            text
        }
        None => inside,
    };
    for (key, least) in [("major", 0), ("minor", 0), ("fileMode", 0), ("uid", 0), ("gid", 0)] {
        if let Some(at) = keys.get(key) {
            at.number(least, notes);
        }
    }
    if let Some(at) = keys.get("type")
        && let Some(kind) = at.text(notes)
        && !["", "b", "c", "u"].contains(&kind)
    {
        notes.add(&at, format!("type {kind:?} is not one of a device: b, c or u"), "");
    }
    let permissions = keys.get("permissions").and_then(|at| {
        let text = at.text(notes)?;
        if text != "none" && text.chars().any(|letter| !"rwm".contains(letter)) {
            notes.add(&at, format!("permissions {text:?} are not of the letters r, w and m"), "");
        }
        Some(text)
    });
    let permissions = permissions.filter(|text| !text.is_empty()).unwrap_or("rwm");
    Some(DeviceNode { host: host.into(), inside: inside.into(), read_only: !permissions.contains('w') })
}

fn mount(at: &At<'_>, version: usize, notes: &mut Notes) -> Option<HostMount> {
    let keys = at.keys(&["hostPath", "containerPath", "options", "type"], notes);
    let (host, inside) = (keys.text("hostPath", notes), keys.text("containerPath", notes));
    let options = keys.texts("options", notes);
    let read_only = options.iter().any(|option| ["ro", "readonly"].contains(option));
    if let Some(at) = keys.get("type") {
        since(&at, version, "0.4.0", notes);
        let kind = at.text(notes).unwrap_or_default();
        if !["", "none", "bind"].contains(&kind) {
            notes.add(
                &at,
                format!("a file system of type {kind:?}, and only the host's files are mounted"),
                "",
            );
        }
    }
    let (host, inside) = (host?, inside?);
    check_path(&keys.get("hostPath")?, host, notes);
    let at = keys.get("containerPath")?;
    check_path(&at, inside, notes);
    let clean = Path::new(inside);
    let covers =
        OWN_PLACES.iter().any(|own| clean.starts_with(own)) || Path::new("/run/skiff").starts_with(clean);
    if clean.starts_with("/") && covers {
        notes.add(&at, format!("a mount on {inside} would cover what is the container's own"), "");
    }
    Some(HostMount { host: host.into(), inside: inside.into(), read_only })
}

/// Notes a path that is relative, or leads up.
fn check_path(at: &At<'_>, path: &str, notes: &mut Notes) {
    if !path.starts_with('/') {
        notes.add(at, format!("path {path:?} is not absolute"), "");
    } else if Path::new(path).components().any(|part| part == Component::ParentDir) {
        notes.add(at, format!("path {path:?} holds `..`"), "");
    } else if path.contains(char::is_control) {
        notes.add(at, "a control character in the path", "");
    }
}

fn hook(at: &At<'_>, notes: &mut Notes) -> Option<CdiHook> {
    let keys = at.keys(&["hookName", "path", "args", "env", "timeout"], notes);
    let when = keys.text("hookName", notes)?;
    if !HOOK_NAMES.contains(&when) {
        notes.add(&keys.get("hookName")?, format!("{when:?} is not when a hook runs"), HOOK_NAMES.join(", "));
    }
    let path = keys.text("path", notes)?;
    check_path(&keys.get("path")?, path, notes);
    keys.texts("env", notes);
    if let Some(at) = keys.get("timeout") {
        at.number(1, notes);
    }
    let args = keys.texts("args", notes);
    hook::understand(path, &args)
        .map_err(|why| notes.add(&keys.get("args").unwrap_or(At::root(at.node)), why, ""))
        .ok()
}
