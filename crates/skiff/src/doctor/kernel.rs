//! What the kernel offers and the helper can do with it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use rustix::process::{WaitOptions, waitpid};
use skiff_plan::{self as plan, Facts, PlanOptions, RootOptions};
use skiff_sandbox::start::{StartOptions, start};
use skiff_sandbox::visit::as_root_of_ids;
use skiff_spec::ids::{COUNT, subordinate};
use skiff_spec::plan::{Base, Upper};
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, Fork, exit_now, fork};
use skiff_user::context::UserContext;
use skiff_user::scratch;

use crate::doctor::Check;

/// All of them.
pub fn checks(context: &UserContext) -> Vec<Check> {
    let mut checks =
        vec![user_namespaces(), apparmor(), helper(context), id_range(context), fuse_overlayfs(context)];
    if context.helper.is_some() {
        checks.push(id_mapped_mounts(context));
        checks.push(landlock());
    }
    checks.push(root_file_system());
    checks.push(whole(context));
    // Where it is a module, the environment just tried has loaded it.
    checks.push(overlay());
    checks.push(memory());
    checks
}

fn setting(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn user_namespaces() -> Check {
    const NAME: &str = "user namespaces";
    let most = setting("/proc/sys/user/max_user_namespaces").unwrap_or_else(|| "?".into());
    match fork(CloneFlags::USER) {
        Ok(Fork::Child) => exit_now(0),
        Ok(Fork::Parent(child)) => {
            while matches!(waitpid(Some(child.pid), WaitOptions::empty()), Err(rustix::io::Errno::INTR)) {}
            Check::pass(NAME, format!("you can make them (user.max_user_namespaces = {most})"))
        }
        Err(e) => Check::fail(
            NAME,
            format!("you cannot make one: {e} (user.max_user_namespaces = {most})"),
            "administrator: sysctl user.max_user_namespaces=15000, kernel.unprivileged_userns_clone=1 where it exists",
        ),
    }
}

/// What confines the store's writer besides its user and its filter of system calls.
fn landlock() -> Check {
    const NAME: &str = "Landlock";
    match skiff_sys::landlock::version() {
        Some(version) => Check::pass(
            NAME,
            format!("version {version}: the store's writer can change nothing but the store"),
        ),
        None => Check::warn(
            NAME,
            "the kernel has none: the store's writer may change whatever its user may",
            "administrator: Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK, and landlock in lsm= of its command line",
        ),
    }
}

fn apparmor() -> Check {
    const NAME: &str = "AppArmor";
    match setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() {
        Some("1") if !Path::new("/etc/apparmor.d/skiff").exists() => Check::warn(
            NAME,
            "restricts user namespaces, and there is no profile for skiff",
            "administrator: install packaging/apparmor/skiff as /etc/apparmor.d/skiff and reload",
        ),
        Some("1") => Check::pass(NAME, "restricts user namespaces; there is a profile for skiff"),
        _ => Check::pass(NAME, "does not restrict user namespaces"),
    }
}

fn overlay() -> Check {
    let known = setting("/proc/filesystems").unwrap_or_default();
    let has = |name: &str| known.lines().any(|l| l.trim_start_matches("nodev").trim() == name);
    match has("overlay") {
        true => Check::pass("overlay", "known to the kernel"),
        false => Check::warn("overlay", "not loaded", "administrator: modprobe overlay"),
    }
}

fn memory() -> Check {
    const NAME: &str = "memory";
    match (scratch::memory_takes_attributes(), scratch::memory_will_do()) {
        (true, _) => Check::pass(NAME, "holds what throw-away environments change"),
        (false, false) => {
            Check::pass(NAME, "what throw-away environments change goes to a disk (before Linux 6.6)")
        }
        (false, true) => Check::warn(
            NAME,
            "throw-away environments cannot remove directories of their base: tmpfs takes no attributes",
            "administrator: a kernel with CONFIG_TMPFS_XATTR",
        ),
    }
}

fn helper(context: &UserContext) -> Check {
    const NAME: &str = "helper";
    let Some(path) = &context.helper else {
        return Check::warn(
            NAME,
            "none: environments are rootless (slower, no jobs, no --me)",
            "administrator: `make install` puts it at PREFIX/libexec/skiff/skiff-helper, setuid root",
        );
    };
    let shown = path.display();
    let meta = match path.metadata() {
        Ok(meta) => meta,
        Err(e) => {
            return Check::fail(
                NAME,
                format!("{shown}: {e}"),
                "administrator: install it, or correct `helper` in the configuration",
            );
        }
    };
    if meta.uid() != 0 || meta.mode() & 0o4000 == 0 {
        let found = format!("{shown}: belongs to uid {} with mode {:o}", meta.uid(), meta.mode() & 0o7777);
        return Check::fail(NAME, found, format!("administrator: chown root {shown} && chmod 4755 {shown}"));
    }
    if meta.mode() & 0o022 != 0 {
        return Check::fail(
            NAME,
            format!("{shown}: others can write to it"),
            format!("administrator: chmod go-w {shown}"),
        );
    }
    let nosuid =
        rustix::fs::statvfs(path).is_ok_and(|s| s.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    if nosuid {
        let mend = "administrator: install it on a file system mounted without nosuid; inside an environment it never works";
        return Check::fail(NAME, format!("{shown}: its file system is mounted nosuid"), mend);
    }
    Check::pass(NAME, format!("{shown}, setuid root"))
}

fn id_range(context: &UserContext) -> Check {
    const NAME: &str = "id range";
    let user = context.user();
    let of = |file: &str| {
        let text = fs::read_to_string(file)
            .default_on_error("without the file nobody has a range, which is the finding");
        subordinate(&text, Some(&user), context.uid).map_or(0, |r| r.count)
    };
    let count = of("/etc/subuid").min(of("/etc/subgid"));
    let mend = "administrator: usermod --add-subuids FIRST-LAST --add-subgids FIRST-LAST USER (65536 of each), \
                or range_base in /etc/skiff/helper.conf";
    match count {
        n if n >= COUNT - 1 => Check::pass(NAME, format!("{} ids inside", n + 1)),
        _ if setting("/etc/skiff/helper.conf").is_some_and(|t| t.contains("range_base")) => {
            Check::pass(NAME, "by rule (/etc/skiff/helper.conf)")
        }
        0 if context.helper.is_some() => Check::fail(NAME, "none: the helper has no ids to give you", mend),
        0 => Check::warn(
            NAME,
            "none: you are only root inside; packages that create users fail half-way",
            mend,
        ),
        n => Check::warn(NAME, format!("only {n}: packages may need more"), mend),
    }
}

fn id_mapped_mounts(context: &UserContext) -> Check {
    const NAME: &str = "id-mapped mounts";
    match as_root_of_ids(context.helper.as_deref(), Base::Host, |_| Ok(())) {
        Ok(()) => Check::pass(NAME, "the helper gives a view of the host's root"),
        Err(e) => Check::fail(NAME, e.message, e.hint),
    }
}

fn fuse_overlayfs(context: &UserContext) -> Check {
    const NAME: &str = "fuse-overlayfs";
    let program = Path::new(skiff_sandbox::FUSE_OVERLAYFS).exists();
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match (program, device, context.helper.is_some()) {
        (true, Ok(_), _) => Check::pass(NAME, "there, and /dev/fuse is open to you"),
        (_, _, true) => Check::pass(NAME, "not usable, and not needed with the helper"),
        (false, ..) => {
            Check::fail(NAME, "not installed, and there is no helper", "install the package fuse-overlayfs")
        }
        (true, Err(e), _) => {
            Check::fail(NAME, format!("/dev/fuse: {e}"), "administrator: chmod 666 /dev/fuse")
        }
    }
}

fn root_file_system() -> Check {
    const NAME: &str = "host's root";
    let root = Path::new("/").metadata().map(|m| m.dev()).unwrap_or(0);
    let apart: Vec<&str> = ["/usr", "/var", "/opt"]
        .into_iter()
        .filter(|p| Path::new(p).metadata().is_ok_and(|m| m.dev() != root))
        .collect();
    if apart.is_empty() {
        return Check::pass(NAME, "one file system");
    }
    let found = format!("{} on file systems of their own: read-only inside", apart.join(", "));
    Check::warn(NAME, found, "only what lies on the same file system as / can be changed in an environment")
}

fn whole(context: &UserContext) -> Check {
    const NAME: &str = "an environment";
    let upper = Upper::Memory { size: context.config.run.memory.clone() };
    let begun = Instant::now();
    let started = Facts::of_host(context)
        .and_then(|facts| plan::build(PlanOptions::new("doctor", upper, RootOptions::default()), facts))
        .and_then(|plan| {
            start(&plan, StartOptions { helper: context.helper.as_deref(), ..StartOptions::default() })
        });
    match started {
        Ok(instance) => {
            let took = begun.elapsed();
            instance.end();
            Check::pass(NAME, format!("starts (in {:.1} ms)", took.as_secs_f64() * 1000.0))
        }
        Err(e) => Check::fail(NAME, e.message, e.hint),
    }
}
