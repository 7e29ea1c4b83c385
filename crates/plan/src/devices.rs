//! Devices that vendors describe (CDI), and the site's modules: what those need that are asked for, and how a root gets it. The descriptions are
//! foreign, and nothing of them is executed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use skiff_cdi::{Catalog, CdiError, HostMount, Needs};
use skiff_sandbox::command::{CommandSpec, own_variable};
use skiff_spec::config::Config;
use skiff_spec::device::{DeviceLink, DeviceSupport, ModuleVariable};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::job::names;
use skiff_spec::plan::{Mount, Source};

use crate::device_files::{check_node, library, note_glibc, note_name};
use crate::device_words::{self, GPUS, GRANTED, HostRequest, request};
use crate::gpus::{granted, is_known_to_have_gpus};
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

/// The directories with descriptions.
#[must_use]
pub fn dirs(config: &Config) -> Vec<PathBuf> {
    config.cdi_dirs.iter().map(PathBuf::from).collect()
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
        for HostMount { host, inside, .. } in &facts.mounts {
            if let Some(elf) = library(host, &needs.named_by)? {
                note_glibc(&mut facts.support, host, &elf);
                note_name(&mut facts.support, Path::new(inside), elf, &dirs, &facts.mounts);
            }
        }
        let is_makers = facts.support.asked.iter().all(|word| word.strip_prefix(GPUS) == Some(GRANTED));
        if let Some(needed) = facts.support.glibc.as_mut().filter(|_| is_makers) {
            needed.optional = !is_known_to_have_gpus();
        }
        Ok(facts)
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
        return match device_words::without(words)?.len() == words.len() {
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
