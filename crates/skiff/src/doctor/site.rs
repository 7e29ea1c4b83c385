//! What the site has set up: directories, the job manager, its services.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use skiff_output as output;
use skiff_runtime::{environments, instances};
use skiff_sandbox::uplink::PROGRAM as UPLINK;
use skiff_slurm as slurm;
use skiff_spec::config::{self, JobTmp};
use skiff_store::client;
use skiff_sys::{IgnoreError, project_quota};
use skiff_user::context::UserContext;
use skiff_user::dirs;

use crate::doctor::Check;
use crate::{cluster, net};

/// All of them.
pub fn checks(context: &UserContext) -> Vec<Check> {
    let mut checks = vec![state(context), leftovers(context), store(context), private_network(), networks()];
    if slurm_is_here() {
        checks.extend([plug_in(), depot(context), spool(context), munge()]);
        checks.extend(tmp_quota(context));
    } else {
        checks.push(Check::pass("Slurm", "not on this host"));
    }
    checks
}

/// Which files are in force.
pub fn configuration() -> String {
    let main = Path::new(config::SITE_FILE).exists().then(|| config::SITE_FILE.to_owned());
    let more = fs::read_dir(config::SITE_DIR).map_or(0, |d| d.flatten().count());
    match (main, more) {
        (None, 0) => "none: defaults".into(),
        (Some(main), 0) => main,
        (main, more) => {
            format!("{} and {more} in {}", main.unwrap_or_else(|| "defaults".into()), config::SITE_DIR)
        }
    }
}

fn state(context: &UserContext) -> Check {
    const NAME: &str = "state directory";
    let tried = environments::home(context).and_then(|dir| dirs::make_ready(&dir).map(|_| dir));
    match tried {
        Ok(dir) => Check::pass(NAME, dir.display().to_string()),
        Err(e) => Check::fail(NAME, e.message, e.hint),
    }
}

/// What crashes have left of the user's environments and instances.
fn leftovers(context: &UserContext) -> Check {
    const NAME: &str = "leftovers";
    let found = environments::home(context).map(|dir| dirs::leftovers(&dir).len()).and_then(|environments| {
        Ok(environments + instances::leftovers(context)?.len() + cluster::leftovers(context)?.len())
    });
    match found {
        Ok(0) => Check::pass(NAME, "none"),
        Ok(n) => Check::warn(
            NAME,
            format!("{n} of what was killed"),
            "`skiff sweep --dry-run` shows them, `skiff sweep` removes them",
        ),
        Err(e) => Check::warn(NAME, e.message, e.hint),
    }
}

fn store(context: &UserContext) -> Check {
    const NAME: &str = "store of images";
    match client::room(context) {
        Ok(usage) => Check::pass(NAME, format!("{} in use", output::size(usage.total()))),
        // Environments over the host do without.
        Err(e) => Check::warn(NAME, e.to_string(), e.hint().unwrap_or_default()),
    }
}

fn private_network() -> Check {
    const NAME: &str = "private networks";
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|dir| dir.join(UPLINK).is_file()) {
        return Check::warn(
            NAME,
            format!("{UPLINK} is not there"),
            format!("install {UPLINK}, for --net private"),
        );
    }
    match fs::File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Check::pass(NAME, UPLINK),
        Err(e) => Check::warn(NAME, format!("/dev/net/tun: {e}"), "administrator: chmod 666 /dev/net/tun"),
    }
}

fn networks() -> Check {
    const NAME: &str = "site's networks";
    let checked = match net::checked(None) {
        Ok(checked) => checked,
        Err(e) => return Check::warn(NAME, e.message, e.hint),
    };
    let wrong = checked.iter().filter(|one| !one.ok).count();
    match (checked.len(), wrong) {
        (0, _) => Check::pass(NAME, "none"),
        (all, 0) => Check::pass(NAME, all.to_string()),
        (all, wrong) => {
            Check::warn(NAME, format!("{wrong} of {all} would not work here"), "`skiff net check` says why")
        }
    }
}

fn slurm_is_here() -> bool {
    ["/usr/bin/srun", "/usr/local/bin/srun", "/usr/sbin/slurmd"].iter().any(|p| Path::new(p).exists())
}

