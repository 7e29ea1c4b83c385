//! What a build is made of: the context, its Dockerfile and the list of what it leaves out; and the images that it names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use skiff_cli::BuildArgs;
use skiff_plan::get::{self, PullWhen};
use skiff_sandbox::command::own_variable;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_user::context::UserContext;

use crate::context::SourceTree;
use crate::context::ignore::IgnoreRules;
use crate::dockerfile::{self, Dockerfile, LONGEST};
use crate::plan::{BaseImage, PlanLookup, PlannedSource, fault_of};
use crate::transfer;

/// Names that a Dockerfile has in its context.
const NAMES: [&str; 2] = ["Dockerfile", "Containerfile"];
/// The list of files that are left out.
const IGNORED: &str = ".dockerignore";
/// Standard input in the place of a file.
const INPUT: &str = "-";

/// What a user gives.
pub struct Inputs {
    context: OwnedFd,
    rules: IgnoreRules,
    /// The name of the context's directory.
    pub name: Option<String>,
    /// The Dockerfile.
    pub dockerfile: Dockerfile,
    /// The Dockerfile, in messages.
    pub shown: String,
}

impl Inputs {
    /// Opens and reads all.
    pub fn open(args: &BuildArgs) -> Result<Self> {
        let path = args.context.as_deref().unwrap_or(Path::new("."));
        let context = open_context(path)?;
        let (text, shown) = match &args.file {
            Some(file) if file.as_os_str() == INPUT => {
                (read_all(std::io::stdin().lock(), "standard input")?, "standard input".into())
            }
            Some(file) => (read_file(CWD, file)?.ok_or_else(|| missing(file))?, file.display().to_string()),
            None => default_file(&context, path)?,
        };
        let rules = rules(&context, args.file.as_deref())?;
        let dockerfile = dockerfile::parse(&text).map_err(|e| fault_of(&shown, &e))?;
        // `.` has no name, but the directory that it leads to has.
        let real = path.canonicalize().context(|| path.display().to_string())?;
        let name = real.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self { context, rules, name, dockerfile, shown })
    }

    /// The files of the context.
    pub fn tree(&self, mode: Option<u16>) -> SourceTree<'_> {
        SourceTree {
            root: self.context.as_fd(),
            of: "context: ",
            rules: Some(&self.rules),
            is_roots: true,
            mode,
        }
    }
}

fn open_context(path: &Path) -> Result<OwnedFd> {
    let shown = path.display();
    let text = path.to_string_lossy();
    if text == INPUT {
        return Err(Fault::new("build: a context from standard input is not supported")
            .hint("unpack it into a directory; -f - reads the Dockerfile alone from there"));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::empty()) {
        Err(Errno::NOENT) if text.contains("://") || text.starts_with("git@") => {
            Err(Fault::new(format!("build {shown}: a context on another host is not supported"))
                .hint("clone it, and name the directory"))
        }
        Err(Errno::NOTDIR) => Err(Fault::new(format!("build {shown}: the context is not a directory"))
            .hint("-f FILE names a Dockerfile")),
        opened => opened.context(|| format!("context {shown}")),
    }
}

fn missing(file: &Path) -> Fault {
    Fault::new(format!("{}: no such file", file.display())).hint("-f FILE counts from the current directory")
}

fn default_file(context: &OwnedFd, path: &Path) -> Result<(String, String)> {
    for name in NAMES {
        if let Some(text) = read_file(context.as_fd(), Path::new(name))? {
            return Ok((
                text,
                path.join(name)
                    .strip_prefix("./")
                    .map_or_else(|_| path.join(name), PathBuf::from)
                    .display()
                    .to_string(),
            ));
        }
    }
    Err(Fault::new(format!("build {}: no Dockerfile in it", path.display())).hint("-f FILE names one"))
}

/// The rules for a Dockerfile by its name, else those of the context.
fn rules(context: &OwnedFd, file: Option<&Path>) -> Result<IgnoreRules> {
    if let Some(file) = file.filter(|file| file.as_os_str() != INPUT) {
        let mut own = file.as_os_str().to_owned();
        own.push(IGNORED);
        if let Some(text) = read_file(CWD, Path::new(&own))? {
            return Ok(IgnoreRules::parse(&text));
        }
    }
    Ok(read_file(context.as_fd(), Path::new(IGNORED))?
        .map(|text| IgnoreRules::parse(&text))
        .unwrap_or_default())
}

/// A small text file, if it is there. Nothing waits for whoever would write to a pipe.
fn read_file(dir: impl AsFd, path: &Path) -> Result<Option<String>> {
    let shown = path.display().to_string();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(dir, path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        file => File::from(file.context(|| shown.clone())?),
    };
    match file.metadata().context(|| shown.clone())?.is_file() {
        true => read_all(file, &shown).map(Some),
        false => Err(Fault::new(format!("{shown}: not a file"))),
    }
}

fn read_all(from: impl Read, shown: &str) -> Result<String> {
    let mut bytes = vec![];
    from.take(LONGEST as u64 + 1).read_to_end(&mut bytes).context(|| shown.to_owned())?;
    if bytes.len() > LONGEST {
        return Err(Fault::new(format!("{shown}: longer than {LONGEST} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Fault::new(format!("{shown}: not a text in UTF-8")))
}

/// `NAME=VALUE`, or `NAME` for the value that a variable has here.
pub fn arguments(texts: &[String]) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for text in texts {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (&**text, own_variable(text.as_ref()).and_then(|value| value.into_string().ok())),
        };
        if name.is_empty() {
            return Err(Fault::new(format!("--build-arg {text}: no name")).hint("--build-arg NAME=VALUE"));
        }
        if let Some(value) = value {
            found.insert(name.to_owned(), value);
        }
    }
    Ok(found)
}

/// `NAME=VALUE`.
pub fn labels(texts: &[String]) -> Result<Vec<(String, String)>> {
    let label = |text: &String| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        match name.is_empty() {
            true => Err(Fault::new(format!("--label {text}: no name")).hint("--label NAME=VALUE")),
            false => Ok((name.to_owned(), value.to_owned())),
        }
    };
    texts.iter().map(label).collect()
}

/// Where planning looks things up.
pub struct Outside<'a> {
    /// Whose images count.
    pub context: &'a UserContext,
    /// What is built.
    pub inputs: &'a Inputs,
    /// Whether nothing is pulled.
    pub is_for_show: bool,
}

impl PlanLookup for Outside<'_> {
    fn image(&mut self, reference: &str) -> Result<BaseImage> {
        let name = with_tag(reference);
        let entry = match self.is_for_show {
            true => skiff_store::find(self.context, &name)?,
            false => get::to_run(self.context, &name, PullWhen::Missing)?,
        };
        // Commands are run in it.
        entry.exec()?;
        Ok(BaseImage { id: entry.id, config: entry.config })
    }

    fn sum(&mut self, sources: &[PlannedSource], mode: Option<u16>) -> Result<String> {
        transfer::sum(self.inputs.tree(mode), sources)
    }
}

/// With the tag that is meant where there is none: so the name is one of an image, and of nothing else that a word could name.
fn with_tag(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    if last.contains([':', '@']) { reference.into() } else { format!("{reference}:latest") }
}
