//! Checkpoints that change places: at once where the file system can do that, else by a name of between, which is undone if whoever renamed them was
//! killed.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_user::checkpoints::homes;
use skiff_user::context::UserContext;
use skiff_user::dirs::{self, make_private};

use crate::names_lock;
use crate::other_hosts;

/// In the name of what makes way for another, where a file system cannot let them change places at once; no name has the first character. Its place follows.
const BETWEEN: &str = "+between.";

/// Refuses as long as the checkpoint has lost its name to nobody: to who looks for it, it would be missing.
pub(super) fn refuse_between(context: &UserContext, slot: &CheckpointName) -> Result<()> {
    homes(context)?.iter().try_for_each(|home| refuse_between_in(home, slot))
}

pub(super) fn refuse_between_in(home: &Path, slot: &CheckpointName) -> Result<()> {
    let left =
        between_names(home).into_iter().find(|(_, of)| of == slot && !home.join(of.to_string()).exists());
    left.map_or(Ok(()), |(left, _)| {
        let left = left.display();
        Err(Error::new(format!(
            "checkpoint {slot}: it lies in {left}, as a save on another host was renaming it"
        ))
        .hint(format!("if no save goes on any more: mv {left} {}", home.join(slot.to_string()).display())))
    })
}

/// Lets what is at `from`, if anything is, and what is at `to`, if anything is, change places; whether anything was at `from`.
pub(super) fn change_places(from: &Path, to: &Path) -> Result<bool> {
    let about = || to.display().to_string();
    let done = match renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT | Errno::INVAL) if !from.exists() => return Ok(false),
        Err(Errno::NOENT) => fs::rename(from, to),
        // NFS, for one, cannot do it at once.
        Err(Errno::INVAL) if to.exists() => {
            let between = between(from, to);
            let put_back =
                || fs::rename(&between, to).ignore_error("the error that led here is the one to be told");
            fs::rename(to, &between)
                .and_then(|()| fs::rename(from, to).inspect_err(|_| put_back()))
                .and_then(|()| fs::rename(&between, from))
        }
        Err(Errno::INVAL) => fs::rename(from, to),
        Err(e) => Err(e.into()),
    };
    done.context(about).map(|()| true)
}

/// The name of what is at `to` until what is at `from` is there. With the process and host in it, as any name of what is not finished, so that another
/// host leaves it alone; and with the place, to which it goes back if whoever renames them is killed.
fn between(from: &Path, to: &Path) -> PathBuf {
    let own = from.file_name().unwrap_or_default().to_string_lossy();
    let newer = to.file_name().and_then(|name| name.to_str()?.parse::<CheckpointName>().ok());
    let newer = newer.map_or(0, |slot| slot.newer);
    to.with_file_name(match own.rsplit_once('@') {
        Some((of_process, host)) => format!("{of_process}{BETWEEN}{newer}@{host}"),
        None => format!("{own}{BETWEEN}{newer}"),
    })
}

/// What was called so before it made way.
fn place_before(name: &str) -> Option<CheckpointName> {
    let (of_process, _host) = name.rsplit_once('@')?;
    let (own, newer) = of_process.rsplit_once(BETWEEN)?;
    let (_pid, name) = own.strip_prefix(".new.")?.split_once('.')?;
    Some(CheckpointName { name: name.parse().ok()?, newer: newer.parse().ok()? })
}

/// The directories in `home` that have a name of between, and what they were.
pub(super) fn between_names(home: &Path) -> Vec<(PathBuf, CheckpointName)> {
    let all = fs::read_dir(home).into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter_map(|left| place_before(left.file_name()?.to_str()?).map(|slot| (left, slot))).collect()
}

/// Gives those their places again that nobody else has got since whoever renamed them was killed. The caller has the lock of the names, as whoever
/// renames has: nobody is about to. Where hosts have locks of their own, only those count whose process is gone.
pub(super) fn undo_renames(home: &Path) {
    let left = other_hosts::have_other_locks(home).then(|| dirs::leftovers(home));
    for (between, slot) in between_names(home) {
        let (place, is_left) =
            (home.join(slot.to_string()), left.as_ref().is_none_or(|left| left.contains(&between)));
        if is_left && !place.exists() {
            fs::rename(&between, &place).ignore_error("somebody else has done so, or it is tried again");
        }
    }
}

/// The same for who has no lock yet, and only looks: nothing is done where nothing was left.
pub fn undo_interrupted_renames(context: &UserContext) -> Result<()> {
    for home in homes(context)? {
        undo_if_interrupted(&home).ignore_error("whoever publishes the next one does it");
    }
    Ok(())
}

pub(super) fn undo_if_interrupted(home: &Path) -> Result<()> {
    let was_left = between_names(home).iter().any(|(_, slot)| !home.join(slot.to_string()).exists());
    if was_left { lock_and_undo(home) } else { Ok(()) }
}

