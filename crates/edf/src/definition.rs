//! A definition as a whole: a file over those that it builds upon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::file::{DefinitionFile, Lined, hint_of};
use crate::mount_flag::MountFlag;
use crate::search::DefinitionContext;
use crate::template::Template;

/// More files than these build upon each other by mistake.
const MOST_FILES: usize = 32;

/// What a job or command is to run in. Variables are filled in but those of `env`: the image's count there, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The image, as it is written.
    pub image: Option<String>,
    /// What is mounted, each target once.
    pub mounts: Vec<DefinitionMount>,
    /// The variables; one that is empty is to be unset.
    pub env: BTreeMap<String, Template>,
    /// Where programs start.
    pub workdir: Option<PathBuf>,
    /// Whether the files of the image can be changed.
    pub writable: bool,
    /// Whether the image's entry point is run.
    pub entrypoint: bool,
    /// Devices by their names in CDI.
    pub devices: Vec<String>,
    /// What it says for others to read.
    pub annotations: BTreeMap<String, String>,
    /// The files that it was read from, the strongest last.
    pub files: Vec<PathBuf>,
}

/// Something to be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionMount {
    /// An absolute path, or one that begins with `./` and counts from the caller's working directory.
    pub source: String,
    /// Where.
    pub target: String,
    /// Whether it takes no changes.
    pub is_read_only: bool,
    /// The flag by which it takes part in later mounts of the host's, if there is one.
    pub propagation: Option<&'static str>,
    /// What the source is.
    pub kind: DefinitionMountKind,
}

/// What the source of a mount is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionMountKind {
    /// A file or directory.
    Bind,
    /// A file with a squashfs file system in it.
    Squashfs,
}

impl Default for Definition {
    fn default() -> Self {
        Self {
            image: None,
            mounts: vec![],
            env: BTreeMap::new(),
            workdir: None,
            writable: true,
            entrypoint: true,
            devices: vec![],
            annotations: BTreeMap::new(),
            files: vec![],
        }
    }
}

impl Definition {
    /// Reads the definition that a word means: a file, or a name that is looked up.
    ///
    /// # Errors
    /// What is wrong with it, or with a file that it builds upon.
    pub fn read(word: &str, context: &DefinitionContext<'_>) -> Result<Self, Error> {
        let mut found = Self::default();
        Loader { context, open: vec![], read: 0 }.load(word, None, &mut found)?;
        Ok(found)
    }
}

struct Loader<'a, 'b> {
    context: &'a DefinitionContext<'b>,
    /// The files that are being read, each because the one before builds upon it.
    open: Vec<PathBuf>,
    read: usize,
}

impl Loader<'_, '_> {
    fn load(
        &mut self,
        word: &str,
        base_of: Option<&Lined<Template>>,
        into: &mut Definition,
    ) -> Result<(), Error> {
        let wrong = |what: String, hint: &str| Error {
            place: base_of.map_or_else(|| word.to_owned(), |base| base.place.clone()),
            what,
            hint: hint.into(),
        };
        let from = self.open.last().and_then(|path| path.parent()).map(Path::to_path_buf);
        let found = self.context.find(word, from.as_deref());
        let (path, bytes) = found.map_err(|e| match base_of {
            Some(base) => Error { place: base.place.clone(), what: format!("base_environment: {e}"), ..e },
            None => e,
        })?;
        if self.open.contains(&path) {
            return Err(wrong(
                format!("{} builds upon itself", path.display()),
                "of base_environment, one must name no other",
            ));
        }
        self.read += 1;
        if self.read > MOST_FILES {
            return Err(wrong(
                format!("it builds upon more than {MOST_FILES} files"),
                "put some of them together",
            ));
        }
        let file = DefinitionFile::parse(&path, &bytes)?;
        self.open.push(path.clone());
        for base in &file.bases {
            let word = self.filled(base)?;
            self.load(&word, Some(base), into)?;
        }
        self.open.pop();
        self.add(file, into)?;
        into.files.push(path);
        Ok(())
    }

