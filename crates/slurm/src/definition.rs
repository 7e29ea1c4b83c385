//! At submission: what an environment definition file says becomes the words of `--container-...`; those that were given are stronger.

use std::path::Path;

use skiff_cli::{ContainerArgs, SubmitArgs};
use skiff_edf::{Definition, Template, escaped, is_file_name};
use skiff_output as output;
use skiff_plan::definition::{AnnotatedHooks, image, mount_words, read, tell_definition, with_context};
use skiff_runtime::environments::Environment;
use skiff_sandbox::command::own_variable;
use skiff_spec::fault::Result;
use skiff_spec::job::names::WANTED_GPUS;
use skiff_spec::name::EnvName;
use skiff_spec::plan::inside;
use skiff_store::PREFIX;
use skiff_user::context::UserContext;

/// Whether a word means a definition: a file, or a name that no environment of the user's has and a definition does.
fn is_definition_word(context: &UserContext, word: &str) -> Result<bool> {
    if is_file_name(word) {
        return Ok(true);
    }
    if let Ok(name) = word.parse::<EnvName>()
        && Environment::named(context, name)?.exists()
    {
        tell_definition(context, word, "environment");
        return Ok(false);
    }
    Ok(with_context(context, |all| all.names().iter().any(|(name, _)| name == word)))
}

/// The word that may mean a definition.
pub fn word(submit: &SubmitArgs) -> Option<&str> {
    let named = submit.environment.as_deref().filter(|word| !word.starts_with(PREFIX));
    // In a job there are no environments, and the user's definitions may not be looked up.
    named.filter(|word| is_file_name(word) || !Path::new(inside::PROGRAM).exists())
}

/// What a definition and the words beside it ask for together; nothing if none is meant.
pub fn container(context: &UserContext, submit: &SubmitArgs) -> Result<Option<ContainerArgs>> {
    let Some(word) = word(submit) else { return Ok(None) };
    if !is_definition_word(context, word)? {
        return Ok(None);
    }
    let found = read(context, word)?;
    let hooks = AnnotatedHooks::here(context, &found);
    hooks.notes.iter().for_each(|line| output::note(line));
    let asked = ContainerArgs {
        modules: [hooks.modules, submit.container.modules.clone()].concat(),
        ..submit.container.clone()
    };
    merged(found, word, &asked).map(Some)
}

fn merged(found: Definition, word: &str, asked: &ContainerArgs) -> Result<ContainerArgs> {
    let named = asked.image.clone().map_or_else(|| image(&found, word), Ok)?;
    let mounts = found.mounts.iter().map(mount_words).collect::<Result<Vec<_>>>()?;
    Ok(ContainerArgs {
        image: Some(named),
        mounts: [mounts, asked.mounts.clone()].concat(),
        workdir: asked.workdir.clone().or(found.workdir),
        entrypoint: asked.entrypoint || (found.entrypoint && !asked.no_entrypoint),
        readonly: asked.readonly || !(found.writable || asked.writable),
        devices: found.devices,
        definition_variables: found.env.into_iter().map(variable).collect(),
        ..asked.clone()
    })
}

/// A variable as the job carries it: as it is written, but for those that ask for GPUs. What these say has to be known before there are
/// tasks, which alone have the user's variables.
fn variable((name, template): (String, Template)) -> (String, String) {
    let value = |name: &str| own_variable(name.as_ref())?.into_string().ok();
    let text = match WANTED_GPUS.contains(&&*name) {
        true => template.fill(&value).map_or_else(|_| template.to_string(), |text| escaped(&text)),
        false => template.to_string(),
    };
    (name, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_beside_a_definition_is_stronger() {
        let found = Definition {
            image: Some("debian:12".into()),
            workdir: Some("/w".into()),
            writable: false,
            ..Definition::default()
        };
        let alone = merged(found.clone(), "x", &ContainerArgs::default()).expect("sound");
        assert_eq!(
            (alone.image.as_deref(), alone.readonly, alone.entrypoint),
            (Some("debian:12"), true, true)
        );
        let asked = ContainerArgs {
            image: Some("ubuntu".into()),
            workdir: Some("/v".into()),
            writable: true,
            no_entrypoint: true,
            ..ContainerArgs::default()
        };
        let both = merged(found, "x", &asked).expect("sound");
        assert_eq!((both.image.as_deref(), both.readonly, both.entrypoint), (Some("ubuntu"), false, false));
        assert_eq!(both.workdir.as_deref(), Some(Path::new("/v")));
        let none = merged(Definition::default(), "x", &ContainerArgs::default());
        assert!(none.err().expect("no image").message.contains("it names no image"));
    }
}
