//! Other hosts that see the directory of checkpoints. Where each host has locks of its own on a shared file system, the store's lock keeps none of
//! them out: that they save shows by the names of what is being made.

use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use skiff_sandbox::mountinfo::{self, MountLine};
use skiff_spec::fault::Result;
use skiff_user::dirs;

/// Whether locks on files in this directory may be unknown to other hosts that see it. What cannot be found out is taken for a file system whose
/// locks all hosts know.
#[must_use]
pub fn have_other_locks(dir: &Path) -> bool {
    let mount =
        statx(CWD, dir, AtFlags::empty(), StatxFlags::MNT_ID).ok().map(|found| found.stx_mnt_id.to_string());
    let mounts = fs::read("/proc/self/mountinfo").ok().map(|text| mountinfo::parse(&text));
    let mount = mount.and_then(|id| mounts?.into_iter().find(|one| one.id == id.as_bytes()));
    mount.is_some_and(|mount| has_local_locks(&mount))
}

/// By what the manuals say of `flock`: nfs(5), mount.lustre(8), gfs2(5), mount.cifs(8), BeeGFS' `tuneUseGlobalFileLocks` (off by default, and not shown), fuse(4).
fn has_local_locks(MountLine { kind, options, .. }: &MountLine) -> bool {
    let has = |wanted: &[&str]| options.split(',').any(|option| wanted.contains(&option));
    match &**kind {
        "nfs" | "nfs4" => has(&["nolock", "local_lock=all", "local_lock=flock"]),
        "lustre" => has(&["localflock"]),
        "gfs2" | "ocfs2" => has(&["localflocks"]),
        "cifs" | "smb3" => has(&["nobrl"]),
        "beegfs" | "fuse.sshfs" => true,
        _ => false,
    }
}

/// Whether somebody on another host saves into this directory, or has done so within a day without an end.
///
/// # Errors
/// When the directory cannot be read.
pub fn save(home: &Path) -> Result<bool> {
    Ok(!dirs::unfinished_elsewhere(&dirs::open(home)?)?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_mounts_have_locks_that_other_hosts_do_not_know() {
        for (kind_and_options, wanted) in [
            ("ext4 /dev/sda rw", false),
            ("nfs4 s:/x rw,vers=4.2,local_lock=none", false),
            ("nfs s:/x rw,vers=3,local_lock=flock,addr=1.2.3.4", true),
            ("nfs s:/x rw,nolock,local_lock=all", true),
            ("nfs4 s:/local_lock=all rw", false),
            ("lustre mgs:/fs rw,flock", false),
            ("lustre mgs:/fs rw,localflock,lazystatfs", true),
            ("beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/beegfs-client.conf", true),
            ("fuse.sshfs host:/home rw,user_id=0", true),
            ("cifs //s/x rw,nobrl", true),
            ("cifs //s/x rw", false),
            ("nfs4", false),
        ] {
            let line = format!("22 20 0:2 / /home rw,nosuid shared:5 - {kind_and_options}\n");
            let mounts = mountinfo::parse(line.as_bytes());
            assert_eq!(has_local_locks(&mounts[0]), wanted, "{kind_and_options}");
        }
        assert!(!have_other_locks(Path::new("/proc")));
    }
}
