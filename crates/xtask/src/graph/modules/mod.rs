//! Finds sibling modules that use each other in circles: within a circle nothing can be read, tested or moved by itself.
//!
//! Today's circles are listed in `circles.list`, which may only shrink.

mod circles;
mod read;
mod resolve;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// One circle a line: the module that the circle's modules are in, a colon, and their names, sorted.
const LIST: &str = "crates/xtask/src/graph/circles.list";

/// A file's text, or nothing where there is no such file.
type Load<'a> = &'a dyn Fn(&Path) -> anyhow::Result<Option<String>>;

/// Parent and names of modules each of which reaches all others.
type Circle = (String, BTreeSet<String>);

/// `user -> used`, and the first place in the sources that says so.
type Arrows = BTreeMap<(String, String), String>;

/// The differences between the circles below `roots`, each a crate's name and its first file, and the list.
pub fn wrong(workspace: &Path, roots: &[(String, PathBuf)]) -> anyhow::Result<Vec<String>> {
    let load = |path: &Path| match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let mut found = BTreeMap::new();
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let read = |(name, root)| move || circles_of(name, &workspace.join(root), &load);
        let readers: Vec<_> = roots.iter().map(|(name, root)| scope.spawn(read((name, root)))).collect();
        for reader in readers {
            found.extend(reader.join().expect("a reader that panicked has said why")?);
        }
        Ok(())
    })?;
    let list = load(&workspace.join(LIST))?.unwrap_or_default();
    Ok(differences(&found, &parse(&list)))
}

/// Each circle of one crate, at any level.
fn circles_of(name: &str, root: &Path, load: Load) -> anyhow::Result<BTreeMap<Circle, Arrows>> {
    let tree = read::crate_at(name, root, load)?;
    let mut found = BTreeMap::new();
    for (parent, arrows) in resolve::arrows(&tree) {
        for circle in circles::find(arrows.keys()) {
            let within = |(from, to): &(String, String)| circle.contains(from) && circle.contains(to);
            let why = arrows.iter().filter(|(arrow, _)| within(arrow));
            let why = why.map(|(arrow, place)| (arrow.clone(), place.clone())).collect();
            found.insert((parent.clone(), circle), why);
        }
    }
    Ok(found)
}

fn parse(list: &str) -> BTreeSet<Circle> {
    let lines = list.lines().filter_map(|line| line.split_once(": "));
    lines.map(|(parent, names)| (parent.into(), names.split(' ').map(Into::into).collect())).collect()
}

fn line((parent, names): &Circle) -> String {
    format!("{parent}: {}", names.iter().map(String::as_str).collect::<Vec<_>>().join(" "))
}

