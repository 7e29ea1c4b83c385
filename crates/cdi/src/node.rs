//! JSON and YAML as one tree, in which each value knows its line. What could make it grow beyond the file is bounded: aliases of YAML count with
//! all that they stand for.

use std::collections::BTreeMap;
use std::fmt;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// More values than any file of a vendor has.
const MOST_NODES: usize = 100_000;
/// So many bytes of a text count as a value: an alias has all of them again.
const COUNTED: usize = 64;
/// A description is seven levels deep.
const MOST_DEPTH: usize = 24;

/// A value, and the line that it begins in, counted from one; zero if that is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinedNode {
    pub(crate) line: usize,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Text; `is_plain` if it could be a number or the like, since nothing says that it is text.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<LinedNode>),
    Map(Vec<(String, LinedNode)>),
}

/// Why a text is no tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeError {
    pub(crate) line: usize,
    pub(crate) why: String,
}

fn error(line: usize, why: impl Into<String>) -> TreeError {
    TreeError { line, why: why.into() }
}

impl LinedNode {
    /// From JSON. Its values know no lines.
    pub(crate) fn from_json(text: &str) -> Result<Self, TreeError> {
        let tree: Self = serde_json::from_str(text).map_err(|e| error(e.line(), format!("not JSON: {e}")))?;
        match tree.count() > MOST_NODES {
            true => Err(error(0, "more values than a description has")),
            false => Ok(tree),
        }
    }

    /// From YAML.
    pub(crate) fn from_yaml(text: &str) -> Result<Self, TreeError> {
        let mut builder = YamlBuilder::default();
        for event in Parser::new_from_str(text) {
            let (event, span) =
                event.map_err(|e| error(e.marker().line(), format!("not YAML: {}", e.info())))?;
            builder.take(event, span.start.line())?;
        }
        builder.root.ok_or_else(|| error(0, "nothing in it"))
    }

    /// How many values there are in it, itself included. Long texts count for more.
    fn count(&self) -> usize {
        1 + match &self.value {
            Value::Scalar { text, .. } => text.len() / COUNTED,
            Value::List(list) => list.iter().map(Self::count).sum(),
            Value::Map(map) => map.iter().map(|(key, node)| key.len() / COUNTED + node.count()).sum(),
        }
    }

    /// What kind of value it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Scalar { text, is_plain: true } if text.is_empty() || text == "null" || text == "~" => {
                "nothing"
            }
            Value::Scalar { text, is_plain: true } if text == "true" || text == "false" => "true or false",
            Value::Scalar { text, is_plain: true } if is_number(text) => "a number",
            Value::Scalar { .. } => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a set of keys",
        }
    }
}

/// Whether YAML and JSON take a text without quotes for a number.
fn is_number(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']);
    digits.starts_with(|c: char| c.is_ascii_digit())
        && (digits.parse::<f64>().is_ok() || digits.starts_with("0x") || digits.starts_with("0o"))
}

/// A list or a map that has not ended.
struct Open {
    line: usize,
    anchor: usize,
    /// The key whose value comes next, in a map.
    key: Option<String>,
    is_map: bool,
    list: Vec<LinedNode>,
    map: Vec<(String, LinedNode)>,
}

#[derive(Default)]
struct YamlBuilder {
    open: Vec<Open>,
    /// Values that have a name, by its number.
    anchors: BTreeMap<usize, LinedNode>,
    nodes: usize,
    root: Option<LinedNode>,
}