pub(super) fn lock_and_undo(home: &Path) -> Result<()> {
    if !home.is_dir() {
        return Ok(());
    }
    let _lock = names_lock::take(&make_private(home)?, "that was left")?;
    undo_renames(home);
    Ok(())
}

#[cfg(test)]
mod tests {
    use skiff_cli::Retention;
    use skiff_spec::name::EnvName;
    use skiff_sys::IgnoreError;
    use skiff_user::dirs::new_in;

    use super::super::remove_all_in;
    use super::super::tests::{filled, published};
    use super::*;
    use crate::record;

    #[test]
    fn two_directories_change_places_also_when_one_is_not_there() {
        let temp = std::env::temp_dir().join(format!("skiff-places.{}", std::process::id()));
        let at = |name: &str| temp.join(name);
        let look = || {
            ["a", "b"].map(|name| {
                fs::read(at(name).join("f"))
                    .default_on_error("a directory that is not there has no such file")
            })
        };
        for (name, text) in [("a", "A"), ("b", "B")] {
            fs::create_dir_all(at(name)).expect("made");
            fs::write(at(name).join("f"), text).expect("written");
        }
        assert!(change_places(&at("a"), &at("b")).expect("changed"));
        assert_eq!(look(), [b"B".to_vec(), b"A".to_vec()]);
        fs::remove_dir_all(at("b")).expect("gone");
        assert!(change_places(&at("a"), &at("b")).expect("moved"));
        assert_eq!(look(), [vec![], b"B".to_vec()]);
        assert!(!change_places(&at("a"), &at("b")).expect("nothing to move"));
        assert_eq!(look(), [vec![], b"B".to_vec()]);
        fs::remove_dir_all(&temp).expect("gone");
    }

    #[test]
    fn what_made_way_has_its_place_again_if_whoever_renamed_it_was_killed() {
        let temp = tempfile::tempdir().unwrap();
        let (home, name): (_, EnvName) = (temp.path().join("checkpoint"), "my.work".parse().unwrap());
        let keep = || "9".parse::<Retention>().unwrap();
        for number in 1..=2 {
            filled(&home, &name, number).publish(keep()).unwrap();
        }
        let own = new_in(&home, &name);
        let killed = |newer: u32| {
            let was = CheckpointName { name: name.clone(), newer };
            let slot = home.join(was.to_string());
            let between = between(&own, &slot);
            assert_eq!(place_before(between.file_name().unwrap().to_str().unwrap()), Some(was));
            // Of a process that there is not.
            let pid = format!(".{}.", std::process::id());
            let between = between.to_str().unwrap().replace(&pid, ".99999999.");
            fs::rename(slot, &between).unwrap();
            between
        };
        killed(0);
        killed(1);
        // Also for one who only looks.
        undo_if_interrupted(&home).unwrap();
        assert_eq!(published(&home, &name), ["2", "1"]);
        killed(0);
        filled(&home, &name, 3).publish(keep()).unwrap();
        assert_eq!(published(&home, &name), ["3", "2", "1"]);
        // If the other one is there it is not put in its place.
        let between = killed(0);
        fs::create_dir(home.join("my.work")).unwrap();
        undo_renames(&home);
        assert!(Path::new(&between).exists());
        assert_eq!(place_before(&new_in(&home, &name).file_name().unwrap().to_string_lossy()), None);
    }

    #[test]
    fn what_made_way_is_neither_missing_nor_does_it_come_back_after_a_good_end() {
        let temp = tempfile::tempdir().unwrap();
        let (home, name): (_, EnvName) = (temp.path().join("checkpoint"), "work".parse().unwrap());
        let newest = CheckpointName::newest(&name);
        let between = |newer: u32| home.join(format!(".new.99999999.work{BETWEEN}{newer}@another"));
        let fill = |number| filled(&home, &name, number).publish("9".parse().unwrap()).unwrap();
        (1..=2).for_each(fill);
        refuse_between_in(&home, &newest).unwrap();
        fs::rename(home.join("work"), between(0)).unwrap();
        let why = refuse_between_in(&home, &newest).unwrap_err();
        assert!(why.message.contains("work+between.0@another"), "{}", why.message);
        refuse_between_in(&home, &CheckpointName { newer: 1, ..newest.clone() }).unwrap();
        fill(3);
        refuse_between_in(&home, &newest).unwrap();
        fs::rename(home.join("work"), between(0)).unwrap();
        // Another host's, whose locks may be its own.
        fs::rename(home.join("work@1"), between(1)).unwrap();
        fs::create_dir_all(home.join("work").join(record::IMAGES)).unwrap();
        remove_all_in(&home, &name).unwrap();
        undo_renames(&home);
        assert_eq!(published(&home, &name), [""; 0]);
        assert_eq!(between_names(&home), []);
    }
}
