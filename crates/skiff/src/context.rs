//! Who runs us, what is configured, where things are: everything a command needs to know before it plans.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::process::{geteuid, getuid};
use skiff_migrate::criu::Folder;
use skiff_sandbox::{Context as _, Error, Result};
use skiff_spec::config::{self, Config, Text};
use skiff_spec::plan::{Route, inside};

/// The user and the site.
pub struct Context {
    /// The merged configuration.
    pub config: Config,
    /// The user's uid.
    pub uid: u32,
    /// His home.
    pub home: PathBuf,
    /// The helper, if it is to be used.
    pub helper: Option<PathBuf>,
}

impl Context {
    /// Reads environment and configuration.
    pub fn load() -> Result<Self> {
        let uid = getuid().as_raw();
        let home = home(uid)?;
        let config = read_config(&home)?;
        let helper = helper(&config)?;
        Ok(Self { config, uid, home, helper })
    }

    /// CRIU, if it is installed.
    pub fn criu(&self) -> Option<Folder> {
        Folder::beside(&std::env::current_exe().ok()?)
    }

    /// How environments are made here.
    pub fn route(&self) -> Route {
        if self.helper.is_some() { Route::Helper } else { Route::Rootless }
    }

    /// The directory that holds the user's environments.
    pub fn state(&self) -> Result<PathBuf> {
        Ok(self.var("SKIFF_STATE", &self.config.state)?.unwrap_or_else(|| self.data()))
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
        let dir = self.var("SKIFF_DEPOT", &self.config.depot)?;
        Ok(dir.unwrap_or_else(|| self.home.join(".local/share/skiff/depot")))
    }

    /// The user's name, or his number where he has none.
    pub fn user(&self) -> String {
        user_fields(self.uid).map_or_else(|| self.uid.to_string(), |f| f[0].clone())
    }

    /// The user's login shell.
    pub fn shell(&self) -> OsString {
        std::env::var_os("SHELL")
            .filter(|s| Path::new(s).is_absolute())
            .or_else(|| user_fields(self.uid).map(|f| OsString::from(&f[6])).filter(|s| !s.is_empty()))
            .unwrap_or_else(|| "/bin/sh".into())
    }

    /// A directory from a variable, else from the configuration with `%u` and `%U` filled in.
    fn var(&self, name: &str, configured: &str) -> Result<Option<PathBuf>> {
        let text = match std::env::var_os(name) {
            Some(value) => return absolute(name, PathBuf::from(value)).map(Some),
            None if configured.is_empty() => return Ok(None),
            None => configured,
        };
        let filled = text.replace("%U", &self.uid.to_string());
        let filled = if filled.contains("%u") { filled.replace("%u", &self.user()) } else { filled };
        absolute("configuration", PathBuf::from(filled)).map(Some)
    }
}

/// Whether we are in an environment already. (On the host only root can put something there.)
pub fn is_inside() -> bool {
    Path::new(inside::PROGRAM).exists()
}

fn absolute(origin: &str, path: PathBuf) -> Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path);
    }
    Err(Error::new(format!("{origin}: {:?} is no absolute path", path.display().to_string()))
        .hint("it must begin with /"))
}

/// `$HOME` if it is a path, else what the password file says. (No name service: that may take a second, and a start two milliseconds.)
fn home(uid: u32) -> Result<PathBuf> {
    let plain =
        |h: &PathBuf| h.is_absolute() && !h.components().any(|c| c == std::path::Component::ParentDir);
    let variable = std::env::var_os("HOME").map(PathBuf::from).filter(plain);
    let home = variable
        .or_else(|| user_fields(uid).map(|f| PathBuf::from(&f[5])))
        .filter(|h| h.is_absolute())
        .ok_or_else(|| Error::new(format!("user {uid}: no home directory known")).hint("set HOME"))?;
    // Its parent is covered inside, so it must be what it seems.
    if home.components().any(|part| part == std::path::Component::ParentDir) {
        return home.canonicalize().context(|| format!("home {}", home.display()));
    }
    Ok(home)
}

/// The seven fields of a user in the password file.
pub fn user_fields(uid: u32) -> Option<Vec<String>> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let uid = uid.to_string();
    passwd
        .lines()
        .map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>())
        .find(|fields| fields.len() == 7 && fields[2] == uid)
}

fn read_config(home: &Path) -> Result<Config> {
    let mut texts = vec![];
    let mut add = |path: PathBuf, site: bool| -> Result<()> {
        let text = match std::fs::read_to_string(&path) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
            other => other
                .context(|| path.display().to_string())
                .map_err(|e| e.hint("configuration must be text that everybody it is for can read"))?,
        };
        if site {
            refuse_unless_roots(&path)?;
        }
        texts.push(Text { origin: path.display().to_string(), text, site });
        Ok(())
    };
    add(config::SITE_FILE.into(), true)?;
    for path in site_files() {
        add(path, true)?;
    }
    // One that is no absolute path is to be ignored, says its specification.
    let own = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let own = own.unwrap_or_else(|| home.join(".config"));
    add(own.join("skiff/config.toml"), false)?;
    config::merge(&texts).map_err(|e| {
        Error::new(e.to_string()).hint("`skiff config` shows what is in force and where it comes from")
    })
}

fn site_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(config::SITE_DIR)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    files
}

/// What the site decides must not be somebody else's word.
fn refuse_unless_roots(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let inside = is_inside();
    for part in path.ancestors() {
        let meta = part.metadata().context(|| part.display().to_string())?;
        // Seen from inside an environment, root's files are the user's own, whoever he is there.
        let roots = meta.uid() == 0 || geteuid().is_root() || (inside && meta.uid() == getuid().as_raw());
        if !roots || meta.mode() & 0o022 != 0 {
            return Err(Error::new(format!("{}: belongs to uid {} with mode {:o}", part.display(), meta.uid(), meta.mode() & 0o7777))
                .hint("the site's configuration must belong to root and not be writable by others: chown root, chmod go-w"));
        }
    }
    Ok(())
}

fn helper(config: &Config) -> Result<Option<PathBuf>> {
    let asked = std::env::var_os("SKIFF_HELPER")
        .or_else(|| Some(config.helper.clone().into()))
        .filter(|h| !h.is_empty());
    match asked {
        Some(word) if word == "none" => Ok(None),
        Some(path) => absolute("helper", path.into()).map(Some),
        None => {
            // Beside us, as `make install` puts it.
            let exe = std::env::current_exe().context(|| "own program")?;
            let prefix = exe.parent().and_then(Path::parent).unwrap_or(Path::new("/usr"));
            let path = prefix.join("libexec/skiff/skiff-helper");
            Ok(path.exists().then_some(path))
        }
    }
}
