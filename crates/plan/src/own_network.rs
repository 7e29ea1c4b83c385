//! What MPI's ranks do not reach from a container that has a network of its own.

use skiff_output as output;
use skiff_sandbox::command::own_variable;
use skiff_spec::fault::Fault;

/// Says once per job step that MPI will not work in a container with a network of its own, if it is an MPI job that begins there.
pub fn tell_mpi(container: &str, hint: &str) {
    let value = |name: &str| own_variable(name.as_ref()).and_then(|value| value.into_string().ok());
    if let Some(unreached) = unreached(&value) {
        let told = Fault::new(format!(
            "{container}: it has a network of its own, from which MPI does not reach {unreached}"
        ));
        output::complain(&told.hint(hint));
    }
}

/// Whom an MPI library cannot connect to, said by the first rank alone. PMIx listens on the host's loopback address; PMI2 has a descriptor, and
/// only ranks of other nodes are out of reach.
fn unreached(value: &dyn Fn(&str) -> Option<String>) -> Option<&'static str> {
    let is_first = |name: &str| value(name).is_some_and(|rank| rank == "0");
    let has_other_nodes = || {
        value("SLURM_STEP_NUM_NODES")
            .and_then(|nodes| nodes.parse::<u32>().ok())
            .is_some_and(|nodes| nodes > 1)
    };
    if is_first("PMIX_RANK") {
        Some("PMIx, which is on the host's")
    } else if is_first("PMI_RANK") && has_other_nodes() {
        Some("the ranks of other nodes")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_tells_what_is_out_of_reach() {
        let (pmix, nodes) = (Some("PMIx, which is on the host's"), Some("the ranks of other nodes"));
        for (variables, want) in [
            ("PMIX_RANK=0 SLURM_STEP_NUM_NODES=1", pmix),
            ("PMIX_RANK=0", pmix),
            ("PMIX_RANK=1 SLURM_STEP_NUM_NODES=2", None),
            ("PMI_RANK=0 SLURM_STEP_NUM_NODES=2", nodes),
            ("PMI_RANK=1 SLURM_STEP_NUM_NODES=2", None),
            // In memory they reach each other.
            ("PMI_RANK=0 SLURM_STEP_NUM_NODES=1", None),
            ("SLURM_STEP_NUM_NODES=2", None),
        ] {
            let value = |name: &str| {
                let all = variables.split(' ').filter_map(|setting| setting.split_once('='));
                all.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
            };
            assert_eq!(unreached(&value), want, "{variables}");
        }
    }
}
