//! The workspace's sources as far as a page about types needs them: which types and constants there are, and which of them a path means.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use proc_macro2::Ident;
use syn::spanned::Spanned;

/// What a path can mean.
pub enum SourceItem<'a> {
    Struct(&'a syn::ItemStruct),
    Enum(&'a syn::ItemEnum),
    Alias(&'a syn::ItemType),
    Const(&'a syn::ItemConst),
}

/// A source file.
pub struct SourceFile {
    /// Name of the crate's directory.
    pub krate: String,
    /// Path from the workspace's root.
    pub path: String,
    /// The modules that lead to it.
    modules: Vec<String>,
    pub parsed: syn::File,
    /// Names that the file imports, with their whole paths.
    imports: BTreeMap<String, Vec<String>>,
}

/// All of them.
pub struct Sources(Vec<SourceFile>);

/// A named thing: its file's number and its name.
pub type Declaration = (usize, String);

impl Sources {
    /// Reads files, given as paths from the workspace's root: `crates/NAME/src/...`.
    pub fn read(root: &Path, files: &[String]) -> anyhow::Result<Self> {
        let read = |path: &String| {
            let text = std::fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"))?;
            SourceFile::parse(path, &text)
        };
        files.iter().map(read).collect::<anyhow::Result<_>>().map(Self)
    }

    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| SourceFile::parse(path, text).unwrap()).collect())
    }

    /// Each with its number.
    pub fn all(&self) -> impl Iterator<Item = (usize, &SourceFile)> {
        self.0.iter().enumerate()
    }

    /// The file of this number.
    pub fn source(&self, number: usize) -> &SourceFile {
        &self.0[number]
    }

    /// What stands at a place.
    pub fn get(&self, (number, name): &Declaration) -> Option<SourceItem<'_>> {
        self.0[*number].named(name)
    }

    /// Where the thing is declared that a path means in a file; nothing if that is not in this workspace.
    pub fn find(&self, from: usize, path: &syn::Path) -> Option<Declaration> {
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.find_words(from, &words)
    }

    fn find_words(&self, from: usize, words: &[String]) -> Option<Declaration> {
        let source = &self.0[from];
        let (first, rest) = words.split_first()?;
        if rest.is_empty() && source.named(first).is_some() {
            return Some((from, first.clone()));
        }
        let (krate, modules) = match first.as_str() {
            "crate" => (source.krate.clone(), rest.to_vec()),
            "self" => (source.krate.clone(), [&source.modules[..], rest].concat()),
            "super" => {
                let above = source.modules.split_last().map_or(&[][..], |(_, above)| above);
                (source.krate.clone(), [above, rest].concat())
            }
            name => match (source.imports.get(name), name.strip_prefix("skiff_")) {
                (Some(import), _) if import != words => {
                    return self.find_words(from, &[&import[..], rest].concat());
                }
                (_, Some(krate)) => (krate.to_owned(), rest.to_vec()),
                _ => return None,
            },
        };
        let (name, modules) = modules.split_last()?;
        self.declared(&krate, modules, name)
    }

    /// In that module; or where it may be re-exported from, if only one place in the crate has the name.
    fn declared(&self, krate: &str, modules: &[String], name: &str) -> Option<Declaration> {
        let there: Vec<usize> = self
            .all()
            .filter(|(_, source)| source.krate == krate && source.named(name).is_some())
            .map(|(number, _)| number)
            .collect();
        let below = |exact: bool| {
            let fits = |number: &&usize| {
                let found = &self.0[**number].modules;
                if exact { found == modules } else { found.starts_with(modules) }
            };
            let mut fitting = there.iter().filter(fits);
            fitting.next().filter(|_| fitting.next().is_none()).copied()
        };
        below(true).or_else(|| below(false)).map(|number| (number, name.to_owned()))
    }
}

impl SourceFile {
    fn parse(path: &str, text: &str) -> anyhow::Result<Self> {
        let parsed = syn::parse_file(text).with_context(|| format!("parsing {path}"))?;
        let (krate, rest) = path
            .strip_prefix("crates/")
            .and_then(|path| path.split_once("/src/"))
            .with_context(|| format!("{path}: not crates/NAME/src/..."))?;
        let mut modules: Vec<String> = rest.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if modules.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            modules.pop();
        }
        let mut imports = BTreeMap::new();
        for item in &parsed.items {
            if let syn::Item::Use(used) = item {
                collect(&used.tree, &mut vec![], &mut imports);
            }
        }
        Ok(Self { krate: krate.into(), path: path.into(), modules, parsed, imports })
    }

    fn named(&self, name: &str) -> Option<SourceItem<'_>> {
        let is = |ident: &Ident| ident == name;
        self.parsed.items.iter().find_map(|item| match item {
            syn::Item::Struct(item) if is(&item.ident) => Some(SourceItem::Struct(item)),
            syn::Item::Enum(item) if is(&item.ident) => Some(SourceItem::Enum(item)),
            syn::Item::Type(item) if is(&item.ident) => Some(SourceItem::Alias(item)),
            syn::Item::Const(item) if is(&item.ident) => Some(SourceItem::Const(item)),
            _ => None,
        })
    }
}

fn collect(tree: &syn::UseTree, path: &mut Vec<String>, imports: &mut BTreeMap<String, Vec<String>>) {
    let mut add = |name: &Ident, known: &Ident| {
        let whole = match name == "self" {
            true => path.clone(),
            false => [&path[..], &[name.to_string()]].concat(),
        };
        let known = if known == "self" { path.last().cloned() } else { Some(known.to_string()) };
        imports.extend(known.map(|known| (known, whole)));
    };
    match tree {
        syn::UseTree::Path(below) => {
            path.push(below.ident.to_string());
            collect(&below.tree, path, imports);
            path.pop();
        }
        syn::UseTree::Name(name) => add(&name.ident, &name.ident),
        syn::UseTree::Rename(name) => add(&name.ident, &name.rename),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, path, imports)),
        syn::UseTree::Glob(_) => {}
    }
}

/// SourceFile text of a piece of syntax, on one line.
pub fn text(piece: &impl Spanned) -> String {
    let text = piece.span().source_text().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_declarations() {
        let sources = Sources::of(&[
            ("crates/a/src/lib.rs", "pub mod b; pub struct Top;"),
            (
                "crates/a/src/b.rs",
                "pub mod c; use super::Top; use crate::b::c::{self, Deep as Other}; pub enum B {}",
            ),
            ("crates/a/src/b/c.rs", "pub struct Deep; pub struct Twice;"),
            ("crates/a/src/d/mod.rs", "pub struct Twice; use skiff_e::Shown;"),
            ("crates/e/src/hidden.rs", "pub struct Shown;"),
        ]);
        for (from, path, found) in [
            (1, "B", Some(1)),
            (1, "Top", Some(0)),
            (1, "Other", Some(2)),
            (1, "c::Twice", Some(2)),
            (1, "crate::d::Twice", Some(3)),
            (1, "super::Top", Some(0)),
            (3, "Shown", Some(4)),
            (3, "skiff_e::Shown", Some(4)),
            (1, "crate::Twice", None),
            (1, "String", None),
            (1, "std::path::PathBuf", None),
        ] {
            let parsed = syn::parse_str(path).unwrap();
            assert_eq!(sources.find(from, &parsed).map(|(number, _)| number), found, "{path}");
        }
    }
}
