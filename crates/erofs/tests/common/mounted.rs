//! What a mounted file system shows.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::seen::{Entry, Seen, add_blocks};

/// An image mounted nowhere, which goes with its descriptor.
pub struct Mounted(OwnedFd);

impl Mounted {
    /// From the file itself, or where the file system that holds it cannot do that, as tmpfs, from a device.
    pub fn new(image: &Path) -> rustix::io::Result<Mounted> {
        match Mounted::from("erofs", image) {
            Err(Errno::NOTBLK) => Mounted::from_loop_device("erofs", image),
            result => result,
        }
    }

    /// What kernels before 6.12 need, and any for other kinds of file systems.
    pub fn from_loop_device(kind: &str, image: &Path) -> rustix::io::Result<Mounted> {
        let attached =
            Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(image).output().unwrap();
        assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
        let device = String::from_utf8(attached.stdout).unwrap().trim_end().to_owned();
        let mounted = Mounted::from(kind, Path::new(&device));
        // Detached now, it goes with the mount.
        assert!(Command::new("losetup").args(["--detach", &device]).status().unwrap().success());
        mounted
    }

    fn from(kind: &str, source: &Path) -> rustix::io::Result<Mounted> {
        let fs = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_set_string(fs.as_fd(), "source", source)?;
        rustix::mount::fsconfig_set_flag(fs.as_fd(), "ro")?;
        rustix::mount::fsconfig_create(fs.as_fd())?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        Ok(Mounted(rustix::mount::fsmount(fs.as_fd(), flags, MountAttrFlags::MOUNT_ATTR_RDONLY)?))
    }

    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

/// Everything below `root`, read to its last byte.
pub fn of_directory(root: &Path) -> Seen {
    let mut seen = Seen::new();
    let mut first_names = HashMap::new();
    let mut paths = vec![];
    let mut stack = vec![vec![]];
    while let Some(path) = stack.pop() {
        let at = below(root, &path);
        if path.is_empty() || at.symlink_metadata().unwrap().is_dir() {
            for entry in std::fs::read_dir(&at).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_vec();
                assert_eq!(entry.file_type().unwrap(), entry.path().symlink_metadata().unwrap().file_type());
                stack.push([&path[..], b"/", &name].concat());
            }
        }
        paths.push(path);
    }
    paths.sort();
    for path in paths {
        let at = below(root, &path);
        let inode = rustix::fs::stat(&*at).map(|_| at.symlink_metadata().unwrap().ino());
        let inode = if path.is_empty() { inode.unwrap() } else { at.symlink_metadata().unwrap().ino() };
        assert_ne!(inode, 0);
        let same_as = first_names.entry(inode).or_insert_with(|| path.clone()).clone();
        seen.insert(path, Entry { same_as, ..entry(&at) });
    }
    seen
}

/// The root is a symbolic link in `/proc`, to be followed.
fn below(root: &Path, path: &[u8]) -> PathBuf {
    let inner = std::ffi::OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path));
    root.join(".").join(inner)
}

fn entry(at: &Path) -> Entry {
    let metadata = at.symlink_metadata().unwrap();
    let kind = metadata.file_type();
    let device = metadata.rdev();
    let mut entry = Entry {
        mode: metadata.mode(),
        owner: (metadata.uid(), metadata.gid()),
        mtime: (metadata.mtime(), metadata.mtime_nsec() as u32),
        links: metadata.nlink() as u32,
        size: if kind.is_dir() { 0 } else { metadata.len() },
        xattrs: xattrs(at),
        ..Entry::default()
    };
    // EROFS has one time of a file; other file systems' change times are their own affair.
    if rustix::fs::statfs(at.parent().unwrap_or(at)).unwrap().f_type == 0xe0f5_e1e2 {
        assert_eq!(metadata.ctime(), metadata.mtime());
    }
    if kind.is_char_device() || kind.is_block_device() {
        entry.device = (rustix::fs::major(device), rustix::fs::minor(device));
    } else if kind.is_symlink() {
        entry.target = std::fs::read_link(at).unwrap().into_os_string().into_vec();
    } else if kind.is_file() {
        entry.blocks = content(&File::open(at).unwrap(), metadata.len());
    }
    entry
}

fn content(file: &File, size: u64) -> BTreeMap<u64, u64> {
    let mut blocks = BTreeMap::new();
    if size < 64 << 20 {
        let mut bytes = vec![0; size as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(file.read_at(&mut [0; 1], size).unwrap(), 0);
        add_blocks(&mut blocks, 0, &bytes);
        return blocks;
    }
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap();
        for start in (data..hole).step_by(16 << 20) {
            let mut bytes = vec![0; (hole - start).min(16 << 20) as usize];
            file.read_exact_at(&mut bytes, start).unwrap();
            add_blocks(&mut blocks, start / 4096, &bytes);
        }
        at = hole;
    }
    // And a few places that must be holes.
    for part in 1..1000 {
        let block = size / 4096 / 1000 * part + part % 7;
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, block * 4096).unwrap();
        add_blocks(&mut blocks, block, &bytes);
    }
    blocks
}

fn xattrs(at: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(at, &mut names).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let length = rustix::fs::lgetxattr(at, name, &mut value[..]).unwrap();
        (name.to_vec(), value[..length].to_vec())
    };
    names.map(value).collect()
}
