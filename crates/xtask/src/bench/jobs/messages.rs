//! What a message between two ranks takes, and what an exchange of two messages, in an environment and in a container, by the image's MPI and by the host's.

use anyhow::Context;

use super::super::people::RunAs;
use super::super::result::{LimitCheck, Series};
use super::Job;

/// The test's program: what is measured is what is checked there.
const EXCHANGE: &str = include_str!("../../../../../tests/slurm-mpi/exchange.c");

/// Percent that a message may take longer.
const LIMIT: f64 = 1.0;
/// Of as many batches of messages of a size the program tells the middle one.
const BATCHES: usize = 20;

/// An image with Open MPI, as Debian has it, with the program, with an empty one, and with the kernels of NPB where they were built.
const IMAGE: &str = r#"
lib=/usr/lib/x86_64-linux-gnu
for dir in openmpi/lib/openmpi3 pmix2/lib ucx; do mkdir -p mpi$lib/$dir; cp -aT $lib/$dir mpi$lib/$dir; done
for dir in /usr/share/openmpi /etc/openmpi; do mkdir -p mpi$dir; cp -aT $dir mpi$dir; done
find mpi -name '*.a' -delete
mkdir -p mpi/bin mpi/tmp && cp exchange empty mpi/bin
for kernel in is ep; do [ ! -e $kernel ] || cp $kernel mpi/bin; done
find mpi -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec ldd {} + 2>&- | sed -nE 's/.*(=> |\t)(\/[^ ]*) .*/\2/p' | sort -u |
    while read -r file; do [ -e "mpi$file" ] || install -D "$file" "mpi$file"; done
/sbin/ldconfig -r mpi
tar -cf mpi.tar -C mpi .
"#;

/// What a line of the program tells, in microseconds.
#[derive(Clone)]
struct MessageTimes {
    /// Bytes of a message.
    size: u64,
    /// Of a message, to and fro by turns.
    message: f64,
    /// Of two messages at one time, one from each.
    exchange: f64,
}

/// One of these times.
type TimeOf = fn(&MessageTimes) -> f64;

/// Makes the image, and the module of the host's MPI.
pub(super) fn prepare(job: &Job<'_>, skiff: &str) -> anyhow::Result<()> {
    job.home.write("exchange.c", EXCHANGE)?;
    let home = job.home.path.display();
    job.user.bash(&format!(
        "set -e; cd {home}; mpicc -O2 -o exchange exchange.c; {IMAGE} {skiff} import mpi.tar bench-mpi"
    ))?;
    RunAs::Root
        .bash("install -D -m 644 -t /etc/skiff/modules.d /usr/share/doc/skiff/modules/openmpi.toml")
        .map(drop)?;
    job.user.bash("srun -N2 --mpi=pmix --container-image=bench-mpi /bin/exchange times 1").map(drop)
}

/// Between two ranks of a node, and of two nodes.
pub(super) fn measure(
    rounds: usize,
    job: &Job<'_>,
    series: &mut Vec<Series>,
    claims: &mut Vec<LimitCheck>,
) -> anyhow::Result<()> {
    let home = job.home.path.display();
    for (ranks, shape) in [("on a node", "-N1 -n2"), ("on two nodes", "-N2 -n2")] {
        let step = format!("--mpi=pmix {shape}");
        let own = format!("{home}/exchange times {BATCHES}");
        let contained = format!("srun {step} --container-image=bench-mpi");
        let places = [
            ("host", format!("srun --environment=none {step} {own}")),
            ("environment", job.in_environment(&format!("{step} {own}"))),
            ("container", format!("{contained} /bin/exchange times {BATCHES}")),
            (
                "container, the host's MPI",
                format!("{contained} --container-mpi=host /bin/exchange times {BATCHES}"),
            ),
        ];
        let mut took = vec![vec![]; places.len()];
        for round in 0..rounds {
            eprintln!("messages {ranks}, round {} of {rounds}", round + 1);
            for index in 0..places.len() {
                let index = (round + index) % places.len();
                took[index].push(figures(&job.user.bash(&places[index].1)?)?);
            }
        }
        add((ranks, &places.map(|(name, _)| name)), &took, series, claims);
    }
    Ok(())
}

/// A line for each size.
fn figures(printed: &str) -> anyhow::Result<Vec<MessageTimes>> {
    let figure = |line: &str| {
        let [size, message, exchange] =
            line.split(' ').collect::<Vec<_>>().try_into().ok().context("not three figures")?;
        let (size, message, exchange) = (size.parse()?, message.parse()?, exchange.parse()?);
        anyhow::Ok(MessageTimes { size, message, exchange })
    };
    printed.lines().map(figure).collect::<anyhow::Result<_>>().with_context(|| printed.to_owned())
}

fn add(
    (ranks, places): (&str, &[&str]),
    took: &[Vec<Vec<MessageTimes>>],
    series: &mut Vec<Series>,
    claims: &mut Vec<LimitCheck>,
) {
    let sizes = took.first().and_then(|rounds| rounds.first()).map_or(0, Vec::len);
    let kinds: [(&str, TimeOf); 2] = [("", |times| times.message), ("exchange of ", |times| times.exchange)];
    for (at, (kind, figure)) in (0..sizes).flat_map(|at| kinds.map(|kind| (at, kind))) {
        let of = |place: usize| -> Vec<f64> { took[place].iter().map(|round| figure(&round[at])).collect() };
        let size = took[0][0][at].size;
        for (index, place) in places.iter().enumerate() {
            let name = format!("{kind}{size} B {ranks}, {place}");
            if index > 0 {
                let lost: Vec<f64> =
                    of(0).iter().zip(of(index)).map(|(host, here)| (here / host - 1.0) * 100.0).collect();
                claims.push(LimitCheck::new(name.clone(), "%", &lost, LIMIT));
            }
            series.push(Series::new(name, "us", of(index)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_exchanges_are_compared_with_those_of_the_host() {
        assert!(figures("0 1.5\n").is_err());
        assert!(figures("0 1.5 x\n").is_err());
        let of = |text: &str| vec![figures(text).expect("figures")];
        let took = [of("0 1.0 2.0\n8 1.0 4.0\n"), of("0 1.1 2.0\n8 1.0 5.0\n")];
        let (mut series, mut claims) = (vec![], vec![]);
        add(("here", &["host", "container"]), &took, &mut series, &mut claims);
        let named: Vec<_> = claims.iter().map(|claim| (&*claim.name, claim.spread.median.round())).collect();
        let wanted = [
            ("0 B here, container", 10.0),
            ("exchange of 0 B here, container", 0.0),
            ("8 B here, container", 0.0),
            ("exchange of 8 B here, container", 25.0),
        ];
        assert_eq!(named, wanted);
        assert_eq!(series.len(), 8);
    }
}
