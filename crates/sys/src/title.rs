//! What a process of ours that stays is called in `ps`: its maker's words are the user's, and may be nobody's business.

use std::ffi::CString;
use std::sync::OnceLock;

/// Replaces this process's name and the words of its command line, as far as their space reaches.
///
/// Only for a process that has been forked to stay and will not ask for its own arguments any more: they are gone.
pub fn set(title: &str) {
    rename(title);
    if let Some([words, _]) = spans() {
        write(title, *words);
    }
}

/// As [`set`]; and removes the variables. The process must not ask for any afterwards: each is empty then.
pub fn set_and_clear_variables(title: &str) {
    rename(title);
    let Some([words, variables]) = spans() else { return };
    write(title, *words);
    write("", *variables);
}

/// An address and a length in bytes.
type Span = (usize, usize);

fn rename(title: &str) {
    let Ok(text) = CString::new(title) else { return };
    // SAFETY: the kernel copies at most 16 bytes of a string that lives through the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
}

fn write(text: &str, span: Option<Span>) {
    let Some((start, length)) = span else { return };
    let shown = text.len().min(length - 1);
    let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: the kernel put the words of the command line, or the variables, there, `length` bytes that are this process's to write for as long
    // as it lives. Whoever kept pointers to them (the standard library does) finds strings that still end in a null
    // byte: the last byte is one. Nobody else looks meanwhile: processes that fork have one thread.
    unsafe {
        std::ptr::write_bytes(start, 0, length);
        std::ptr::copy_nonoverlapping(text.as_ptr(), start, shown);
    }
}

/// Where the words of the command line are, and the variables, and how many bytes each; nothing of what is empty.
///
/// The kernel lays them one behind the other at the end of the stack, and behind them the path of the program, which it
/// tells by `AT_EXECFN`. (`/proc/self/stat` says it in fields 48 to 51; to read that takes 70 microseconds of a start.)
///
/// Found once, before anything is replaced: afterwards what stands there says nothing of their lengths. A process that is forked finds the same.
fn spans() -> Option<&'static [Option<Span>; 2]> {
    static FOUND: OnceLock<Option<[Option<Span>; 2]>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref()
}

fn find() -> Option<[Option<Span>; 2]> {
    // SAFETY: has no preconditions.
    let end = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
    let lengths: usize = std::env::args_os().map(|word| word.len() + 1).sum();
    // SAFETY: nobody changes the variable meanwhile: processes that set their title have one thread.
    let variables = unsafe { environ };
    let variables = match variables.is_null() {
        true => 0,
        // SAFETY: a list of pointers, with a null pointer at its end.
        false => unsafe { *variables }.expose_provenance(),
    };
    let variables = if variables == 0 { end } else { variables };
    let words = variables.checked_sub(lengths)?;
    // What lies between this function's frame and the end of the first thread's stack is mapped. If the list of variables has been exchanged
    // for another, it does not lie there.
    let frame = (&raw const lengths).expose_provenance();
    if !(frame < words && variables <= end) {
        return None;
    }
    let span = |start: usize, end: usize| {
        let length = end - start;
        (length > 1).then_some((start, length))
    };
    Some([span(words, variables), span(variables, end)])
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_words_are_found() {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("of this process");
        let fields = stat[stat.rfind(')').expect("the end of the name") + 1..].split_whitespace();
        let ends: Vec<usize> =
            fields.skip(45).take(4).map(|field| field.parse().expect("an address")).collect();
        let found = spans().expect("of this process").map(Option::unwrap_or_default);
        assert_eq!(found, [(ends[0], ends[1] - ends[0]), (ends[2], ends[3] - ends[2])]);
    }

    /// In a process of its own, as it replaces what others in this one may look at.
    #[test]
    fn a_second_title_takes_the_place_of_the_first() {
        const CHILD: &str = "SKIFF_TITLE_TEST";
        if std::env::var_os(CHILD).is_none() {
            let own = std::env::current_exe().expect("this program");
            let words = ["--quiet", "--exact", "title::tests::a_second_title_takes_the_place_of_the_first"];
            let child =
                std::process::Command::new(own).args(words).env(CHILD, "1").output().expect("started");
            assert!(child.status.success(), "{child:?}");
            return;
        }
        let length = std::fs::read("/proc/self/cmdline").expect("of this process").len();
        set(&"a long name, as an environment may have ".repeat(9));
        set_and_clear_variables("skiff-init");
        let mut expected = b"skiff-init".to_vec();
        expected.resize(length, 0);
        assert_eq!(std::fs::read("/proc/self/cmdline").expect("of this process"), expected);
        let variables = std::fs::read("/proc/self/environ").expect("of this process");
        assert!(variables.iter().all(|byte| *byte == 0), "{variables:?}");
    }
}
