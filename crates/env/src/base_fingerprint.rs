//! What the host's root is: enough to tell whether a node has the same one as the login node, and what differs if not.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW, futimens};
use rustix::process::getuid;
use skiff_site::TrustedDir;
use skiff_spec::config::Mismatch;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::image::ImageId;
use skiff_sys::kernel::host_name;
use skiff_sys::{IgnoreError, small_file};
use skiff_user::context::UserContext;
use skiff_user::dirs;

/// The release, the architecture, the packages of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseFingerprint {
    release: String,
    architecture: String,
    /// `name version` of every installed package; empty where no package database is known.
    packages: BTreeSet<String>,
}

/// Keys of what is recorded.
const ARCHITECTURE: &str = "architecture";
const PACKAGES: &str = "packages";
/// The directory in a depot where lists of packages are.
pub const LISTS: &str = "bases";
/// Behind the digest in a list's name.
const LIST: &str = ".packages";
/// So long a list stays that no snapshot names, in seconds: nodes are compared with it.
const KEPT_SECONDS: u64 = 14 * 24 * 60 * 60;
/// The time of the file system's own clock.
const NOW: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
};
const DPKG: &str = "/var/lib/dpkg/status";
/// In all formats of RPM: SQLite, its own (ndb), Berkeley DB.
const RPM: [&str; 5] = [
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/usr/lib/sysimage/rpm/Packages.db",
    "/var/lib/rpm/rpmdb.sqlite",
    "/var/lib/rpm/Packages.db",
    "/var/lib/rpm/Packages",
];
/// More differences than these are counted, not named.
const NAMED: usize = 5;

/// This node's. The list of packages is kept in `keep`, a file of the user's, until the package database changes: reading that takes
/// a tenth of a second, for RPM a whole one.
pub fn here(keep: &Path) -> Result<BaseFingerprint> {
    let release =
        fs::read_to_string("/etc/os-release").or_else(|_| fs::read_to_string("/usr/lib/os-release"));
    Ok(BaseFingerprint {
        release: release_of(
            &release.default_on_error("a host that does not say its release is compared by its packages"),
        ),
        architecture: std::env::consts::ARCH.into(),
        packages: packages(keep)?,
    })
}

impl BaseFingerprint {
    /// Writes the list of packages into the depot (once for each different one) and gives what a manifest holds.
    pub fn record(&self, depot: &Path) -> Result<BTreeMap<String, String>> {
        let list = self.list();
        let name = list_name(&digest(&list));
        let lists = TrustedDir::make(&depot.join(LISTS), getuid().as_raw(), 0o755)?;
        match lists.stat(&name)? {
            None => lists.write(name, list.as_bytes(), 0o644)?,
            // What was used is not old.
            Some(_) => futimens(&lists.file(name, OFlags::RDONLY, 0)?, &NOW)
                .ignore_error("a depot that cannot be written to collects nothing"),
        }
        Ok(self.described())
    }

    /// The packages, one on a line.
    pub fn list(&self) -> String {
        self.packages.iter().map(|p| format!("{p}\n")).collect()
    }

    /// What a manifest holds.
    pub fn described(&self) -> BTreeMap<String, String> {
        let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        BTreeMap::from([
            entry("release", &self.release),
            entry(ARCHITECTURE, &self.architecture),
            entry(PACKAGES, &digest(&self.list())),
        ])
    }

    /// Whether programs of the root recorded do not run on this one.
    pub fn is_another_architecture(&self, recorded: &BTreeMap<String, String>) -> bool {
        recorded.get(ARCHITECTURE) != Some(&self.architecture)
    }

