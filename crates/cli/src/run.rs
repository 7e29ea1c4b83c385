//! The words of `skiff run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use skiff_spec::checkpoint::CheckpointInterval;
use skiff_spec::name::EnvName;

use crate::root::{HabitArgs, RootArgs};
use crate::show::DryRunArgs;

/// A plan says all of this itself.
#[rustfmt::skip]
const BESIDE_PLAN: [&str; 32] = [
    "root", "me", "env", "env_files", "cleanenv", "workdir", "writable", "tmpfs", "shm_size", "hostname", "ulimits", "device", "gpus", "nv", "rocm", "module", "mpi", "user",
    "pull", "mounts", "net", "contain", "containall", "no_home", "base", "entrypoint", "untrusted", "checkpoint", "checkpoint_every", "detach", "name", "command",
];

#[derive(Args, Debug, Default)]
#[command(mut_arg("net", |net| net.help(
    "Network: host, none, private (outgoing connections only), or a site network (`skiff net list`) [default: host, or none \
     with --untrusted]"
)))]
pub struct RunArgs {
    #[command(flatten)]
    pub root: RootArgs,
    /// Base to run over: host, or image:IMAGE (then all other words are the command)
    #[arg(long, value_name = "BASE")]
    pub base: Option<String>,
    /// Run this program instead of the image's entry point
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<OsString>,
    /// Run an image you do not trust: --containall, no network, no capabilities, fewer system calls
    #[arg(long, conflicts_with = "checkpoint")]
    pub untrusted: bool,
    #[command(flatten)]
    pub show: DryRunArgs,
    /// Run as an instance of this name, which can be checkpointed and migrated
    #[arg(long, value_name = "INSTANCE", conflicts_with = "me")]
    pub checkpoint: Option<EnvName>,
    /// Save it every so often while it runs: 30s, 10m, 2h, 1d, or auto
    #[arg(long, value_name = "TIME|auto", requires = "checkpoint")]
    pub checkpoint_every: Option<CheckpointInterval>,
    /// Run what `skiff run --dry-run --json` printed to this file, or to standard input (-)
    #[arg(long, value_name = "FILE", conflicts_with_all = BESIDE_PLAN)]
    pub plan: Option<PathBuf>,
    /// Run in the background, as an instance; print its name
    #[arg(short, long, conflicts_with = "untrusted")]
    pub detach: bool,
    /// Name of the instance, with --detach [default: after the image]
    #[arg(long, value_name = "INSTANCE", conflicts_with = "checkpoint")]
    pub name: Option<EnvName>,
    #[command(flatten)]
    pub habit: HabitArgs,
    /// Whether `--` stands before the first word, so that it is no image.
    #[arg(skip)]
    pub over_host: bool,
    /// Image (a name, localhost/NAME, oras://SERVER/NAME:TAG, or a file or directory as for `skiff import`), and a command in it
    /// [default: the image's own]; or, after --, a command over the host's root [default: your shell]
    #[arg(trailing_var_arg = true, value_names = ["IMAGE", "COMMAND"])]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_stands_alone() {
        let run = RunArgs::augment_args(clap::Command::new("run"));
        // Whether it is shown, and what is accepted for habit.
        let others =
            ["dry_run", "json", "plan", "remove", "tty", "interactive", "init", "read_only", "platform"];
        let ids = run.get_arguments().map(|arg| arg.get_id().as_str());
        let mut rest: Vec<_> = ids.filter(|id| !others.contains(id)).collect();
        let mut excluded = BESIDE_PLAN.to_vec();
        rest.sort_unstable();
        excluded.sort_unstable();
        assert_eq!(rest, excluded);
    }
}