fn plug_in() -> Check {
    const NAME: &str = "Slurm plug-in";
    const MEND: &str =
        "administrator: `optional PREFIX/lib/skiff/skiff_spank.so` in plugstack.conf on all hosts";
    let Some((file, line)) = plugstack_lines().into_iter().find(|(_, line)| line.contains("skiff_spank.so"))
    else {
        return Check::warn(NAME, "not named in plugstack.conf: jobs run on the bare host", MEND);
    };
    let path = line
        .split_whitespace()
        .find(|word| word.ends_with("skiff_spank.so"))
        .map(PathBuf::from)
        .unwrap_or_default();
    if path.is_absolute() && !path.exists() {
        return Check::fail(
            NAME,
            format!("{}: named in {} but missing", path.display(), file.display()),
            "administrator: make install",
        );
    }
    Check::pass(NAME, format!("{} ({})", path.display(), file.display()))
}

/// The lines of plugstack.conf and of the files that it includes (`include DIR/*.conf` is all that is used in practice).
fn plugstack_lines() -> Vec<(PathBuf, String)> {
    let main = slurm::setting("PlugStackConfig")
        .map(PathBuf::from)
        .unwrap_or_else(|| "/etc/slurm/plugstack.conf".into());
    let lines = |file: &Path| -> Vec<(PathBuf, String)> {
        let text = fs::read_to_string(file).default_on_error("a file that cannot be read loads no plug-in");
        text.lines()
            .map(str::trim)
            .filter(|l| !l.starts_with('#'))
            .map(|l| (file.to_path_buf(), l.to_owned()))
            .collect()
    };
    let mut all = lines(&main);
    let included: Vec<PathBuf> =
        all.iter().filter_map(|(_, l)| l.strip_prefix("include ")).map(|p| PathBuf::from(p.trim())).collect();
    for pattern in included {
        let dir = pattern.parent().unwrap_or(Path::new("/"));
        let dir = if dir.is_absolute() {
            dir.to_path_buf()
        } else {
            main.parent().unwrap_or(Path::new("/")).join(dir)
        };
        let matching = fs::read_dir(&dir).into_iter().flatten().flatten().map(|e| e.path());
        all.extend(matching.filter(|p| p.extension() == pattern.extension()).flat_map(|p| lines(&p)));
    }
    all
}

fn depot(context: &UserContext) -> Check {
    const NAME: &str = "depot";
    const LOCAL: [u64; 3] = [0xEF53, 0x5846_5342, 0x0102_1994];
    let dir = match context.depot() {
        Ok(dir) => dir,
        Err(e) => return Check::fail(NAME, e.message, e.hint),
    };
    let there = dir.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let kind = rustix::fs::statfs(there).map_or(0, |s| s.f_type as u64);
    if LOCAL.contains(&kind) {
        return Check::warn(
            NAME,
            format!("{} is on a local disk; the nodes may not see it", dir.display()),
            "`depot` in the configuration: a directory on a file system that all nodes share (`%u` is the user)",
        );
    }
    Check::pass(NAME, dir.display().to_string())
}

fn spool(context: &UserContext) -> Check {
    const NAME: &str = "spool bind";
    let dir = slurm::spool(context);
    match dir.exists() {
        true => Check::pass(NAME, format!("{}: batch scripts can be seen inside", dir.display())),
        false => Check::pass(NAME, format!("{} is not on this host (no slurmd)", dir.display())),
    }
}

/// Whether what limits jobs' `/tmp` can be kept here, if it is to be.
fn tmp_quota(context: &UserContext) -> Option<Check> {
    const NAME: &str = "jobs' /tmp";
    let slurm = &context.config.slurm;
    let bytes = slurm.tmp_quota.0?;
    let dir = match &slurm.tmp {
        JobTmp::Disk => Path::new(&slurm.cache),
        JobTmp::Directory(dir) => dir,
        JobTmp::Memory => {
            return Some(Check::warn(
                NAME,
                "in memory: `slurm.tmp_quota` limits nothing",
                "`run.memory` limits what is in memory",
            ));
        }
    };
    let is_kept = fs::File::open(dir).is_ok_and(|dir| project_quota::is_enforced(dir.as_fd()));
    Some(match is_kept {
        true => {
            Check::pass(NAME, format!("at most {} for each job, in {}", output::size(bytes), dir.display()))
        }
        false => Check::warn(
            NAME,
            format!("{}: `slurm.tmp_quota` limits nothing here", dir.display()),
            "administrator: on the nodes its file system needs project quotas: XFS mounted with pquota, ext4 with prjquota",
        ),
    })
}

fn munge() -> Check {
    const NAME: &str = "munge";
    match Path::new("/run/munge/munge.socket.2").exists() {
        true => Check::pass(NAME, "its socket is there, and inside"),
        false => Check::warn(
            NAME,
            "no socket in /run/munge",
            "administrator: start munged, or add its socket to `services`",
        ),
    }
}
