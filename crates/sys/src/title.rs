//! What a process of ours that stays is called in `ps`: its maker's words are the user's, and may be nobody's business.

use std::ffi::CString;

/// Replaces this process's name and the words of its command line, as far as their space reaches.
///
/// Only for a process that has been forked to stay and will not ask for its own arguments any more: they are gone.
pub fn set(title: &str) {
    let Ok(text) = CString::new(title) else { return };
    // SAFETY: the kernel copies at most 16 bytes of a string that lives through the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
    let Some((start, length)) = words() else { return };
    let shown = text.as_bytes().len().min(length - 1);
    // SAFETY: the kernel put the words of the command line there, `length` bytes that are this process's to write for as long
    // as it lives. Whoever kept pointers to them (the standard library does) finds strings that still end in a null
    // byte: the last byte is one. Nobody else looks meanwhile: processes that fork have one thread.
    unsafe {
        std::ptr::write_bytes(start, 0, length);
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), start, shown);
    }
}

/// Where the words of the command line are, and how many bytes.
fn words() -> Option<(*mut u8, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    place(&stat).map(|(start, length)| (std::ptr::with_exposed_provenance_mut(start), length))
}

/// The same, from the text of `/proc/PID/stat`: fields 48 and 49. (The name, field 2, may hold anything, parentheses too.)
fn place(stat: &str) -> Option<(usize, usize)> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(45);
    let (start, end): (usize, usize) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let length = end.checked_sub(start)?;
    (start != 0 && length > 1).then_some((start, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_the_words() {
        let stat = |start: &str, end: &str| {
            let between: String = (4..48).map(|n| format!("{n} ")).collect();
            format!("7 (a) b (c) S {between}{start} {end} 50 51 0\n")
        };
        assert_eq!(place(&stat("1000", "1010")), Some((1000, 10)));
        for (start, end) in [("0", "0"), ("1000", "1000"), ("1000", "1001"), ("1010", "1000"), ("x", "1")] {
            assert_eq!(place(&stat(start, end)), None, "{start} {end}");
        }
        assert_eq!(place("7 (a"), None);
        assert_eq!(place("7 (a) S 1 2"), None);
    }

    #[test]
    fn own_words_are_found() {
        let own = std::fs::read("/proc/self/cmdline").expect("of this process");
        let (_, length) = words().expect("of this process");
        assert_eq!(length, own.len());
    }
}
