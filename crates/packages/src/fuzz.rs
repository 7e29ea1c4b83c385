//! For fuzz targets.

use crate::{Ancestor, Database, Records, merge, merge_records};

/// Reads a text as each of the files, merges its halves, and checks that a second merge changes nothing.
///
/// # Panics
/// When what was written cannot be read, or a merge is not final.
pub fn packages(bytes: &[u8]) {
    let middle = bytes.windows(3).position(|three| three == b"\n%\n").unwrap_or(bytes.len() / 2);
    let (user, base) = bytes.split_at(middle);
    for kind in [Records::Lines, Records::Diversions] {
        let merged = merge_records(kind, &kind.of(base), user, base);
        assert!(merged.len() <= user.len() + base.len());
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(ancestor) = Ancestor::from_text(text)
    {
        assert_eq!(Ancestor::from_text(&ancestor.to_text()).as_ref(), Ok(&ancestor));
    }
    let (Ok(user), Ok(base)) = (Database::parse(user), Database::parse(base)) else { return };
    let ancestor = Ancestor::of(&user, String::new(), &[]);
    let merged = merge(Some(&ancestor), &user, &base, &|_| false);
    assert_eq!(Ancestor::from_text(&merged.ancestor.to_text()).as_ref(), Ok(&merged.ancestor));
    if let Some(text) = &merged.text {
        let again = Database::parse(text).expect("what was merged is a database");
        let twice = merge(Some(&merged.ancestor), &again, &base, &|_| false);
        assert_eq!((twice.text, twice.changes), (None, vec![]));
    }
}
