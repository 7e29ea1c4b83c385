//! Follows paths to the modules that they lead to, through imports and re-exports.

use std::collections::{BTreeMap, BTreeSet};

use super::Arrows;
use super::read::{Module, ModuleTree};

/// Re-exports that may lead to each other; more would be a circle among them.
const STEPS: usize = 16;

/// What a path leads to.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    Module(usize),
    /// Something of this module.
    Item(usize),
}

/// The arrows between the children of each module, by the module's path.
pub fn arrows(tree: &ModuleTree) -> BTreeMap<String, Arrows> {
    let mut all: BTreeMap<String, Arrows> = BTreeMap::new();
    for (at, module) in tree.iter().enumerate() {
        for used in &module.uses {
            let Some(Target::Module(to) | Target::Item(to)) = resolve(tree, at, &used.path, STEPS) else {
                continue;
            };
            if let Some((parent, arrow)) = siblings(&module.path, &tree[to].path) {
                let place = format!("{}:{}", module.file.display(), used.line);
                all.entry(parent).or_default().entry(arrow).or_insert(place);
            }
        }
    }
    all
}

/// Where two paths part: the module in common, and its two children; nothing if one is within the other.
fn siblings(from: &[String], to: &[String]) -> Option<(String, (String, String))> {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    Some((from[..common].join("::"), (from.get(common)?.clone(), to.get(common)?.clone())))
}

fn resolve(tree: &ModuleTree, at: usize, path: &[String], steps: usize) -> Option<Target> {
    let (first, mut rest) = path.split_first()?;
    let mut target = match first.as_str() {
        "crate" => Target::Module(0),
        "self" => Target::Module(at),
        "super" => Target::Module(tree[at].parent?),
        name => look_up(tree, at, name, steps)?,
    };
    while let (Target::Module(module), Some((name, after))) = (target, rest.split_first()) {
        target = match name.as_str() {
            "super" => Target::Module(tree[module].parent?),
            "self" => target,
            name => look_up(tree, module, name, steps).unwrap_or(Target::Item(module)),
        };
        rest = after;
    }
    Some(target)
}

/// What a name stands for in a module.
fn look_up(tree: &ModuleTree, at: usize, name: &str, steps: usize) -> Option<Target> {
    let steps = steps.checked_sub(1)?;
    let Module { children, names, globs, own, .. } = &tree[at];
    if let Some(child) = children.get(name) {
        return Some(Target::Module(*child));
    }
    if own.iter().any(|item| item == name) {
        return Some(Target::Item(at));
    }
    // A name may be imported twice, as a type and as a function, or in two functions: the first that is ours.
    let imported = names.get(name).into_iter().flatten();
    // `use a;` may import another crate's `a`: not the name itself again.
    let imported = imported.filter(|path| path.len() > 1 || path[0] != name);
    if let Some(found) = imported.filter_map(|path| resolve(tree, at, path, steps)).next() {
        return Some(found);
    }
    let globs: BTreeSet<_> = globs.iter().collect();
    globs.into_iter().find_map(|glob| match resolve(tree, at, glob, steps)? {
        Target::Module(module) if module != at => look_up(tree, module, name, steps),
        _ => None,
    })
}
