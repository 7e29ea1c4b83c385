//! All files of the directories that a site has for them, and which device each name means.

use std::io;
use std::path::{Path, PathBuf};

use crate::description::{CdiDescription, CdiDevice};
use crate::fields::Problem;
use crate::name::DeviceName;
use crate::site_files::{files_in, read_text};

/// No vendor's file is longer, in MiB.
const LONGEST: u64 = 4;

/// What is wrong with what is asked for, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiError {
    /// What, on which object, why.
    pub message: String,
    /// How to mend it.
    pub hint: String,
}

impl CdiError {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

/// A file that has been read.
#[derive(Clone, Debug)]
pub struct CdiFile {
    /// The path.
    pub path: PathBuf,
    /// The place of the directory in the list: of two files that of the later one counts.
    pub priority: usize,
    /// What it describes.
    pub description: CdiDescription,
    /// What is wrong with it. With one problem nothing of it is used.
    pub problems: Vec<Problem>,
}

/// All files.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// In order of the directories, and by name.
    pub files: Vec<CdiFile>,
}

/// A device, and the file that has it.
#[derive(Clone, Copy, Debug)]
pub struct FoundDevice<'a> {
    /// The file.
    pub file: &'a CdiFile,
    /// The device.
    pub device: &'a CdiDevice,
}

impl CdiFile {
    /// Reads a file; what is wrong with it is in its problems.
    #[must_use]
    pub fn read(path: &Path, priority: usize) -> Self {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let (description, problems) = match text_of(path) {
            Ok(text) => CdiDescription::parse(&text, is_json),
            Err(problem) => (CdiDescription::default(), vec![problem]),
        };
        Self { path: path.into(), priority, description, problems }
    }
}

fn text_of(path: &Path) -> Result<String, Problem> {
    read_text(path, LONGEST).map_err(|e| {
        let hint = if e.raw_os_error().is_some() { READABLE } else { "" };
        Problem::of_file(e.to_string(), hint)
    })
}

/// What an administrator does where a file cannot be read.
const READABLE: &str = "administrator: everybody must be able to read it";

/// Whether a file is a description by its name.
fn is_description(name: &str) -> bool {
    matches!(Path::new(name).extension().and_then(|extension| extension.to_str()), Some("json" | "yaml"))
}

