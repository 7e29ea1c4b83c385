//! At submission: from the words of `--container-...` to what the job carries.

use std::path::{Path, PathBuf};

use skiff_cli as cli;
use skiff_plan::{self as plan, DEVICE, get};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::{JobContainer, JobImage};
use skiff_user::context::UserContext;

use crate::save;

/// What a container is called that has no image of its own.
const PREFIX: &str = "container:";

/// Flags of mounts that change nothing here: mounts take along what lies below, nothing that is mounted later comes in or gets out,
/// and their targets are made.
const AS_EVER: [&str; 14] = [
    "",
    "rw",
    "bind",
    "rbind",
    "private",
    "rprivate",
    "slave",
    "rslave",
    "nosuid",
    "nodev",
    "x-create=auto",
    "x-create=dir",
    "x-create=file",
    "x-detach",
];

/// Settles which image it is, and whether everything said of it can be meant.
pub fn container(context: &UserContext, asked: &cli::ContainerArgs, step: bool) -> Result<JobContainer> {
    let image = asked.image.as_deref().map(|image| get::pin(context, image)).transpose()?;
    described(asked, image, step, || utf8(&context.depot()?))
}

/// The same, where the image is known.
pub fn described(
    asked: &cli::ContainerArgs,
    image: Option<JobImage>,
    step: bool,
    depot: impl FnOnce() -> Result<String>,
) -> Result<JobContainer> {
    let cli::ContainerArgs {
        script,
        mounts,
        workdir,
        name,
        variables,
        settings,
        devices,
        no_home,
        root,
        entrypoint,
        readonly,
        save,
        // Known by now; and words for what is so in any case, which change nothing.
        image: _,
        home: _,
        no_root: _,
        no_entrypoint: _,
        writable: _,
    } = asked;
    let environment = match (&image, name) {
        (Some(image), _) => format!("{}{}", skiff_store::PREFIX, image.reference),
        (None, Some(name)) => format!("{PREFIX}{name}"),
        (None, None) => {
            return Err(Error::new("--container-... are given, but no container")
                .hint("--container-image=IMAGE says of which image, --container-name=NAME which an earlier step has made"));
        }
    };
    if let Some(bad) = variables.iter().find(|name| name.is_empty() || name.contains('=')) {
        return Err(Error::new(format!("--container-env: {bad:?} is not a variable name"))
            .hint("it takes names alone: --container-env=NAME,NAME"));
    }
    let depot = depot()?;
    let mounts = mounts.iter().map(|text| mount(text)).collect::<Result<Vec<_>>>()?;
    let devices = devices.iter().map(|device| format!("{DEVICE}{device}"));
    Ok(JobContainer {
        environment,
        image,
        step,
        name: name.clone(),
        mounts: mounts.into_iter().chain(devices).collect(),
        workdir: workdir.as_deref().map(|dir| utf8(&Path::new("/").join(dir))).transpose()?,
        home: !no_home,
        root: *root,
        writable: !readonly,
        entrypoint: *entrypoint,
        settings: settings.clone(),
        variables: variables.clone(),
        save: save.as_deref().map(save::target).transpose()?,
        script: save.is_some() && *script,
        depot,
    })
}

/// A mount as Pyxis writes it (`SOURCE[:TARGET[:FLAG+FLAG]]`) as Skiff does.
fn mount(text: &str) -> Result<String> {
    let bad = |why: &str| {
        Error::new(format!("--container-mounts: {text:?}: {why}"))
            .hint("it is written SOURCE[:TARGET[:ro]], several with commas between")
    };
    let mut parts = text.splitn(3, ':');
    let source = parts.next().filter(|source| !source.is_empty()).ok_or_else(|| bad("no source"))?;
    let target = parts.next().unwrap_or(source);
    let (mut read_only, flags) = (false, parts.next().unwrap_or_default());
    for flag in flags.split('+') {
        match flag {
            "ro" => read_only = true,
            flag if AS_EVER.contains(&flag) => {}
            flag => return Err(bad(&format!("the flag {flag:?} is not known"))),
        }
    }
    let source = in_full(source)?;
    let mount = format!("{source}:{target}{}", if read_only { ":ro" } else { "" });
    plan::parse_mount(&mount).map(|_| mount)
}

/// A directory that the user names from where they are.
fn in_full(source: &str) -> Result<String> {
    let here = || std::env::current_dir().context(|| "the directory you are in");
    match source.strip_prefix("./").or((source == ".").then_some("")) {
        Some(rest) => utf8(&here()?.join(rest)),
        None => Ok(source.into()),
    }
}

fn utf8(path: &Path) -> Result<String> {
    let text: Option<String> = PathBuf::from(path).into_os_string().into_string().ok();
    text.ok_or_else(|| Error::new(format!("{}: not UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::mount;

    #[test]
    fn mounts_as_pyxis_writes_them() {
        for (text, want) in [
            ("/a", Some("/a:/a")),
            ("/a:/b", Some("/a:/b")),
            ("/a:/b:ro", Some("/a:/b:ro")),
            ("/a:/b:ro+rprivate", Some("/a:/b:ro")),
            ("/a:/b:rw", Some("/a:/b")),
            ("/a:/b:rx", None),
            ("/a:/b:ro:x", None),
            ("", None),
            (":/b", None),
            ("a:/b", None),
            ("/a:b", None),
            ("/a:/..", None),
        ] {
            assert_eq!(mount(text).ok().as_deref(), want, "{text}");
        }
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(mount("./x:/x").ok(), Some(format!("{}/x:/x", here.display())));
    }
}
