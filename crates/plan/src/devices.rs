//! Devices that vendors describe (CDI), and the site's modules: which are asked for, what the user may have of them, and what they need. The
//! descriptions and the libraries are foreign, and nothing of them is executed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_cdi::{Catalog, CdiError, ElfFacts, Granted, HostMount, Needs};
use skiff_sandbox::command::{CommandSpec, own_variable};
use skiff_spec::config::Config;
use skiff_spec::device::{DeviceLibrary, DeviceLink, DeviceSupport, ModuleVariable, NeededGlibc};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::job::names;
use skiff_spec::plan::{Mount, Source};

use crate::device_words::{GPUS, GRANTED, HostRequest, request};
use crate::inside::ProcessArgs;
use crate::modules::{FoundModules, tell_unused};

/// What the devices need that were asked for, found on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Device nodes, the host's and the one inside.
    pub nodes: Vec<(String, String)>,
    /// Device nodes of the host's that are not shown: those of GPUs that were not picked.
    pub left_out_nodes: Vec<String>,
    /// Mounts.
    pub mounts: Vec<HostMount>,
    /// What is made in the root beside mounts.
    pub support: DeviceSupport,
    /// Variables that modules set, which do not depend on what a job was given.
    pub module_variables: Vec<String>,
    /// Why modules are not used that the root would have got.
    pub left_out_modules: Vec<String>,
}

