//! What kernels of the NAS Parallel Benchmarks lose in an environment and in a container: IS sorts integers, with much to exchange, and EP
//! computes. Debian has no package of them; SimGrid's source has these two in C, which build with any MPI.

use std::path::Path;

use anyhow::{Context, ensure};

use super::super::result::{LimitCheck, Series};
use super::Job;

/// Percent that a kernel may take longer.
const LIMIT: f64 = 1.0;
/// The size of the problems.
const CLASS: char = 'A';
/// What SimGrid has in the place of MPI's header, and of calls of its own.
const MPI_HEADER: &str = "#include <mpi.h>\n#include <stdlib.h>\n#define SMPI_SHARED_MALLOC malloc\n\
    #define SMPI_SHARED_FREE free\n#define SMPI_SAMPLE_GLOBAL(first, last, next, ...) for (first; last; next)\n";
const TRACE_HEADER: &str = "#define TRACE_smpi_set_category(name)\n";

/// A kernel, and where its two ranks are.
const RUNS: [(&str, &str, &str); 3] =
    [("is", "on a node", "-N1 -n2"), ("is", "on two nodes", "-N2 -n2"), ("ep", "on a node", "-N1 -n2")];

/// Builds the kernels in the user's directory.
pub(super) fn build(job: &Job<'_>, sources: &Path) -> anyhow::Result<()> {
    for file in ["is.c", "ep.c", "nas_common.c", "nas_common.h"] {
        let source = sources.join(file);
        let text = std::fs::read_to_string(&source).with_context(|| source.display().to_string())?;
        job.home.write(&format!("npb-{file}"), &text)?;
    }
    job.home.write("npb-mpi.h", MPI_HEADER)?;
    job.home.write("npb-instr.h", TRACE_HEADER)?;
    let home = job.home.path.display();
    job.user
        .bash(&format!(
            "set -e; cd {home}; mkdir -p npb/smpi npb/simgrid; cp npb-mpi.h npb/smpi/mpi.h; cp npb-instr.h npb/simgrid/instr.h; \
             for file in is.c ep.c nas_common.c nas_common.h; do cp npb-$file npb/$file; done; \
             for kernel in is ep; do mpicc -w -O2 -Inpb -o $kernel npb/$kernel.c npb/nas_common.c -lm; done"
        ))
        .map(drop)
}

/// Each kernel on the host, in an environment and in a container, in the same rounds.
pub(super) fn measure(
    rounds: usize,
    job: &Job<'_>,
    series: &mut Vec<Series>,
    claims: &mut Vec<LimitCheck>,
) -> anyhow::Result<()> {
    let home = job.home.path.display();
    for (kernel, ranks, shape) in RUNS {
        let step = format!("--mpi=pmix {shape}");
        let own = format!("{home}/{kernel} 2 {CLASS}");
        let places = [
            ("host", format!("srun --environment=none {step} {own}")),
            ("environment", job.in_environment(&format!("{step} {own}"))),
            ("container", format!("srun {step} --container-image=bench-mpi /bin/{kernel} 2 {CLASS}")),
        ];
        let mut took = vec![vec![]; places.len()];
        for round in 0..rounds {
            eprintln!("NPB {kernel} {ranks}, round {} of {rounds}", round + 1);
            for index in 0..places.len() {
                let index = (round + index) % places.len();
                took[index].push(seconds(&job.user.bash(&places[index].1)?)?);
            }
        }
        for (index, ((place, _), samples)) in places.iter().zip(&took).enumerate() {
            let name = format!("NPB {}.{CLASS} {ranks}, {place}", kernel.to_uppercase());
            if index > 0 {
                let lost: Vec<f64> =
                    took[0].iter().zip(samples).map(|(host, here)| (here / host - 1.0) * 100.0).collect();
                claims.push(LimitCheck::new(name.clone(), "%", &lost, LIMIT));
            }
            series.push(Series::new(name, "s", samples.clone()));
        }
    }
    Ok(())
}

/// The time that a kernel tells, whose result must be right.
fn seconds(printed: &str) -> anyhow::Result<f64> {
    let of = |name: &str| {
        let line = printed.lines().find(|line| line.trim_start().starts_with(name));
        line.and_then(|line| line.split_once('=')).map(|(_, value)| value.trim())
    };
    ensure!(of("Verification") == Some("SUCCESSFUL"), "a kernel's result is wrong: {printed}");
    of("Time in seconds").and_then(|time| time.parse().ok()).with_context(|| printed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn a_kernel_tells_its_time_if_its_result_is_right() {
        let printed = "IS Benchmark Completed\n Time in seconds =                     2.23\n Verification    =               ";
        assert_eq!(seconds(&format!("{printed}SUCCESSFUL\n")).ok(), Some(2.23));
        assert!(seconds(&format!("{printed}UNSUCCESSFUL\n")).is_err());
        assert!(seconds("").is_err());
    }
}
