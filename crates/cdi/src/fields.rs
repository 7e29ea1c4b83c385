//! Keys of a description as typed values. All that is wrong is noted, with the line and the way to the key, and reading goes on.

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
                field: at.field.clone(),
                problem: problem.into(),
                hint: hint.into(),
            });
        }
    }
}

/// A value, and the way to it.
pub(crate) struct At<'a> {
    pub(crate) node: &'a LinedNode,
    pub(crate) field: String,
}

impl<'a> At<'a> {
    /// The whole file.
    pub(crate) fn root(node: &'a LinedNode) -> Self {
        Self { node, field: String::new() }
    }

    fn below(&self, key: &str, node: &'a LinedNode) -> At<'a> {
        let dot = if self.field.is_empty() { "" } else { "." };
        At { node, field: format!("{}{dot}{key}", self.field) }
    }

    /// The keys of a map, of which only those of `known` may be there; nothing if it is none.
    pub(crate) fn keys(&self, known: &[&str], notes: &mut Notes) -> MapKeys<'a> {
        let Value::Map(map) = &self.node.value else {
            notes.add(self, format!("{} in the place of a set of keys", self.node.kind()), "");
            return MapKeys { at: At { node: self.node, field: self.field.clone() }, map: &[] };
        };
        for (number, (key, node)) in map.iter().enumerate() {
            let at = self.below(key, node);
            if !known.contains(&&**key) {
                notes.add(&at, "there is no such key", suggest_key(key, known));
            } else if map[..number].iter().any(|(earlier, _)| earlier == key) {
                notes.add(&at, "the key is there twice", "");
            }
        }
        MapKeys { at: At { node: self.node, field: self.field.clone() }, map }
    }

    /// The values of a list; none if it is none.
    pub(crate) fn list(&self, notes: &mut Notes) -> Vec<At<'a>> {
        match &self.node.value {
            Value::List(list) => list
                .iter()
                .enumerate()
                .map(|(number, node)| At { node, field: format!("{}[{number}]", self.field) })
                .collect(),
            _ if self.node.kind() == "nothing" => vec![],
            _ => {
                notes.add(self, format!("{} in the place of a list", self.node.kind()), "");
                vec![]
            }
        }
    }

    /// The value as text.
    pub(crate) fn text(&self, notes: &mut Notes) -> Option<String> {
        match (&self.node.value, self.node.kind()) {
            (Value::Scalar { text, .. }, "text") if text.contains('\0') => {
                notes.add(self, "a zero byte in it", "");
                None
            }
            (Value::Scalar { text, .. }, "text") => Some(text.clone()),
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
    map: &'a [(String, LinedNode)],
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
    pub(crate) fn text(&self, key: &str, notes: &mut Notes) -> Option<String> {
        self.need(key, notes)?.text(notes)
    }

    /// The values of a list, if it is there.
    pub(crate) fn list(&self, key: &str, notes: &mut Notes) -> Vec<At<'a>> {
        self.get(key).map(|at| at.list(notes)).unwrap_or_default()
    }

    /// The texts of a list, if it is there.
    pub(crate) fn texts(&self, key: &str, notes: &mut Notes) -> Vec<String> {
        self.list(key, notes).iter().filter_map(|at| at.text(notes)).collect()
    }
}

/// Names the key that may have been meant.
fn suggest_key(key: &str, known: &[&str]) -> String {
    match nearest(key, known.iter().copied()) {
        Some(name) => format!("{name:?} may be meant"),
        None => format!("the keys here are {}", known.join(", ")),
    }
}
