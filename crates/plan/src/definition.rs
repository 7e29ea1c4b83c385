//! Environment definition files (EDF): what they say becomes what is asked of a root.

use std::ffi::OsString;
use std::path::Path;

use skiff_edf::{Definition, DefinitionContext, DefinitionMount, DefinitionMountKind, LONGEST, Template};
use skiff_modules::{ModuleCatalog, SiteModule, When};
use skiff_output as output;
use skiff_sandbox::command::{CommandSpec, own_variable};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_user::context::UserContext;

use crate::device_words::MODULE;
use crate::named_file::not_expanded;
use crate::{DEVICE, RootOptions, RootSource, data, modules, named_file};

/// Reads a definition: of a file, or of a name that is looked up.
///
/// # Errors
/// What is wrong with it, with the line.
pub fn read(context: &UserContext, word: &str) -> Result<Definition> {
    let mut found = with_context(context, |context| Definition::read(word, context)).map_err(|e| {
        let hint = not_expanded(word).unwrap_or(e.hint.clone());
        Fault::new(e.to_string()).hint(hint)
    })?;
    for mount in &mut found.mounts {
        mount.source = from_here(&mount.source)?;
    }
    Ok(found)
}

/// The source of a mount, in full where it counts from the working directory.
fn from_here(source: &str) -> Result<String> {
    let rest = match source {
        "." => "",
        _ => match source.strip_prefix("./") {
            Some(rest) => rest,
            None => return Ok(source.to_owned()),
        },
    };
    let here = std::env::current_dir().context(|| "the directory you are in")?;
    let path = here.join(rest).into_os_string().into_string();
    path.map_err(|path| Fault::new(format!("{}: not UTF-8", path.display())))
}

/// Does something with what definitions may ask for.
pub fn with_context<T>(context: &UserContext, act: impl FnOnce(&DefinitionContext<'_>) -> T) -> T {
    let variable = |name: &str| own_variable(name.as_ref());
    let read = |path: &Path| named_file::read_at_most(path, LONGEST as u64);
    act(&DefinitionContext { variable: &variable, home: context.home.clone(), read: &read })
}

/// A mount of a definition as the command line has it.
///
/// # Errors
/// One that cannot be had.
pub fn mount_words(mount: &DefinitionMount) -> Result<String> {
    let DefinitionMount { source, target, is_read_only, propagation, kind } = mount;
    match kind {
        // On the command line a comma before a path begins another mount.
        _ if [source, target].iter().any(|path| path.contains(",/") || path.contains(",.")) => {
            Err(Fault::new(format!("mount {source}:{target}: a comma before a slash or dot cannot be in it"))
                .hint("give the directory another name"))
        }
        DefinitionMountKind::Bind => {
            let flags: Vec<&str> = is_read_only.then_some("ro").into_iter().chain(*propagation).collect();
            let colon = if flags.is_empty() { "" } else { ":" };
            Ok(format!("{source}:{target}{colon}{}", flags.join(",")))
        }
        DefinitionMountKind::Squashfs => Ok(data::word(source, target)),
    }
}

/// The image that a definition names.
///
/// # Errors
/// It names none.
pub fn image(definition: &Definition, word: &str) -> Result<String> {
    definition.image.clone().ok_or_else(|| {
        Fault::new(format!("definition {word}: it names no image"))
            .hint("`image = \"debian:12\"`, there or in a file of base_environment")
    })
}

/// What a definition's annotations for hooks ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnotatedHooks {
    /// Modules of the site's, which are called as the hooks are.
    pub modules: Vec<String>,
    /// What is not as the annotations say.
    pub notes: Vec<String>,
}

impl AnnotatedHooks {
    /// As far as this site's modules go.
    #[must_use]
    pub fn here(context: &UserContext, definition: &Definition) -> Self {
        match definition.annotations.is_empty() {
            true => Self::default(),
            false => Self::of(definition, &ModuleCatalog::read(&modules::dirs(&context.config))),
        }
    }

