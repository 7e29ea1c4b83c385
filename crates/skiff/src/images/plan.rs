//! From an image and wishes to a plan: its root, with what it needs of the host put in.

use std::path::{Path, PathBuf};

use skiff_image::manifest::ExecConfig;
use skiff_sandbox::Result;
use skiff_site::account;
use skiff_spec::account::Group;
use skiff_spec::image::ImageId;
use skiff_spec::network::Net;
use skiff_spec::plan::{Accounts, Base, Mount, Plan, Route, Source, Upper};

use super::unpacked;
use crate::context::Context;
use crate::planner::{self, Wishes};

/// Files of the host that tell the network's names and the time: an image's own would be its maker's.
const FILES: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/localtime"];

/// The plan of an environment over an image. Unless it is `writable`, its root takes no changes.
pub fn image(
    context: &Context,
    name: &str,
    (id, exec): (ImageId, &ExecConfig),
    upper: Upper,
    writable: bool,
    wishes: Wishes,
) -> Result<Plan> {
    planner::refuse_inside(context)?;
    let mut mounts = planner::system_mounts(wishes.contain);
    mounts.extend(FILES.map(|file| Mount { read_only: true, ..planner::bind(file, file) }));
    mounts.extend(planner::services(context, &wishes));
    mounts.extend([planner::own("tmp", "/tmp"), planner::own("vartmp", "/var/tmp")]);
    if !wishes.no_home {
        mounts.extend(planner::home(&context.home, &wishes));
    }
    if !writable {
        mounts.extend(exec.volumes.iter().filter(|v| is_sound(v, &context.home)).map(|v| volume(v)));
    }
    mounts.extend(planner::asked_for(context, &wishes)?);
    let shims = planner::shims(context, &wishes);
    Ok(Plan {
        name: name.into(),
        route: context.route(),
        base: Base::Image(id),
        layers: wishes.layers,
        upper,
        read_only: !writable,
        dumpable: false,
        contain: wishes.contain,
        untrusted: wishes.untrusted,
        unpacked: None,
        accounts: accounts(context),
        mounts,
        net: Net::Host,
        shims,
    })
}

/// Has the image's files unpacked where the plan cannot have them mounted.
pub fn make_ready(context: &Context, plan: &mut Plan) -> Result<()> {
    plan.unpacked = unpacked(context, plan.base)?;
    Ok(())
}

/// The directory that stands for an image's mount without the helper; made if need be.
pub fn unpacked(context: &Context, base: Base) -> Result<Option<PathBuf>> {
    match (base, context.route()) {
        (Base::Image(id), Route::Rootless) => unpacked::tree(context, id).map(Some),
        _ => Ok(None),
    }
}

/// A directory for data that an image names may be no part of what makes the environment work.
fn is_sound(volume: &str, home: &Path) -> bool {
    let path = Path::new(volume);
    path.is_absolute()
        && path != Path::new("/")
        && !path.components().any(|c| c == std::path::Component::ParentDir)
        && !["/proc", "/sys", "/dev", "/run/skiff", "/home"].iter().any(|own| path.starts_with(own))
        && !home.parent().is_some_and(|homes| homes != Path::new("/") && path.starts_with(homes))
        && !path.starts_with(home)
}

/// With what the image has there, as everywhere else; changes go with the command.
fn volume(target: &str) -> Mount {
    Mount { source: Source::Volume, target: target.into(), read_only: false, optional: false }
}

/// The user as himself: programs look up who they are.
fn accounts(context: &Context) -> Accounts {
    let home = context.home.display();
    let (uid, gid) = (context.uid, rustix::process::getgid().as_raw());
    let user = account::user(uid)
        .map_or_else(|| format!("user{uid}:x:{uid}:{gid}::{home}:/bin/sh"), |user| user.to_line());
    let mut wanted = vec![gid];
    // A user of more groups than can be asked for is not to be kept from running.
    wanted.extend(rustix::process::getgroups().unwrap_or_default().iter().map(|g| g.as_raw()));
    // Without the other members, who are of no concern here.
    let groups = account::groups(&wanted).iter().map(Group::to_line).collect();
    Accounts { users: vec![user], groups }
}
