//! Permission bits that files get where they are copied: octal, or as chmod(1) changes them.

use serde::Serialize;

/// What `--chmod` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ModeChange {
    /// These bits, whatever there was.
    Bits(u16),
    /// Changes, one after the other.
    Symbolic(Vec<ModeClause>),
}

/// `u+x`, `go=rX`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModeClause {
    /// Of `u`, `g` and `o` those that are meant.
    classes: Vec<char>,
    /// `+`, `-` or `=`.
    operator: char,
    /// `r`, `w`, `x`, `X`, `s` and `t`; or one of `u`, `g` and `o`, whose bits are taken.
    bits: Vec<char>,
}

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
const MOST: u16 = 0o7777;

impl ModeChange {
    /// Reads the value of the flag.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return u16::from_str_radix(text, 8).ok().filter(|bits| *bits <= MOST).map(Self::Bits);
        }
        let changes: Option<Vec<Vec<ModeClause>>> = text.split(',').map(changes).collect();
        changes.map(|changes| Self::Symbolic(changes.concat()))
    }

    /// The bits of a file that had others.
    #[must_use]
    pub fn apply(&self, mode: u16, is_directory: bool) -> u16 {
        match self {
            Self::Bits(bits) => *bits,
            Self::Symbolic(changes) => {
                changes.iter().fold(mode, |mode, change| change.apply(mode, is_directory))
            }
        }
    }
}

/// `CLASSES OPERATOR BITS [OPERATOR BITS ...]`. As in BuildKit no umask counts where no class is named.
fn changes(text: &str) -> Option<Vec<ModeClause>> {
    let end = text.find(['+', '-', '='])?;
    let (named, mut rest) = text.split_at(end);
    if named.contains(|c| !matches!(c, 'u' | 'g' | 'o' | 'a')) {
        return None;
    }
    let is_all = named.is_empty() || named.contains('a');
    let classes: Vec<char> = "ugo".chars().filter(|class| is_all || named.contains(*class)).collect();
    let mut found = vec![];
    while let Some(operator) = rest.chars().next() {
        let behind = &rest[operator.len_utf8()..];
        let (bits, next) = behind.split_at(behind.find(['+', '-', '=']).unwrap_or(behind.len()));
        rest = next;
        let bits: Vec<char> = bits.chars().collect();
        let is_copy = matches!(bits[..], ['u' | 'g' | 'o']);
        if !is_copy && bits.iter().any(|bit| !matches!(bit, 'r' | 'w' | 'x' | 'X' | 's' | 't')) {
            return None;
        }
        found.push(ModeClause { classes: classes.clone(), operator, bits });
    }
    Some(found)
}

fn shift(class: char) -> u16 {
    match class {
        'u' => 6,
        'g' => 3,
        _ => 0,
    }
}

impl ModeClause {
    fn apply(&self, mode: u16, is_directory: bool) -> u16 {
        let (mut named, mut all) = (0, 0);
        for class in &self.classes {
            let special = match class {
                'u' => SETUID,
                'g' => SETGID,
                _ => STICKY,
            };
            all |= (0o7 << shift(*class)) | special;
            for bit in &self.bits {
                named |= match bit {
                    'r' => 0o4 << shift(*class),
                    'w' => 0o2 << shift(*class),
                    'X' if !is_directory && mode & 0o111 == 0 => 0,
                    'x' | 'X' => 0o1 << shift(*class),
                    's' if *class != 'o' => special,
                    't' if *class == 'o' => STICKY,
                    's' | 't' => 0,
                    other => ((mode >> shift(*other)) & 0o7) << shift(*class),
                };
            }
        }
        match self.operator {
            '+' => mode | named,
            '-' => mode & !named,
            // What chmod leaves directories unless it is named.
            _ if is_directory => (mode & !(all & 0o777)) | named,
            _ => (mode & !all) | named,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_those_of_chmod() {
        for (text, before, is_directory, after) in [
            ("755", 0o600, false, 0o755),
            ("07777", 0o600, false, 0o7777),
            ("+x", 0o644, false, 0o755),
            ("a+x", 0o600, false, 0o711),
            ("u+x", 0o644, false, 0o744),
            ("go-rwx", 0o755, false, 0o700),
            ("g=u", 0o640, false, 0o660),
            ("u=rwX,go=rX", 0o600, false, 0o644),
            ("u=rwX,go=rX", 0o700, false, 0o755),
            ("u=rwX,go=rX", 0o700, true, 0o755),
            ("u=rw,g=r,o=", 0o777, false, 0o640),
            ("ug=rw+x", 0o600, false, 0o770),
            ("u+s,+t", 0o755, false, 0o5755),
            ("u=rwx", 0o4755, false, 0o755),
            ("u=rwx", 0o4755, true, 0o4755),
            ("-x,u+x", 0o755, false, 0o744),
        ] {
            let change = ModeChange::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(change.apply(before, is_directory), after, "{text} {before:o}");
        }
        for text in ["", "x", "8", "10000", "u", "z+x", "u+q", "u+ug", "u+x,", "0x1", "rwx"] {
            assert_eq!(ModeChange::parse(text), None, "{text}");
        }
    }
}
