//! The mounts of a namespace, as `/proc/PID/mountinfo` lists them. Names in it are any user's who mounts one (FUSE), and of any bytes.

use std::path::PathBuf;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountLine {
    /// Number of the mount.
    pub id: Vec<u8>,
    /// Number of the mount that it is on.
    pub parent: Vec<u8>,
    /// Where it is.
    pub place: PathBuf,
    /// The file system's type, in characters that a terminal may be shown.
    pub kind: String,
    /// Options of the file system, with commas between them, in such characters.
    pub options: String,
}

/// All mounts that a text tells of, in its order. Lines that make no sense are left out.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<MountLine> {
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<MountLine> {
    let mut words = line.split(|byte| *byte == b' ');
    let (id, parent, place) = (words.next()?, words.next()?, words.nth(2)?);
    // The file system's type, what is mounted, and options.
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, options) = (words.next().unwrap_or_default(), words.nth(1).unwrap_or_default());
    let (kind, options) = (kind.escape_ascii().to_string(), options.escape_ascii().to_string());
    Some(MountLine { id: id.into(), parent: parent.into(), place: unescape(place), kind, options })
}

/// Undoes the kernel's `\\040` for a space and the like.
fn unescape(word: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (vec![], word);
    while let [first, tail @ ..] = rest {
        let code =
            tail.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (first, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(crate::command::os(&bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::*;

    #[test]
    fn places_and_types() {
        let text = b"22 20 0:2 / /a\\040b rw,nosuid shared:5 - nfs4 s:/x rw\n\n9 8\n23 22 0:6 / /\xff rw -\n";
        let mounts = parse(text);
        let seen: Vec<_> = mounts.iter().map(|mount| (mount.place.as_path(), &*mount.kind)).collect();
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"/\xff"));
        assert_eq!(seen, [(Path::new("/a b"), "nfs4"), (odd, "")]);
        assert_eq!((&*mounts[0].options, &*mounts[1].options), ("rw", ""));
        assert_eq!((&*mounts[0].id, &*mounts[0].parent), (&b"22"[..], &b"20"[..]));
    }
}
