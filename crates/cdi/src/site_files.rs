//! Files of a site's by which it describes something: small texts in directories of their own. What lies there may be anything.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// More files than a site has in a directory.
const MOST_FILES: usize = 1000;

/// A file's text.
///
/// # Errors
/// The file cannot be read, is not a regular file or not text, or is longer than `mebibytes`.
pub fn read_text(path: &Path, mebibytes: u64) -> io::Result<String> {
    // A named pipe in the place of a file makes nobody wait.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let longest = mebibytes << 20;
    let mut bytes = vec![];
    if metadata.len() <= longest {
        bytes.reserve_exact(usize::try_from(metadata.len()).unwrap_or(0) + 1);
        file.take(longest + 1).read_to_end(&mut bytes)?;
    }
    if metadata.len().max(bytes.len() as u64) > longest {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("longer than {mebibytes} MiB")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "not UTF-8"))
}

/// A directory's files.
pub struct SiteFiles {
    /// The files' paths, by name. More than 1000 are not looked at.
    pub paths: Vec<PathBuf>,
    /// What is wrong with the directory, if something is.
    pub problem: Option<String>,
}

/// The files of a directory, as far as their names are such as are wanted.
///
/// # Errors
/// The directory cannot be read.
pub fn files_in(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<SiteFiles> {
    let mut paths = vec![];
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(&is_wanted) {
            paths.push(dir.join(name));
        }
    }
    paths.sort();
    let problem = (paths.len() > MOST_FILES).then(|| {
        format!(
            "{} files, and only the first {MOST_FILES} are used, in the order of their names",
            paths.len()
        )
    });
    paths.truncate(MOST_FILES);
    Ok(SiteFiles { paths, problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_files_the_first_are_used() {
        let dir = tempfile::tempdir().expect("a directory");
        for number in (0..=MOST_FILES).rev() {
            File::create(dir.path().join(format!("{number:04}.yaml"))).expect("a file");
        }
        let found = files_in(dir.path(), |name| name.ends_with("yaml")).expect("read");
        let problem = "1001 files, and only the first 1000 are used, in the order of their names";
        assert_eq!(found.problem.as_deref(), Some(problem));
        assert_eq!(found.paths.len(), MOST_FILES);
        assert!(found.paths[0].ends_with("0000.yaml") && found.paths[999].ends_with("0999.yaml"));
        assert_eq!(files_in(dir.path(), |name| name == "0000.yaml").expect("read").problem, None);
    }
}
