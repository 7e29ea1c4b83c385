//! Doc comments that open with a pronoun: they are read in lists and pop-ups, where nothing stands before them.

use super::Found;

const PRONOUNS: &[&str] =
    &["He", "Her", "Hers", "Him", "His", "It", "Its", "It's", "She", "Their", "Theirs", "Them", "They"];

/// Words that are pronouns where no noun follows.
const DEMONSTRATIVES: &[&str] = &["That", "These", "This", "Those"];

/// Words that are no noun.
const NO_NOUNS: &[&str] = &[
    "are", "can", "do", "does", "for", "from", "has", "have", "in", "is", "of", "on", "that", "to", "was",
    "were", "which", "who", "whose", "will", "with",
];

/// Adds every such opening in a source file.
pub fn find(file: &str, text: &str, found: &mut Found) {
    let mut within = false;
    for (number, line) in (1..).zip(text.lines()) {
        let comment = doc(line);
        if let Some(comment) = comment.filter(|comment| !within && opens_with_pronoun(comment)) {
            let place = format!("{file}:{number}: {comment}");
            found.entry(format!("opening {file}")).or_default().push(place);
        }
        within = comment.is_some();
    }
}

/// The text of a line of a doc comment.
pub fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
}

fn opens_with_pronoun(comment: &str) -> bool {
    let mut words = comment.split(' ');
    let first = words.next().unwrap_or_default();
    let word = first.trim_end_matches(['.', ',', ':', ';', '!']);
    if PRONOUNS.contains(&word) {
        return true;
    }
    DEMONSTRATIVES.contains(&word)
        && (word != first || words.next().is_none_or(|next| NO_NOUNS.contains(&next.trim_end_matches(','))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pronouns() {
        for (comment, wrong) in [
            ("It.", true),
            ("Its name.", true),
            ("They, in order", true),
            ("Those of a user.", true),
            ("That, too.", true),
            ("This machine's name.", false),
            ("Italic text", false),
            ("The user's name.", false),
            ("", false),
        ] {
            assert_eq!(opens_with_pronoun(comment), wrong, "{comment}");
        }
    }

    #[test]
    fn only_the_first_line_of_a_comment_opens_it() {
        let mut found = Found::new();
        find("a.rs", "/// A name.\n/// It is short.\nstruct A;\n    /// Its other.\n// It\n", &mut found);
        assert_eq!(found, Found::from([("opening a.rs".into(), vec!["a.rs:4: Its other.".into()])]));
    }
}
