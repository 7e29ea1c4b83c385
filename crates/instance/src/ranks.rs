//! The ranks of an MPI job that each start a container of their own. Containers share neither memory nor processes, so ranks of one node cannot
//! exchange messages through shared memory: MPI libraries fail then, or are slow.

use skiff_output as output;
use skiff_sandbox::command::own_variable;
use skiff_spec::fault::Fault;

/// Variables with the number of ranks on this node, and with this one's number among them, as MPI's launchers set them.
const LOCAL: [(&str, &str); 3] = [
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"),
];
/// Variables without which no MPI library knows of other ranks.
const OF_MPI: [&str; 3] = ["PMIX_RANK", "PMI_RANK", "PMI_SIZE"];

/// Says once per node that ranks of one node get a container each, if that is about to happen.
pub fn tell_of_own_containers(image: &str) {
    let value = |name: &str| own_variable(name.as_ref()).and_then(|value| value.into_string().ok());
    if let Some(count) = ranks_to_tell(&value) {
        let told = Fault::new(format!(
            "image {image}: this node's {count} ranks run in a container each, which share no memory; MPI fails or is slow"
        ));
        output::complain(&told.hint(hint(image, value("SLURM_JOB_ID").is_some())));
    }
}

fn hint(image: &str, is_in_job: bool) -> String {
    let words = match is_in_job {
        true => format!("srun --container-image={image} ..."),
        false => format!("skiff run {image} mpirun ..."),
    };
    format!("`{words}` has all ranks of a node in one container")
}

/// The number of ranks of this node, in the first of them, if there are several.
fn ranks_to_tell(value: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
    OF_MPI.iter().find_map(|name| value(name))?;
    let (count, rank) = LOCAL.iter().find_map(|(count, rank)| Some((value(count)?, value(rank)?)))?;
    // Slurm says it of all nodes: 2(x3),1.
    let count = count.split(',').filter_map(|nodes| nodes.split('(').next()?.parse().ok()).max()?;
    (count > 1 && rank == "0").then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_several_ranks_is_told() {
        for (variables, want) in [
            ("PMIX_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0", Some(2)),
            ("PMIX_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1", None),
            ("PMIX_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0", None),
            ("PMI_RANK=0 PMI_SIZE=4 MPI_LOCALNRANKS=4 MPI_LOCALRANKID=0", Some(4)),
            ("PMIX_RANK=0 SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_LOCALID=0", Some(2)),
            ("PMIX_RANK=0 SLURM_STEP_TASKS_PER_NODE=1(x4) SLURM_LOCALID=0", None),
            // Without MPI each task is one by itself.
            ("SLURM_STEP_TASKS_PER_NODE=8 SLURM_LOCALID=0", None),
            ("", None),
        ] {
            let value = |name: &str| {
                let is_it = |(known, _): &(&str, &str)| *known == name;
                let all = variables.split(' ').filter_map(|setting| setting.split_once('='));
                all.into_iter().find(is_it).map(|(_, value)| value.to_owned())
            };
            assert_eq!(ranks_to_tell(&value), want, "{variables}");
        }
    }
}