impl Catalog {
    /// Reads the directories. One that is missing has no files.
    #[must_use]
    pub fn read(dirs: &[PathBuf]) -> Self {
        let mut files: Vec<CdiFile> = vec![];
        for (priority, dir) in dirs.iter().enumerate() {
            let problem = match files_in(dir, is_description) {
                Ok(found) => {
                    files.extend(found.paths.iter().map(|path| CdiFile::read(path, priority)));
                    found.problem.map(|problem| Problem::of_file(problem, "administrator: remove some"))
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => Some(Problem::of_file(e.to_string(), READABLE)),
            };
            files.extend(problem.map(|problem| CdiFile {
                path: dir.clone(),
                priority,
                description: CdiDescription::default(),
                problems: vec![problem],
            }));
        }
        Self { files }
    }

    fn sound(&self) -> impl Iterator<Item = &CdiFile> {
        self.files.iter().filter(|file| file.problems.is_empty())
    }

    /// All devices of a kind in the files' order. Of several with one name only that of the last directory counts, and none if two files there have it.
    #[must_use]
    pub fn devices<'a>(&'a self, kind: &str) -> Vec<FoundDevice<'a>> {
        let files: Vec<&CdiFile> = self.sound().filter(|file| file.description.kind == kind).collect();
        let is_named = |file: &CdiFile, name: &str| file.description.devices.iter().any(|d| d.name == name);
        // Mostly there is one file of a kind, and no name is compared.
        let counts = |one: &FoundDevice<'_>| {
            !files.iter().any(|other| {
                !std::ptr::eq(*other, one.file)
                    && other.priority >= one.file.priority
                    && other.path != one.file.path
                    && is_named(other, &one.device.name)
            })
        };
        let devices = |file: &'a CdiFile| {
            file.description.devices.iter().map(move |device| FoundDevice { file, device })
        };
        files.iter().flat_map(|file| devices(file)).filter(counts).collect()
    }

    /// The kinds there are, sorted.
    #[must_use]
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = self.sound().map(|file| file.description.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Names that two files of one directory describe, so that neither counts, with these files.
    #[must_use]
    pub fn conflicts(&self) -> Vec<(DeviceName, &Path, &Path)> {
        let mut found = vec![];
        let files: Vec<&CdiFile> = self.sound().collect();
        for (number, one) in files.iter().enumerate() {
            for other in &files[number + 1..] {
                if (one.priority, &one.description.kind) != (other.priority, &other.description.kind) {
                    continue;
                }
                let both = one.description.devices.iter();
                let both =
                    both.filter(|device| other.description.devices.iter().any(|o| o.name == device.name));
                found.extend(both.map(|device| {
                    let name = DeviceName { kind: one.description.kind.clone(), device: device.name.clone() };
                    (name, &*one.path, &*other.path)
                }));
            }
        }
        found
    }

    /// The device of this name.
    ///
    /// # Errors
    /// There is none, or two files of one directory have one.
    pub fn find(&self, name: &DeviceName) -> Result<FoundDevice<'_>, CdiError> {
        if let Some(found) =
            self.devices(&name.kind).into_iter().find(|found| found.device.name == name.device)
        {
            return Ok(found);
        }
        Err(self.conflict(|known| known == name).unwrap_or_else(|| self.missing(name)))
    }

    /// Why a device that is `meant` does not count, if two files of one directory describe it.
    pub(crate) fn conflict(&self, meant: impl Fn(&DeviceName) -> bool) -> Option<CdiError> {
        let (name, one, other) = self.conflicts().into_iter().find(|(name, ..)| meant(name))?;
        Some(CdiError::new(
            format!("device {name}: both {} and {} describe it", one.display(), other.display()),
            "administrator: remove one of the files; one in a later directory of cdi_dirs would count alone",
        ))
    }

    /// Why there is no such device.
    fn missing(&self, name: &DeviceName) -> CdiError {
        if let Some(broken) = self.broken(|_| true) {
            return CdiError::new(format!("device {name}: not described; {broken}"), "skiff cdi check");
        }
        let known: Vec<&str> = self.devices(&name.kind).iter().map(|found| &*found.device.name).collect();
        let kinds = self.kinds();
        match (known.is_empty(), kinds.is_empty()) {
            (false, _) => CdiError::new(
                format!("device {name}: not one of {}, which has {}", name.kind, shortened(&known)),
                "skiff cdi list",
            ),
            (true, false) => CdiError::new(
                format!("device {name}: no file describes {}, only {}", name.kind, shortened(&kinds)),
                "skiff cdi list",
            ),
            (true, true) => CdiError::new(
                format!("device {name}: this host has no descriptions of devices (CDI)"),
                how_to_describe(&[&name.kind]),
            ),
        }
    }

    /// The first of these files that is not used, with the reason.
    pub(crate) fn broken(&self, is_meant: impl Fn(&CdiFile) -> bool) -> Option<String> {
        let file = self.files.iter().find(|file| !file.problems.is_empty() && is_meant(file))?;
        Some(format!("{} is not used: {}", file.path.display(), file.problems.first()?.text()))
    }
}

/// The vendors' own tools that describe devices.
const TOOLS: [(&str, &str); 2] = [
    ("nvidia.com/", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    ("amd.com/", "amd-ctk cdi generate --output=/etc/cdi/amd.json"),
];

/// What an administrator does where no file describes devices of these kinds.
pub(crate) fn how_to_describe(kinds: &[&str]) -> String {
    let tools = TOOLS.iter().filter(|(vendor, _)| kinds.iter().any(|kind| kind.starts_with(vendor)));
    match tools.map(|(_, tool)| *tool).collect::<Vec<_>>().join(", or ") {
        none if none.is_empty() => "administrator: put the vendor's file into /etc/cdi".into(),
        tools => format!("administrator: {tools}"),
    }
}

/// A list that fits in a message.
pub(crate) fn shortened(names: &[&str]) -> String {
    const MOST: usize = 12;
    let more = if names.len() > MOST { format!(" and {} more", names.len() - MOST) } else { String::new() };
    format!("{}{more}", names.iter().take(MOST).copied().collect::<Vec<_>>().join(", "))
}