/// These words without those for described devices and modules.
pub fn without(words: &[String]) -> Result<Vec<String>> {
    let is_mount = |word: &String| request(word).map(|request| request.is_none().then(|| word.clone()));
    Ok(words.iter().map(is_mount).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Picks the words that are for described devices.
///
/// # Errors
/// One is for a device, and is not sound.
pub fn words(words: &[String]) -> Result<Vec<String>> {
    let is_device = |word: &String| request(word).map(|request| request.map(|_| word.clone()));
    Ok(words.iter().map(is_device).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The word by which an image asks for GPUs, as NVIDIA's and AMD's own images do: by a variable, which the user's own wins over, and a
/// definition's over that.
#[must_use]
pub fn of_image(of_definition: &[String], of_image: &[String]) -> Option<String> {
    let last = |settings: &[String], name: &str| {
        let value = |setting: &String| setting.strip_prefix(name)?.strip_prefix('=').map(String::from);
        settings.iter().rev().find_map(value)
    };
    let own = |name: &str| own_variable(name.as_ref()).and_then(|value| value.into_string().ok());
    let own = |name: &str| users_word(name, &own);
    let wanted = names::WANTED_GPUS
        .iter()
        .find_map(|name| last(of_definition, name).or_else(|| own(name)).or_else(|| last(of_image, name)));
    let is_none = |wanted: &str| ["", "void", "none"].contains(&wanted);
    wanted.filter(|wanted| !is_none(wanted)).map(|_| format!("{GPUS}{GRANTED}"))
}

/// The user's own variable that asks for GPUs. `void` is the word of a container's GPUs, which says there that they are there already: a step
/// with a container of its own is meant to have what its image asks for.
fn users_word(name: &str, own: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    own(name).filter(|value| value != "void")
}

/// The directories with descriptions.
#[must_use]
pub fn dirs(config: &Config) -> Vec<PathBuf> {
    config.cdi_dirs.iter().map(PathBuf::from).collect()
}

/// What this user's job lets them have.
#[must_use]
pub fn granted() -> Granted {
    // Before a step's tasks Slurm has not said which they get. Their root has the host's own nodes, which Slurm guards.
    if own_variable(names::STEPD_PID.as_ref()).is_some() {
        return Granted::Everything;
    }
    Granted::of(|name| own_variable(name.as_ref()).and_then(|value| value.into_string().ok()))
}

/// Whether a job has GPUs for sure, as far as Slurm has said before the tasks begin.
#[must_use]
pub fn is_known_to_have_gpus() -> bool {
    names::GPUS.iter().any(|name| own_variable(name.as_ref()).is_some())
}

/// Whether this user's job has a GPU, or need not be given one.
#[must_use]
pub fn has_granted() -> bool {
    granted() != Granted::Only(vec![])
}

fn ours(e: CdiError) -> Fault {
    Fault::new(e.message).hint(e.hint)
}

/// What the described devices among these words need. Nothing is looked at if there are none.
fn needs(words: &[String], config: &Config) -> Result<Option<(Vec<String>, Needs)>> {
    let mut asked = vec![];
    for word in words {
        if let Some(HostRequest::Device(request)) = request(word)? {
            asked.push((word.clone(), request));
        }
    }
    if asked.is_empty() {
        return Ok(None);
    }
    let (words, requests): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let catalog = Catalog::read(&dirs(config));
    let found = catalog.resolve(&requests, &granted()).map_err(ours)?;
    let left_out_nodes = catalog.nodes_left_out(&requests, &found);
    Ok(Some((words, Needs { left_out_nodes, ..Needs::of(&found).map_err(ours)? })))
}

/// Why a task does not have what its container was made with, if so: Slurm tells only tasks which GPUs they have.
#[must_use]
pub fn not_granted(words: &[String], config: &Config) -> Option<Fault> {
    needs(words, config).err()
}

/// Sets the variables of devices, but for those that the user or a definition has named.
pub fn set(settings: &[String], command: &mut CommandSpec, inside: &ProcessArgs) {
    let named = inside.settings();
    for (word, value) in settings.iter().filter_map(|setting| setting.split_once('=')) {
        let name = ModuleVariable::parse(word).map_or(word, |variable| variable.name);
        let is_of_definition = inside.templates.iter().any(|(known, _)| known == name);
        if !is_of_definition && !named.iter().any(|(known, _)| known == name) {
            command.set(word, value);
        }
    }
}

fn settings(variables: &[(String, String)]) -> Vec<String> {
    variables.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

impl DeviceFacts {
    /// What the described devices among these words need, in a root that has the host's `/dev` unless it is contained; nothing if there are none.
    ///
    /// # Errors
    /// One is not there, or not for this user, or its description names what is not there.
    pub fn looked_up(
        words: &[String],
        config: &Config,
        (contain, is_host): (bool, bool),
    ) -> Result<Option<Self>> {
        let modules = FoundModules::of(words, config, (contain, is_host))?;
        // On a job's nodes nobody would see it. Of broken files whoever has submitted the job was told; of what a node lacks a task will tell.
        if own_variable(names::STEPD_PID.as_ref()).is_none() {
            tell_unused(&modules.broken);
            tell_unused(&modules.left_out);
        }
        let described = needs(words, config)?;
        if described.is_none() && modules.is_empty() {
            return Ok(None);
        }
        let mut facts = Self::default();
        if let Some((asked, needs)) = described {
            if !contain {
                refuse_new_nodes(&needs)?;
            }
            facts = Self::of(asked, needs, is_host)?;
        }
        facts.add_modules(&modules, is_host);
        facts.left_out_modules = modules.left_out;
        Ok(Some(facts))
    }

    /// Over the host's root their libraries are there already.
    fn add_modules(&mut self, modules: &FoundModules, is_host: bool) {
        self.module_variables = modules.settings(is_host);
        self.support.asked.extend(modules.asked.iter().cloned());
        self.support
            .devices
            .extend(modules.needs.modules.iter().map(|parts| format!("module {}", parts.name)));
        // A device's own variables count more.
        self.support.variables.splice(0..0, self.module_variables.iter().cloned());
        self.nodes.extend(modules.needs.nodes().into_iter().map(|node| (node.clone(), node)));
        let mounts = modules.needs.mounts().into_iter();
        self.mounts.extend(mounts.filter(|mount| !is_host || mount.host != mount.inside));
        if !is_host {
            self.mounts.extend(modules.add_libraries(&mut self.support));
        }
    }

    /// Over the host's root what lies at the same path is there already.
    fn of(asked: Vec<String>, needs: Needs, is_host: bool) -> Result<Self> {
        let devices = needs.devices.iter().map(|(name, _)| name.to_string()).collect();
        for node in &needs.nodes {
            check_node(&node.host, &needs.named_by)?;
        }
        let nodes = needs.nodes.into_iter().map(|node| (node.host, node.inside)).collect();
        let left_out_nodes =
            needs.left_out_nodes.into_iter().filter(|node| Path::new(node).exists()).collect();
        let mut facts = Self { nodes, left_out_nodes, ..Self::default() };
        let variables = settings(&needs.variables);
        facts.support = DeviceSupport { asked, devices, variables, ..DeviceSupport::default() };
        facts.mounts =
            needs.mounts.into_iter().filter(|mount| !is_host || mount.host != mount.inside).collect();
        if is_host && facts.mounts.is_empty() {
            return Ok(facts);
        }
        let link = |link: skiff_cdi::Link| DeviceLink { link: link.link, target: link.target };
        facts.support.links = needs.links.into_iter().map(link).collect();
        let dirs: BTreeSet<&Path> = needs.library_dirs.iter().map(Path::new).collect();
        for at in 0..facts.mounts.len() {
            facts.look_at(at, &dirs, &needs.named_by)?;
        }
        let is_makers = facts.support.asked.iter().all(|word| word.strip_prefix(GPUS) == Some(GRANTED));
        if let Some(needed) = facts.support.glibc.as_mut().filter(|_| is_makers) {
            needed.optional = !is_known_to_have_gpus();
        }
        Ok(facts)
    }

    /// Notes of a mounted file, if it is a library, what the linker has to know.
    fn look_at(&mut self, at: usize, dirs: &BTreeSet<&Path>, named_by: &NamingFiles) -> Result<()> {
        let HostMount { host, inside, .. } = &self.mounts[at];
        std::fs::metadata(host).map_err(|e| not_there(host, named_by, &e))?;
        if !is_called_library(host) {
            return Ok(());
        }
        // A named pipe in its place makes nobody wait. What cannot be read, as a socket, is mounted all the same.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let Ok(library) = openat(CWD, &**host, flags, Mode::empty()).map(File::from) else { return Ok(()) };
        let Some(elf) = ElfFacts::of(&library) else { return Ok(()) };
        if let Some(needed) = elf.needs {
            let version = [needed.0, needed.1];
            if self.support.glibc.as_ref().is_none_or(|known| known.version < version) {
                self.support.glibc = Some(NeededGlibc { version, library: host.clone(), optional: false });
            }
        }
        let inside = Path::new(inside);
        let (Some(dir), Some(name), Some(soname)) =
            (inside.parent(), inside.file_name().and_then(|name| name.to_str()), elf.soname)
        else {
            return Ok(());
        };
        if !dirs.contains(dir) || soname.contains('/') || matches!(&*soname, "" | "." | "..") {
            return Ok(());
        }
        let path = inside.display().to_string();
        // As the linker's own program does: under its name, too, for those who look in the directory.
        let link = dir.join(&soname).display().to_string();
        let is_taken = self.mounts.iter().any(|mount| mount.inside == link)
            || self.support.links.iter().any(|known| known.link == link);
        if !is_taken {
            self.support.links.push(DeviceLink { link, target: name.into() });
        }
        self.support.libraries.push(DeviceLibrary { name: soname, path });
        Ok(())
    }
}

/// The description that names each path of the host's.
type NamingFiles = BTreeMap<String, PathBuf>;

/// Whether a file is a library by its name.
fn is_called_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.ends_with(".so") || name.contains(".so.")
}

fn shown_file(path: &str, named_by: &NamingFiles) -> String {
    named_by.get(path).map_or_else(|| "a description".into(), |file| file.display().to_string())
}

fn not_there(path: &str, named_by: &NamingFiles, e: &std::io::Error) -> Fault {
    Fault::new(format!("{path}: {e}, and {} names it", shown_file(path, named_by)))
        .hint("administrator: have the vendor's tool write the file anew, as after an update of the driver")
}

fn check_node(host: &str, named_by: &NamingFiles) -> Result<()> {
    let kind = std::fs::metadata(host).map_err(|e| not_there(host, named_by, &e))?.file_type();
    match kind.is_char_device() || kind.is_block_device() {
        true => Ok(()),
        false => {
            let file = shown_file(host, named_by);
            Err(Fault::new(format!("{host}: not a device, and {file} names it as one"))
                .hint("skiff cdi check"))
        }
    }
}

/// Refuses nodes that would have to be made in the host's own `/dev`.
fn refuse_new_nodes(needs: &Needs) -> Result<()> {
    let is_new =
        |node: &&skiff_cdi::DeviceNode| node.host != node.inside && !Path::new(&node.inside).exists();
    match needs.nodes.iter().find(is_new) {
        Some(node) => Err(Fault::new(format!(
            "device node {}: /dev is the host's, and has no place for it",
            node.inside
        ))
        .hint("a container with a /dev of its own has one: skiff run --contain")),
        None => Ok(()),
    }
}

/// The mounts that devices need. Where `/dev` is the host's, their nodes are there.
pub(crate) fn mounts(words: &[String], contain: bool, devices: Option<&DeviceFacts>) -> Result<Vec<Mount>> {
    let Some(devices) = devices else {
        // What is asked for is looked up before anything is planned.
        return match without(words)?.len() == words.len() {
            true => Ok(vec![]),
            false => Err(Fault::new("devices: not given to what starts here")),
        };
    };
    let bind = |host: &str, inside: &str, read_only| Mount {
        source: Source::Bind(host.into()),
        target: inside.into(),
        read_only,
        optional: false,
        propagation: None,
    };
    let is_shown = |(host, inside): &&(String, String)| contain || host != inside;
    let nodes = devices.nodes.iter().filter(is_shown).map(|(host, inside)| bind(host, inside, false));
    let files = devices.mounts.iter().map(|mount| bind(&mount.host, &mount.inside, mount.read_only));
    // A file that nobody can open for writing, as all do with a GPU: drivers then count one GPU less. Contained, there is none to hide.
    let hide = |node: &String| Mount { source: Source::Text(String::new()), ..bind("", node, true) };
    let hidden = devices.left_out_nodes.iter().filter(|_| !contain).map(hide);
    Ok(hidden.chain(nodes).chain(files).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_names_its_own_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let _socket = std::os::unix::net::UnixListener::bind(path("driver.so")).expect("a socket");
        let mount = |name: &str| HostMount { host: path(name), inside: "/x".into(), read_only: true };
        let named_by: NamingFiles = [("driver.so", "/etc/cdi/first.yaml"), ("gone", "/etc/cdi/second.yaml")]
            .map(|(name, file)| (path(name), file.into()))
            .into();
        let mut facts =
            DeviceFacts { mounts: vec![mount("driver.so"), mount("gone")], ..DeviceFacts::default() };
        let dirs = BTreeSet::new();
        facts.look_at(0, &dirs, &named_by).expect("a socket is mounted, whatever it is called");
        let why = facts.look_at(1, &dirs, &named_by).expect_err("not there");
        assert!(
            why.message
                .ends_with("gone: No such file or directory (os error 2), and /etc/cdi/second.yaml names it"),
            "{why}"
        );
        let why = check_node(&path("driver.so"), &named_by).expect_err("no device");
        assert!(
            why.message.ends_with("driver.so: not a device, and /etc/cdi/first.yaml names it as one"),
            "{why}"
        );
        for (name, want) in [("/a.so", true), ("/a.so.1", true), ("/a.sock", false), ("/x.so/a", false)] {
            assert_eq!(is_called_library(name), want, "{name}");
        }
    }

    #[test]
    fn void_in_a_container_is_not_the_users_word() {
        for (value, want) in [("void", None), ("none", Some("none")), ("0", Some("0"))] {
            let own = |_: &str| Some(value.to_owned());
            assert_eq!(users_word("NVIDIA_VISIBLE_DEVICES", &own).as_deref(), want, "{value}");
        }
    }
}
