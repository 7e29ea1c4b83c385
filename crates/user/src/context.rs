//! Who runs us, what is configured, where things are: everything a command needs to know before it plans.

mod files;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::process::getuid;
use skiff_output as output;
use skiff_site::account;
use skiff_spec::caller::{CALLED_FROM, FOR_CALLER, FOR_LOGIN, OF_CALLER, ONLY_INSIDE};
use skiff_spec::config::{self, Config, NO_HELPER};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::plan::{Route, inside};

/// Variables that stand for settings, as a line of the user's own configuration would.
const VARIABLES: [(&str, &str); 3] =
    [("SKIFF_HELPER", "helper"), ("SKIFF_STATE", "state"), ("SKIFF_DEPOT", "depot")];

/// The user and the site.
#[derive(Clone)]
pub struct UserContext {
    /// The merged configuration.
    pub config: Config,
    /// The user's uid.
    pub uid: u32,
    /// The user's home.
    pub home: PathBuf,
    /// The helper, if it is to be used.
    pub helper: Option<PathBuf>,
    /// Whether variables are heard.
    variables: bool,
}

impl UserContext {
    /// Reads environment and configuration; what is ignored of them is said.
    pub fn load() -> Result<Self> {
        let (context, ignored) = Self::read()?;
        ignored.iter().for_each(|text| output::note(text));
        Ok(context)
    }

    /// The same without a word, for processes of which a job has thousands: who submitted it has been told.
    pub fn load_silently() -> Result<Self> {
        Self::read().map(|(context, _)| context)
    }

    /// For `skiff login`: a fault in the user's own configuration must not lock them out, or they could not mend it. And a variable, which
    /// sshd may have from the client, is not heard.
    pub fn load_for_login() -> Result<Self> {
        let uid = getuid().as_raw();
        refuse_untrusted()?;
        let home = home(uid)?;
        let files = files::read(&home)?;
        if let Some(fault) = files.own_fault {
            output::complain(&fault);
            output::note("your configuration is ignored until that is corrected");
        }
        files.merged.ignored.iter().for_each(|ignored| output::note(&ignored.to_string()));
        let config = files.merged.config;
        let helper = helper(&config.helper)?;
        Ok(Self { config, uid, home, helper, variables: false })
    }

    fn read() -> Result<(Self, Vec<String>)> {
        let uid = getuid().as_raw();
        let home = home(uid)?;
        let files = files::read(&home)?;
        if let Some(fault) = files.own_fault {
            return Err(fault);
        }
        let config = files.merged.config;
        let mut ignored: Vec<String> = files.merged.ignored.iter().map(ToString::to_string).collect();
        let locked =
            VARIABLES.iter().filter(|(name, key)| config.is_locked(key) && std::env::var_os(name).is_some());
        ignored.extend(locked.map(|(name, key)| format!("{name} is ignored: `{key}` is locked by the site")));
        let helper = match variable(&config, "SKIFF_HELPER", "helper") {
            Some(word) => helper(&said_helper(&word, &config.helper)?)?,
            None => helper(&config.helper)?,
        };
        Ok((Self { config, uid, home, helper, variables: true }, ignored))
    }

    /// Our variables, for a command of Skiff's: without those that are not heard, and without what we know of a caller of ours.
    pub fn own_variables(&self) -> Vec<(OsString, OsString)> {
        let is_heard = |name: &OsString| self.variables || !name.as_bytes().starts_with(b"SKIFF_");
        let is_callers = |name: &OsString| {
            [FOR_CALLER, FOR_LOGIN, CALLED_FROM, ONLY_INSIDE].iter().any(|known| name == known)
                || name.as_bytes().starts_with(OF_CALLER.as_bytes())
        };
        std::env::vars_os().filter(|(name, _)| is_heard(name) && !is_callers(name)).collect()
    }

    /// For what goes with its command or step: root inside does without the helper, which has no power there. Environments that stay would be
    /// made of other ids than outside.
    #[must_use]
    pub fn for_a_throw_away(self) -> Self {
        let helper = self.helper.filter(|_| !(getuid().is_root() && is_inside()));
        Self { helper, ..self }
    }

    /// How environments are made here.
    pub fn route(&self) -> Route {
        if self.helper.is_some() { Route::Helper } else { Route::Rootless }
    }

    /// The directory that holds the user's environments.
    pub fn state(&self) -> Result<PathBuf> {
        Ok(self.var("SKIFF_STATE", "state", &self.config.state)?.unwrap_or_else(|| self.data()))
    }

    /// The directory of what is the user's on every node.
    pub fn data(&self) -> PathBuf {
        match std::env::var_os("XDG_DATA_HOME").filter(|d| Path::new(d).is_absolute()) {
            Some(data) => PathBuf::from(data).join("skiff"),
            None => self.home.join(".local/share/skiff"),
        }
    }

    /// The directory on a shared file system that holds the user's snapshots.
    pub fn depot(&self) -> Result<PathBuf> {
        let dir = self.var("SKIFF_DEPOT", "depot", &self.config.depot)?;
        Ok(dir.unwrap_or_else(|| self.home.join(".local/share/skiff/depot")))
    }

