//! At submission: from the words of `--container-...` to what the job carries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use skiff_cli as cli;
use skiff_edf::MountFlag;
use skiff_plan::data::{self, DataWord};
use skiff_plan::named_file::not_expanded;
use skiff_plan::{self as plan, DEVICE, TMPFS, get, modules};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::{AttachMode, ContainerName, JobContainer, JobData, JobImage, JobSpec, names};
use skiff_user::context::UserContext;

use crate::save;

/// What a container is called that has no image of its own.
const PREFIX: &str = "container:";

/// Further flags of mounts that change nothing here: their targets are made.
const AS_EVER: [&str; 3] = ["x-create=auto", "x-create=dir", "x-create=file"];

/// Settles which image it is, and whether everything said of it can be meant.
pub fn container(context: &UserContext, asked: &cli::ContainerArgs, step: bool) -> Result<JobContainer> {
    let image = asked.image.as_deref().map(|image| get::pin(context, image)).transpose()?;
    if image.is_some() {
        modules::tell_broken_here(&context.config);
    }
    let described = described(asked, image, step, || utf8(&context.depot()?))?;
    let (files, _) = data::split(&described.mounts)?;
    let pinned = |DataWord { file, target }: DataWord| {
        let image = get::pin(context, &file).map_err(|e| e.about(&format!("mount of {file}")))?;
        Ok(JobData { image, target })
    };
    let data = files.into_iter().map(pinned).collect::<Result<_>>()?;
    Ok(JobContainer { data, ..described })
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
        unshare,
        kept_variables,
        definition_variables,
        devices,
        modules,
        mpi,
        no_home,
        root,
        entrypoint,
        readonly,
        save,
        // Known by now; and words for what is so in any case, which change nothing.
        image: _,
        entrypoint_log: _,
        home,
        no_root: _,
        no_entrypoint: _,
        writable: _,
    } = asked;
    let environment = shown_name(image.as_ref(), name.as_ref())?;
    refuse_names(kept_variables, name.as_ref(), step)?;
    let depot = depot()?;
    let mounts = all_mounts(mounts, *home && *root)?;
    let devices = devices.iter().map(|device| format!("{DEVICE}{device}"));
    Ok(JobContainer {
        environment,
        image,
        step,
        name: name.as_ref().map(|wanted| wanted.name.clone()),
        attach: name.as_ref().map(|wanted| wanted.mode).unwrap_or_default(),
        unshare: unshare.iter().copied().collect::<BTreeSet<_>>().into_iter().collect(),
        mounts: mounts.into_iter().chain(devices).chain(cli::module_words(modules, mpi.as_ref())).collect(),
        data: vec![],
        workdir: workdir.as_deref().map(|dir| utf8(&Path::new("/").join(dir))).transpose()?,
        home: !no_home,
        root: *root,
        writable: !readonly,
        entrypoint: *entrypoint,
        definition_variables: definition_variables.clone(),
        kept_variables: kept_variables.clone(),
        save: save.as_deref().map(save::target).transpose()?,
        script: save.is_some() && *script,
        depot,
    })
}

/// What the container is called in messages and lists.
fn shown_name(image: Option<&JobImage>, name: Option<&ContainerName>) -> Result<String> {
    match (image, name) {
        (Some(image), _) => Ok(format!("{}{}", skiff_store::PREFIX, image.reference)),
        (None, Some(ContainerName { name, .. })) => Ok(format!("{PREFIX}{name}")),
        (None, None) => {
            Err(Error::new("--container-... are given, but no container").hint(no_container_hint()))
        }
    }
}

/// Refuses what is no name of a variable, and the name of a running container where there can be none.
fn refuse_names(kept_variables: &[String], name: Option<&ContainerName>, step: bool) -> Result<()> {
    if let Some(bad) = kept_variables.iter().find(|name| name.is_empty() || name.contains('=')) {
        return Err(Error::new(format!("--container-env: {bad:?} is not a variable name"))
            .hint("it takes names alone: --container-env=NAME,NAME"));
    }
    if let (false, Some(ContainerName { name, mode: AttachMode::Exec })) = (step, name) {
        return Err(Error::new(format!(
            "--container-name={name}:exec: a job that begins has no running container"
        ))
        .hint("it is for steps: srun in a job, while another step is in the container"));
    }
    Ok(())
}

/// The mounts as Skiff writes them, with that of the home for root, where it is wanted.
fn all_mounts(written: &[String], with_home_of_root: bool) -> Result<Vec<String>> {
    let mut mounts = written.iter().map(|text| mount(text)).collect::<Result<Vec<_>>>()?;
    if with_home_of_root {
        mounts.extend(home_of_root()?);
    }
    Ok(mounts)
}

