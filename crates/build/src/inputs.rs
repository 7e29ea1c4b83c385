//! What a build is made of: the context, its Dockerfile and the list of what it leaves out, and what else the user gives.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlink};
use rustix::io::Errno;
use rustix::process::getuid;
use skiff_cli::BuildArgs;
use skiff_sandbox::command::own_variable;
use skiff_spec::fault::{Context as _, Fault, Result};

use crate::agents;
use crate::context::ignore::IgnoreRules;
use crate::context::{CopyOptions, SourceTree};
use crate::definition::{self, DefinitionOptions};
use crate::dockerfile::{self, Dockerfile};
use crate::git::Git;
use crate::plan::fault_of;
use crate::remote::Remotes;
use crate::secrets;
use crate::text_file::{read_all, read_file, read_file_of};

/// Names that a Dockerfile or a definition has in its context.
const NAMES: [&str; 5] = ["Dockerfile", "dockerfile", "Containerfile", "Apptainer", "Singularity"];
/// The list of files that are left out.
const IGNORED: &str = ".dockerignore";
/// Standard input in the place of a file.
const INPUT: &str = "-";

/// What a user gives.
pub struct BuildInputs {
    context: OwnedFd,
    /// Where that is.
    place: PathBuf,
    rules: IgnoreRules,
    /// The name of the context's directory.
    pub name: Option<String>,
    /// The Dockerfile.
    pub dockerfile: Dockerfile,
    /// The Dockerfile, in messages.
    pub shown: String,
    /// Whether nobody has named the context, and the file lies outside of it: then it may be a stranger's, made for what the user has there.
    pub is_context_implied: bool,
    /// What commands may have that ask for it, by its name.
    pub secrets: BTreeMap<String, String>,
    /// Ssh agents that commands may have that ask for them, by their names.
    pub agents: BTreeMap<String, PathBuf>,
    /// What other servers have.
    pub remotes: Remotes,
}

impl BuildInputs {
    /// Opens and reads all.
    pub fn open(args: &BuildArgs) -> Result<Self> {
        let (directory, file) = named(args)?;
        let path = directory.as_deref().unwrap_or(Path::new("."));
        let context = open_context(path)?;
        let (text, shown) = match &file {
            Some(file) if file.as_os_str() == INPUT => {
                (read_all(std::io::stdin().lock(), "standard input")?, "standard input".into())
            }
            Some(file) => (read_file(CWD, file)?.ok_or_else(|| missing(file))?, file.display().to_string()),
            None => default_file(&context, path)?,
        };
        // `.` has no name, but the directory that it leads to has.
        let real = place_of(&context).context(|| path.display().to_string())?;
        let mut name = real.file_name().map(|name| name.to_string_lossy().into_owned());
        let (rules, dockerfile) = if definition::is_definition(Some(Path::new(&shown)), &text) {
            // Called as what it is of: `solver.def`.
            let of_file = file.as_deref().filter(|file| file.extension().is_some_and(|end| end == "def"));
            let stem = of_file.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
            name = stem.or(name);
            (IgnoreRules::default(), definition::parse(&text, &definition_options(args, real.clone())?))
        } else {
            (rules(&context, file.as_deref())?, dockerfile::parse(&text))
        };
        let dockerfile = dockerfile.map_err(|e| fault_of(&shown, &e))?;
        let secrets = secrets::read(&args.secrets)?;
        let agents = agents::read(&args.agents)?;
        let git = Git::new(agents.get(agents::DEFAULT).cloned());
        let remotes = Remotes { git, ..Remotes::default() };
        let lies_there = |file: &Path| file.canonicalize().is_ok_and(|file| file.starts_with(&real));
        let is_context_implied = directory.is_none() && file.as_deref().is_some_and(|file| !lies_there(file));
        Ok(Self {
            context,
            place: real,
            rules,
            name,
            dockerfile,
            shown,
            is_context_implied,
            secrets,
            agents,
            remotes,
        })
    }

    /// What the user is told of a context that they have not named.
    pub fn note_of_context(&self) -> Option<String> {
        self.is_context_implied.then(|| {
            let (shown, place) = (&self.shown, self.place.display());
            format!("{shown} is from elsewhere and reads files of the current directory, {place}: `skiff build -f FILE DIR` names another one")
        })
    }

    /// The files of the context.
    pub fn tree<'a>(&'a self, copy: CopyOptions<'a>) -> SourceTree<'a> {
        SourceTree {
            root: self.context.as_fd(),
            of: "context: ",
            rules: Some(&self.rules),
            is_roots: true,
            copy,
        }
    }

    /// Opens a base that is a file or directory of the context, by its path without links. Whoever can write to the context can put a link into
    /// the path as soon as it has been looked up: then it is refused.
    pub fn open_base(&self, path: &Path) -> Result<File> {
        let outside = || {
            Fault::new(format!("From: {} is outside of {}", path.display(), self.place.display())).hint(
                "import it, and name the image; or name a directory that has it as the context: skiff build -f FILE.def DIR",
            )
        };
        let below = path.strip_prefix(&self.place).map_err(|_| outside())?;
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.context, below, flags, Mode::empty(), how) {
            Err(Errno::LOOP | Errno::XDEV) => Err(outside()),
            opened => opened.map(File::from).context(|| format!("From: {}", path.display())),
        }
    }
}

