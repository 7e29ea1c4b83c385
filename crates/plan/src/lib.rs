//! What is asked for becomes a plan: [`resolve`] looks up facts and images, and pulls these if need be; then [`build`] decides which mounts an
//! environment has, and in what order. `build` looks at nothing, so tests make the facts up; and nothing changes a plan after it, so what
//! `--dry-run` prints is what is carried out.

pub mod base;
pub mod data;
mod data_words;
pub mod definition;
pub mod described;
mod device_files;
pub mod device_words;
pub mod devices;
mod facts;
pub mod get;
pub mod gpus;
mod host_paths;
pub mod image_peers;
pub mod import;
pub mod in_image;
pub mod inside;
pub mod modules;
mod mount_words;
mod mounts;
pub mod named_file;
mod options;
pub mod own_network;
pub mod progress;
pub mod replay;
pub mod resolve;
pub mod show;
pub mod ssh_agent;
mod ssh_user;
pub mod stop;

use std::path::{Path, PathBuf};

use skiff_launch::hosts;
use skiff_sandbox::uplink::NAME_SERVER;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_spec::name::HostName;
use skiff_spec::network::Net;
use skiff_spec::plan::{Accounts, Base, HOSTS, Mount, Plan, Route, Source, SshUser, Upper, inside as places};

pub use device_words::{DEVICE, GPUS};
pub use facts::{BaseFacts, Facts, accounts, refuse_inside};
use mount_words::with_data;
pub use mount_words::{TMPFS, absolute, parse_mount, parse_mounts};
pub use mounts::output;
use mounts::{
    bind, bind_path, home, hosts_terminals, is_sound, memory, own, reaper, system_mounts, terminals, volume,
    working_dir,
};
pub use options::{BIND, RootOptions, RootSource};

/// What a frontend asks for, beyond the configuration.
pub struct PlanOptions {
    /// The name shown as host name and in lists.
    pub name: String,
    /// Where changes go.
    pub upper: Upper,
    /// What its user asks for.
    pub asked: RootOptions,
    /// Read-only directories between the base and the upper, topmost first.
    pub layers: Vec<PathBuf>,
    /// Layers in the trusted store, below those, topmost first.
    pub stored_layers: Vec<ImageId>,
    /// Further mounts that the job manager needs.
    pub services: Vec<PathBuf>,
    /// The host's directories that are its `/tmp` and `/var/tmp`; nothing if these lie where its changes do.
    pub temporary: Option<[PathBuf; 2]>,
    /// Whether its name leads to its address on a network of the site's.
    pub has_host_name: bool,
    /// Whether the job manager's commands are handed to the host.
    pub shims: bool,
    /// The shell of the user's account in an image, if not their own.
    pub shell: Option<&'static str>,
    /// Mounts of the frontend itself, above all that the user has asked for.
    pub own: Vec<Mount>,
    /// Targets of mounts that are left out, whoever wants them: the frontend has something else there.
    pub replaced: &'static [&'static str],
    /// The network as the plan names it where a group of containers makes it: no mount of the plan's depends on that one.
    pub net_of_group: Option<Net>,
}

impl PlanOptions {
    /// Nothing beyond the configuration and what is asked for.
    pub fn new(name: impl Into<String>, upper: Upper, asked: RootOptions) -> Self {
        Self {
            name: name.into(),
            upper,
            asked,
            layers: vec![],
            stored_layers: vec![],
            services: vec![],
            temporary: None,
            has_host_name: false,
            shims: true,
            shell: None,
            own: vec![],
            replaced: &[],
            net_of_group: None,
        }
    }
}

/// Where POSIX shared memory is.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// Files of the host that tell the network's names and the time: an image's own would be its maker's.
pub const HOST_FILES: [&str; 3] = ["/etc/resolv.conf", HOSTS, "/etc/localtime"];

