//! The edits of all devices that are asked for as one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::catalog::{CdiError, FoundDevice};
use crate::description::{DeviceNode, Edits, HostMount};
use crate::hook::{CdiHook, Link};
use crate::name::DeviceName;

/// All that devices need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The devices, and the file of each.
    pub devices: Vec<(DeviceName, PathBuf)>,
    /// The file that names each path of the host's; of two that name one the later.
    pub named_by: BTreeMap<String, PathBuf>,
    /// Variables.
    pub variables: Vec<(String, String)>,
    /// Device nodes.
    pub nodes: Vec<DeviceNode>,
    /// Device nodes that the root must not show: see [`Catalog::nodes_left_out`](crate::Catalog::nodes_left_out).
    pub left_out_nodes: Vec<String>,
    /// Mounts.
    pub mounts: Vec<HostMount>,
    /// Links.
    pub links: Vec<Link>,
    /// Directories whose libraries the linker is to find.
    pub library_dirs: Vec<String>,
    /// Groups that may use them.
    pub groups: Vec<u32>,
    /// What is left out, as a sentence each.
    pub left_out: Vec<String>,
}

impl Needs {
    /// What these devices need: of each file once what all its devices need, then what each needs.
    ///
    /// # Errors
    /// A hook that is not known, or a network device.
    pub fn of(found: &[FoundDevice<'_>]) -> Result<Self, CdiError> {
        let mut needs = Self::default();
        let mut files: Vec<&PathBuf> = vec![];
        for FoundDevice { file, device } in found {
            let name = DeviceName { kind: file.description.kind.clone(), device: device.name.clone() };
            if !files.contains(&&file.path) {
                files.push(&file.path);
                needs.add(&file.description.edits, &name, &file.path)?;
            }
            needs.add(&device.edits, &name, &file.path)?;
            needs.devices.push((name, file.path.clone()));
        }
        Ok(needs)
    }

    fn add(&mut self, edits: &Edits, name: &DeviceName, file: &std::path::Path) -> Result<(), CdiError> {
        let refuse = |what: String, hint: &str| {
            Err(CdiError::new(format!("device {name}: {} {what}", file.display()), hint))
        };
        if let Some(network) = edits.network_devices.first() {
            let what = format!(
                "wants the network device {network} moved into the container, which takes root on the host"
            );
            return refuse(
                what,
                "a network of the site's gives a container an address of its own: skiff net list",
            );
        }
        for (variable, value) in &edits.variables {
            self.variables.retain(|(known, _)| known != variable);
            self.variables.push((variable.clone(), value.clone()));
        }
        let nodes = edits.nodes.iter().map(|node| &node.host);
        for path in nodes.chain(edits.mounts.iter().map(|mount| &mount.host)) {
            self.named_by.insert(path.clone(), file.into());
        }
        add_new(&mut self.nodes, &edits.nodes);
        for mount in &edits.mounts {
            self.mounts.retain(|known| known.inside != mount.inside);
            self.mounts.push(mount.clone());
        }
        add_new(&mut self.groups, &edits.groups);
        for what in &edits.ignored {
            add_new(&mut self.left_out, &[format!("{}: {what} is left out", file.display())]);
        }
        for hook in &edits.hooks {
            match hook {
                CdiHook::Links(links) => add_new(&mut self.links, links),
                CdiHook::Libraries(dirs) => add_new(&mut self.library_dirs, dirs),
                CdiHook::Needless => {}
                CdiHook::Ignored { name, why } => {
                    add_new(
                        &mut self.left_out,
                        &[format!("{}: hook {name} is left out: {why}", file.display())],
                    );
                }
                CdiHook::Unknown { name } => {
                    let what = format!("names the hook {name:?}, and Skiff runs no program of such a file");
                    return refuse(
                        what,
                        "administrator: take the hook out of the file, and mount what it would make",
                    );
                }
            }
        }
        Ok(())
    }
}

fn add_new<T: Clone + PartialEq>(all: &mut Vec<T>, more: &[T]) {
    for one in more {
        if !all.contains(one) {
            all.push(one.clone());
        }
    }
}
