//! Keys of a description as typed values. All that is wrong is noted, with the line and the way to the key, and reading goes on.

use std::borrow::Cow;
use std::fmt;
use std::iter::Enumerate;
use std::slice;

use skiff_nearest::nearest;

use crate::node::{LinedNode, Value};

/// What is wrong with a file, or keeps what it describes from being used.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// The line, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The key, as `devices[0].containerEdits.mounts[2].hostPath`; empty for the file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// How to mend it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Problem {
    /// One of the whole file.
    pub fn of_file(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { line: None, field: String::new(), problem: problem.into(), hint: hint.into() }
    }

    /// With the line and the key in front.
    #[must_use]
    pub fn text(&self) -> String {
        let line = self.line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let field = if self.field.is_empty() { String::new() } else { format!("{}: ", self.field) };
        format!("{line}{field}{}", self.problem)
    }
}

/// Notes what is wrong.
#[derive(Default)]
pub(crate) struct Notes(pub(crate) Vec<Problem>);

/// More of one file help nobody.
const MOST_PROBLEMS: usize = 50;

impl Notes {
    pub(crate) fn add(&mut self, at: &At<'_>, problem: impl Into<String>, hint: impl Into<String>) {
        if self.0.len() < MOST_PROBLEMS {
            let line = (at.node.line > 0).then_some(at.node.line);
            self.0.push(Problem {
                line,
                field: at.field.to_string(),
                problem: problem.into(),
                hint: hint.into(),
            });
        }
    }
}

/// A description is seven levels deep: what lies deeper is named by the levels above it.
const LEVELS: usize = 8;

/// The way to a value, which becomes a text only for a problem: most values have none.
#[derive(Clone, Copy)]
pub(crate) struct FieldPath<'a> {
    steps: [FieldStep<'a>; LEVELS],
    length: usize,
}

#[derive(Clone, Copy)]
enum FieldStep<'a> {
    Key(&'a str),
    Item(usize),
}

impl<'a> FieldPath<'a> {
    const EMPTY: Self = Self { steps: [FieldStep::Item(0); LEVELS], length: 0 };

    fn with(mut self, step: FieldStep<'a>) -> Self {
        if let Some(next) = self.steps.get_mut(self.length) {
            *next = step;
            self.length += 1;
        }
        self
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps[..self.length].iter().enumerate() {
            match step {
                FieldStep::Key(key) => write!(to, "{}{key}", if number > 0 { "." } else { "" })?,
                FieldStep::Item(item) => write!(to, "[{item}]")?,
            }
        }
        Ok(())
    }
}

/// A value, and the way to it.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) node: &'a LinedNode<'a>,
    field: FieldPath<'a>,
}

impl<'a> At<'a> {
    /// The whole file.
    pub(crate) fn root(node: &'a LinedNode<'a>) -> Self {
        Self { node, field: FieldPath::EMPTY }
    }

    fn below(&self, key: &'a str, node: &'a LinedNode<'a>) -> At<'a> {
        At { node, field: self.field.with(FieldStep::Key(key)) }
    }

    /// The keys of a map, of which only those of `known` may be there; nothing if it is none.
    pub(crate) fn keys(&self, known: &[&str], notes: &mut Notes) -> MapKeys<'a> {
        let Value::Map(map) = &self.node.value else {
            notes.add(self, format!("{} in the place of a set of keys", self.node.kind()), "");
            return MapKeys { at: *self, map: &[] };
        };
        for (number, (key, node)) in map.iter().enumerate() {
            if !known.contains(&&**key) {
                notes.add(&self.below(key, node), "there is no such key", suggest_key(key, known));
            } else if map[..number].iter().any(|(earlier, _)| earlier == key) {
                notes.add(&self.below(key, node), "the key is there twice", "");
            }
        }
        MapKeys { at: *self, map }
    }

