//! Paths as layers have them.

/// A path's names, from the root.
pub(super) type Components<'a> = &'a [&'a [u8]];

/// No file system has longer names.
const LONGEST_NAME: usize = 255;

/// The names of a path that stands in a layer. `./` and a leading `/` mean nothing; `..` is refused: no tool that makes layers
/// writes it, and it has led many that unpack them astray.
pub(super) fn components(path: &[u8]) -> Result<Vec<&[u8]>, String> {
    let components: Vec<&[u8]> = split(path).collect();
    for name in &components {
        if *name == b".." {
            return Err("a path with ..".into());
        }
        if name.len() > LONGEST_NAME {
            return Err(format!(
                "a name of {} bytes, more than the {LONGEST_NAME} that a file system allows",
                name.len()
            ));
        }
        if name.contains(&0) {
            return Err("a name with a NUL".into());
        }
    }
    Ok(components)
}

/// The names of any path.
pub(super) fn split(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// What stands before the last name: the same for all files that were packed out of one directory.
pub(super) fn parent_bytes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|&byte| byte == b'/');
    &path[..slash.unwrap_or(0)]
}

/// A path for a message.
pub(super) fn display(path: &[u8]) -> String {
    path.escape_ascii().to_string()
}
