//! Directories that each environment has for itself. A path in one of them means another file inside than outside, where it may be a
//! neighbour's: who calls Skiff inside, or sends a command by ssh and files before it, means the former, and Skiff runs outside.

use std::path::{Path, PathBuf};

use skiff_spec::caller::{FOR_CALLER, FOR_LOGIN};
use skiff_spec::config::Config;
use skiff_spec::fault::{Fault, Result};

/// Anybody makes files in these.
const PLACES: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Whether the words that this process has are those of somebody inside.
#[must_use]
pub fn is_caller_inside() -> bool {
    [FOR_CALLER, FOR_LOGIN].iter().any(|name| std::env::var_os(name).is_some())
}

/// Refuses a path in such a directory if the words are those of somebody inside.
///
/// # Errors
/// Names the path, and what to do.
pub fn refuse(config: &Config, path: &Path) -> Result<()> {
    match of(config, path).filter(|_| is_caller_inside()) {
        None => Ok(()),
        Some(place) => Err(Fault::new(format!(
            "{}: the environment has a {place} of its own, and skiff runs outside, also when it is called inside",
            path.display()
        ))
        .hint("name a file that both have, in your home for one")),
    }
}

/// Which of these directories a path leads into. What the site shows inside as it is outside is none.
#[must_use]
pub fn of(config: &Config, path: &Path) -> Option<&'static str> {
    let real = real(path);
    let is_shared = |place: &str| {
        let twice = format!("{place}:{place}");
        config.mounts.iter().any(|mount| mount == place || mount.starts_with(&twice))
    };
    PLACES.into_iter().find(|place| real.starts_with(place) && !is_shared(place))
}

/// Where a path leads, as far as there is something.
fn real(path: &Path) -> PathBuf {
    let path = std::env::current_dir().unwrap_or_else(|_| "/".into()).join(path);
    let there = path.ancestors().find_map(|there| Some((there, std::fs::canonicalize(there).ok()?)));
    match there {
        Some((there, real)) => path.strip_prefix(there).map_or_else(|_| real.clone(), |rest| real.join(rest)),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_on_the_way_are_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink("/dev/shm", dir.path().join("link")).expect("a link");
        assert_eq!(real(&dir.path().join("link/none/x")), Path::new("/dev/shm/none/x"));
        assert_eq!(real(Path::new("/no/such")), Path::new("/no/such"));
    }
}
