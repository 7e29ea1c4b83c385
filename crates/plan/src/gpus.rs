//! GPUs: which are wanted, by the user and by an image's maker, and which ones a job has.

use skiff_cdi::Granted;
use skiff_sandbox::command::own_variable;
use skiff_spec::job::names;

use crate::device_words::{GPUS, GRANTED};

/// The word by which an image asks for GPUs, as NVIDIA's and AMD's own images do: by a variable, which the user's own wins over, and a
/// definition's over that.
#[must_use]
pub fn of_image(of_definition: &[String], of_image: &[String]) -> Option<String> {
    let last = |settings: &[String], name: &str| {
        let value = |setting: &String| setting.strip_prefix(name)?.strip_prefix('=').map(String::from);
        settings.iter().rev().find_map(value)
    };
    let own = |name: &str| own_variable(name.as_ref()).and_then(|value| value.into_string().ok());
    let own = |name: &str| users_word(name, &own);
    let wanted = names::WANTED_GPUS
        .iter()
        .find_map(|name| last(of_definition, name).or_else(|| own(name)).or_else(|| last(of_image, name)));
    let is_none = |wanted: &str| ["", "void", "none"].contains(&wanted);
    wanted.filter(|wanted| !is_none(wanted)).map(|_| format!("{GPUS}{GRANTED}"))
}

/// The user's own variable that asks for GPUs. `void` is the word of a container's GPUs, which says there that they are there already: a step
/// with a container of its own is meant to have what its image asks for.
fn users_word(name: &str, own: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    own(name).filter(|value| value != "void")
}

/// What this user's job lets them have.
#[must_use]
pub fn granted() -> Granted {
    // Before a step's tasks Slurm has not said which they get. Their root has the host's own nodes, which Slurm guards.
    if own_variable(names::STEPD_PID.as_ref()).is_some() {
        return Granted::Everything;
    }
    Granted::of(|name| own_variable(name.as_ref()).and_then(|value| value.into_string().ok()))
}

/// Whether a job has GPUs for sure, as far as Slurm has said before the tasks begin.
#[must_use]
pub fn is_known_to_have_gpus() -> bool {
    names::GPUS.iter().any(|name| own_variable(name.as_ref()).is_some())
}

/// Whether this user's job has a GPU, or need not be given one.
#[must_use]
pub fn has_granted() -> bool {
    granted() != Granted::Only(vec![])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn void_in_a_container_is_not_the_users_word() {
        for (value, want) in [("void", None), ("none", Some("none")), ("0", Some("0"))] {
            let own = |_: &str| Some(value.to_owned());
            assert_eq!(users_word("NVIDIA_VISIBLE_DEVICES", &own).as_deref(), want, "{value}");
        }
    }
}
