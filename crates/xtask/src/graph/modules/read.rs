//! Reads a crate's modules: what each declares, imports, and names by a path.
//!
//! Tests are left out. What a macro is given is searched for paths word by word; what a macro makes is not seen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::Load;

/// Segments as written, and the line that they are on.
pub struct Use {
    pub path: Vec<String>,
    pub line: usize,
}

/// A module without its children's contents.
pub struct Module {
    /// The crate's name and those of the modules down to this one.
    pub path: Vec<String>,
    pub file: PathBuf,
    pub parent: Option<usize>,
    pub children: BTreeMap<String, usize>,
    /// Imported names, and what they stand for.
    pub names: BTreeMap<String, Vec<Vec<String>>>,
    pub globs: Vec<Vec<String>>,
    pub uses: Vec<Use>,
    /// Names that the module's own items have.
    pub own: Vec<String>,
}

/// All modules of a crate; the first is its root.
pub type ModuleTree = Vec<Module>;

/// Reads the crate whose first file is `root`.
pub fn crate_at(name: &str, root: &Path, load: Load) -> anyhow::Result<ModuleTree> {
    let mut reader = Reader { tree: vec![], load, failed: None };
    let directory = root.parent().unwrap_or(Path::new("")).to_owned();
    reader.file(vec![name.into()], None, root.to_owned(), directory)?;
    Ok(reader.tree)
}

struct Reader<'a> {
    tree: ModuleTree,
    load: Load<'a>,
    failed: Option<anyhow::Error>,
}

impl Reader<'_> {
    fn file(
        &mut self,
        path: Vec<String>,
        parent: Option<usize>,
        file: PathBuf,
        directory: PathBuf,
    ) -> anyhow::Result<usize> {
        let text = (self.load)(&file)?;
        let text = text.with_context(|| format!("{}: no file {}", path.join("::"), file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("reading {}", file.display()))?;
        self.module(path, parent, file, directory, &parsed.items)
    }

    /// Adds a module whose own modules are kept in files of `directory`.
    fn module(
        &mut self,
        path: Vec<String>,
        parent: Option<usize>,
        file: PathBuf,
        directory: PathBuf,
        items: &[syn::Item],
    ) -> anyhow::Result<usize> {
        let at = self.tree.len();
        self.tree.push(Module {
            path,
            file,
            parent,
            children: BTreeMap::new(),
            names: BTreeMap::new(),
            globs: vec![],
            uses: vec![],
            own: items.iter().filter_map(own_name).collect(),
        });
        let mut body = Body { reader: self, at, directory };
        for item in items {
            body.visit_item(item);
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(at),
        }
    }
}

/// What is being read: one module's items.
struct Body<'a, 'b> {
    reader: &'a mut Reader<'b>,
    at: usize,
    directory: PathBuf,
}

impl Body<'_, '_> {
    fn here(&mut self) -> &mut Module {
        &mut self.reader.tree[self.at]
    }

    fn add(&mut self, path: Vec<String>, line: usize) {
        self.here().uses.push(Use { path, line });
    }

    fn child(&mut self, item: &syn::ItemMod) -> anyhow::Result<()> {
        let name = item.ident.to_string();
        ensure!(
            !item.attrs.iter().any(|a| a.path().is_ident("path")),
            "mod {name}: #[path] is not understood"
        );
        let path: Vec<String> = self.here().path.iter().chain([&name]).cloned().collect();
        let (parent, below) = (Some(self.at), self.directory.join(&name));
        let child = match &item.content {
            Some((_, items)) => {
                let file = self.here().file.clone();
                self.reader.module(path, parent, file, below, items)?
            }
            None => {
                let beside = self.directory.join(format!("{name}.rs"));
                let within = below.join("mod.rs");
                let file = if (self.reader.load)(&within)?.is_some() { within } else { beside };
                self.reader.file(path, parent, file, below)?
            }
        };
        self.here().children.insert(name, child);
        Ok(())
    }

    fn import(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.import(before, item)),
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.imported(before.last().cloned().unwrap_or_default(), before.to_vec(), &name.ident);
            }
            syn::UseTree::Name(name) => {
                self.imported(name.ident.to_string(), with(&name.ident), &name.ident);
            }
            syn::UseTree::Rename(name) if name.ident == "self" => {
                self.imported(name.rename.to_string(), before.to_vec(), &name.ident);
            }
            syn::UseTree::Rename(name) => {
                self.imported(name.rename.to_string(), with(&name.ident), &name.ident);
            }
            syn::UseTree::Glob(glob) => {
                self.here().globs.push(before.to_vec());
                self.add(before.to_vec(), glob.star_token.spans[0].start().line);
            }
        }
    }

    fn imported(&mut self, name: String, path: Vec<String>, word: &syn::Ident) {
        self.here().names.entry(name).or_default().push(path.clone());
        self.add(path, word.span().start().line);
    }

    /// Adds what looks like a path: words with double colons between them.
    fn words(&mut self, tokens: TokenStream) {
        let (mut path, mut colons, mut line) = (vec![], 0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(word) => {
                    if colons != 2 {
                        self.add(std::mem::take(&mut path), line);
                    }
                    line = word.span().start().line;
                    path.push(word.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    // A path that begins with colons is another crate's.
                    colons = if path.is_empty() { 0 } else { colons + 1 };
                    continue;
                }
                TokenTree::Group(group) => self.words(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            self.add(std::mem::take(&mut path), line);
            colons = 0;
        }
        self.add(path, line);
    }
}

impl<'ast> Visit<'ast> for Body<'_, '_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !attributes(item).is_some_and(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if self.reader.failed.is_none() {
            self.reader.failed = self.child(item).err();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&[], &item.tree);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let words = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(words, path.segments[0].ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    /// `pub(in crate::a)` uses nothing of `a`.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.words(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if attribute.path().is_ident("doc") {
            return;
        }
        if let syn::Meta::List(list) = &attribute.meta {
            self.words(list.tokens.clone());
            for token in list.tokens.clone() {
                // `with = "crate::x"`, as serde's attributes have it.
                let TokenTree::Literal(literal) = token else { continue };
                if let Ok(path) = syn::parse_str::<syn::LitStr>(&literal.to_string())
                    && let Ok(path) = path.parse::<syn::Path>()
                {
                    self.visit_path(&path);
                }
            }
        }
    }
}

fn own_name(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn attributes(item: &syn::Item) -> Option<&[syn::Attribute]> {
    Some(match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => return None,
    })
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let words = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg") && words.is_ok_and(|w| w == "test" || w.starts_with("all (test"))
    })
}