    /// Puts a file over what there is: lists and tables grow, all else is replaced.
    fn add(&self, file: DefinitionFile, into: &mut Definition) -> Result<(), Error> {
        let DefinitionFile {
            bases: _,
            image,
            mounts,
            env,
            workdir,
            writable,
            entrypoint,
            devices,
            annotations,
        } = file;
        if let Some(image) = &image {
            let filled = self.filled(image)?;
            if filled.trim().is_empty() {
                let hint = "name one, as in `image = \"debian:12\"`; without the key the image of base_environment counts";
                return Err(wrong_at(image, "image is empty".into(), hint));
            }
            into.image = Some(filled);
        }
        if let Some(dir) = &workdir {
            let filled = self.filled(dir)?;
            if !filled.is_empty() && !filled.starts_with('/') {
                return Err(wrong_at(
                    dir,
                    format!("workdir {filled:?} does not begin with /"),
                    "it is a directory inside",
                ));
            }
            into.workdir = Some(filled).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        }
        into.writable = writable.unwrap_or(into.writable);
        into.entrypoint = entrypoint.unwrap_or(into.entrypoint);
        for mount in &mounts {
            let mount = self.mount(mount)?;
            into.mounts.retain(|other| other.target != mount.target);
            into.mounts.push(mount);
        }
        into.env.extend(env.into_iter().map(|(name, value)| (name, value.value)));
        let known: BTreeSet<String> = into.devices.iter().cloned().collect();
        let new = devices.iter().map(|device| self.filled(device)).collect::<Result<Vec<_>, _>>()?;
        into.devices.extend(new.into_iter().filter(|device| !known.contains(device)));
        for (name, value) in &annotations {
            into.annotations.insert(name.clone(), self.filled(value)?);
        }
        Ok(())
    }

    fn mount(&self, written: &Lined<Template>) -> Result<DefinitionMount, Error> {
        let text = self.filled(written)?;
        let bad = |why: &str| {
            let what = format!("mount {text:?}: {why}");
            wrong_at(written, what, "it is written SOURCE:TARGET, SOURCE:TARGET:ro or FILE:TARGET:sqsh")
        };
        let mut parts = text.splitn(3, ':');
        let source = parts.next().filter(|source| !source.is_empty()).ok_or_else(|| bad("no source"))?;
        let target = parts.next().unwrap_or(source);
        let mut mount = DefinitionMount {
            source: source.into(),
            target: target.into(),
            is_read_only: false,
            propagation: None,
            kind: DefinitionMountKind::Bind,
        };
        for flag in parts.next().unwrap_or_default().split([',', '+']) {
            match MountFlag::parse(flag) {
                Some(MountFlag::AsEver) => {}
                Some(MountFlag::Private) => mount.propagation = Some("rprivate"),
                Some(MountFlag::Slave) => mount.propagation = Some("rslave"),
                Some(MountFlag::ReadOnly) => mount.is_read_only = true,
                Some(MountFlag::Squashfs) => mount.kind = DefinitionMountKind::Squashfs,
                Some(MountFlag::Unbindable) | None => {
                    return Err(bad(&format!("the flag {flag:?} is not known")));
                }
            }
        }
        let is_relative = source == "." || source.starts_with("./");
        match (source.starts_with('/') || is_relative, target.starts_with('/')) {
            (true, true) => Ok(mount),
            (false, _) => Err(bad("the source does not begin with / or ./")),
            (_, false) => Err(bad("the target does not begin with /")),
        }
    }

    fn filled(&self, text: &Lined<Template>) -> Result<String, Error> {
        let value = |name: &str| self.context.text(name);
        text.value.fill(&value).map_err(|e| wrong_at(text, e.to_string(), hint_of(&e)))
    }
}

