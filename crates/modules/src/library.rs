//! The host's libraries, as its linker finds them, and what each of them needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_cdi::ElfFacts;

use crate::ModuleError;

/// No cache of a linker is longer, in bytes.
const LONGEST_CACHE: u64 = 32 << 20;
/// More libraries than a module brings.
const MOST: usize = 512;

/// What belongs to the C library, and so to each root itself: a program has one, of one version.
const OF_GLIBC: [&str; 14] = [
    "libc.so.",
    "libm.so.",
    "libmvec.so.",
    "libpthread.so.",
    "libdl.so.",
    "librt.so.",
    "libresolv.so.",
    "libutil.so.",
    "libanl.so.",
    "libnsl.so.1",
    "libBrokenLocale.so.",
    "libthread_db.so.",
    "ld-linux",
    "ld64.so.",
];
/// What compilers bring: a newer one does for what wants an older one, so of two the root's own counts, which its programs were made for.
const OF_COMPILERS: [&str; 5] =
    ["libgcc_s.so.", "libstdc++.so.", "libgfortran.so.", "libquadmath.so.", "libgomp.so."];

/// A library of the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLibrary {
    /// The name that programs ask for.
    pub name: String,
    /// The file, which is no link.
    pub path: PathBuf,
    /// What is known of it.
    pub facts: ElfFacts,
    /// Whether the root's own counts, where it has one.
    pub behind: bool,
}

/// The host's linker.
#[derive(Clone, Debug, Default)]
pub struct HostLinker {
    /// The first path for each name.
    cache: BTreeMap<String, PathBuf>,
}

impl HostLinker {
    /// As its cache says; one that is not there has nothing.
    #[must_use]
    pub fn of_host() -> Self {
        let mut bytes = vec![];
        match File::open("/etc/ld.so.cache").and_then(|file| file.take(LONGEST_CACHE).read_to_end(&mut bytes))
        {
            Ok(_) => Self::of_cache(&bytes),
            Err(_) => Self::default(),
        }
    }

    pub(crate) fn of_cache(bytes: &[u8]) -> Self {
        let mut cache = BTreeMap::new();
        for library in skiff_cdi::listed(bytes) {
            cache.entry(library.name).or_insert_with(|| library.path.into());
        }
        Self { cache }
    }

    /// These libraries, by name or path, each with all that it needs but the C library.
    ///
    /// # Errors
    /// One that is named is not there, or is no library.
    pub fn with_needed(&self, named: &[String], module: &str) -> Result<Vec<HostLibrary>, ModuleError> {
        let mut found: Vec<HostLibrary> = vec![];
        let mut seen = BTreeSet::new();
        for name in named {
            let path = match name.starts_with('/') {
                true => PathBuf::from(name),
                false => self.cache.get(name).cloned().ok_or_else(|| {
                    ModuleError::new(
                        format!("module {module}: library {name}: this host's linker does not know it"),
                        "administrator: name it by its path, or run ldconfig",
                    )
                })?,
            };
            let mut library = HostLibrary::read(&path).ok_or_else(|| {
                ModuleError::new(
                    format!("module {module}: {}: no library of 64 bits", path.display()),
                    "administrator: skiff module check",
                )
            })?;
            if !name.starts_with('/') {
                library.name = name.clone();
            }
            if seen.insert(library.name.clone()) {
                found.push(library);
            }
        }
        let mut at = 0;
        while at < found.len() && found.len() < MOST {
            let needed: Vec<String> = found[at].facts.libraries.clone();
            for name in needed.into_iter().filter(|name| !is_of_glibc(name)) {
                if !seen.insert(name.clone()) {
                    continue;
                }
                // One that is not there on the host either is its library's own matter, or the image's.
                let Some(path) = self.find(&name, &found[at]) else { continue };
                let behind = OF_COMPILERS.iter().any(|start| name.starts_with(start));
                found.extend(HostLibrary::read(&path).map(|library| HostLibrary { name, behind, ..library }));
            }
            at += 1;
        }
        if found.len() >= MOST {
            return Err(ModuleError::new(
                format!("module {module}: its libraries need more than {MOST} others"),
                "administrator: name fewer libraries in one module",
            ));
        }
        Ok(found)
    }

    /// Where the linker finds a library that another one needs.
    fn find(&self, name: &str, needed_by: &HostLibrary) -> Option<PathBuf> {
        if name.contains('/') {
            return None;
        }
        let origin = needed_by.path.parent().unwrap_or(Path::new("/")).display().to_string();
        let dirs = needed_by.facts.search.iter();
        let places = dirs.map(|dir| dir.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
        let of_path = places.map(|dir| Path::new(&dir).join(name)).find(|path| path.is_file());
        of_path.or_else(|| self.cache.get(name).cloned())
    }
}

fn is_of_glibc(name: &str) -> bool {
    OF_GLIBC.iter().any(|start| name.starts_with(start))
}

impl HostLibrary {
    fn read(path: &Path) -> Option<Self> {
        let path = std::fs::canonicalize(path).ok()?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, &path, flags, Mode::empty()).ok()?);
        let facts = ElfFacts::of(&file)?;
        let of_file = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // It becomes the name of a file.
        let name = facts.soname.clone().filter(|name| !name.contains('/') && !name.starts_with('.'));
        Some(Self { name: name.unwrap_or_else(of_file), path, facts, behind: false })
    }
}