    /// The values of a list; none if it is none.
    pub(crate) fn list(&self, notes: &mut Notes) -> FieldItems<'a> {
        let nodes = match &self.node.value {
            Value::List(list) => &list[..],
            _ if self.node.kind() == "nothing" => &[],
            _ => {
                notes.add(self, format!("{} in the place of a list", self.node.kind()), "");
                &[]
            }
        };
        FieldItems { field: self.field, nodes: nodes.iter().enumerate() }
    }

    /// The value as text.
    pub(crate) fn text(&self, notes: &mut Notes) -> Option<&'a str> {
        match (&self.node.value, self.node.kind()) {
            (Value::Scalar { text, .. }, "text") if text.contains('\0') => {
                notes.add(self, "a zero byte in it", "");
                None
            }
            (Value::Scalar { text, .. }, "text") => Some(text),
            (Value::Scalar { .. }, kind) => {
                notes.add(self, format!("{kind} in the place of text"), "put it in quotes");
                None
            }
            (_, kind) => {
                notes.add(self, format!("{kind} in the place of text"), "");
                None
            }
        }
    }

    /// The value as a number from `least` on.
    pub(crate) fn number(&self, least: i64, notes: &mut Notes) -> Option<i64> {
        let read = match &self.node.value {
            Value::Scalar { text, is_plain: true } => text.parse().ok().filter(|number| *number >= least),
            _ => None,
        };
        if read.is_none() {
            notes.add(self, format!("not a number from {least} on"), "");
        }
        read
    }
}

/// The keys of a map.
pub(crate) struct MapKeys<'a> {
    at: At<'a>,
    map: &'a [(Cow<'a, str>, LinedNode<'a>)],
}

impl<'a> MapKeys<'a> {
    /// The value of a key, if it is there.
    pub(crate) fn get(&self, key: &str) -> Option<At<'a>> {
        self.map.iter().find(|(name, _)| name == key).map(|(key, node)| self.at.below(key, node))
    }

    /// The value of a key that must be there.
    pub(crate) fn need(&self, key: &str, notes: &mut Notes) -> Option<At<'a>> {
        let found = self.get(key);
        if found.is_none() {
            notes.add(&self.at, format!("the key {key:?} is missing"), "");
        }
        found
    }

    /// The text of a key that must be there.
    pub(crate) fn text(&self, key: &str, notes: &mut Notes) -> Option<&'a str> {
        self.need(key, notes)?.text(notes)
    }

    /// The values of a list, if it is there.
    pub(crate) fn list(&self, key: &str, notes: &mut Notes) -> FieldItems<'a> {
        let none = FieldItems { field: FieldPath::EMPTY, nodes: [].iter().enumerate() };
        self.get(key).map_or(none, |at| at.list(notes))
    }

    /// The texts of a list, if it is there.
    pub(crate) fn texts(&self, key: &str, notes: &mut Notes) -> Vec<&'a str> {
        self.list(key, notes).read_each(|at| at.text(notes))
    }
}

/// The values of a list, one after the other.
pub(crate) struct FieldItems<'a> {
    field: FieldPath<'a>,
    nodes: Enumerate<slice::Iter<'a, LinedNode<'a>>>,
}

impl<'a> Iterator for FieldItems<'a> {
    type Item = At<'a>;

    fn next(&mut self) -> Option<At<'a>> {
        let (number, node) = self.nodes.next()?;
        Some(At { node, field: self.field.with(FieldStep::Item(number)) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.nodes.size_hint()
    }
}

impl ExactSizeIterator for FieldItems<'_> {}

impl<'a> FieldItems<'a> {
    /// What is read of each, in no more memory than that takes.
    pub(crate) fn read_each<T>(self, read: impl FnMut(At<'a>) -> Option<T>) -> Vec<T> {
        let mut all = Vec::with_capacity(self.len());
        all.extend(self.filter_map(read));
        all
    }
}

/// Names the key that may have been meant.
fn suggest_key(key: &str, known: &[&str]) -> String {
    match nearest(key, known.iter().copied()) {
        Some(name) => format!("{name:?} may be meant"),
        None => format!("the keys here are {}", known.join(", ")),
    }
}
