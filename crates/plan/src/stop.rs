//! The signal by which an image's maker wants its program ended.

use rustix::process::Signal;

use skiff_output as output;

/// Where glibc's real-time signals begin: the numbers that images mean.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// Names of signals, by number from 1 on.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// The number of a signal as images name it: `SIGINT`, `INT`, `2`, `SIGRTMIN+3`.
pub fn number(text: &str) -> Option<i32> {
    let text = text.trim();
    if let Ok(number) = text.parse::<i32>() {
        return Some(number).filter(|number| (1..=RTMAX).contains(number));
    }
    let text = text.to_ascii_uppercase();
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    let beyond = |rest: &str, sign: char| match rest {
        "" => Some(0),
        rest => rest.strip_prefix(sign)?.parse::<i32>().ok().filter(|n| (0..=RTMAX - RTMIN).contains(n)),
    };
    if let Some(rest) = name.strip_prefix("RTMIN") {
        return beyond(rest, '+').map(|n| RTMIN + n);
    }
    if let Some(rest) = name.strip_prefix("RTMAX") {
        return beyond(rest, '-').map(|n| RTMAX - n);
    }
    let at = NAMES.iter().position(|known| *known == name)?;
    i32::try_from(at + 1).ok()
}

/// By the name that the image has for it.
pub fn stop_signal(wanted: Option<&str>) -> i32 {
    let known = wanted.map(|signal| (signal, number(signal)));
    if let Some((signal, None)) = known {
        output::note(&format!("the image's stop signal {signal:?} is not known: SIGTERM it is"));
    }
    known.and_then(|(_, number)| number).unwrap_or(Signal::TERM.as_raw())
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn signals_as_images_name_them() {
        for (text, wanted) in [
            ("SIGTERM", 15),
            ("term", 15),
            ("SIGINT", 2),
            ("9", 9),
            ("SIGSYS", 31),
            ("SIGWINCH", 28),
            ("SIGRTMIN", 34),
            ("SIGRTMIN+3", 37),
            ("RTMAX-14", 50),
            ("64", 64),
        ] {
            assert_eq!(number(text), Some(wanted), "{text}");
        }
        for text in
            ["", "0", "65", "-1", "SIG", "SIGNONE", "SIGRTMIN+31", "SIGRTMIN-1", "SIGRTMAX+1", "RTMIN+"]
        {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
