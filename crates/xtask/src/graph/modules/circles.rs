//! Strongly connected components, for graphs of a few dozen nodes.

use std::collections::{BTreeMap, BTreeSet};

/// Each largest set of two or more nodes that all reach each other.
pub fn find<'a>(arrows: impl Iterator<Item = &'a (String, String)>) -> BTreeSet<BTreeSet<String>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in arrows {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|node| (*node, reach(node, &next))).collect();
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|all| all.contains(to));
    let circle = |node: &str| -> BTreeSet<String> {
        let both = reached.keys().filter(|other| reaches(node, other) && reaches(other, node));
        both.map(|other| (*other).to_owned()).collect()
    };
    reached.keys().map(|node| circle(node)).filter(|circle| circle.len() > 1).collect()
}

/// All nodes that some arrows lead to from `start`.
fn reach<'a>(start: &str, next: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut todo: Vec<&str> = next.get(start).cloned().unwrap_or_default();
    while let Some(node) = todo.pop() {
        if found.insert(node) {
            todo.extend(next.get(node).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("ab bc", &[]),
            ("ab ba", &["ab"]),
            ("ab bc ca cd de", &["abc"]),
            ("ab ba bc cd dc", &["ab", "cd"]),
            ("ab ba bc cb xa", &["abc"]),
        ];
        for (arrows, want) in cases {
            let arrows: Vec<_> =
                arrows.split_whitespace().map(|pair| (pair[..1].to_owned(), pair[1..].to_owned())).collect();
            let found: Vec<String> =
                find(arrows.iter()).into_iter().map(|c| c.into_iter().collect()).collect();
            assert_eq!(found, *want, "{arrows:?}");
        }
    }
}
