//! The user's environments on disk: one directory each, with `env.toml`, `upper`, `work`, `tmp` and what a running one needs.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_spec::plan::Base;
use skiff_spec::settings::{self, Settings};
use skiff_store::index::ImageName;
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_user::context::UserContext;
use skiff_user::dirs::{self, HINT, is_whole, make_parts, make_ready, new_name, own_dir, sweep, with_umask};
use skiff_user::named;

/// One environment.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Name of the environment.
    pub name: EnvName,
    /// Directory of the environment.
    pub dir: PathBuf,
    /// What its settings file says, once that was read: nothing changes the file.
    known: OnceCell<Settings>,
}

/// What lies below an environment, with all that is needed to run something in it.
pub enum EnvironmentBase {
    /// The host's root.
    Host,
    /// An image, as it was when the environment was made: its name may come to mean another.
    Image(ImageName),
}

impl EnvironmentBase {
    /// For the plan.
    pub fn for_plan(&self) -> Base {
        self.image().map_or(Base::Host, |entry| Base::Image(entry.id))
    }

    /// The image, if it is one.
    pub fn image(&self) -> Option<&ImageName> {
        match self {
            Self::Host => None,
            Self::Image(entry) => Some(entry),
        }
    }
}

/// As a user names it.
impl std::fmt::Display for EnvironmentBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Image(entry) => write!(f, "{}{}", skiff_store::PREFIX, entry.reference),
        }
    }
}

/// In an environment over an image: its name, and how its programs are run.
const IMAGE: &str = "image.json";

/// Directory of all environments, in the user's state.
const ALL: &str = "env";

/// Where all of them are, or will be. If it is there, nobody else can exchange it: what is in it is run as this user.
pub fn home(context: &UserContext) -> Result<PathBuf> {
    own_dir(context, ALL)
}

impl Environment {
    /// By name, whether it exists or not.
    pub fn named(context: &UserContext, name: EnvName) -> Result<Self> {
        Ok(Self::in_dir(&home(context)?, name))
    }

    /// By name, in the directory of all environments.
    pub fn in_dir(all: &Path, name: EnvName) -> Self {
        Self { dir: all.join(name.as_str()), name, known: OnceCell::new() }
    }

    /// By name; it must exist.
    pub fn existing(context: &UserContext, name: EnvName) -> Result<Self> {
        let all = context.state()?.join(ALL);
        let mut env = Self::in_dir(&all, name);
        // Every command begins here, and to walk to the directory is most of the work: so the settings are read on the same occasion.
        // What cannot be looked at is none of this user's.
        let dir = dirs::find(&all)?.and_then(|all| all.dir(env.name.as_str()).ok());
        if let Some(dir) = dir.filter(|dir| dir.stat(settings::FILE).is_ok_and(|found| found.is_some())) {
            // Settings that make no sense fail the command that needs them: `env rm` does not.
            env.known = read_settings(&dir).map_or_else(|_| OnceCell::new(), OnceCell::from);
            return Ok(env);
        }
        let making = format!("skiff env create {}", env.name);
        let all = list(context)?;
        Err(named::no_such("environment", &env.name, all.iter().map(|env| &env.name), Some(&making)))
    }

    /// Whether it is there, whole.
    pub fn exists(&self) -> bool {
        is_whole(&self.dir, settings::FILE)
    }

    /// Makes it. Nothing half-made is ever seen under its name.
    pub fn create(&self, base: &EnvironmentBase, mounts: Vec<String>, net: Net) -> Result<()> {
        self.create_with(base, mounts, net, |_| Ok(()))
    }

    /// Makes it with the settings of another one, and with what `fill` puts into its directory.
    pub fn create_like(&self, other: &Self, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let settings = other.settings()?;
        self.create_with(&other.base()?, settings.mounts.clone(), settings.net.clone(), fill)
    }

    /// Makes one with the settings of another one and what `fill` puts into its directory, and gives it no name: only its maker finds it. What is
    /// left of it when that is killed, `skiff sweep` removes.
    pub fn unnamed_like(other: &Self, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let settings = other.settings()?;
        let all = other.dir.parent().unwrap_or(Path::new("/"));
        with_umask(|| {
            let all = make_ready(all)?;
            sweep(&all);
            let new = new_name(&other.name);
            let (mounts, net) = (settings.mounts.clone(), settings.net.clone());
            let dir = all.path_of(&new);
            let made = other.fill(&all, &new, &other.base()?, mounts, net).and_then(|()| fill(&dir));
            if made.is_err() {
                all.remove_tree(&new)
                    .ignore_error("the first error is the one to tell; what stays, `skiff sweep` removes");
            }
            made.map(|()| Self { name: other.name.clone(), dir, known: OnceCell::new() })
        })
    }