/// The plan.
///
/// # Errors
/// A mount makes no sense, or the network needs the helper.
pub fn build(options: PlanOptions, facts: Facts<'_>) -> Result<Plan> {
    let net = options.asked.net();
    refuse_network(&net, facts.route)?;
    let mut mounts = system_mounts(options.asked.contain);
    mounts.extend(mounts_of_base(&options, &facts)?);
    only_last_shared_memory(&mut mounts);
    mounts.retain(|mount| !options.replaced.iter().any(|target| mount.target == Path::new(target)));
    let PlanOptions { name, upper, layers, stored_layers, asked, .. } = options;
    let RootOptions { contain, untrusted, dumpable, writable, hostname, .. } = asked;
    mounts.extend(options.own);
    add_network(&mut mounts, &net);
    let has_address = matches!(net, Net::Named(_)) && !net.is_own(dumpable);
    if has_address || hostname.is_some() {
        let own = hostname.as_ref().map(HostName::as_str);
        let own = own.or_else(|| options.has_host_name.then_some(name.as_str()));
        tell_names(&mut mounts, own);
    }
    if dumpable && !mounts.contains(&terminals()) {
        mounts.push(terminals());
    }
    if dumpable {
        mounts.push(reaper());
    }
    let shims = if contain || !options.shims { vec![] } else { facts.config.slurm.shims() };
    let is_host = matches!(facts.base, BaseFacts::Host { .. });
    let login = facts.login.clone().filter(|_| is_host && !contain && !asked.no_home);
    let ssh_user = login.map(|name| SshUser { name, home: facts.home.to_owned() });
    let (base, unpacked, accounts) = match facts.base {
        BaseFacts::Host { .. } => (Base::Host, None, Accounts::default()),
        BaseFacts::Image { id, unpacked, accounts, .. } => (Base::Image(id), unpacked, accounts),
        BaseFacts::Directory { tree, accounts } => (Base::Directory, Some(tree), accounts),
    };
    Ok(Plan {
        name,
        // The helper's view of the host is an overlay, and of a file in an overlay on an overlay `/proc/PID/maps` tells another number than
        // `stat` does, which CRIU takes for another file: there fuse-overlayfs has to do.
        route: if dumpable && is_host { Route::Rootless } else { facts.route },
        base,
        layers,
        stored_layers,
        upper,
        read_only: !is_host && !writable,
        dumpable,
        contain,
        untrusted,
        unpacked,
        accounts: with_shell(accounts, options.shell),
        mounts,
        devices: facts.devices.map(|found| found.support).unwrap_or_default(),
        net: options.net_of_group.unwrap_or(net),
        hostname,
        shims,
        ssh_user,
    })
}

fn refuse_network(net: &Net, route: Route) -> Result<()> {
    match (net, route) {
        (Net::Named(name), Route::Rootless) => {
            Err(Error::new(format!("network {name}: only the helper can put you on it"))
                .hint("have the helper installed, or use --net private"))
        }
        _ => Ok(()),
    }
}

