//! What runs over the networks: two ranks, one on each of two hosts.

use anyhow::{Context, ensure};

use super::super::people::{self, RunAs, UserDir};
use super::super::workload;
use super::Which;
use crate::testbed;

const MESSAGES: &str = include_str!("messages.c");

/// Bytes of a message.
pub const SIZES: [u32; 7] = [0, 16, 256, 4 << 10, 64 << 10, 1 << 20, 4 << 20];

/// Of Debian; too large for `make deps`.
const OPENFOAM: [&str; 2] = ["openfoam", "openfoam-examples"];

/// How often HPL runs in a row, as often as it can: one run is over too soon to tell anything, and with more unknowns hpcc's other programs
/// take minutes.
const HPL_TIMES: usize = 20;

/// Starts a rank. The hosts of the test bed share one machine, and mpirun would bind the first rank of each to its first processor.
const PINNED: &str = "#!/bin/sh\nexport OPENBLAS_NUM_THREADS=1 WM_PROJECT_DIR=/usr/share/openfoam\n\
                      exec taskset -c \"$OMPI_COMM_WORLD_RANK\" \"$@\"\n";

/// The tutorial as it is but for its being two parts, its end, and its writing nothing meanwhile.
const DAM_BREAK: &str = "set -eu
rm -rf dam-break
cp -r /usr/share/doc/openfoam-examples/examples/multiphase/interFoam/laminar/damBreak/damBreak dam-break
cd dam-break
find . -name '*.gz' -exec gunzip {} +
sed -i 's/^numberOfSubdomains.*/numberOfSubdomains 2;/; s/(2 2 1)/(2 1 1)/' system/decomposeParDict
sed -i 's/^endTime .*/endTime END;/; s/^writeInterval .*/writeInterval 1000;/' system/controlDict
export WM_PROJECT_DIR=/usr/share/openfoam
blockMesh
setFields
decomposePar
";

