//! Lists that packages add to and take from: dpkg's diversions, and the files in which packages are interested.

use std::collections::BTreeSet;

/// How many lines belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// `triggers/File`: a path and a package.
    Lines,
    /// `diversions`: a path, where it is diverted to, and by which package.
    Diversions,
}

impl Records {
    fn lines(self) -> usize {
        match self {
            Self::Lines => 1,
            Self::Diversions => 3,
        }
    }

    /// The records of a text, each with its line breaks.
    #[must_use]
    pub fn of(self, text: &[u8]) -> BTreeSet<Vec<u8>> {
        self.split(text).into_iter().map(<[u8]>::to_vec).collect()
    }

    fn split(self, text: &[u8]) -> Vec<&[u8]> {
        let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
        let mut at = 0;
        let ends = lines.chunks(self.lines()).map(|lines| {
            let begin = at;
            at += lines.iter().map(|line| line.len()).sum::<usize>();
            &text[begin..at]
        });
        // A record that is not whole is none.
        ends.filter(|record| record.iter().filter(|byte| **byte == b'\n').count() == self.lines()).collect()
    }

    /// What no two records may have: dpkg refuses to go on where two diversions are about one path.
    fn paths(self, record: &[u8]) -> Vec<Vec<u8>> {
        match self {
            Self::Lines => vec![record.to_vec()],
            Self::Diversions => record.split(|byte| *byte == b'\n').take(2).map(<[u8]>::to_vec).collect(),
        }
    }
}

/// The user's list without what the base has lost since the ancestor, and with what it has gained.
#[must_use]
pub fn merge_records(kind: Records, ancestor: &BTreeSet<Vec<u8>>, user: &[u8], base: &[u8]) -> Vec<u8> {
    let bases = kind.of(base);
    let kept: Vec<&[u8]> = kind
        .split(user)
        .into_iter()
        .filter(|record| !ancestor.contains(*record) || bases.contains(*record))
        .collect();
    let mut taken: BTreeSet<Vec<u8>> = kept.iter().flat_map(|record| kind.paths(record)).collect();
    let mut merged = kept.concat();
    for record in kind.split(base).into_iter().filter(|record| !ancestor.contains(*record)) {
        let paths = kind.paths(record);
        if paths.iter().all(|path| !taken.contains(path)) {
            merged.extend_from_slice(record);
            taken.extend(paths);
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_base_gains_and_loses_is_gained_and_lost() {
        let merge = |ancestor: &[u8], user: &[u8], base: &[u8]| {
            let merged = merge_records(Records::Lines, &Records::Lines.of(ancestor), user, base);
            String::from_utf8(merged).unwrap()
        };
        assert_eq!(merge(b"a\nb\n", b"a\nb\nmine\n", b"b\nnew\n"), "b\nmine\nnew\n");
        assert_eq!(merge(b"a\n", b"", b"a\n"), "", "the user has removed it");
        assert_eq!(merge(b"a\n", b"a\n", b"a\n"), "a\n");
        assert_eq!(merge(b"", b"both\n", b"both\n"), "both\n");
    }

    #[test]
    fn no_path_is_diverted_twice() {
        let user = b"/a\n/a.mine\nmine\n";
        let merged = merge_records(
            Records::Diversions,
            &BTreeSet::new(),
            user,
            b"/a\n/a.host\nhost\n/b\n/b.x\nhost\nrest",
        );
        assert_eq!(merged, b"/a\n/a.mine\nmine\n/b\n/b.x\nhost\n");
    }
}