    /// Makes it, with what `fill` puts into its directory.
    pub fn create_with(
        &self,
        base: &EnvironmentBase,
        mounts: Vec<String>,
        net: Net,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let all = self.dir.parent().unwrap_or(Path::new("/"));
        with_umask(|| {
            let all = make_ready(all)?;
            sweep(&all);
            self.refuse_taken()?;
            let new = new_name(&self.name);
            let made = self.fill(&all, &new, base, mounts, net).and_then(|()| fill(&all.path_of(&new)));
            self.put_in_place(&all, &new, made)
        })
    }

    /// Refuses a name that another one has, or that `--environment` takes for a definition's file.
    pub fn refuse_taken(&self) -> Result<()> {
        if self.name.as_str().ends_with(".toml") {
            return Err(Error::new(format!("environment {}: a new name must not end in .toml", self.name))
                .hint("`--environment=FILE.toml` means a definition's file: choose another name"));
        }
        match self.exists() {
            true => Err(Error::new(format!("environment {} already exists", self.name)).hint(format!(
                "choose another name; or `skiff env rm {}` removes it and all that is in it",
                self.name
            ))),
            false => Ok(()),
        }
    }

    fn put_in_place(&self, all: &TrustedDir, new: &str, made: Result<()>) -> Result<()> {
        let made = made.and_then(|()| Ok(all.rename(new, all, self.name.as_str())?));
        if made.is_err() {
            all.remove_tree(new)
                .ignore_error("the first error is the one to tell; what stays, `skiff sweep` removes");
        }
        made.map_err(|e| if e.hint.is_empty() { e.hint(HINT) } else { e })
    }

    fn fill(
        &self,
        all: &TrustedDir,
        new: &str,
        base: &EnvironmentBase,
        mounts: Vec<String>,
        net: Net,
    ) -> Result<()> {
        let new = all.new_dir(new, 0o700)?;
        make_parts(&new)?;
        let created = now();
        let (text, image) = (base.to_string(), base.image().map(|entry| entry.id));
        let settings = Settings { name: self.name.clone(), base: text, image, created, mounts, net };
        let text = settings.to_toml().map_err(|e| Error::new(format!("{}: {e}", settings::FILE)))?;
        new.write(settings::FILE, text.as_bytes(), 0o644)?;
        let Some(entry) = base.image() else { return Ok(()) };
        Ok(entry.write(&new.path_of(IMAGE))?)
    }

    /// What lies below it.
    pub fn base(&self) -> Result<EnvironmentBase> {
        let Some(id) = self.settings()?.image else { return Ok(EnvironmentBase::Host) };
        let path = self.dir.join(IMAGE);
        match ImageName::read(&path)? {
            Some(entry) if entry.id == id => Ok(EnvironmentBase::Image(entry)),
            _ => {
                Err(Error::new(format!("{}: not of the image that {} names", path.display(), settings::FILE))
                    .hint("somebody has removed or changed one of the two; they belong together"))
            }
        }
    }

    /// What is remembered of it.
    pub fn settings(&self) -> Result<&Settings> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let settings = read_settings(&dirs::open(&self.dir)?)?;
        Ok(self.known.get_or_init(|| settings))
    }

    /// Gives it another name, which must be free. The name in the settings is only for whoever reads them.
    pub fn rename(&self, new: &Self) -> Result<()> {
        new.refuse_taken()?;
        let settings = Settings { name: new.name.clone(), ..self.settings()?.clone() };
        let text = settings.to_toml().map_err(|e| Error::new(format!("{}: {e}", settings::FILE)))?;
        let dir = dirs::open(&self.dir)?;
        let all = dirs::open(self.dir.parent().unwrap_or(Path::new("/")))?;
        with_umask(|| dir.write(settings::FILE, text.as_bytes(), 0o644))?;
        Ok(all.rename(self.name.as_str(), &all, new.name.as_str())?)
    }

    /// Takes it away from under its name at once; gives what is left to delete.
    pub fn set_aside(&self) -> Result<PathBuf> {
        dirs::set_aside(&self.dir, &self.name)
    }
}

fn read_settings(dir: &TrustedDir) -> Result<Settings> {
    let path = dir.path_of(settings::FILE);
    let bytes = dir.read(settings::FILE)?;
    let bytes = bytes.ok_or_else(|| Error::new(format!("{}: {}", path.display(), Errno::NOENT)))?;
    let text = String::from_utf8(bytes).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
    Settings::from_toml(&text).map_err(|e| Error::new(format!("{}: {e}", path.display())))
}

/// All environments of the user, by name.
pub fn list(context: &UserContext) -> Result<Vec<Environment>> {
    let dir = home(context)?;
    let environment = |name| Environment::in_dir(&dir, name);
    Ok(named::all(&dir, settings::FILE)?.into_iter().map(environment).collect())
}