/// What to do where no container is named.
fn no_container_hint() -> String {
    let jobs = std::env::var(names::JOB).ok().and_then(|line| JobSpec::from_line(&line).ok());
    if let Some(JobSpec::Container(JobContainer { image: Some(image), .. })) = jobs {
        return format!(
            "a step with options of its own gets a container of its own: name the image again: --container-image={}",
            image.reference
        );
    }
    "--container-image=IMAGE says of which image, --container-name=NAME which an earlier step has made".into()
}

/// What to do about the source of a mount that is not absolute.
fn relative_hint(source: &str) -> String {
    let meant = format!("an absolute path, or ./{source} for one where you are");
    not_expanded(source).unwrap_or(meant)
}

/// A mount as Pyxis writes it (`SOURCE[:TARGET[:FLAG+FLAG]]`) as Skiff does.
fn mount(text: &str) -> Result<String> {
    let bad = |why: &str| {
        Error::new(format!("--container-mounts: {text:?}: {why}"))
            .hint("it is written SOURCE[:TARGET[:FLAG+FLAG]], several with commas between; flags are ro, rprivate, rslave, unbindable, sqsh")
    };
    if let Some(rest) = text.strip_prefix("tmpfs:") {
        let (target, flags) = rest.split_once(':').unwrap_or((rest, ""));
        let mount = format!("{TMPFS}{target}:{}", flags.replace('+', ","));
        return plan::parse_mount(&mount).map(|_| mount);
    }
    if text.starts_with("umount:") {
        return Err(bad(
            "what Skiff mounts cannot be taken away so; --no-container-mount-home leaves out the home",
        ));
    }
    let mut parts = text.splitn(3, ':');
    let source = parts.next().filter(|source| !source.is_empty()).ok_or_else(|| bad("no source"))?;
    let target = parts.next().unwrap_or(source);
    if target.is_empty() {
        return Err(bad("no target"));
    }
    let mut flags = vec![];
    for flag in parts.next().unwrap_or_default().split('+') {
        match MountFlag::parse(flag) {
            Some(MountFlag::AsEver) => {}
            Some(_) => flags.push(flag),
            None if AS_EVER.contains(&flag) => {}
            None => return Err(bad(&format!("the flag {flag:?} is not known"))),
        }
    }
    let source = in_full(source)?;
    if !source.starts_with('/') {
        return Err(Error::new(format!(
            "--container-mounts: {text:?}: the source {source:?} is not an absolute path"
        ))
        .hint(relative_hint(&source)));
    }
    let mount = [&*source, target, &flags.join(",")].join(":");
    let mount = mount.trim_end_matches(':').to_owned();
    // As one word: a comma in a path begins no other mount here.
    data::split(std::slice::from_ref(&mount))?;
    plan::parse_mounts(&mount).map(|_| mount)
}

/// With root inside and the home wanted in so many words, it is root's as well, as with Pyxis.
fn home_of_root() -> Result<Option<String>> {
    let Some(home) = std::env::var_os("HOME").filter(|home| Path::new(home).is_absolute()) else {
        return Ok(None);
    };
    let mount = format!("{}:/root", utf8(Path::new(&home))?);
    plan::parse_mount(&mount).map(|_| Some(mount))
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
            ("/a:/b:ro+rprivate", Some("/a:/b:ro,rprivate")),
            ("/a:/b:x-create=dir+rslave", Some("/a:/b:rslave")),
            ("/a:/b:unbindable+ro", Some("/a:/b:unbindable,ro")),
            ("/a.sqsh:/b:sqsh", Some("/a.sqsh:/b:sqsh")),
            ("tmpfs:/scratch", Some("tmpfs:/scratch:")),
            ("tmpfs:/scratch:size=1m+mode=700", Some("tmpfs:/scratch:size=1m,mode=700")),
            ("umount:/home", None),
            ("/a:", None),
            (":", None),
            ("/a:/b:rshared", None),
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
        let e = mount("srv:/data").expect_err("relative");
        assert_eq!(
            (&*e.message, &*e.hint),
            (
                "--container-mounts: \"srv:/data\": the source \"srv\" is not an absolute path",
                "an absolute path, or ./srv for one where you are"
            )
        );
        assert!(mount("~/x:/x").expect_err("not expanded").hint.contains("write $HOME/x"));
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(mount("./x:/x").ok(), Some(format!("{}/x:/x", here.display())));
    }
}
