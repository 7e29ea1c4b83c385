//! What is said once per job and node of what its start has noted.

use std::path::Path;

use skiff_output as output;
use skiff_spec::fault::Fault;

/// Options of `skiff run` as messages have them, and those of srun that stand for them.
const OPTIONS: [(&str, &str); 5] = [
    ("--mpi ", "--container-mpi="),
    ("--module ", "--container-module="),
    ("--no-home", "--no-container-mount-home"),
    ("-v DIR", "--container-mounts=DIR"),
    ("-w DIR", "--container-workdir=DIR"),
];

/// A fault that speaks of `skiff run`, for who has typed the options of srun: `-v` and `-w` mean other things to it.
pub fn in_job_words(fault: Fault) -> Fault {
    let replaced =
        |text: &str| OPTIONS.iter().fold(text.to_owned(), |text, (ours, sruns)| text.replace(ours, sruns));
    Fault { message: replaced(&fault.message), hint: replaced(&fault.hint) }
}

/// Says what a record has, once.
pub fn tell_once(dir: &Path, record: &str, say: &dyn Fn(&str) -> String) {
    // Without the record there is nothing to say.
    let Ok(text) = std::fs::read_to_string(dir.join(record)) else { return };
    // Whoever makes this file says it; a script of a hundred steps would otherwise say it a hundred times.
    if !text.is_empty() && std::fs::File::create_new(dir.join(format!("{record}.told"))).is_ok() {
        output::note(&say(&text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_have_the_options_of_srun() {
        let fault = Fault::new("--mpi host: no module of this site provides an MPI for this host")
            .hint("`skiff module list` shows them, or --mpi image");
        let told = in_job_words(fault);
        assert_eq!(
            told.message,
            "--container-mpi=host: no module of this site provides an MPI for this host"
        );
        assert_eq!(told.hint, "`skiff module list` shows them, or --container-mpi=image");
        let fault =
            Fault::new("working directory /x").hint("-v DIR mounts a directory, -w DIR starts in another");
        assert_eq!(
            in_job_words(fault).hint,
            "--container-mounts=DIR mounts a directory, --container-workdir=DIR starts in another"
        );
    }
}