/// What is mounted because of the base, and what the configuration and the user want on top.
fn mounts_of_base(options: &PlanOptions, facts: &Facts<'_>) -> Result<Vec<Mount>> {
    let mut mounts = vec![];
    match &facts.base {
        BaseFacts::Host { separate } => {
            // As they are: only what lies on the same file system as `/` can be written to.
            mounts.extend(separate.iter().map(|part| Mount { read_only: true, ..bind(part, part) }));
            mounts.push(memory("/run", 0o755));
        }
        BaseFacts::Image { .. } | BaseFacts::Directory { .. } => {
            mounts.extend(HOST_FILES.map(|file| Mount { read_only: true, ..bind(file, file) }));
        }
    }
    if has_own_terminals(options, facts) {
        mounts.extend([terminals(), hosts_terminals()]);
    }
    mounts.extend(services(options, facts));
    mounts.extend(temporary(options.temporary.as_ref()));
    if matches!(facts.base, BaseFacts::Host { .. }) || !options.asked.no_home {
        mounts.extend(home(facts.home, options.asked.no_home, options.asked.contain));
    }
    mounts.extend(facts.agent_dir.iter().filter(|_| !options.asked.contain).map(|dir| bind_path(dir)));
    if let (BaseFacts::Image { volumes, .. }, false) = (&facts.base, options.asked.writable) {
        mounts.extend(volumes.iter().filter(|v| is_sound(v, facts.home)).map(|v| volume(v)));
    }
    let place = mounts.len();
    for text in facts.config.mounts.iter().filter(|_| !options.asked.contain) {
        mounts.push(Mount { optional: true, ..parse_mount(text)? });
    }
    mounts.extend(devices::mounts(&options.asked.mounts, options.asked.contain, facts.devices.as_ref())?);
    for text in &options.asked.mounts {
        mounts.extend(with_data(text, &facts.data)?);
    }
    // Below those that were asked for, which may show something else in it.
    let shown = facts.working_dir.as_deref().filter(|dir| !options.asked.contain && !is_shown(dir, &mounts));
    if let Some(mount) = shown.and_then(working_dir) {
        mounts.insert(place, mount);
    }
    Ok(mounts)
}

fn temporary(dirs: Option<&[PathBuf; 2]>) -> [Mount; 2] {
    let places = ["/tmp", "/var/tmp"];
    match dirs {
        Some([tmp, var_tmp]) => [(tmp, places[0]), (var_tmp, places[1])].map(|(dir, place)| Mount {
            source: Source::Bind(dir.clone()),
            target: place.into(),
            read_only: false,
            optional: false,
            propagation: None,
        }),
        None => [own("tmp", places[0]), own("vartmp", places[1])],
    }
}

/// Whether somebody may be root there for more than a command. To make terminals takes 40 microseconds, and each command would wait for that.
fn has_own_terminals(options: &PlanOptions, facts: &Facts<'_>) -> bool {
    let RootOptions { contain, dumpable, writable, .. } = options.asked;
    let is_host = matches!(facts.base, BaseFacts::Host { .. });
    let is_kept = matches!(options.upper, Upper::Directory(_)) || (!is_host && writable);
    is_kept && !contain && !dumpable
}

/// Whether these mounts show a directory of the host already, or something else in its place.
fn is_shown(dir: &Path, mounts: &[Mount]) -> bool {
    let is_covering = |mount: &Mount| match mount.source {
        // What is new inside has nothing of the host's below it.
        Source::Own(_) | Source::Memory { .. } => dir == mount.target,
        _ => dir.starts_with(&mount.target),
    };
    mounts.iter().any(is_covering)
}

fn services(options: &PlanOptions, facts: &Facts<'_>) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = vec![];
    if !options.asked.contain {
        mounts.extend(facts.config.services.iter().map(|s| bind(s, s)));
        mounts.extend(options.services.iter().map(|s| bind_path(s)));
        mounts.push(bind_path(&PathBuf::from(format!("/run/user/{}", facts.uid))));
    }
    mounts.extend(facts.resolv_conf.iter().map(|real| bind_path(real)));
    mounts
}

/// Keeps of several file systems in memory for POSIX shared memory the last one, whose size the user has asked for.
fn only_last_shared_memory(mounts: &mut Vec<Mount>) {
    let is_one = |mount: &Mount| {
        mount.target == Path::new(SHARED_MEMORY) && matches!(mount.source, Source::Memory { .. })
    };
    if let Some(last) = mounts.iter().rposition(is_one) {
        let mut at = 0..;
        mounts.retain(|mount| at.next() == Some(last) || !is_one(mount));
    }
}

/// The user's account with another shell.
fn with_shell(mut accounts: Accounts, shell: Option<&str>) -> Accounts {
    for user in accounts.users.iter_mut().filter(|_| shell.is_some()) {
        if let Some((before, _)) = user.rsplit_once(':') {
            *user = format!("{before}:{}", shell.unwrap_or_default());
        }
    }
    accounts
}