    /// The user's name, or their number where they have none.
    pub fn user(&self) -> String {
        account::user(self.uid).map_or_else(|| self.uid.to_string(), |user| user.name)
    }

    /// The user's login shell.
    pub fn shell(&self) -> OsString {
        std::env::var_os("SHELL")
            .filter(|s| Path::new(s).is_absolute())
            .or_else(|| {
                account::user(self.uid).map(|user| user.shell.into()).filter(|s: &OsString| !s.is_empty())
            })
            .unwrap_or_else(|| "/bin/sh".into())
    }

    /// A directory from a variable, else from the configuration with `%u` and `%U` filled in.
    fn var(&self, name: &str, key: &str, configured: &str) -> Result<Option<PathBuf>> {
        let variable = if self.variables { variable(&self.config, name, key) } else { None };
        let text = match variable {
            Some(value) => return absolute(name, PathBuf::from(value)).map(Some),
            None if configured.is_empty() => return Ok(None),
            None => configured,
        };
        if let Some(shared) = shared_part(text)
            && !shared.exists()
        {
            // Made by the first user, it would be that one's, and nobody else's could be in it.
            let path = shared.display();
            return Err(Error::new(format!("{path}: there is no such directory")).hint(format!(
                "administrator: install -d -m 755 {path}, and a directory for each user in it (docs/install.md, \"State on a shared directory\")"
            )));
        }
        let filled = text.replace("%U", &self.uid.to_string());
        let filled = if filled.contains("%u") { filled.replace("%u", &self.user()) } else { filled };
        absolute("configuration", PathBuf::from(filled)).map(Some)
    }
}

/// The part of a directory's text that is the same for all users, if a part of it is each user's own.
fn shared_part(text: &str) -> Option<&Path> {
    let own = text.find("%u").into_iter().chain(text.find("%U")).min()?;
    let (shared, _) = text[..own].rsplit_once('/')?;
    Some(Path::new(if shared.is_empty() { "/" } else { shared }))
}

/// Refuses in a container whose programs nobody trusts: they lack the system calls that all here is made of.
fn refuse_untrusted() -> Result<()> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let lacks =
        || matches!(openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::empty()), Err(Errno::NOSYS));
    match is_inside() && lacks() {
        true => Err(Error::new(
            "this is the inside of a container that was started with --untrusted, where Skiff cannot be used",
        )
        .hint("start what you need from outside")),
        false => Ok(()),
    }
}

/// Whether this process was started in an environment. (On the host only root can put something there.)
pub fn is_inside() -> bool {
    // Every start asks more than once.
    static INSIDE: OnceLock<bool> = OnceLock::new();
    *INSIDE.get_or_init(|| Path::new(inside::PROGRAM).exists())
}

fn absolute(origin: &str, path: PathBuf) -> Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path);
    }
    Err(Error::new(format!("{origin}: {:?} is not an absolute path", path.display().to_string()))
        .hint("it must begin with /"))
}

/// `$HOME` if it is a path, else the account's.
fn home(uid: u32) -> Result<PathBuf> {
    let plain =
        |h: &PathBuf| h.is_absolute() && !h.components().any(|c| c == std::path::Component::ParentDir);
    let variable = std::env::var_os("HOME").map(PathBuf::from).filter(plain);
    let home = variable
        .or_else(|| account::user(uid).map(|user| user.home))
        .filter(|h| h.is_absolute())
        .ok_or_else(|| Error::new(format!("user {uid}: no home directory known")).hint("set HOME"))?;
    // Its parent is covered inside, so it must be what it seems.
    if home.components().any(|part| part == std::path::Component::ParentDir) {
        return home.canonicalize().context(|| format!("home {}", home.display()));
    }
    Ok(home)
}

/// A variable, unless the site has locked the setting that it stands for.
fn variable(config: &Config, name: &str, key: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|_| !config.is_locked(key))
}

/// A variable is a user's word, and so it may give up privilege, but not name a program.
fn said_helper(word: &OsString, configured: &str) -> Result<String> {
    if word.is_empty() || word.as_os_str() == configured {
        return Ok(configured.into());
    }
    if word == NO_HELPER {
        return Ok(NO_HELPER.into());
    }
    Err(Error::new(format!("SKIFF_HELPER: {:?} is not `{NO_HELPER}`", word.to_string_lossy()))
        .hint(format!("only the site names the helper: `helper` in {}", config::SITE_FILE)))
}

fn helper(configured: &str) -> Result<Option<PathBuf>> {
    match configured {
        NO_HELPER => Ok(None),
        "" => {
            // Beside us, as `make install` puts it.
            let exe = std::env::current_exe().context(|| "own program")?;
            let prefix = exe.parent().and_then(Path::parent).unwrap_or(Path::new("/usr"));
            let path = prefix.join("libexec/skiff/skiff-helper");
            Ok(path.exists().then_some(path))
        }
        path => absolute("helper", path.into()).map(Some),
    }
}
