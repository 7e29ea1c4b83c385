//! Where the user's configuration lies, by the XDG base directory specification.

use std::path::PathBuf;

/// An absolute path from the environment.
pub(crate) fn from_env(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The user's home.
pub(crate) fn home() -> Option<PathBuf> {
    from_env("HOME")
}

/// `$XDG_CONFIG_HOME`, else `~/.config`.
pub(crate) fn config_home() -> Option<PathBuf> {
    from_env("XDG_CONFIG_HOME").or_else(|| Some(home()?.join(".config")))
}
