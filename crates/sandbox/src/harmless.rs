//! What a stranger's program prints, for the user's terminal. Escape sequences can put words into the clipboard (OSC 52), set titles, move the cursor
//! over lines that Skiff has printed, or have the terminal answer as if the user had typed. Text, colours, and what stays within the line pass;
//! all else is shown, not obeyed.

use skiff_sys::error::is_disguise;

/// No sequence for a colour is longer, in bytes.
const LONGEST: usize = 64;

/// Such a filter. A sequence or letter may come in pieces.
#[derive(Debug, Default)]
pub struct HarmlessOutput {
    /// The beginning of a letter or sequence of which the rest has not come.
    held: Vec<u8>,
    /// Whether colours have been set.
    is_coloured: bool,
}

/// What stands at the beginning of some bytes.
enum Piece {
    /// So many bytes that may pass.
    Passes(usize),
    /// So many bytes that are only shown.
    Shown(usize),
    /// The beginning of something.
    Unfinished,
}

impl HarmlessOutput {
    /// Adds what of these bytes may pass, and the rest as text.
    pub fn pass(&mut self, bytes: &[u8], to: &mut Vec<u8>) {
        let all = [std::mem::take(&mut self.held), bytes.to_vec()].concat();
        let mut left = &all[..];
        while !left.is_empty() {
            let count = match piece(left) {
                Piece::Unfinished => break,
                Piece::Passes(count) => {
                    self.is_coloured |= left[0] == b'\x1b';
                    to.extend(&left[..count]);
                    count
                }
                Piece::Shown(count) => {
                    show(&left[..count], to);
                    count
                }
            };
            left = &left[count..];
        }
        self.held = left.to_vec();
    }

    /// Adds what is held, and puts colours back: what is printed next is another's.
    pub fn end(&mut self, to: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        held.iter().for_each(|byte| show(&[*byte], to));
        if std::mem::take(&mut self.is_coloured) {
            to.extend(b"\x1b[0m");
        }
    }
}

fn piece(bytes: &[u8]) -> Piece {
    match bytes[0] {
        b'\n' | b'\r' | b'\t' | b'\x08' | b' '..=b'~' => Piece::Passes(1),
        b'\x1b' => sequence(bytes),
        0..=0x7f => Piece::Shown(1),
        _ => letter(bytes),
    }
}

/// Colours (`ESC [ ... m`), and the rest of the line erased (`ESC [ K`), as bars of progress have it.
fn sequence(bytes: &[u8]) -> Piece {
    let is_parameter = |byte: &u8| matches!(byte, b'0'..=b'9' | b';' | b':');
    match bytes.get(1) {
        None => return Piece::Unfinished,
        Some(b'[') => {}
        Some(_) => return Piece::Shown(1),
    }
    let parameters = bytes[2..].iter().take_while(|byte| is_parameter(byte)).count();
    match bytes.get(2 + parameters) {
        _ if parameters > LONGEST => Piece::Shown(1),
        None => Piece::Unfinished,
        Some(b'm' | b'K') => Piece::Passes(3 + parameters),
        Some(_) => Piece::Shown(1),
    }
}

/// A letter beyond ASCII.
fn letter(bytes: &[u8]) -> Piece {
    let beginning = &bytes[..bytes.len().min(4)];
    let first = beginning.utf8_chunks().next();
    let (valid, invalid) = first.map_or(("", &[][..]), |chunk| (chunk.valid(), chunk.invalid()));
    let is_cut = std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
    if valid.is_empty() && is_cut && invalid.len() == bytes.len() {
        return Piece::Unfinished;
    }
    match valid.chars().next() {
        None => Piece::Shown(1),
        Some(letter) if is_disguise(letter) => Piece::Shown(letter.len_utf8()),
        Some(letter) => Piece::Passes(letter.len_utf8()),
    }
}

fn show(bytes: &[u8], to: &mut Vec<u8>) {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_ascii() => to.extend(text.escape_unicode().to_string().bytes()),
        _ => to.extend(bytes.escape_ascii().to_string().bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
        let (mut filter, mut to) = (HarmlessOutput::default(), vec![]);
        pieces.into_iter().for_each(|piece| filter.pass(piece, &mut to));
        filter.end(&mut to);
        to
    }

    #[test]
    fn text_and_colours_pass_and_nothing_else_is_obeyed_however_it_is_cut() {
        for (text, want) in [
            (&b"plain \xc3\xa9\tx\r\n"[..], &b"plain \xc3\xa9\tx\r\n"[..]),
            (b"\x1b[1;32mpass\x1b[0m\x1b[K", b"\x1b[1;32mpass\x1b[0m\x1b[K\x1b[0m"),
            (b"\x1b[38:2:1:2:3mx", b"\x1b[38:2:1:2:3mx\x1b[0m"),
            (b"\x1b]52;c;cm0K\x07", b"\\x1b]52;c;cm0K\\x07"),
            (b"\x1b]0;title\x1b\\", b"\\x1b]0;title\\x1b\\"),
            (b"\x1b[2A\x1b[2J\x1b[6n\x1b[?1049h\x1bc", b"\\x1b[2A\\x1b[2J\\x1b[6n\\x1b[?1049h\\x1bc"),
            (b"a\xc2\x9b31mb\xe2\x80\xaec", b"a\\u{9b}31mb\\u{202e}c"),
            (b"\x9b31m\xff\xc3(", b"\\x9b31m\\xff\\xc3("),
            (b"\x1b", b"\\x1b"),
            (b"\x1b[3", b"\\x1b[3"),
            (b"\xe2\x80", b"\\xe2\\x80"),
            (b"\x1b\x1b[1mx", b"\\x1b\x1b[1mx\x1b[0m"),
        ] {
            assert_eq!(filtered([text]).escape_ascii().to_string(), want.escape_ascii().to_string());
            for at in 0..text.len() {
                assert_eq!(filtered([&text[..at], &text[at..]]), want, "{} at {at}", text.escape_ascii());
            }
            assert_eq!(filtered(text.chunks(1)), want);
        }
        let long = [b"\x1b[".to_vec(), vec![b'1'; 1000], b"m".to_vec()].concat();
        assert!(filtered([&long[..]]).starts_with(b"\\x1b[111"));
    }
}
