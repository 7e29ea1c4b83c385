//! Variables of modules: set where a command starts, in the root, as only there it is known which modules fit. There it is also said why the
//! libraries of drivers do not.

use std::ffi::OsString;
use std::io::{self, Write};

use skiff_spec::device::{ModuleVariable, TELL_UNFIT};
use skiff_spec::plan::inside;
use skiff_sys::{IgnoreError, small_file};

/// The variables of a command with those of the modules that are used here; nothing if no module has any.
pub(crate) fn settled(env: &[(OsString, OsString)]) -> Option<Vec<(OsString, OsString)>> {
    let tells = env.iter().any(|(name, _)| name == TELL_UNFIT);
    if tells {
        tell_unfit();
    }
    (tells || env.iter().any(|(name, _)| of_module(name).is_some())).then(|| {
        // Without the list no module is used.
        let used =
            small_file::read_to_string(inside::USED_MODULES.as_ref()).unwrap_or_else(|_| String::new());
        with_used(env, &used)
    })
}

/// Says why drivers' libraries do not fit this root, if they do not.
fn tell_unfit() {
    let Ok(why) = small_file::read_to_string(inside::UNFIT_DRIVERS.as_ref()) else { return };
    let line = format!("skiff: the task has GPUs, and nothing of their driver: {why}\n");
    io::stderr()
        .write_all(line.as_bytes())
        .ignore_error("the task runs, and whoever started it does not listen");
}

fn of_module(name: &OsString) -> Option<ModuleVariable<'_>> {
    ModuleVariable::parse(name.to_str()?)
}

/// Of several values of one variable the last counts.
fn with_used(env: &[(OsString, OsString)], used: &str) -> Vec<(OsString, OsString)> {
    let mut settled: Vec<(OsString, OsString)> = vec![];
    for (word, value) in env.iter().filter(|(word, _)| word != TELL_UNFIT) {
        let name = match of_module(word) {
            Some(variable) if !used.lines().any(|known| known == variable.module) => continue,
            Some(variable) => variable.name.into(),
            None => word.clone(),
        };
        settled.retain(|(known, _)| *known != name);
        settled.push((name, value.clone()));
    }
    settled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_fit_set_their_variables() {
        let env = |text: &str| -> Vec<(OsString, OsString)> {
            let pairs = text.split_whitespace().filter_map(|setting| setting.split_once('='));
            pairs.map(|(name, value)| (name.into(), value.into())).collect()
        };
        let of_modules =
            "A=image B=image module/cxi/A=cxi module/mpi/A=mpi module/mpi/C=1 B=user module/mpi/B=mpi C=kept";
        for (used, want) in [
            ("", "A=image B=user C=kept"),
            ("cxi\n", "A=cxi B=user C=kept"),
            ("cxi\nmpi\n", "A=mpi B=mpi C=kept"),
            ("mp\n", "A=image B=user C=kept"),
        ] {
            let mut settled = with_used(&env(of_modules), used);
            settled.sort();
            assert_eq!(settled, env(want), "{used:?}");
        }
        assert_eq!(settled(&env("A=1 modules/x/A=2 module/A=3")), None);
        // No program gets the word that has its starter speak.
        assert_eq!(with_used(&env("A=1 device/tell-unfit="), ""), env("A=1"));
    }
}
