//! Names of types that others can see, each given once in the workspace: whoever reads one need not ask whose it is.

use super::Found;

/// Each crate or command has its own by custom.
const CUSTOM: &[&str] = &["Args", "Error", "Result"];

const KINDS: &[&str] = &["struct", "enum", "trait", "type", "union"];

/// Adds every such name in a source file.
pub fn find(file: &str, text: &str, found: &mut Found) {
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(name) = declared(line).filter(|name| !CUSTOM.contains(name)) {
            found.entry(format!("name {name}")).or_default().push(format!("{file}:{number}"));
        }
    }
}

/// Forgets names that were given once.
pub fn keep_repeated(found: &mut Found) {
    found.retain(|what, places| !what.starts_with("name ") || places.len() > 1);
}

/// The type that a line declares for others than its own module.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("pub")?;
    let line = match line.strip_prefix('(') {
        Some(scope) => scope.split_once(')')?.1,
        None => line,
    };
    let (kind, name) = line.strip_prefix(' ')?.split_once(' ')?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    KINDS.contains(&kind).then_some(&name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_told_from_all_else() {
        for (line, name) in [
            ("pub struct Place {", Some("Place")),
            ("    pub(super) enum Kind<'a> {", Some("Kind")),
            ("pub(in crate::a) type Named = u8;", Some("Named")),
            ("struct Own;", None),
            ("pub fn f() {}", None),
            ("// pub struct A;", None),
            ("pub use a::B;", None),
        ] {
            assert_eq!(declared(line), name, "{line}");
        }
    }

    #[test]
    fn only_what_is_repeated_counts() {
        let mut found = Found::new();
        find("a.rs", "pub struct A;\npub struct Error;\npub struct B;", &mut found);
        find("b.rs", "\npub struct A;\npub struct Error;", &mut found);
        keep_repeated(&mut found);
        assert_eq!(found, Found::from([("name A".into(), vec!["a.rs:1".into(), "b.rs:2".into()])]));
    }
}