    /// Why a job does not run on this root, given its `difference` from the one recorded: what helps; nothing if the job runs. One of another
    /// architecture is no matter of packages: what was installed there does not run at all.
    pub fn refusal(
        &self,
        recorded: &BTreeMap<String, String>,
        difference: &str,
        mismatch: Mismatch,
    ) -> Option<&'static str> {
        let is_foreign = recorded.contains_key(ARCHITECTURE) && self.is_another_architecture(recorded);
        match mismatch {
            _ if difference.is_empty() => None,
            Mismatch::Ignore => None,
            _ if is_foreign => Some(
                "use nodes of the login node's architecture, as by --constraint; base.mismatch = \"ignore\" in the configuration lets such jobs run",
            ),
            Mismatch::Warn => None,
            Mismatch::Refuse => Some(
                "use nodes that have the login node's packages; base.mismatch = \"warn\" in the configuration lets such jobs run",
            ),
        }
    }

    /// In what this root differs from the one recorded, said so that the administrator can mend it; nothing if in nothing.
    pub fn difference(&self, recorded: &BTreeMap<String, String>, depot: &Path) -> Option<String> {
        let digest = recorded.get(PACKAGES).map(String::as_str).unwrap_or_default();
        let there = || fs::read_to_string(list_path(depot, digest)).ok();
        self.difference_from(recorded, there)
    }

    /// The same; the list of packages recorded is asked for only where it is needed.
    pub fn difference_from(
        &self,
        recorded: &BTreeMap<String, String>,
        there: impl FnOnce() -> Option<String>,
    ) -> Option<String> {
        let of = |key: &str| recorded.get(key).map(String::as_str).unwrap_or_default();
        for (what, here, there) in [
            (ARCHITECTURE, self.architecture.as_str(), of(ARCHITECTURE)),
            ("release", &self.release, of("release")),
        ] {
            if here != there {
                return Some(format!("{what} {here} here, {there} where it was built"));
            }
        }
        if digest(&self.list()) == of(PACKAGES) {
            return None;
        }
        let Some(there) = there() else {
            return Some(
                "other packages (those where it was built are no longer on record in the depot)".into(),
            );
        };
        let there: BTreeSet<String> = there.lines().map(str::to_owned).collect();
        Some(package_differences(&self.packages, &there))
    }
}

/// The key under which a manifest names an image, and the one for the name it was pulled by.
const IMAGE: &str = "image";
const REFERENCE: &str = "reference";

/// What a manifest holds of an environment over an image: such a base is the same everywhere.
pub fn of_image(id: ImageId, reference: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(IMAGE.into(), id.to_string()), (REFERENCE.into(), reference.into())])
}

/// The image that a manifest names, and its name; nothing if it is of the host's root.
pub fn image_of(recorded: &BTreeMap<String, String>) -> Result<Option<(ImageId, &str)>> {
    let Some(text) = recorded.get(IMAGE) else { return Ok(None) };
    let id = text.parse().map_err(|e| Error::new(format!("snapshot: its base: {e}")))?;
    Ok(Some((id, recorded.get(REFERENCE).map_or(text.as_str(), String::as_str))))
}

fn digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

fn package_differences(here: &BTreeSet<String>, there: &BTreeSet<String>) -> String {
    let versions = |set: &BTreeSet<String>| -> BTreeMap<String, String> {
        set.iter().filter_map(|p| p.split_once(' ')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
    };
    let (here, there) = (versions(here), versions(there));
    let names: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
    let differing: Vec<String> = names
        .into_iter()
        .filter_map(|name| match (here.get(name), there.get(name)) {
            (a, b) if a == b => None,
            (Some(h), Some(t)) => Some(format!("{name} {h} here, {t} there")),
            (Some(_), None) => Some(format!("{name} only here")),
            (None, _) => Some(format!("{name} missing here")),
        })
        .collect();
    let more = differing.len().saturating_sub(NAMED);
    let shown = differing.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    if more > 0 { format!("packages: {shown}; and {more} more") } else { format!("packages: {shown}") }
}

/// Lists of packages that none of these manifests names, and that were not used for long. `age`: of what was used then, in seconds.
pub fn unused_lists<'a>(
    depot: &Path,
    recorded: impl Iterator<Item = &'a BTreeMap<String, String>>,
    age: impl Fn(i64) -> u64,
) -> Result<Vec<OsString>> {
    let Some(lists) = TrustedDir::find(&depot.join(LISTS), getuid().as_raw())? else { return Ok(vec![]) };
    let used: BTreeSet<OsString> =
        recorded.filter_map(|base| base.get(PACKAGES)).map(|digest| list_name(digest).into()).collect();
    let mut unused = vec![];
    for name in lists.names()? {
        let is_list = name.to_str().is_some_and(|name| name.ends_with(LIST));
        if is_list
            && !used.contains(&name)
            && lists.stat(&name)?.is_some_and(|stat| age(stat.st_mtime) >= KEPT_SECONDS)
        {
            unused.push(name);
        }
    }
    Ok(unused)
}