fn wrong_at<T>(at: &Lined<T>, what: String, hint: &str) -> Error {
    Error { place: at.place.clone(), what, hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    fn read(word: &str, files: &[(&str, &str)]) -> Result<Definition, Error> {
        let variable = |name: &str| match name {
            "USER" => Some("alice".into()),
            "EDF_PATH" => Some("/site:/mine".into()),
            _ => None,
        };
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| text.as_bytes().to_vec()).ok_or_else(|| ErrorKind::NotFound.into())
        };
        Definition::read(
            word,
            &DefinitionContext { variable: &variable, home: "/home/alice".into(), read: &read },
        )
    }

    fn wrong(text: &str) -> String {
        let e = read("/x.toml", &[("/x.toml", text)]).expect_err(text);
        format!("{e} ({})", e.hint)
    }

    #[test]
    fn a_file_is_over_those_that_it_builds_upon() {
        let found = read(
            "job",
            &[
                (
                    "/mine/job.toml",
                    r#"
                    base_environment = ["common", "./near.toml"]
                    image = "nvcr.io#nvidia/pytorch:24.01-py3"
                    mounts = ["/scratch/${USER}:/scratch/${USER}", "/data.sqsh:/data:sqsh", "/etc/x:/etc/x:ro"]
                    workdir = "/scratch/${USER}"
                    devices = ["nvidia.com/gpu=all"]
                    [env]
                    A = "job"
                    N = 4
                    PATH = "/opt/bin:${PATH}"
                    GONE = ""
                    [annotations]
                    com.hooks.cxi.enabled = "true"
                    "com.hooks.ssh.enabled" = true
                    "#,
                ),
                (
                    "/site/common.toml",
                    "image = \"old\"\nwritable = false\nmounts = [\"/etc/x\", \"/c:/c\"]\ndevices = [\"nvidia.com/gpu=all\"]\nenv = { A = \"common\", C = \"c\" }",
                ),
                ("/mine/./near.toml", "entrypoint = false"),
            ],
        )
        .expect("sound");
        assert_eq!(found.image.as_deref(), Some("nvcr.io#nvidia/pytorch:24.01-py3"));
        let mounts: Vec<_> =
            found.mounts.iter().map(|m| (&*m.source, &*m.target, m.is_read_only, m.kind)).collect();
        assert_eq!(
            mounts,
            [
                ("/c", "/c", false, DefinitionMountKind::Bind),
                ("/scratch/alice", "/scratch/alice", false, DefinitionMountKind::Bind),
                ("/data.sqsh", "/data", false, DefinitionMountKind::Squashfs),
                ("/etc/x", "/etc/x", true, DefinitionMountKind::Bind),
            ]
        );
        let env: Vec<_> = found.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(env, ["A=job", "C=c", "GONE=", "N=4", "PATH=/opt/bin:${PATH}"]);
        let propagation = |flags: &str| {
            let text = format!("mounts = [\"/a:/b:{flags}\"]");
            read("/x.toml", &[("/x.toml", &text)]).expect("sound").mounts[0].propagation
        };
        let relative = read("/x.toml", &[("/x.toml", "mounts = [\"./a:/b:ro\", \".:/c\"]")]).expect("sound");
        assert_eq!(relative.mounts.iter().map(|mount| &*mount.source).collect::<Vec<_>>(), ["./a", "."]);
        for (flags, want) in [
            ("ro", None),
            ("ro,rprivate", Some("rprivate")),
            ("slave", Some("rslave")),
            ("rprivate+rslave", Some("rslave")),
        ] {
            assert_eq!(propagation(flags), want, "{flags}");
        }
        assert_eq!((found.writable, found.entrypoint), (false, false));
        assert_eq!(found.workdir.as_deref(), Some(Path::new("/scratch/alice")));
        assert_eq!(found.devices, ["nvidia.com/gpu=all"]);
        let annotations: Vec<_> =
            found.annotations.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(annotations, ["com.hooks.cxi.enabled=true", "com.hooks.ssh.enabled=true"]);
        let files: Vec<_> = found.files.iter().map(|path| path.display().to_string()).collect();
        assert_eq!(files, ["/site/common.toml", "/mine/./near.toml", "/mine/job.toml"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, why) in [
            ("\nimag = \"x\"", "/x.toml:2: there is no key \"imag\" (\"image\" may be meant)"),
            ("blubberblase = 1", "/x.toml:1: there is no key \"blubberblase\" (there are annotations, base_"),
            ("image = \"\"", "/x.toml:1: image is empty (name one, as in"),
            ("image = \" \"", "/x.toml:1: image is empty"),
            ("\nimage = \"${NONE:-}\"", "/x.toml:2: image is empty"),
            ("image = 1", "/x.toml:1: image is a number, and must be a text"),
            ("image = \"a\"\nimage = \"b\"", "/x.toml:2: duplicate key"),
            ("image = \"a", "/x.toml:1: "),
            ("mounts = \"/a:/b\"", "/x.toml:1: mounts is a text, and must be a list of texts"),
            ("writable = \"yes\"", "/x.toml:1: writable is a text, and must be true or false"),
            ("env = 1", "/x.toml:1: env is a number, and must be a table"),
            ("[env]\nA = [1]", "/x.toml:2: env.A is a list, and must be a text"),
            ("[env]\n\"A=B\" = \"\"", "/x.toml:2: \"A=B\" is not the name of a variable"),
            (
                "mounts = [\n\"/a:/b\",\n\"/a:b\"]",
                "/x.toml:3: mount \"/a:b\": the target does not begin with /",
            ),
            ("mounts = [\"/a:/b:rx\"]", "/x.toml:1: mount \"/a:/b:rx\": the flag \"rx\" is not known"),
            ("mounts = [\"a:/b\"]", "/x.toml:1: mount \"a:/b\": the source does not begin with / or ./"),
            ("mounts = [\"./a\"]", "/x.toml:1: mount \"./a\": the target does not begin with /"),
            ("mounts = [\"\"]", "/x.toml:1: mount \"\": no source"),
            ("workdir = \"x\"", "/x.toml:1: workdir \"x\" does not begin with /"),
            ("image = \"${NONE}\"", "/x.toml:1: the variable NONE is not set (${NAME:-TEXT} stands"),
            ("image = \"${NONE\"", "/x.toml:1: \"${NONE\" has no } at its end"),
            (
                "base_environment = \"none\"",
                "/x.toml:1: base_environment: definition none: there is no none.toml in /site, /mine",
            ),
            ("base_environment = \"x.toml\"", "/x.toml:1: /x.toml builds upon itself"),
            ("image = \"a\\u0000\"", "/x.toml:1: a zero byte"),
        ] {
            let found = wrong(text);
            assert!(found.starts_with(why), "{text}: {found}");
        }
        let deep = format!("[annotations]\n{} = 1", vec!["a"; 40].join("."));
        assert!(wrong(&deep).starts_with("/x.toml:2: annotations."), "{}", wrong(&deep));
        let e = read("none", &[]).expect_err("there is none");
        assert_eq!(e.to_string(), "definition none: there is no none.toml in /site, /mine");
    }

    #[test]
    fn all_keys_that_are_wrong_are_told_at_once() {
        let text = "imag = \"x\"\nwritable = 1\nenvv = {}\nworkdir = \"/w\"";
        let errors = DefinitionFile::errors(Path::new("/x.toml"), text.as_bytes());
        let told: Vec<_> = errors.iter().map(|e| format!("{e} ({})", e.hint)).collect();
        assert_eq!(
            told,
            [
                "/x.toml:1: there is no key \"imag\" (\"image\" may be meant)",
                "/x.toml:2: writable is a number, and must be true or false (`skiff edf new` shows how each is written)",
                "/x.toml:3: there is no key \"envv\" (\"env\" may be meant)",
            ]
        );
    }

    #[test]
    fn files_that_build_upon_many_end() {
        let names: Vec<_> = (0..40)
            .map(|n| (format!("/site/{n}.toml"), format!("base_environment = \"{}\"", n + 1)))
            .collect();
        let files: Vec<_> = names.iter().map(|(name, text)| (&**name, &**text)).collect();
        assert!(read("0", &files).expect_err("too many").to_string().contains("more than 32 files"));
        let both = [
            ("/site/0.toml", "base_environment = [\"1\", \"1\"]"),
            ("/site/1.toml", "base_environment = \"0\""),
        ];
        assert!(
            read("0", &both).expect_err("a circle").to_string().contains("/site/0.toml builds upon itself")
        );
    }
}
