//! What is run in an image: the words, variables and directory that the user, their session and the image's maker want, in that order.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use skiff_oci::manifest::ExecConfig;
use skiff_sandbox::command::{CommandSpec, DEFAULT_PATH};
use skiff_spec::fault::Result;
use skiff_spec::image::ImageId;
use skiff_spec::plan::Identity;
use skiff_user::context::UserContext;

use crate::definition::set_variables;
use crate::inside::ProcessArgs;

/// Variables that name places of the host's root, by the beginnings of their names: inside they would lead astray.
const HOSTS_OWN: [&str; 11] = [
    "PATH",
    "LD_",
    "PYTHON",
    "PERL5LIB",
    "PERLLIB",
    "MANPATH",
    "INFOPATH",
    "LOCPATH",
    "XDG_DATA_DIRS",
    "XDG_CONFIG_DIRS",
    "MODULEPATH",
];

/// The image whose variables are set.
const IMAGE: &str = "SKIFF_IMAGE";

/// The command: `words` behind the image's entry point; without any, what its maker meant to be run.
pub fn command(
    context: &UserContext,
    (id, exec): (ImageId, &ExecConfig),
    inside: &ProcessArgs,
    entrypoint: Option<&OsStr>,
    words: &[OsString],
) -> Result<CommandSpec> {
    let argv = words_of(exec, entrypoint, words);
    let mut command =
        with_variables(context, (id, exec), inside, inside.identity_in_image(context.route()), &argv)?;
    if inside.workdir.is_none() && !exec.working_dir.is_empty() {
        // Docker begins a relative one at the root.
        command.cwd = Path::new("/").join(&exec.working_dir);
    }
    Ok(command)
}

/// Has root inside, or whom it becomes, be at home where the image has it: for roots that show nothing of the user's.
pub fn be_at_home_there(command: &mut CommandSpec, exec: &ExecConfig, inside: &ProcessArgs) {
    if command.user.is_none() {
        inside.become_other(command, "0");
    }
    let makers = exec.env.iter().rev().find_map(|setting| setting.strip_prefix("HOME="));
    if let Some(home) = makers
        && !inside.settings().iter().any(|(asked, _)| asked == "HOME")
    {
        command.set("HOME", home);
    }
}

/// A command in an environment over an image. There one works: it is for the user to say what runs where, and a shell is what they
/// get if they say nothing; their own may be missing.
pub fn in_environment(
    context: &UserContext,
    image: (ImageId, &ExecConfig),
    inside: &ProcessArgs,
    words: &[OsString],
) -> Result<CommandSpec> {
    let shell = [OsString::from("/bin/sh")];
    let words = if words.is_empty() { &shell } else { words };
    with_variables(context, image, inside, inside.identity(), words)
}

/// The user's variables without those of the host's root, the image's, and what they have asked for, each the stronger the later.
fn with_variables(
    context: &UserContext,
    (id, exec): (ImageId, &ExecConfig),
    inside: &ProcessArgs,
    identity: Identity,
    argv: &[OsString],
) -> Result<CommandSpec> {
    let mut command = inside.command_as(context, identity, argv);
    enter(&mut command, id, exec);
    set_variables(&mut command, &inside.templates)?;
    for (name, value) in inside.settings() {
        command.set(name, value);
    }
    Ok(command)
}

/// What comes from elsewhere into an image loses what leads to places there, and gets what its maker meant. What was in this one before
/// keeps what has been set there.
pub fn enter(command: &mut CommandSpec, id: ImageId, exec: &ExecConfig) {
    if is_in(command, id) {
        return;
    }
    let id = id.to_string();
    let keep = |name: &OsStr| !HOSTS_OWN.iter().any(|begin| name.as_bytes().starts_with(begin.as_bytes()));
    command.env.retain(|(name, _)| keep(name));
    for setting in &exec.env {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        // Their home is mounted, whatever the image's maker called home.
        if !name.is_empty() && name != "HOME" {
            command.set(name, value);
        }
    }
    if command.var("PATH").is_none() {
        command.set("PATH", DEFAULT_PATH);
    }
    command.set(IMAGE, id);
}

/// Whether it comes from this very image.
pub fn is_in(command: &CommandSpec, id: ImageId) -> bool {
    command.var(IMAGE).is_some_and(|set| set == id.to_string().as_str())
}

fn words_of(exec: &ExecConfig, entrypoint: Option<&OsStr>, words: &[OsString]) -> Vec<OsString> {
    let own = |list: &[String]| list.iter().map(OsString::from).collect::<Vec<_>>();
    let mut argv = match entrypoint {
        Some(program) if program.is_empty() => vec![],
        Some(program) => vec![program.to_owned()],
        None => own(&exec.entrypoint),
    };
    match words {
        // The arguments that its maker meant belong to their own entry point.
        [] if entrypoint.is_none() => argv.extend(own(&exec.cmd)),
        words => argv.extend(words.iter().cloned()),
    }
    if argv.is_empty() { vec!["/bin/sh".into()] } else { argv }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_dockers() {
        let exec = ExecConfig {
            entrypoint: vec!["/entry".into(), "-x".into()],
            cmd: vec!["default".into()],
            ..ExecConfig::default()
        };
        let words = |entrypoint: Option<&str>, words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let argv = words_of(&exec, entrypoint.map(OsStr::new), &words);
            argv.iter().map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(None, &[]), "/entry -x default");
        assert_eq!(words(None, &["a", "b"]), "/entry -x a b");
        assert_eq!(words(Some("ls"), &[]), "ls");
        assert_eq!(words(Some("ls"), &["-l"]), "ls -l");
        assert_eq!(words(Some(""), &["id"]), "id");
        assert_eq!(words(Some(""), &[]), "/bin/sh");
        assert_eq!(words_of(&ExecConfig::default(), None, &[]), ["/bin/sh"]);
    }
}
