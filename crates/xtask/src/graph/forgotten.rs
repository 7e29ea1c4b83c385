//! Files that no module declares: nothing compiles them, so tests in them would never run and nobody would notice.

use std::path::Path;

/// Paths of a crate's `files`, given by path and text, that are neither a target's first file nor declared by another one.
pub fn find<'a>(files: &'a [(String, String)], roots: &[&Path]) -> Vec<&'a str> {
    let is_declared = |path: &str| {
        let path = Path::new(path);
        let name =
            if path.ends_with("mod.rs") { path.parent() } else { Some(path) }.and_then(Path::file_stem);
        let line = format!("mod {};", name.unwrap_or_default().to_string_lossy());
        files.iter().any(|(other, text)| Path::new(other) != path && declares(text, &line))
    };
    let paths = files.iter().map(|(path, _)| path.as_str());
    paths.filter(|path| !roots.contains(&Path::new(path)) && !is_declared(path)).collect()
}

fn declares(text: &str, line: &str) -> bool {
    text.lines().any(|said| {
        let said = said.trim();
        said == line || (said.starts_with("pub") && said.ends_with(&format!(" {line}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_declares_is_found() {
        let files = [
            ("/a/tests/main.rs", "mod one;\n#[path = \"x\"]\nmod common;"),
            ("/a/tests/one.rs", "pub(crate) mod two;"),
            ("/a/tests/two.rs", "// mod three;"),
            ("/a/tests/three.rs", "mod three;"),
            ("/a/tests/common/mod.rs", ""),
            ("/a/src/gone/mod.rs", ""),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let found = find(&files, &[Path::new("/a/tests/main.rs")]);
        assert_eq!(found, ["/a/tests/three.rs", "/a/src/gone/mod.rs"]);
    }
}