fn differences(found: &BTreeMap<Circle, Arrows>, listed: &BTreeSet<Circle>) -> Vec<String> {
    let mut wrong = vec![];
    for (circle, arrows) in found.iter().filter(|(circle, _)| !listed.contains(*circle)) {
        let smaller =
            listed.iter().any(|(parent, names)| *parent == circle.0 && names.is_superset(&circle.1));
        if smaller {
            wrong.push(format!("a circle has become smaller; hint: write into {LIST}:\n{}", line(circle)));
            continue;
        }
        let mut text = format!("modules use each other in a new circle, or a bigger one:\n{}", line(circle));
        for ((from, to), place) in arrows {
            text += &format!("\n    {from} -> {to}: {place}");
        }
        text += "\nhint: move what both sides use to a module below both, or hand it in";
        wrong.push(text);
    }
    for circle in listed.iter().filter(|circle| !found.contains_key(*circle)) {
        wrong.push(format!("a circle is gone or has changed; hint: remove from {LIST}:\n{}", line(circle)));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of circles in sources given as pairs of path and text.
    fn circles(sources: &[(&str, &str)]) -> Vec<String> {
        let load = |path: &Path| {
            let text = sources.iter().find(|(name, _)| Path::new(name) == path);
            Ok(text.map(|(_, text)| (*text).to_owned()))
        };
        let found = circles_of("x", Path::new(sources[0].0), &load).unwrap();
        found.keys().map(line).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod a; mod b; mod c;");

    #[test]
    fn uses_make_circles() {
        let cases: &[(&str, &str, &str, bool)] = &[
            ("import", "use crate::b::B;", "use super::a::A;", true),
            ("one way only", "use crate::b::B;", "struct B;", false),
            ("qualified expression", "fn f() { crate::b::f() }", "fn f() { super::a::f() }", true),
            ("type", "struct A(crate::b::B);", "fn f(_: &super::a::A) {}", true),
            ("group and rename", "use crate::{b::{self as other, B}, c};", "use crate::a as it;", true),
            ("glob", "use crate::b::*;", "use crate::a::*;", true),
            ("import of a module, then a path", "use crate::b; fn f() { b::f() }", "use crate::a::A;", true),
            ("import within a function", "fn f() { use crate::b::f; f() }", "use crate::a::A;", true),
            ("trait bound", "fn f<T: crate::b::B>() {}", "use crate::a::A;", true),
            ("macro's words", "fn f() { print!(\"{}\", crate::b::f()) }", "use crate::a::A;", true),
            ("attribute's words", "#[x(with = \"crate::b\")] struct A;", "use crate::a::A;", true),
            ("visibility is no use", "pub(in crate::b) struct A;", "use crate::a::A;", false),
            ("test module", "#[cfg(test)] mod tests { use crate::b::B; }", "use crate::a::A;", false),
            ("test function", "#[cfg(test)] fn f() { crate::b::f() }", "use crate::a::A;", false),
            (
                "comment, string",
                "// crate::b::B\nconst A: &str = \"crate::b::B\";",
                "use crate::a::A;",
                false,
            ),
            ("another crate's b", "use other::b::B; use ::b::B;", "use crate::a::A;", false),
        ];
        for (what, a, b, circle) in cases {
            let found = circles(&[LIB, ("a.rs", a), ("b.rs", b), ("c.rs", "")]);
            let want: &[&str] = if *circle { &["x: a b"] } else { &[] };
            assert_eq!(found, want, "{what}");
        }
    }

    #[test]
    fn re_exports_are_followed_to_where_the_thing_is() {
        let exporting = ("lib.rs", "mod a; mod b; mod c; pub use b::B; pub use c::*;");
        let through = |a: &'static str, b: &'static str, c: &'static str| {
            circles(&[exporting, ("a.rs", a), ("b.rs", b), ("c.rs", c)])
        };
        assert_eq!(through("use crate::B;", "use crate::a::A;", ""), ["x: a b"]);
        assert_eq!(through("use crate::C;", "", "pub struct C; use crate::a::A;"), ["x: a c"]);
        assert_eq!(through("use super::*; fn f(_: B) {}", "use crate::a::A;", ""), ["x: a b"]);
        // The thing is c's, whoever else hands it on.
        assert_eq!(through("use crate::b::C;", "pub use crate::c::C; use crate::a::A;", ""), [""; 0]);
    }

    #[test]
    fn levels_are_looked_at_each_by_itself() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod x; mod y; struct A;"),
            ("a/x.rs", "use super::y::Y; use super::A;"),
            ("a/y.rs", "mod deep { use crate::a::x::X; use crate::b::B; }"),
            ("b.rs", "struct B;"),
        ]);
        assert_eq!(found, ["x::a: x y"]);
        let found = circles(&[
            ("lib.rs", "mod a; mod b { mod x; mod y { fn f() { super::x::f() } } }"),
            ("a.rs", "use crate::b::x::X;"),
            ("b/x.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, ["x: a b"]);
    }

    #[test]
    fn a_missing_module_is_an_error() {
        let load = |path: &Path| Ok((path == Path::new("lib.rs")).then(|| "mod a;".to_owned()));
        let error = circles_of("x", Path::new("lib.rs"), &load).unwrap_err();
        assert!(error.to_string().contains("x::a"), "{error}");
    }

    #[test]
    fn the_list_may_only_shrink() {
        let listed = parse("x: a b c\n");
        let differ = |lines: &str| {
            let found = parse(lines).into_iter().map(|circle| (circle, Arrows::new())).collect();
            differences(&found, &listed)
        };
        assert!(differ("x: a b c").is_empty());
        let cases: &[(&str, &[&str])] = &[
            ("", &["gone or has changed"]),
            ("x: a b c d", &["bigger one:\nx: a b c d", "gone or has changed"]),
            ("x: a b", &["become smaller", "gone or has changed"]),
            ("x: a b c\ny: a b c", &["bigger one:\ny: a b c"]),
        ];
        for (found, parts) in cases {
            let wrong = differ(found);
            assert_eq!(wrong.len(), parts.len(), "{found}: {wrong:?}");
            assert!(wrong.iter().zip(*parts).all(|(text, part)| text.contains(part)), "{found}: {wrong:?}");
        }
    }
}
