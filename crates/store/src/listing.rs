//! A file of an image as a line of `ls -l`.

use skiff_erofs::{FileEntry, InodeKind};
use skiff_output as output;

/// One line: mode, links, owner and group as numbers, size, time (UTC), path.
pub fn line(file: &FileEntry) -> String {
    let inode = &file.inode;
    let size = match inode.kind {
        InodeKind::CharDevice(major, minor) | InodeKind::BlockDevice(major, minor) => {
            format!("{major},{minor}")
        }
        _ => inode.size.to_string(),
    };
    let path = match std::str::from_utf8(&file.path) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => file.path.escape_ascii().to_string(),
    };
    let time = output::time(u64::try_from(inode.mtime).unwrap_or(0));
    format!(
        "{} {:>3} {:>5} {:>5} {size:>11} {time} /{path}",
        mode(inode.kind, inode.mode),
        inode.links,
        inode.uid,
        inode.gid
    )
}

fn mode(kind: InodeKind, mode: u16) -> String {
    let first = match kind {
        InodeKind::Directory => 'd',
        InodeKind::File => '-',
        InodeKind::Symlink => 'l',
        InodeKind::CharDevice(..) => 'c',
        InodeKind::BlockDevice(..) => 'b',
        InodeKind::Fifo => 'p',
        InodeKind::Socket => 's',
    };
    let mut text = String::from(first);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_ls_shows_them() {
        for (kind, bits, text) in [
            (InodeKind::Directory, 0o1777, "drwxrwxrwt"),
            (InodeKind::File, 0o4755, "-rwsr-xr-x"),
            (InodeKind::File, 0o2640, "-rw-r-S---"),
            (InodeKind::Symlink, 0o777, "lrwxrwxrwx"),
            (InodeKind::CharDevice(1, 3), 0, "c---------"),
        ] {
            assert_eq!(mode(kind, bits), text);
        }
    }
}
