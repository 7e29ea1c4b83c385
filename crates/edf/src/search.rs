//! Where definitions are: files by their paths, and names that are looked up.

use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::file::DefinitionFile;
use crate::{Error, LONGEST};

/// The variable with the directories in which names are looked up, instead of `.edf` in the home.
const PATH: &str = "EDF_PATH";
const IN_HOME: &str = ".edf";
const ENDING: &str = "toml";

/// What the caller knows, and a definition may ask for.
pub struct DefinitionContext<'a> {
    /// A variable of the user's.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The user's home.
    pub home: PathBuf,
    /// The contents of a file, if it is a regular one of at most [`LONGEST`] bytes.
    pub read: &'a dyn Fn(&Path) -> std::io::Result<Vec<u8>>,
}

impl fmt::Debug for DefinitionContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DefinitionContext").field("home", &self.home).finish_non_exhaustive()
    }
}

/// Whether a word is a file, and not a name to be looked up.
#[must_use]
pub fn is_file_name(word: &str) -> bool {
    word.contains('/') || Path::new(word).extension().is_some_and(|ending| ending == ENDING)
}

impl DefinitionContext<'_> {
    /// A variable as text.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)?.into_string().ok()
    }

    /// Where names are looked up, first to last.
    #[must_use]
    pub fn directories(&self) -> Vec<PathBuf> {
        match (self.variable)(PATH).filter(|path| !path.is_empty()) {
            Some(path) => std::env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect(),
            None => vec![self.home.join(IN_HOME)],
        }
    }

    /// The file of a definition that has a name, if there is one.
    #[must_use]
    pub fn file_of_name(&self, name: &str) -> Option<PathBuf> {
        let file = |dir: PathBuf| dir.join(name).with_added_extension(ENDING);
        let is_name = !name.is_empty() && !is_file_name(name);
        self.directories().into_iter().filter(|_| is_name).map(file).find(|path| path.is_file())
    }

    /// The file that a word means, with its contents: a path counts from `from`.
    pub(crate) fn find(&self, word: &str, from: Option<&Path>) -> Result<(PathBuf, Vec<u8>), Error> {
        if is_file_name(word) {
            let path = from.map_or_else(|| PathBuf::from(word), |dir| dir.join(word));
            let read = (self.read)(&path);
            return read.map(|bytes| (path.clone(), bytes)).map_err(|e| self.unreadable(&path, &e));
        }
        let directories = self.directories();
        for dir in &directories {
            let path = dir.join(word).with_added_extension(ENDING);
            match (self.read)(&path) {
                Ok(bytes) => return Ok((path, bytes)),
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(self.unreadable(&path, &e)),
            }
        }
        let looked: Vec<_> = directories.iter().map(|dir| dir.display().to_string()).collect();
        let meant = self.nearest(word).map_or_else(String::new, |name| format!("{name} may be meant; "));
        Err(Error {
            place: format!("definition {word}"),
            what: format!("there is no {word}.{ENDING} in {}", looked.join(", ")),
            hint: format!(
                "{meant}{PATH} names other directories; a file is named with a / or with .{ENDING}"
            ),
        })
    }

    /// All that is wrong with the keys of the file that a word means, without those that it builds upon.
    #[must_use]
    pub fn errors(&self, word: &str) -> Vec<Error> {
        self.find(word, None).map_or_else(|e| vec![e], |(path, bytes)| DefinitionFile::errors(&path, &bytes))
    }

    /// The name that somebody may have meant who wrote another one.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Option<String> {
        let names = self.names();
        skiff_nearest::nearest(name, names.iter().map(|(known, _)| &**known)).map(str::to_owned)
    }

    fn unreadable(&self, path: &Path, e: &std::io::Error) -> Error {
        let named = || self.file_of_name(path.file_stem()?.to_str()?);
        let hint = match e.kind() {
            ErrorKind::NotFound => match named() {
                Some(file) => format!("{} may be meant", file.display()),
                None => "`skiff edf list` shows those that are found by name".into(),
            },
            ErrorKind::FileTooLarge => format!("a definition has at most {LONGEST} bytes"),
            _ => "a definition is a regular file that you may read".into(),
        };
        Error { place: path.display().to_string(), what: e.to_string(), hint }
    }

    /// All names that can be found, with their files; of one name the first counts.
    #[must_use]
    pub fn names(&self) -> Vec<(String, PathBuf)> {
        let mut found: Vec<(String, PathBuf)> = vec![];
        for dir in self.directories() {
            let Ok(entries) = std::fs::read_dir(&dir) else { continue };
            for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
                let is_definition = path.extension().is_some_and(|ending| ending == ENDING);
                let name = path.file_stem().and_then(|name| name.to_str());
                if let Some(name) = name.filter(|name| is_definition && found.iter().all(|(n, _)| n != name))
                {
                    found.push((name.to_owned(), path));
                }
            }
        }
        found.sort();
        found
    }
}