/// What a network of the environment's own needs.
fn add_network(mounts: &mut Vec<Mount>, net: &Net) {
    if *net == Net::Private {
        mounts.push(Mount {
            source: Source::Text(format!("nameserver {NAME_SERVER}\n")),
            target: "/etc/resolv.conf".into(),
            read_only: true,
            optional: false,
            propagation: None,
        });
    }
    if !net.is_host() {
        show_own_devices(mounts);
    }
}

/// Shows in `/sys` the network's devices, not the host's. Of what the host has mounted there, only the control groups are needed.
fn show_own_devices(mounts: &mut Vec<Mount>) {
    let Some(at) = mounts.iter().position(|mount| mount.source == Source::Bind("/sys".into())) else {
        return;
    };
    let read_only = mounts[at].read_only;
    let groups = "/sys/fs/cgroup";
    let own = Mount {
        source: Source::Sys,
        target: "/sys".into(),
        read_only: true,
        optional: false,
        propagation: None,
    };
    let groups = Mount { read_only, ..bind(groups, groups) };
    mounts.splice(at..=at, [own, groups]);
}

/// Has the host's name and this one mean the address on a network of the site's: elsewhere the host's name means the host, and this one
/// the loopback device. What the user has mounted there stands.
fn tell_names(mounts: &mut Vec<Mount>, name: Option<&str>) {
    let is_hosts = |mount: &Mount| mount.target == Path::new(HOSTS);
    let is_usual = |mount: &Mount| matches!(&mount.source, Source::Bind(path) if path == Path::new(HOSTS));
    if mounts.iter().any(|mount| is_hosts(mount) && !is_usual(mount)) {
        return;
    }
    mounts.retain(|mount| !is_hosts(mount));
    // An environment's name need be none of a host.
    let names = name.filter(|name| hosts::is_name(name)).map(str::to_owned).into_iter().collect();
    mounts.push(Mount {
        source: Source::Hosts(names),
        target: HOSTS.into(),
        read_only: true,
        optional: false,
        propagation: None,
    });
}

/// A plan for another place, as that of a saved environment where its processes are restored, or that of a cluster for one of its nodes:
/// what lies elsewhere, and nothing else, is exchanged.
///
/// # Errors
/// The plan has no place for its output.
pub fn relocate(saved: Plan, to: Relocation) -> Result<Plan> {
    let Relocation { name, upper, layers, unpacked, output } = to;
    let mut mounts = saved.mounts;
    let place = mounts.iter_mut().find(|mount| mount.target == Path::new(places::OUTPUT));
    let place = place.ok_or_else(|| Error::new("its plan has no place for its output"))?;
    place.source = Source::Bind(output);
    let (layers, stored_layers) =
        layers.map_or((saved.layers, saved.stored_layers), |layers| (layers, vec![]));
    Ok(Plan { name, upper, layers, stored_layers, unpacked, mounts, ..saved })
}

/// A plan with its changes elsewhere: in a directory that could not be made when it was planned.
pub fn with_changes_in(before: Plan, upper: Upper) -> Plan {
    Plan { upper, ..before }
}

/// A plan of the layers alone, for files to be read or written in them as they are: nothing of the host's or of Skiff's is shown.
#[must_use]
pub fn bare(before: Plan) -> Plan {
    Plan { mounts: vec![], shims: vec![], ssh_user: None, ..before }
}

/// Where an environment is that was planned for another place.
pub struct Relocation {
    /// Name in its new place.
    pub name: String,
    /// Where its changes are.
    pub upper: Upper,
    /// Where its snapshot's layers are, the topmost first, if it has a snapshot.
    pub layers: Option<Vec<PathBuf>>,
    /// Where its image's files are, if they cannot be mounted.
    pub unpacked: Option<PathBuf>,
    /// Where its output goes.
    pub output: PathBuf,
}