    /// `com.hooks.NAME.enabled = "true"` turns on the module of this name.
    fn of(definition: &Definition, catalog: &ModuleCatalog) -> Self {
        let mut hooks = Self::default();
        for (name, value) in &definition.annotations {
            let Some(rest) = name.strip_prefix("com.hooks.") else { continue };
            let is_off = matches!(&**value, "" | "false" | "0" | "off");
            let known = |module: &str| catalog.modules.iter().find(|known| known.name == module);
            let note = |why: &str| format!("annotation {name}={value}: {why}");
            match (rest.strip_suffix(".enabled"), is_off) {
                (Some(module), false) => match known(module) {
                    Some(_) => hooks.modules.push(module.into()),
                    None => hooks
                        .notes
                        .push(note(&format!("this site has no module {module} (skiff module list)"))),
                },
                (Some(module), true) => {
                    let is_always =
                        |found: &SiteModule| found.file.as_ref().is_ok_and(|file| file.when == When::Always);
                    if known(module).is_some_and(is_always) {
                        hooks.notes.push(note("every container has this module"));
                    }
                }
                (None, false) => hooks.notes.push(note("nothing here acts on it")),
                (None, true) => {}
            }
        }
        hooks
    }
}

impl RootOptions {
    /// With what a definition says, if it is one that was named in the place of an image. What else was said is stronger.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn with_definition(self, context: &UserContext) -> Result<Self> {
        let word = match &self.source {
            RootSource::Image(word) if is_definition(word) => word.clone(),
            RootSource::Image(word) => {
                tell_definition(context, word, "image");
                return Ok(self);
            }
            RootSource::Host => return Ok(self),
        };
        let found = read(context, &word)?;
        let hooks = AnnotatedHooks::here(context, &found);
        if self.untrusted && !is_closed(&found, &hooks) {
            return Err(Fault::new(format!(
                "definition {word}: with --untrusted its mounts, devices and variables are not taken, nor its hooks"
            ))
            .hint("name what the programs may have: -v, --device, -e, --module"));
        }
        hooks.notes.iter().for_each(|line| output::note(line));
        let hooks = hooks.modules.iter().map(|module| format!("{MODULE}{module}")).collect();
        let mounts = found.mounts.iter().map(mount_words).collect::<Result<Vec<_>>>()?;
        let devices = found.devices.iter().map(|device| format!("{DEVICE}{device}")).collect();
        let mut inside = self.inside;
        inside.workdir = inside.workdir.or_else(|| found.workdir.clone());
        inside.templates = found.env.clone().into_iter().collect();
        Ok(Self {
            source: RootSource::Image(image(&found, &word)?),
            entrypoint: self.entrypoint.or_else(|| (!found.entrypoint).then(OsString::new)),
            mounts: [mounts, devices, hooks, self.mounts].concat(),
            writable: self.writable || (found.writable && !self.read_only),
            inside,
            ..self
        })
    }
}

/// Says that a definition is not used which has the name of what is.
pub fn tell_definition(context: &UserContext, name: &str, used: &str) {
    if let Some(file) = with_context(context, |all| all.file_of_name(name)) {
        output::note(&format!("{used} {name} is used, and not the definition {}", file.display()));
    }
}

/// Whether a definition opens nothing of the host's to the programs. Modules have devices, mounts and variables, too.
fn is_closed(found: &Definition, hooks: &AnnotatedHooks) -> bool {
    found.mounts.is_empty()
        && found.devices.is_empty()
        && hooks.modules.is_empty()
        && found.env.values().all(Template::is_plain)
}

/// Whether a word in the place of an image is a definition.
#[must_use]
pub fn is_definition(word: &str) -> bool {
    Path::new(word).extension().is_some_and(|ending| ending == "toml")
}

/// The variables of a definition, as a job or an instance has noted them.
///
/// # Errors
/// One is not as definitions have them.
pub fn templates(variables: &[(String, String)]) -> Result<Vec<(String, Template)>> {
    let parsed = |(name, text): &(String, String)| {
        let template = Template::parse(text).map_err(|e| Fault::new(format!("variable {name}: {e}")))?;
        Ok((name.clone(), template))
    };
    variables.iter().map(parsed).collect()
}