/// One program with its arguments.
pub struct BenchProgram {
    /// In the user's directory; prints what `read` reads.
    pub script: String,
    /// What it measures, in the order of the figures: what and in which unit, of which less is better but for GFLOPS.
    pub figures: Vec<(String, &'static str)>,
    pub read: fn(&str) -> anyhow::Result<Vec<f64>>,
}

/// What the chosen one needs beyond `make deps`. Outside of the test bed, which has no network.
pub fn install(which: Which) -> anyhow::Result<()> {
    if which != Which::DamBreak {
        return Ok(());
    }
    testbed::install_packages(&OPENFOAM)
}

/// Makes it ready in the user's directory.
pub fn prepare(
    which: Which,
    home: &UserDir,
    user: RunAs<'_>,
    args: &super::Args,
) -> anyhow::Result<BenchProgram> {
    home.write("pinned", PINNED)?;
    let dir = home.path.display();
    user.bash(&format!("chmod +x {dir}/pinned"))?;
    // What runs inside is to talk by nothing but TCP, whatever else this machine has.
    let mpirun = format!(
        "export LC_ALL=C OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self\ncd {dir}\n\
         mpirun() {{ timeout 300 /usr/bin/mpirun --quiet --bind-to none -n 2 {dir}/pinned \"$@\"; }}\n"
    );
    match which {
        Which::Messages => messages(home, user, &mpirun),
        Which::Hpl => hpl(home, args.hpl_size, &mpirun),
        Which::DamBreak => dam_break(home, user, args.dam_break_end, &mpirun),
    }
}

fn messages(home: &UserDir, user: RunAs<'_>, mpirun: &str) -> anyhow::Result<BenchProgram> {
    people::require(&["mpicc", "mpirun"])?;
    home.write("messages.c", MESSAGES)?;
    let dir = home.path.display();
    user.bash(&format!("mpicc -O2 -o {dir}/messages {dir}/messages.c"))?;
    let sizes = SIZES.map(|size| size.to_string()).join(" ");
    let figures = ["to and fro", "exchange"]
        .iter()
        .flat_map(|what| SIZES.map(|size| (format!("{what} {}", in_bytes(size)), "us")));
    Ok(BenchProgram {
        script: format!("{mpirun}mpirun ./messages {sizes}\n"),
        figures: figures.collect(),
        read: |text| {
            let lines: Vec<Vec<f64>> = text
                .lines()
                .map(|line| line.split(' ').map(|word| word.parse().context("a number")).collect())
                .collect::<anyhow::Result<_>>()?;
            ensure!(lines.iter().all(|line| line.len() == 3) && lines.len() == SIZES.len(), "{text}");
            Ok((1..3).flat_map(|column| lines.iter().map(move |line| line[column])).collect())
        },
    })
}

fn in_bytes(size: u32) -> String {
    match size {
        0..1024 => format!("{size} B"),
        0x400..0x10_0000 => format!("{} KiB", size >> 10),
        _ => format!("{} MiB", size >> 20),
    }
}

fn hpl(home: &UserDir, size: u32, mpirun: &str) -> anyhow::Result<BenchProgram> {
    people::require(&["hpcc", "mpirun"])?;
    home.write("hpccinf.txt", &workload::hpl_input(2, size, HPL_TIMES))?;
    Ok(BenchProgram {
        script: format!(
            "{mpirun}rm -f hpccoutf.txt\nmpirun hpcc && grep -q ^Success=1 hpccoutf.txt && cat hpccoutf.txt\n"
        ),
        figures: vec![("HPL, the best run".into(), "GFLOPS"), ("HPL, all runs".into(), "GFLOPS")],
        read: speeds,
    })
}

/// The speed of the best of the runs in a row, which each have a line, and that of all: what was computed, by the time that it took. (The
/// best is what HPL is known by, and what others on the machine disturb least.)
fn speeds(text: &str) -> anyhow::Result<Vec<f64>> {
    let lines = text.lines().filter(|line| line.starts_with("WR"));
    let speed = |line: &str| line.split_whitespace().last().and_then(|word| word.parse::<f64>().ok());
    let speeds: Vec<f64> = lines.filter_map(speed).collect();
    ensure!(speeds.len() == HPL_TIMES, "HPL has run {} times instead of {HPL_TIMES}", speeds.len());
    let best = speeds.iter().copied().fold(0.0, f64::max);
    Ok(vec![best, HPL_TIMES as f64 / speeds.iter().map(|speed| 1.0 / speed).sum::<f64>()])
}

fn dam_break(home: &UserDir, user: RunAs<'_>, end: f64, mpirun: &str) -> anyhow::Result<BenchProgram> {
    people::require(&["interFoam", "blockMesh", "mpirun"]).context("hint: --install")?;
    let dir = home.path.display();
    user.bash(&format!("cd {dir}\n{}", DAM_BREAK.replace("END", &end.to_string())))?;
    Ok(BenchProgram {
        script: format!(
            "{mpirun}cd dam-break\nbegin=$EPOCHREALTIME\n\
             mpirun interFoam -parallel >log || {{ cat log >&2; exit 1; }}\nend=$EPOCHREALTIME\n\
             grep -q ^End log && echo took $((${{end/./}} - ${{begin/./}}))\n"
        ),
        figures: vec![("dam break".into(), "s")],
        read: |text| Ok(vec![workload::number_after(text, "took")? / 1e6]),
    })
}

#[cfg(test)]
mod tests {
    use super::{HPL_TIMES, in_bytes, speeds};

    #[test]
    fn the_speed_of_all_runs_counts_by_their_time() {
        let line = |speed: &str| {
            format!("WR11C2R4        1500    80     1     2               0.22              {speed}\n")
        };
        let half = HPL_TIMES / 2;
        let text = line("1.000e+01").repeat(half) + &line("5.000e+00").repeat(HPL_TIMES - half);
        let [best, all] = speeds(&text).expect("all ran")[..] else { panic!("two figures") };
        assert!((best - 10.0).abs() < 1e-9 && (all - 20.0 / 3.0).abs() < 1e-9);
        let once = speeds(&line("1.000e+01")).expect_err("too few").to_string();
        assert!(once.starts_with("HPL has run 1 times"), "{once}");
    }

    #[test]
    fn sizes_have_names() {
        assert_eq!(
            [0, 256, 4096, 65_536, 1 << 20, 4 << 20].map(in_bytes),
            ["0 B", "256 B", "4 KiB", "64 KiB", "1 MiB", "4 MiB"]
        );
    }
}