/// Removes such lists.
pub fn forget_lists(depot: &Path, names: &[OsString]) -> Result<()> {
    let Some(lists) = TrustedDir::find(&depot.join(LISTS), getuid().as_raw())? else { return Ok(()) };
    Ok(names.iter().try_for_each(|name| lists.remove_file(name))?)
}

fn list_path(depot: &Path, digest: &str) -> PathBuf {
    depot.join(LISTS).join(list_name(digest))
}

fn list_name(digest: &str) -> String {
    format!("{digest}{LIST}")
}

fn release_of(text: &str) -> String {
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    format!("{} {}", field("ID"), field("VERSION_ID")).trim().to_owned()
}

/// On a login node: where `here` keeps its list, each host its own, as the home may be on all of them.
pub fn kept_in_home(context: &UserContext) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| context.home.join(".cache"), PathBuf::from);
    let host = host_name().replace('/', "_");
    cache.join("skiff").join(format!("packages.{host}"))
}

/// The installed packages.
fn packages(keep: &Path) -> Result<BTreeSet<String>> {
    let Some(database) = [DPKG].iter().chain(&RPM).map(Path::new).find(|p| p.exists()) else {
        return Ok(BTreeSet::new());
    };
    let meta = database.metadata().context(|| database.display().to_string())?;
    let key = format!(
        "{} {} {} {}.{}",
        database.display(),
        meta.ino(),
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec()
    );
    if let Ok(text) = small_file::read_to_string(keep)
        && let Some((first, rest)) = text.split_once('\n')
        && first == key
    {
        return Ok(rest.lines().map(str::to_owned).collect());
    }
    let found = if database == Path::new(DPKG) {
        let text = fs::read(database).context(|| DPKG)?;
        dpkg(&String::from_utf8_lossy(&text))
    } else {
        rpm()?
    };
    let list: String = found.iter().map(|p| format!("{p}\n")).collect();
    if let (Some(dir), Some(name)) = (keep.parent(), keep.file_name()) {
        TrustedDir::make(dir, getuid().as_raw(), 0o700)
            .and_then(|dir| {
                dirs::sweep(&dir);
                dir.write(name, format!("{key}\n{list}").as_bytes(), 0o600)
            })
            .ignore_error("without the copy the packages are read again the next time");
    }
    Ok(found)
}

fn dpkg(status: &str) -> BTreeSet<String> {
    let package = |paragraph: &str| -> Option<String> {
        let field = |name: &str| paragraph.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
        field("Status:")?.ends_with(" installed").then_some(())?;
        Some(format!("{}:{} {}", field("Package:")?, field("Architecture:")?, field("Version:")?))
    };
    status.split("\n\n").filter_map(package).collect()
}

