//! For fuzz targets.

use crate::rpm::{self, HeaderReader, RpmAncestor, RpmPackage};
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

/// Reads bytes as a list of RPM's headers, merges its parts, and checks that what is read is what was there and a second merge changes nothing.
///
/// # Panics
/// When a header is not what was read, or a merge is not final.
pub fn rpm_headers(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(ancestor) = RpmAncestor::from_text(text)
    {
        assert_eq!(RpmAncestor::from_text(&ancestor.to_text()).as_ref(), Ok(&ancestor));
    }
    let mut packages: Vec<RpmPackage> = vec![];
    let mut at = 0;
    for header in HeaderReader::new(bytes) {
        let Ok(header) = header else { break };
        assert_eq!(bytes.get(at..at + header.bytes.len()), Some(&header.bytes[..]));
        at += header.bytes.len();
        packages.push(header.package);
    }
    let (known, rest) = packages.split_at(packages.len() / 3);
    let (user, base) = rest.split_at(rest.len() / 2);
    let mut ancestor = RpmAncestor::of(known, String::new());
    let merged = rpm::merge(&ancestor, user, base);
    let now: Vec<_> =
        user.iter().chain(base).filter(|package| merged.all.contains(&package.hash)).cloned().collect();
    ancestor = RpmAncestor::of(base, String::new()).with_conflicts(merged.standing);
    assert_eq!(RpmAncestor::from_text(&ancestor.to_text()).as_ref(), Ok(&ancestor));
    let again = rpm::merge(&ancestor, &now, base);
    assert_eq!((again.remove.len(), again.add.len(), again.changes, again.conflicts), (0, 0, vec![], vec![]));
}
