//! What becomes of which file: the user's word for all of them, else the configuration's for the longest path that one is at or below.

use std::path::{Path, PathBuf};

use skiff_cli::GrownFiles;
use skiff_spec::fault::{Fault, Result};
use skiff_user::context::UserContext;

/// What becomes of files outside an instance when it is restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRules {
    all: Option<GrownFiles>,
    paths: Vec<(PathBuf, GrownFiles)>,
}

impl FileRules {
    /// The rules of the configuration (`checkpoint.files`), and the user's word for all.
    ///
    /// # Errors
    /// A line of the configuration is not `PATH:WAY`.
    pub fn of(context: &UserContext, all: Option<GrownFiles>) -> Result<Self> {
        let lines = &context.config.checkpoint.files;
        let paths = lines.iter().map(|line| parse(line, &context.home)).collect::<Result<_>>()?;
        Ok(Self { all, paths })
    }

    /// One way for all files.
    #[cfg(test)]
    pub(super) fn for_all(way: GrownFiles) -> Self {
        Self { all: Some(way), paths: vec![] }
    }

    /// What becomes of this one.
    #[must_use]
    pub fn way(&self, path: &str) -> GrownFiles {
        let at_or_below = self.paths.iter().filter(|(top, _)| Path::new(path).starts_with(top));
        let longest = at_or_below.max_by_key(|(top, _)| top.as_os_str().len());
        self.all.or(longest.map(|(_, way)| *way)).unwrap_or_default()
    }
}

fn parse(line: &str, home: &Path) -> Result<(PathBuf, GrownFiles)> {
    let parts = line.rsplit_once(':').and_then(|(path, way)| Some((path, GrownFiles::named(way)?)));
    let absolute = |path: &str| match path.strip_prefix('~') {
        Some("") => Some(home.to_owned()),
        Some(below) => below.strip_prefix('/').map(|below| home.join(below)),
        None => path.starts_with('/').then(|| PathBuf::from(path)),
    };
    parts.and_then(|(path, way)| Some((absolute(path)?, way))).ok_or_else(|| {
        Fault::new(format!("checkpoint.files: {line:?} is not PATH:WAY"))
            .hint("PATH begins with / or ~/; WAY is restore, truncate, keep or refuse")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_word_then_the_longest_path_then_the_default() {
        let home = Path::new("/home/a");
        let lines = ["~/logs:keep", "~/logs/run:truncate", "/:refuse", "/scratch/a:b:restore"];
        let paths: Vec<_> = lines.iter().map(|line| parse(line, home).expect("a rule")).collect();
        let rules = FileRules { all: None, paths: paths.clone() };
        for (path, way) in [
            ("/home/a/logs", GrownFiles::Keep),
            ("/home/a/logs/run/1", GrownFiles::Truncate),
            ("/home/a/logs2", GrownFiles::Refuse),
            ("/scratch/a:b/x", GrownFiles::Restore),
        ] {
            assert_eq!(rules.way(path), way, "{path}");
        }
        assert_eq!(FileRules { all: Some(GrownFiles::Keep), paths }.way("/x"), GrownFiles::Keep);
        assert_eq!(FileRules::default().way("/x"), GrownFiles::Restore);
        for line in ["keep", "logs:keep", "~b/logs:keep", "/x:cut", "/x:"] {
            parse(line, home).expect_err(line);
        }
    }
}
