//! What a process of ours that stays is called in `ps`: its maker's words are the user's, and may be nobody's business.

use std::ffi::CString;

/// Replaces this process's name and the words of its command line, as far as their space reaches.
///
/// Only for a process that has been forked to stay and will not ask for its own arguments any more: they are gone.
pub fn set(title: &str) {
    rename(title);
    if let Some([words, _]) = spans() {
        write(title, words);
    }
}

/// What this process was started with, where `/proc/PID/cmdline` and `environ` show it.
pub struct Start(Option<[Option<Span>; 2]>);

type Span = (*mut u8, usize);

impl Start {
    /// Finds it, which takes longer than to replace it.
    #[must_use]
    pub fn find() -> Self {
        Self(spans())
    }

    /// As [`set`]; and removes the variables. The process must not ask for any afterwards: each is empty then.
    pub fn replace(self, title: &str) {
        rename(title);
        let Some([words, variables]) = self.0 else { return };
        write(title, words);
        write("", variables);
    }
}

fn rename(title: &str) {
    let Ok(text) = CString::new(title) else { return };
    // SAFETY: the kernel copies at most 16 bytes of a string that lives through the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
}

fn write(text: &str, span: Option<Span>) {
    let Some((start, length)) = span else { return };
    let shown = text.len().min(length - 1);
    // SAFETY: the kernel put the words of the command line, or the variables, there, `length` bytes that are this process's to write for as long
    // as it lives. Whoever kept pointers to them (the standard library does) finds strings that still end in a null
    // byte: the last byte is one. Nobody else looks meanwhile: processes that fork have one thread.
    unsafe {
        std::ptr::write_bytes(start, 0, length);
        std::ptr::copy_nonoverlapping(text.as_ptr(), start, shown);
    }
}

/// Where the words of the command line are, and the variables, and how many bytes each; nothing of what is empty.
fn spans() -> Option<[Option<Span>; 2]> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let at = |span: Option<(usize, usize)>| {
        span.map(|(start, length)| (std::ptr::with_exposed_provenance_mut(start), length))
    };
    places(&stat).map(|places| places.map(at))
}

/// The same, from the text of `/proc/PID/stat`: fields 48 to 51. (The name, field 2, may hold anything, parentheses too.)
fn places(stat: &str) -> Option<[Option<(usize, usize)>; 2]> {
    let fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(45).take(4);
    let fields: Vec<usize> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let span = |start: usize, end: usize| {
        let length = end.checked_sub(start)?;
        (start != 0 && length > 1).then_some((start, length))
    };
    match fields[..] {
        [words, words_end, variables, variables_end] => {
            Some([span(words, words_end), span(variables, variables_end)])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_the_words() {
        let stat = |start: &str, end: &str| {
            let between: String = (4..48).map(|n| format!("{n} ")).collect();
            format!("7 (a) b (c) S {between}{start} {end} 1010 1050 0\n")
        };
        assert_eq!(places(&stat("1000", "1010")), Some([Some((1000, 10)), Some((1010, 40))]));
        for (start, end) in [("0", "0"), ("1000", "1000"), ("1000", "1001"), ("1010", "1000")] {
            assert_eq!(places(&stat(start, end)), Some([None, Some((1010, 40))]), "{start} {end}");
        }
        assert_eq!(places(&stat("x", "1")), None);
        assert_eq!(places("7 (a"), None);
        assert_eq!(places("7 (a) S 1 2"), None);
    }

    #[test]
    fn own_words_are_found() {
        let own = std::fs::read("/proc/self/cmdline").expect("of this process");
        let [words, variables] = spans().expect("of this process");
        assert_eq!(words.expect("words").1, own.len());
        let own = std::fs::read("/proc/self/environ").expect("of this process");
        assert_eq!(variables.map_or(0, |(_, length)| length), own.len());
    }
}
