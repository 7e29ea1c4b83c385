//! A cluster whose root file system and home are on network storage: GlusterFS, its server and its FUSE clients all in the test bed. What
//! that adds to an MPI program that does nothing, warm, and after every node has forgotten what it knew of both.

use super::Setting;
use super::cluster::{EMPTY, seconds};
use super::people::{self, RunAs, UserDir};
use super::picture::Bar;
use super::result::{BenchResult, HostInfo, OVER_ALL, Series};
use super::stats;
use crate::testbed;

const SITE: &str = include_str!("site.sh");
const ROOT: &str = include_str!("root.sh");

/// Of Debian; no part of `make deps`.
const PACKAGES: [&str; 2] = ["glusterfs-server", "glusterfs-client"];

const NODES: usize = 2;

#[derive(clap::Args)]
pub struct Args {
    /// Install what it needs beyond `make deps`: Debian's GlusterFS
    #[arg(long)]
    install: bool,
}

/// Installs what is missing, if that is wanted. Outside of the test bed.
pub fn prepare(args: &Args) -> anyhow::Result<()> {
    if args.install { testbed::install_packages(&PACKAGES) } else { Ok(()) }
}

/// What is run, in the order of the figures.
struct Way {
    name: &'static str,
    command: String,
    cold: bool,
}

pub fn run(setting: &Setting) -> anyhow::Result<(BenchResult, Vec<Bar>)> {
    people::require(&["glusterd", "gluster", "salloc", "mpicc"])?;
    let machine = HostInfo::here()?;
    RunAs::Root.bash(&format!("cd /\nset -- up\n{SITE}"))?;
    let home = UserDir::new(&setting.user, "bench-gluster")?;
    let user = RunAs::User(&setting.user);
    let dir = home.path.display();
    user.bash(&format!("set -- {dir}/root\n{ROOT}"))?;
    home.write("empty.c", EMPTY)?;
    user.bash(&format!("mpicc -o {dir}/empty {dir}/empty.c"))?;
    let mpirun = format!("mpirun {dir}/empty");
    let within = |base: &str| format!("{} cluster run --base {base} -- {mpirun}", setting.skiff);
    let on_gluster = within(&format!("dir:{dir}/root"));
    let ways = [
        Way { name: "bare hosts", command: mpirun.clone(), cold: false },
        Way { name: "cluster, each host's root", command: within("host"), cold: false },
        Way { name: "cluster, root on GlusterFS", command: on_gluster.clone(), cold: false },
        Way { name: "cluster, root on GlusterFS, cold", command: on_gluster, cold: true },
    ];
    let mut samples = [const { vec![] }; 4];
    for round in 0..setting.rounds {
        eprintln!("round {} of {}", round + 1, setting.rounds);
        for index in 0..ways.len() {
            let index = (round + index) % ways.len();
            if ways[index].cold {
                RunAs::Root.bash(&format!("cd /\nset -- forget\n{SITE}"))?;
            } else {
                // The one before may have been cold.
                seconds(user, NODES, &ways[index].command)?;
            }
            samples[index].push(seconds(user, NODES, &ways[index].command)?);
        }
    }
    let mut series: Vec<Series> =
        ways.iter().zip(&samples).map(|(way, s)| Series::new(way.name, "s", s.clone())).collect();
    let bars =
        series.iter().enumerate().map(|(at, s)| Bar::over_all(&s.name, "s", s.spread, at > 0)).collect();
    for (way, own) in ways.iter().zip(&samples).skip(1) {
        series.push(Series::new(format!("{}, added", way.name), "s", stats::differences(own, &samples[0])));
    }
    let title = format!("An empty MPI program on {NODES} hosts, home on GlusterFS, s");
    Ok((BenchResult { name: "gluster", title, machine, lines: OVER_ALL, series, claims: vec![] }, bars))
}
