//! `--container-save`: what a container's files are when its last task has ended becomes a file.
//!
//! They are read by a process that is root of the container's user namespace, since they may belong to any of the user's ids; what
//! comes of it is written by the task's wrapper, as the user and on the node.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Access, CWD, Mode, OFlags, access, open};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::pipe::{PipeFlags, pipe_with};
use skiff_image::export::{OpenImage, Target, export, root};
use skiff_image::spill::new_file;
use skiff_ipc::ReportingChild;
use skiff_output as output;
use skiff_runtime::control::Live;
use skiff_sandbox::enter::{EnterTarget, begin};
use skiff_sandbox::join::NetSpace;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::JobContainer;
use skiff_spec::job::names;
use skiff_spec::plan::inside;
use skiff_store::index::ImageName;
use skiff_store::ours;
use skiff_sys::signal::Signals;

use crate::job::{JobStep, SlurmJob};

/// Where to, in full: as `skiff export` takes it, and any other name of a file is a squashfs, as with Pyxis.
pub fn target(text: &str) -> Result<String> {
    let here = std::env::current_dir().context(|| "the directory you are in")?;
    let (transport, path) = match text.split_once(':') {
        Some((transport @ ("docker-archive" | "oci-archive" | "oci"), path)) => {
            (format!("{transport}:"), path)
        }
        _ => (String::new(), text),
    };
    if path.is_empty() {
        return Err(Error::new(format!("--container-save: {text:?} names no file")));
    }
    let full = here.join(path).into_os_string().into_string();
    let full =
        format!("{transport}{}", full.map_err(|path| Error::new(format!("{}: not UTF-8", path.display())))?);
    parse(&full).map(|_| full)
}

fn parse(text: &str) -> Result<Target> {
    let other = text.starts_with('/') && Path::new(text).extension().is_none_or(|end| end != "sif");
    match Target::from_str(text) {
        Err(_) if other => Ok(Target::Squashfs(PathBuf::from(text))),
        target => target.map_err(|e| ours(e).about("--container-save")),
    }
}

/// As far as can be known before anything has run: at the end it would be all for nothing.
fn can_be_written(target: &Target) -> Result<()> {
    let (path, is_file) = match target {
        Target::Oci { dir, .. } | Target::Directory(dir) => (dir, false),
        Target::DockerArchive { file, .. } | Target::OciArchive { file, .. } => (file, true),
        Target::Erofs(file) | Target::Squashfs(file) | Target::Tar(file) => (file, true),
    };
    let is_there = path.is_dir();
    if is_file && is_there {
        return Err(Error::new(format!("{}: it is a directory", path.display())));
    }
    let dir = if is_there { path } else { path.parent().unwrap_or(path) };
    access(dir, Access::WRITE_OK | Access::EXEC_OK).context(|| dir.display().to_string())
}

/// A process that is in the container, and waits for a word.
pub struct Saver {
    doing: ReportingChild<()>,
    go: OwnedFd,
    image: File,
    target: Target,
}

impl Saver {
    /// One, if it is this task that is to see to it: the first node's first of the step that the words were said of. A batch script's
    /// steps are in its container, too, but they are not its end.
    pub fn of(job: &SlurmJob, container: &JobContainer, step: &Live) -> Result<Option<Self>> {
        let Some(target) = &container.save else { return Ok(None) };
        let is_first = |name| std::env::var(name).is_ok_and(|number| number == "0");
        if !is_first("SLURM_NODEID") || !is_the_step(job, container)? {
            return Ok(None);
        }
        let target = parse(target)?;
        // All of the node: those that went on would have others to wait for.
        can_be_written(&target).map_err(|e| e.about("--container-save"))?;
        if !is_first("SLURM_LOCALID") {
            return Ok(None);
        }
        let dir = job.supervisor_dir();
        let shown = dir.display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let scratch_dir = open(&dir, flags, Mode::empty()).context(|| shown.clone())?;
        let image = new_file(scratch_dir.as_fd(), &shown).map_err(ours)?;
        let (word, go) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
        let inside = EnterTarget { init: step.init.as_fd(), net: NetSpace::Ours, number: None };
        let doing = begin(inside, &[word.as_fd(), image.as_fd(), scratch_dir.as_fd()], || {
            // Those of the job are for its programs: one that ends in peace when it is told to may be what is to be kept.
            let _held = Signals::block(&[]).context(|| "signals")?;
            if rustix::io::read(&word, &mut [0]).context(|| "pipe")? == 0 {
                return Err(Error::new("nobody waits for it any more"));
            }
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let all = open_tree(CWD, "/", flags).context(|| "the container's root")?;
            root::of_root(
                (all.as_fd(), "container"),
                &|path, target| Ok(inside::is_own(path, target)),
                image.as_fd(),
                (scratch_dir.as_fd(), &shown),
            )
            .map_err(ours)
        })?;
        Ok(Some(Self { doing, go, image, target }))
    }

    /// Writes the file. `below` is the image that the container was made of: where there is room for it, what that says goes along.
    pub fn save(self, below: &ImageName) -> Result<()> {
        let about = |e: Error| e.about("--container-save");
        rustix::io::write(&self.go, &[0]).context(|| "--container-save")?;
        self.doing.end().map_err(about)?;
        let image = OpenImage { name: below.id.to_string(), config: below.config.clone(), file: self.image };
        let written = export(&image, &self.target).map_err(|e| about(ours(e)))?;
        written.left_out.notes().iter().for_each(|text| output::note(text));
        Ok(())
    }
}

fn is_the_step(job: &SlurmJob, container: &JobContainer) -> Result<bool> {
    if job.step.is_some() {
        return Ok(true);
    }
    let Some(step) = JobStep::from_variable()? else { return Ok(false) };
    Ok(if container.script { step.name == names::BATCH } else { step.name == "0" })
}

#[cfg(test)]
mod tests {
    use super::{Target, can_be_written, parse, target};

    #[test]
    fn where_containers_are_saved_to() {
        let here = std::env::current_dir().expect("a directory");
        let here = here.display();
        for (text, want) in [
            ("x.sqsh", Some(format!("{here}/x.sqsh"))),
            ("./x", Some(format!("{here}/./x"))),
            ("/a/x.erofs", Some("/a/x.erofs".into())),
            ("oci-archive:x.tar:1", Some(format!("oci-archive:{here}/x.tar:1"))),
            ("/a/x.sif", None),
            ("docker-archive:", None),
        ] {
            assert_eq!(target(text).ok(), want, "{text}");
        }
        for (text, can) in [("/tmp/x", true), ("/tmp", false), ("/no/such", false), ("oci:/tmp", true)] {
            assert_eq!(parse(text).and_then(|target| can_be_written(&target)).is_ok(), can, "{text}");
        }
        assert_eq!(parse("/a/any").ok(), Some(Target::Squashfs("/a/any".into())));
        assert_eq!(parse("/a/x.tar").ok(), Some(Target::Tar("/a/x.tar".into())));
    }
}
