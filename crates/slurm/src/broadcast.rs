//! `srun --bcast=/tmp/PROGRAM`: slurmd has written the program on the node, outside of every environment, where `/tmp` is the node's own. From
//! there it goes to the job's `/tmp`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fchmod, fstat, openat, openat2, renameat,
    unlinkat,
};
use rustix::process::getuid;
use skiff_output as output;
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::job::names::{JOB_ID, TEMPORARY};
use skiff_sys::IgnoreError;

use crate::job::dir;

/// Others write to the node's `/tmp`, too.
const INSIDE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The program of a job's task as Slurm names it; in the job's `/tmp`, if it was sent to the node's.
pub fn program(job: u32, named: OsString) -> OsString {
    let program = with_name(named, |name| std::env::var(name).ok());
    for (part, place) in TEMPORARY {
        if let Ok(rest) = Path::new(&program).strip_prefix(place)
            && let Err(e) = bring(Path::new(place), &dir(job).join(part), rest)
        {
            let program = program.display();
            output::note(&format!("{program}: not copied from the node's {place} to the job's: {e}"));
        }
    }
    program
}

/// With the name that slurmd gives the program where only a directory was named.
fn with_name(named: OsString, variable: impl Fn(&str) -> Option<String>) -> OsString {
    let of_step = [JOB_ID, "SLURM_STEP_ID", "SLURMD_NODENAME"].map(variable);
    match (named.as_bytes().ends_with(b"/"), of_step) {
        (true, [Some(job), Some(step), Some(node)]) => {
            [named, format!("slurm_bcast_{job}.{step}_{node}").into()].into_iter().collect()
        }
        _ => named,
    }
}

/// Copies a file of the user's alone from the node's directory to the job's, unless the job's is newer.
fn bring(from: &Path, to: &Path, file: &Path) -> Result<()> {
    let open_dir =
        |dir: &Path| openat(CWD, dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    // Where the job's is memory, or the directory the host's own, there is nothing to bring.
    let (Ok(from), Ok(to)) = (open_dir(from), open_dir(to)) else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(sent) = openat2(&from, file, flags, Mode::empty(), INSIDE) else { return Ok(()) };
    let found = fstat(&sent).context(|| file.display().to_string())?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || found.st_uid != getuid().as_raw() || found.st_nlink != 1 || is_there(&to, file, &found) {
        return Ok(());
    }
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let about = || format!("{} of the job", parent.display());
    let parent =
        openat2(&to, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), INSIDE);
    copy(sent, found.st_mode, parent.context(about)?.as_fd(), file.file_name().unwrap_or_default())
}

fn is_there(to: &OwnedFd, file: &Path, sent: &Stat) -> bool {
    let own = openat2(to, file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), INSIDE).and_then(fstat);
    own.is_ok_and(|own| (own.st_ctime, own.st_ctime_nsec) >= (sent.st_ctime, sent.st_ctime_nsec))
}

/// Other tasks of the step do the same: none ever finds half of it.
fn copy(sent: OwnedFd, mode: u32, dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    let new = format!(".skiff-bcast.{}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let about = || name.display().to_string();
    let mut file = File::from(openat(dir, &new, flags, Mode::RUSR | Mode::WUSR).context(about)?);
    let copied = std::io::copy(&mut File::from(sent), &mut file).context(about).and_then(|_| {
        fchmod(&file, Mode::from_raw_mode(mode & 0o777)).context(about)?;
        drop(file);
        renameat(dir, &new, dir, name).context(about)
    });
    if copied.is_err() {
        unlinkat(dir, &new, AtFlags::empty()).ignore_error("it goes with the job");
    }
    copied
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_directory_gets_a_name() {
        let variable = |name: &str| {
            let value = match name {
                "SLURM_JOB_ID" => "7",
                "SLURM_STEP_ID" => "0",
                _ => "n1",
            };
            Some(value.to_owned())
        };
        for (named, want) in
            [("/tmp/", "/tmp/slurm_bcast_7.0_n1"), ("/tmp/x", "/tmp/x"), ("x", "x"), ("", "")]
        {
            assert_eq!(with_name(named.into(), variable), want);
        }
        assert_eq!(with_name("/tmp/".into(), |_| None), "/tmp/");
    }

    #[test]
    fn only_a_file_of_the_users_alone_is_brought() {
        let home = tempfile::tempdir().expect("a directory");
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        for dir in ["from/sub", "to/sub"] {
            fs::create_dir_all(home.path().join(dir)).expect("a directory");
        }
        let bring = |file: &str| {
            bring(&from, &to, Path::new(file)).expect(file);
            fs::read_to_string(to.join(file)).ok()
        };
        for file in ["a", "sub/b", "linked"] {
            fs::write(from.join(file), file).expect("a file");
        }
        fs::set_permissions(from.join("a"), fs::Permissions::from_mode(0o755)).expect("its mode");
        assert_eq!(bring("a").as_deref(), Some("a"));
        assert_eq!(fs::metadata(to.join("a")).expect("there").permissions().mode() & 0o777, 0o755);
        assert_eq!(bring("sub/b").as_deref(), Some("sub/b"));
        // The newer one counts. The kernel's clock of changes ticks every few milliseconds.
        let tick = || std::thread::sleep(std::time::Duration::from_millis(30));
        tick();
        fs::write(to.join("a"), "own").expect("a file");
        assert_eq!(bring("a").as_deref(), Some("own"));
        tick();
        fs::write(from.join("a"), "again").expect("a file");
        assert_eq!(bring("a").as_deref(), Some("again"));
        fs::write(home.path().join("secret"), "x").expect("a file");
        symlink("../secret", from.join("link")).expect("a link");
        symlink(home.path(), from.join("out")).expect("a link");
        fs::hard_link(from.join("linked"), from.join("linked.too")).expect("a link");
        for file in ["link", "out/secret", "../secret", "linked", "sub", "missing", ""] {
            assert_eq!(bring(file).filter(|_| file != "../secret"), None, "{file}");
        }
        assert_eq!(fs::read_dir(&to).expect("listed").count(), 2);
    }
}
