//! Versions of symbols, by which it shows which of two libraries of one name is the newer: one with `GLIBCXX_3.4.30` has all that one with
//! `GLIBCXX_3.4.28` has.

use std::collections::BTreeMap;

/// The newest version of each kind of symbols that a library has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolVersions(BTreeMap<String, Vec<u32>>);

impl SymbolVersions {
    /// Of the names of all versions. Names without a number say nothing of age.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut newest: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (kind, numbers) in names.filter_map(parse) {
            let known = newest.entry(kind.into()).or_default();
            if *known < numbers {
                *known = numbers;
            }
        }
        Self(newest)
    }

    /// As names of versions.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|(kind, numbers)| name(kind, numbers)).collect()
    }

    /// The first version that the other one has and this one lacks.
    #[must_use]
    pub fn lacks(&self, other: &Self) -> Option<String> {
        let is_lacking = |(kind, numbers): &(&String, &Vec<u32>)| self.0.get(*kind) < Some(*numbers);
        other.0.iter().find(is_lacking).map(|(kind, numbers)| name(kind, numbers))
    }
}

/// `GLIBCXX_3.4.30` as its kind and numbers.
fn parse(name: &str) -> Option<(&str, Vec<u32>)> {
    let (kind, version) = name.rsplit_once('_').filter(|(kind, _)| !kind.is_empty())?;
    let numbers: Option<Vec<u32>> = version.split('.').map(|number| number.parse().ok()).collect();
    Some((kind, numbers?))
}

fn name(kind: &str, numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    format!("{kind}_{}", numbers.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_has_what_the_older_lacks() {
        let of = |names: &str| SymbolVersions::of(names.split_whitespace());
        let old = of("libstdc++.so.6 GLIBCXX_3.4 GLIBCXX_3.4.9 GLIBCXX_3.4.28 CXXABI_1.3.12 CXXABI_FLOAT128");
        let new = of("GLIBCXX_3.4.30 CXXABI_1.3.13 CXXABI_TM_1");
        assert_eq!(old.names(), ["CXXABI_1.3.12", "GLIBCXX_3.4.28"]);
        assert_eq!(old.lacks(&new).as_deref(), Some("CXXABI_1.3.13"));
        assert_eq!(new.lacks(&old), None);
        assert_eq!(of("").lacks(&old).as_deref(), Some("CXXABI_1.3.12"));
        assert_eq!((old.lacks(&of("")), old.lacks(&old)), (None, None));
        assert_eq!(of("_1 A_ A_1.x A_99999999999").names(), Vec::<String>::new());
    }
}