/// Sets the variables of a definition, in which those count that the command has by now: the user's that are passed on, and the image's over
/// them. One that is empty is unset.
///
/// # Errors
/// One that stands in another's value, and is not set.
pub fn set_variables(command: &mut CommandSpec, templates: &[(String, Template)]) -> Result<()> {
    // All are filled in before the first is set: they do not count for each other.
    let value = |name: &str| command.var(name).map(OsString::from).and_then(|value| value.into_string().ok());
    let filled = |(name, template): &(String, Template)| {
        let filled = template.fill(&value).map_err(|e| {
            Fault::new(format!("variable {name} of the definition: {e}"))
                .hint("variables of the user's and of the image's may stand there; ${NAME:-TEXT} stands for TEXT where NAME is not set")
        });
        Ok((name.clone(), filled?))
    };
    let filled = templates.iter().map(filled).collect::<Result<Vec<_>>>()?;
    for (name, value) in filled {
        match value.is_empty() {
            true => command.env.retain(|(set, _)| *set != *name),
            false => command.set(&name, value),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_modules_of_the_site() {
        let module = |name: &str, text: &str| SiteModule {
            name: name.into(),
            path: name.into(),
            file: skiff_modules::ModuleFile::parse(text),
        };
        let catalog = ModuleCatalog {
            modules: vec![
                module("aws_ofi_nccl", "description = ''"),
                module("cxi", "description = ''\nwhen = 'always'"),
            ],
        };
        let annotations = [
            ("com.hooks.aws_ofi_nccl.enabled", "true"),
            ("com.hooks.aws_ofi_nccl.variant", "cuda12"),
            ("com.hooks.cxi.enabled", "false"),
            ("com.hooks.ssh.enabled", "true"),
            ("com.hooks.ssh.port", ""),
            ("org.other", "true"),
        ];
        let annotations = annotations.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let definition = Definition { annotations, ..Definition::default() };
        let hooks = AnnotatedHooks::of(&definition, &catalog);
        assert_eq!(hooks.modules, ["aws_ofi_nccl"]);
        // Which `--untrusted` does not let a definition have.
        assert!(!is_closed(&definition, &hooks));
        assert!(is_closed(&definition, &AnnotatedHooks { modules: vec![], ..hooks.clone() }));
        assert_eq!(
            hooks.notes,
            [
                "annotation com.hooks.aws_ofi_nccl.variant=cuda12: nothing here acts on it",
                "annotation com.hooks.cxi.enabled=false: every container has this module",
                "annotation com.hooks.ssh.enabled=true: this site has no module ssh (skiff module list)",
            ]
        );
    }

    #[test]
    fn a_mount_counts_from_the_working_directory() {
        let here = std::env::current_dir().expect("a directory").display().to_string();
        assert_eq!(from_here("./a").ok(), Some(format!("{here}/a")));
        assert_eq!(from_here("/a").ok().as_deref(), Some("/a"));
        assert!(not_expanded("~/x.toml").is_some_and(|hint| hint.contains("$HOME/x.toml")));
        assert_eq!(not_expanded("x.toml"), None);
    }

    #[test]
    fn variables_of_a_definition_count_what_the_image_has() {
        let mut command = CommandSpec::default();
        command.set("PATH", "/image/bin");
        command.set("GONE", "x");
        let templates = [("A", "1"), ("PATH", "/opt/bin:${PATH}"), ("GONE", ""), ("B", "${A:-none}")];
        let templates =
            templates.map(|(name, text)| (name.to_owned(), Template::parse(text).expect("sound")));
        set_variables(&mut command, &templates).expect("set");
        let set = |name: &str| command.var(name).map(|value| value.to_string_lossy().into_owned());
        assert_eq!(set("PATH").as_deref(), Some("/opt/bin:/image/bin"));
        assert_eq!((set("A").as_deref(), set("B").as_deref(), set("GONE")), (Some("1"), Some("none"), None));
        let unset = [("A".to_owned(), Template::parse("${NOT_SET_ANYWHERE}").expect("sound"))];
        let e = set_variables(&mut command, &unset).expect_err("not set");
        assert_eq!(e.message, "variable A of the definition: the variable NOT_SET_ANYWHERE is not set");
    }
}