/// Where a directory is that is open.
fn place_of(directory: &OwnedFd) -> rustix::io::Result<PathBuf> {
    let path = readlink(format!("/proc/self/fd/{}", directory.as_raw_fd()), vec![])?;
    Ok(PathBuf::from(OsString::from_vec(path.into_bytes())))
}

/// The context and the file. A definition may stand in the place of the context, which is the current directory then.
fn named(args: &BuildArgs) -> Result<(Option<PathBuf>, Option<PathBuf>)> {
    let (context, file) = (args.context.clone(), args.file.clone());
    if let (Some(path), None) = (&context, &file)
        && path.is_file()
        && read_file(CWD, path)?.is_some_and(|text| definition::is_definition(Some(path), &text))
    {
        return Ok((None, context));
    }
    Ok((context, file))
}

/// Relative paths count from where the user is, as in Apptainer, as long as that is in the context.
fn definition_options(args: &BuildArgs, context: PathBuf) -> Result<DefinitionOptions> {
    let here = std::env::current_dir().context(|| "current directory")?;
    let here = if here.starts_with(&context) { here } else { context.clone() };
    Ok(DefinitionOptions { args: arguments(&args.build_args)?, here, context, no_test: args.no_test })
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
        Err(Errno::NOENT) if text.ends_with(".def") => {
            Err(Fault::new(format!("{shown}: no such file")).hint("name an existing definition file"))
        }
        Err(Errno::NOENT) => Err(Fault::new(format!("build {shown}: no such directory"))
            .hint("name the directory with the files that are copied: `skiff build -t NAME .`")),
        Err(Errno::NOTDIR) => Err(Fault::new(format!("build {shown}: the context is not a directory"))
            .hint("-f FILE names a Dockerfile; a definition of Apptainer's begins with `Bootstrap:`")),
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
    Err(Fault::new(format!("build {}: no Dockerfile in it", path.display()))
        .hint("-f FILE names one, or a definition of Apptainer's"))
}

/// The rules for a Dockerfile by its name, else those of the context.
fn rules(context: &OwnedFd, file: Option<&Path>) -> Result<IgnoreRules> {
    if let Some(file) = file.filter(|file| file.as_os_str() != INPUT) {
        let mut own = file.as_os_str().to_owned();
        own.push(IGNORED);
        let own = Path::new(&own);
        // In a directory that others write to, anybody could choose what is left out, and so what gets into the image.
        let trusted = [0, getuid().as_raw(), std::fs::metadata(file).map_or(0, |file| file.uid())];
        if let Some(text) = read_file_of(CWD, own, &|uid| check_owner(own, uid, trusted))? {
            return Ok(IgnoreRules::parse(&text));
        }
    }
    Ok(read_file(context.as_fd(), Path::new(IGNORED))?
        .map(|text| IgnoreRules::parse(&text))
        .unwrap_or_default())
}

fn check_owner(path: &Path, uid: u32, trusted: [u32; 3]) -> Result<()> {
    match trusted.contains(&uid) {
        true => Ok(()),
        false => Err(Fault::new(format!(
            "{}: belongs to user {uid}, and not to you or whose file it is for",
            path.display()
        ))
        .hint(
            "it says what is left out: remove it, copy it, or move the Dockerfile into a directory of yours",
        )),
    }
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn what_is_left_out_is_said_by_nobody_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let [file, list] = ["Df", "Df.dockerignore"].map(|name| dir.path().join(name));
        let context = open_context(dir.path()).expect("open");
        std::fs::write(&file, "FROM scratch").expect("a file");
        std::fs::write(&list, "*.key").expect("a file");
        assert!(rules(&context, Some(&file)).is_ok());
        if !getuid().is_root() {
            return;
        }
        let give = |path: &Path, uid| std::os::unix::fs::chown(path, Some(uid), None).expect("given away");
        for (of_file, of_list, is_taken) in [(0, 77, false), (78, 77, false), (77, 77, true), (77, 0, true)] {
            give(&file, of_file);
            give(&list, of_list);
            assert_eq!(rules(&context, Some(&file)).is_ok(), is_taken, "{of_file}, {of_list}");
        }
    }

    #[test]
    fn a_base_is_of_the_context_whatever_is_put_into_its_path() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str| home.path().join(name);
        for (dir, text) in [("context/sub", "theirs"), ("private", "private")] {
            std::fs::create_dir_all(at(dir)).expect("a directory");
            std::fs::write(at(dir).join("base.tar"), text).expect("a file");
        }
        let context = open_context(&at("context")).expect("open");
        let place = place_of(&context).expect("a path");
        let path = place.join("sub/base.tar");
        let inputs = BuildInputs {
            context,
            place,
            rules: IgnoreRules::default(),
            name: None,
            dockerfile: dockerfile::parse("FROM scratch").expect("a Dockerfile"),
            shown: String::new(),
            is_context_implied: false,
            secrets: BTreeMap::new(),
            agents: BTreeMap::new(),
            remotes: Remotes::default(),
        };
        let mut file = inputs.open_base(&path).expect("of the context");
        // Exchanged since its path was looked up.
        std::fs::rename(at("context/sub"), at("context/away")).expect("renamed");
        std::os::unix::fs::symlink(at("private"), at("context/sub")).expect("a link");
        let refused = inputs.open_base(&path).expect_err("a link");
        assert!(refused.message.contains("is outside of"), "{refused}");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "theirs");
        assert!(inputs.open_base(&at("private/base.tar")).is_err());
    }
}
