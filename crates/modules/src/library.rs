//! The host's libraries, as its linker finds them, and what each of them needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_cdi::{ElfFacts, GlibcVersion, files_in};
use skiff_spec::device::LibraryRole;

use crate::ModuleError;
use crate::file::{ModuleFile, parse_library};

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
/// What compilers bring.
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
    /// What it is for.
    pub role: LibraryRole,
}

/// The libraries of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundLibraries {
    /// The libraries that it names, and all that these and its plug-ins need, but the C library.
    pub libraries: Vec<HostLibrary>,
    /// The newest glibc that a plug-in needs, and that plug-in.
    pub of_plugins: Option<(GlibcVersion, PathBuf)>,
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

    /// The libraries that a module names, and all that they and its plug-ins need but the C library.
    ///
    /// # Errors
    /// One that is named is not there, or is no library.
    pub fn of_module(&self, file: &ModuleFile, module: &str) -> Result<FoundLibraries, ModuleError> {
        let mut found = FoundLibraries::default();
        let mut seen = BTreeSet::new();
        let of_role =
            |role, words: &[String]| words.iter().map(|word| (role, word.clone())).collect::<Vec<_>>();
        let named =
            [of_role(LibraryRole::Replaces, &file.replaces), of_role(LibraryRole::Named, &file.libraries)];
        for (role, word) in named.concat() {
            let library = HostLibrary { role, ..self.named(&word, module)? };
            if seen.insert(library.name.clone()) {
                found.libraries.push(library);
            }
        }
        for plugin in file.plugins.iter().flat_map(|dir| plugins(Path::new(dir))) {
            if let Some(needed) = plugin.facts.needs
                && found.of_plugins.as_ref().is_none_or(|(known, _)| *known < needed)
            {
                found.of_plugins = Some((needed, plugin.path.clone()));
            }
            found.libraries.extend(self.needed_by(&plugin, &mut seen));
        }
        let mut at = 0;
        while at < found.libraries.len() && found.libraries.len() < MOST {
            let needed = self.needed_by(&found.libraries[at], &mut seen);
            found.libraries.extend(needed);
            at += 1;
        }
        if found.libraries.len() >= MOST {
            return Err(ModuleError::new(
                format!("module {module}: its libraries need more than {MOST} others"),
                "administrator: name fewer libraries in one module",
            ));
        }
        Ok(found)
    }

    /// A library as a module's file names it.
    fn named(&self, word: &str, module: &str) -> Result<HostLibrary, ModuleError> {
        let (library, name) = parse_library(word).unwrap_or((word, None));
        let path = match library.starts_with('/') {
            true => PathBuf::from(library),
            false => self.cache.get(library).cloned().ok_or_else(|| {
                ModuleError::new(
                    format!("module {module}: library {library}: this host's linker does not know it"),
                    "administrator: name it by its path, or run ldconfig",
                )
            })?,
        };
        let found = HostLibrary::read(&path).ok_or_else(|| {
            let why = match std::fs::metadata(&path) {
                Ok(_) => "not a 64-bit library".into(),
                Err(e) => e.to_string(),
            };
            ModuleError::new(
                format!("module {module}: {}: {why}", path.display()),
                "administrator: skiff module check",
            )
        })?;
        let name = name.or((!library.starts_with('/')).then_some(library));
        Ok(HostLibrary { name: name.map_or(found.name, String::from), ..found })
    }

    /// What a library needs and nobody has asked for yet. What is not there on the host either is its own matter, or the image's.
    fn needed_by(&self, library: &HostLibrary, seen: &mut BTreeSet<String>) -> Vec<HostLibrary> {
        let names = library.facts.libraries.iter().filter(|name| !is_of_glibc(name));
        let new: Vec<&String> = names.filter(|name| seen.insert((*name).clone())).collect();
        let read = |name: &String| {
            let is_of_compilers = OF_COMPILERS.iter().any(|start| name.starts_with(start));
            let role = if is_of_compilers { LibraryRole::Compilers } else { LibraryRole::Needed };
            let found = HostLibrary::read(&self.find(name, library)?)?;
            Some(HostLibrary { name: name.clone(), role, ..found })
        };
        new.into_iter().filter_map(read).collect()
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

/// The libraries of a directory.
fn plugins(dir: &Path) -> Vec<HostLibrary> {
    let is_library = |name: &str| name.ends_with(".so") || name.contains(".so.");
    // Whether the directory is there was asked before.
    let Ok(found) = files_in(dir, is_library) else { return vec![] };
    found.paths.iter().filter_map(|path| HostLibrary::read(path)).collect()
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
        Some(Self { name: name.unwrap_or_else(of_file), path, facts, role: LibraryRole::Needed })
    }
}