fn rpm() -> Result<BTreeSet<String>> {
    let out = std::process::Command::new("rpm")
        .args(["-qa", "--qf", "%{NAME}:%{ARCH} %{VERSION}-%{RELEASE}\\n"])
        .output()
        .context(|| "rpm")?;
    if !out.status.success() {
        return Err(Error::new("rpm -qa failed"));
    }
    Ok(String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\n\
                          Package: b\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 2\n\n\
                          Package: c\nStatus: install ok installed\nArchitecture: all\nVersion: 3-1\n";

    #[test]
    fn installed_packages_only() {
        assert_eq!(dpkg(STATUS).into_iter().collect::<Vec<_>>(), ["a:amd64 1", "c:all 3-1"]);
    }

    #[test]
    fn differences_are_named_and_counted() {
        let set = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<BTreeSet<_>>();
        let text = package_differences(&set(&["a 1", "b 1", "x 1"]), &set(&["a 2", "b 1", "y 1"]));
        assert_eq!(text, "packages: a 1 here, 2 there; x only here; y missing here");
        let many: Vec<String> = (0..9).map(|n| format!("p{n} 1")).collect();
        let text = package_differences(&many.into_iter().collect(), &BTreeSet::new());
        assert!(text.ends_with("and 4 more"), "{text}");
    }

    #[test]
    fn another_architecture_is_refused_unless_nothing_is_compared() {
        let root = |architecture: &str, release: &str| BaseFingerprint {
            release: release.into(),
            architecture: architecture.into(),
            packages: BTreeSet::new(),
        };
        let here = root("x86_64", "debian 12");
        let [same, other, foreign] =
            [("x86_64", "debian 12"), ("x86_64", "debian 13"), ("aarch64", "debian 12")]
                .map(|(architecture, release)| root(architecture, release).described());
        let unsaid = BTreeMap::from([("release".to_owned(), "debian 12".to_owned())]);
        let cases = [
            (&same, [false, false, false]),
            (&other, [true, false, false]),
            (&foreign, [true, true, false]),
            (&unsaid, [true, false, false]),
        ];
        for (recorded, refused) in cases {
            let difference = here.difference_from(recorded, || None).unwrap_or_default();
            let is_refused = [Mismatch::Refuse, Mismatch::Warn, Mismatch::Ignore]
                .map(|mismatch| here.refusal(recorded, &difference, mismatch).is_some());
            assert_eq!(is_refused, refused, "{recorded:?}: {difference}");
        }
        let hint = here.refusal(&foreign, "architecture", Mismatch::Warn).unwrap();
        assert!(hint.contains("architecture"), "{hint}");
    }

    #[test]
    fn a_list_goes_that_no_snapshot_names_and_that_was_not_used_for_long() {
        let path = tempfile::tempdir().expect("a directory");
        let of = |package: &str| BaseFingerprint {
            release: "debian 12".into(),
            architecture: "x86_64".into(),
            packages: BTreeSet::from([package.to_owned()]),
        };
        let all = ["named 1", "new 1", "old 1"].map(of);
        let recorded = all.clone().map(|base| base.record(path.path()).expect("recorded"));
        let name = |base: &BaseFingerprint| OsString::from(list_name(&digest(&base.list())));
        let set_old = |base: &BaseFingerprint| {
            let file = fs::File::open(path.path().join(LISTS).join(name(base))).expect("a list");
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("set");
        };
        all.iter().for_each(set_old);
        fs::write(path.path().join(LISTS).join("other"), "").expect("a file");
        all[1].record(path.path()).expect("used again");
        let age = |used: i64| if used == 0 { KEPT_SECONDS } else { 0 };
        let unused = unused_lists(path.path(), recorded[..1].iter(), age).expect("listed");
        assert_eq!(unused, [name(&all[2])]);
        forget_lists(path.path(), &unused).expect("removed");
        assert_eq!(fs::read_dir(path.path().join(LISTS)).expect("a directory").count(), 3);
    }

    #[test]
    fn release_from_os_release() {
        assert_eq!(release_of("NAME=\"X\"\nID=debian\nVERSION_ID=\"12\"\n"), "debian 12");
    }
}