impl YamlBuilder {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), TreeError> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let value = Value::Scalar { text: text.into_owned(), is_plain: style == ScalarStyle::Plain };
                self.add(LinedNode { line, value }, anchor)
            }
            Event::SequenceStart(anchor, _) => self.begin(line, anchor, false),
            Event::MappingStart(anchor, _) => self.begin(line, anchor, true),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(ended) = self.open.pop() else { return Ok(()) };
                let value = if ended.is_map { Value::Map(ended.map) } else { Value::List(ended.list) };
                self.nodes = self.nodes.saturating_sub(1);
                self.add(LinedNode { line: ended.line, value }, ended.anchor)
            }
            Event::Alias(anchor) => {
                let meant = self.anchors.get(&anchor);
                // One that stands in what it names would never end.
                let meant =
                    meant.ok_or_else(|| error(line, "an alias (*) of something that has not ended"))?;
                let (node, count) = (meant.clone(), meant.count());
                self.nodes = self.nodes.saturating_add(count - 1);
                self.add(node, 0)
            }
            Event::DocumentStart(_) if self.root.is_some() => Err(error(line, "a second document")),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, line: usize, anchor: usize, is_map: bool) -> Result<(), TreeError> {
        if self.open.len() >= MOST_DEPTH {
            return Err(error(line, format!("deeper than {MOST_DEPTH} levels")));
        }
        self.counted(line)?;
        self.open.push(Open { line, anchor, key: None, is_map, list: vec![], map: vec![] });
        Ok(())
    }

    fn counted(&mut self, line: usize) -> Result<(), TreeError> {
        self.nodes = self.nodes.saturating_add(1);
        match self.nodes > MOST_NODES {
            true => Err(error(line, format!("more than {MOST_NODES} values, those of aliases (*) counted"))),
            false => Ok(()),
        }
    }

    fn add(&mut self, node: LinedNode, anchor: usize) -> Result<(), TreeError> {
        self.counted(node.line)?;
        if anchor > 0 {
            self.nodes = self.nodes.saturating_add(node.count());
            self.counted(node.line)?;
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (open.is_map, open.key.take(), node) {
            (false, _, node) => open.list.push(node),
            (true, Some(key), node) => open.map.push((key, node)),
            (true, None, LinedNode { value: Value::Scalar { text, .. }, .. }) => open.key = Some(text),
            (true, None, node) => return Err(error(node.line, format!("a key that is {}", node.kind()))),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for LinedNode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(JsonVisitor).map(|value| Self { line: 0, value })
    }
}

struct JsonVisitor;

fn plain<E>(text: impl ToString) -> Result<Value, E> {
    Ok(Value::Scalar { text: text.to_string(), is_plain: true })
}

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Scalar { text: text.into(), is_plain: false })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        plain(value)
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        plain(value)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        plain(value)
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        plain(value)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        plain("null")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = vec![];
        while let Some(node) = seq.next_element()? {
            list.push(node);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = vec![];
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Value::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_are_one_tree() {
        let json = LinedNode::from_json(r#"{"a": ["x", 1, true, null], "b": {"c": "d"}}"#).expect("JSON");
        let yaml = LinedNode::from_yaml("a: ['x', 1, true, null]\nb:\n  c: \"d\"\n").expect("YAML");
        fn without_lines(node: &LinedNode) -> LinedNode {
            let value = match &node.value {
                Value::List(list) => Value::List(list.iter().map(without_lines).collect()),
                Value::Map(map) => {
                    Value::Map(map.iter().map(|(key, node)| (key.clone(), without_lines(node))).collect())
                }
                scalar => scalar.clone(),
            };
            LinedNode { line: 0, value }
        }
        assert_eq!(without_lines(&yaml), json);
    }

    #[test]
    fn aliases_stand_for_what_they_name_as_long_as_that_is_little() {
        let node = LinedNode::from_yaml("a: &x [1, 2]\nb: *x\n").expect("YAML");
        let Value::Map(map) = node.value else { panic!("a map") };
        assert_eq!(map[0].1.value, map[1].1.value);
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let names = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{names}]\n");
        }
        let long = format!("a: &x \"{}\"\nb: [{}]\n", "x".repeat(1 << 20), ["*x"; 100].join(", "));
        assert!(LinedNode::from_yaml(&long).expect_err("a bomb of text").why.starts_with("more than"));
        let why = LinedNode::from_yaml(&bomb).expect_err("a bomb").why;
        assert!(why.starts_with("more than"), "{why}");
        let deep = format!("{}{}", "[".repeat(60), "]".repeat(60));
        for (text, want) in [
            (&*deep, "deeper than 24 levels"),
            ("a: &x [*x]", "an alias (*) of something that has not ended"),
            ("a: 1\n---\nb: 1\n", "a second document"),
            ("", "nothing in it"),
            ("? [a]\n: b\n", "a key that is a list"),
        ] {
            assert_eq!(LinedNode::from_yaml(text).expect_err(text).why, want, "{text}");
        }
        assert!(LinedNode::from_json(&format!("{}{}", "[".repeat(200), "]".repeat(200))).is_err());
    }
}
