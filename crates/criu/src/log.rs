//! What CRIU's log says of a failure. Its answers only hold the first error, which is often not the one that counts.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Errors that CRIU logs where it has no privilege on the host, though it succeeds.
const HARMLESS: [&str; 2] =
    ["Can't setup RLIMIT_NOFILE for self", "net: Unexpected error: -1(Operation not permitted)"];
/// The number of errors that are shown: what goes wrong after them follows from them.
const MOST: usize = 2;
/// Bytes of a log that are looked at. At the level that is asked for, CRIU writes nothing but warnings and errors.
const LONGEST: usize = 1 << 16;
/// How CRIU marks an error, before the place in its source.
const MARK: &str = "Error (";

/// The first errors of a log.
pub fn errors_in(log: &File) -> Option<String> {
    let mut text = vec![0; LONGEST];
    // CRIU writes at the file's position, which this must leave alone. A log that cannot be read says nothing.
    let length = log.read_at(&mut text, 0).ok()?;
    errors(&text[..length])
}

/// The first errors in a log's bytes.
pub fn errors(log: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(log);
    let is_error = |line: &&str| line.contains(MARK) && !HARMLESS.iter().any(|known| line.contains(known));
    let errors: Vec<&str> = text.lines().filter(is_error).take(MOST).map(message).collect();
    (!errors.is_empty()).then(|| errors.join("; "))
}

/// A line without the time and the place in CRIU's source.
pub fn message(line: &str) -> &str {
    let line = line.rsplit_once(MARK).map_or(line, |(_, rest)| rest);
    line.split_once("): ").map_or(line, |(_, rest)| rest).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shown_without_its_place() {
        for (line, shown) in [
            ("(00.012) Error (criu/mount.c:1): mnt: No such", "mnt: No such"),
            ("Error (criu/a.c:22): x: (y): z", "x: (y): z"),
            ("plain", "plain"),
        ] {
            assert_eq!(message(line), shown);
        }
    }

    #[test]
    fn the_first_errors_count_and_no_harmless_ones() {
        let log = "Warn  (criu/kerndat.c:1): x\n\
            (00.000002) Error (criu/rlimit.c:14): Can't setup RLIMIT_NOFILE for self: Operation not permitted\n\
            (00.012) Error (criu/tty.c:300): tty: Can't open master pty 3\n\
            (00.013) Error (criu/cr-restore.c:9): 2 exited\n\
            (00.014) Error (criu/cr-restore.c:10): Restoring FAILED.\n";
        assert_eq!(errors(log.as_bytes()).as_deref(), Some("tty: Can't open master pty 3; 2 exited"));
        for none in ["", "(00.1) Warn  (criu/a.c:1): Error: none", "\u{0}\n"] {
            assert_eq!(errors(none.as_bytes()), None, "{none:?}");
        }
    }
}
