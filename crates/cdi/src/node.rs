//! JSON and YAML as one tree, in which each value knows its line. What could make it grow beyond the file is bounded: aliases of YAML count with
//! all that they stand for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// More values than any file of a vendor has.
const MOST_NODES: usize = 100_000;
/// So many bytes of a text count as a value: an alias has all of them again.
const COUNTED: usize = 64;
/// A description is seven levels deep.
const MOST_DEPTH: usize = 24;

/// A value, and the line that it begins in, counted from one; zero if that is not known. Texts are those of the file, as far as they stand there as
/// they are meant: a start with many described devices would spend its time on copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinedNode<'a> {
    pub(crate) line: usize,
    pub(crate) value: Value<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// Text; `is_plain` if it could be a number or the like, since nothing says that it is text.
    Scalar {
        text: Cow<'a, str>,
        is_plain: bool,
    },
    List(Vec<LinedNode<'a>>),
    Map(Vec<(Cow<'a, str>, LinedNode<'a>)>),
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

impl<'a> LinedNode<'a> {
    /// From JSON. Its values know no lines.
    pub(crate) fn from_json(text: &'a str) -> Result<Self, TreeError> {
        let (mut reader, mut open) = (serde_json::Deserializer::from_str(text), OpenValues::default());
        let tree = JsonVisitor(&mut open).deserialize(&mut reader);
        let tree = tree.and_then(|tree| reader.end().map(|()| tree));
        let tree = tree.map_err(|e| error(e.line(), format!("not JSON: {e}")))?;
        match tree.count() > MOST_NODES {
            true => Err(error(0, "more values than a description has")),
            false => Ok(tree),
        }
    }

    /// From YAML.
    pub(crate) fn from_yaml(text: &'a str) -> Result<Self, TreeError> {
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

/// Values, with their keys, of lists and maps that have not ended: those of an inner one behind those of the outer. Each list and map is made when its
/// length is known, and takes no more memory than it needs.
#[derive(Default)]
struct OpenValues<'a>(Vec<(Cow<'a, str>, LinedNode<'a>)>);

impl<'a> OpenValues<'a> {
    fn list(&mut self, from: usize) -> Value<'a> {
        Value::List(self.0.drain(from..).map(|(_, node)| node).collect())
    }

    fn map(&mut self, from: usize) -> Value<'a> {
        Value::Map(self.0.drain(from..).collect())
    }
}

/// A list or a map that has not ended.
struct Open<'a> {
    line: usize,
    anchor: usize,
    /// The key whose value comes next, in a map.
    key: Option<Cow<'a, str>>,
    is_map: bool,
    /// The first of its values.
    from: usize,
}

#[derive(Default)]
struct YamlBuilder<'a> {
    open: Vec<Open<'a>>,
    values: OpenValues<'a>,
    /// Values that have a name, by its number.
    anchors: BTreeMap<usize, LinedNode<'a>>,
    nodes: usize,
    root: Option<LinedNode<'a>>,
}

impl<'a> YamlBuilder<'a> {
    fn take(&mut self, event: Event<'a>, line: usize) -> Result<(), TreeError> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let value = Value::Scalar { text, is_plain: style == ScalarStyle::Plain };
                self.add(LinedNode { line, value }, anchor)
            }
            Event::SequenceStart(anchor, _) => self.begin(line, anchor, false),
            Event::MappingStart(anchor, _) => self.begin(line, anchor, true),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(ended) = self.open.pop() else { return Ok(()) };
                let value = match ended.is_map {
                    true => self.values.map(ended.from),
                    false => self.values.list(ended.from),
                };
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
        self.open.push(Open { line, anchor, key: None, is_map, from: self.values.0.len() });
        Ok(())
    }

    fn counted(&mut self, line: usize) -> Result<(), TreeError> {
        self.nodes = self.nodes.saturating_add(1);
        match self.nodes > MOST_NODES {
            true => Err(error(line, format!("more than {MOST_NODES} values, those of aliases (*) counted"))),
            false => Ok(()),
        }
    }

    fn add(&mut self, node: LinedNode<'a>, anchor: usize) -> Result<(), TreeError> {
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
            (false, _, node) => self.values.0.push((Cow::Borrowed(""), node)),
            (true, Some(key), node) => self.values.0.push((key, node)),
            (true, None, LinedNode { value: Value::Scalar { text, .. }, .. }) => open.key = Some(text),
            (true, None, node) => return Err(error(node.line, format!("a key that is {}", node.kind()))),
        }
        Ok(())
    }
}

struct JsonVisitor<'s, 'a>(&'s mut OpenValues<'a>);

impl<'a> DeserializeSeed<'a> for JsonVisitor<'_, 'a> {
    type Value = LinedNode<'a>;

    fn deserialize<D: Deserializer<'a>>(self, from: D) -> Result<LinedNode<'a>, D::Error> {
        from.deserialize_any(self).map(|value| LinedNode { line: 0, value })
    }
}

fn plain<'a, E>(text: impl Into<Cow<'a, str>>) -> Result<Value<'a>, E> {
    Ok(Value::Scalar { text: text.into(), is_plain: true })
}

impl<'a> Visitor<'a> for JsonVisitor<'_, 'a> {
    type Value = Value<'a>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Value<'a>, E> {
        Ok(Value::Scalar { text: text.into(), is_plain: false })
    }

    fn visit_str<E>(self, text: &str) -> Result<Value<'a>, E> {
        Ok(Value::Scalar { text: text.to_owned().into(), is_plain: false })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value<'a>, E> {
        plain(if value { "true" } else { "false" })
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value<'a>, E> {
        plain(value.to_string())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value<'a>, E> {
        plain(value.to_string())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value<'a>, E> {
        plain(value.to_string())
    }

    fn visit_unit<E>(self) -> Result<Value<'a>, E> {
        plain("null")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<Value<'a>, A::Error> {
        let from = self.0.0.len();
        while let Some(node) = seq.next_element_seed(JsonVisitor(self.0))? {
            self.0.0.push((Cow::Borrowed(""), node));
        }
        Ok(self.0.list(from))
    }

    fn visit_map<A: MapAccess<'a>>(self, mut entries: A) -> Result<Value<'a>, A::Error> {
        let from = self.0.0.len();
        while let Some(key) = entries.next_key_seed(JsonKeyVisitor)? {
            let node = entries.next_value_seed(JsonVisitor(self.0))?;
            self.0.0.push((key, node));
        }
        Ok(self.0.map(from))
    }
}

struct JsonKeyVisitor;

impl<'a> DeserializeSeed<'a> for JsonKeyVisitor {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, from: D) -> Result<Cow<'a, str>, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for JsonKeyVisitor {
    type Value = Cow<'a, str>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Cow<'a, str>, E> {
        Ok(text.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'a, str>, E> {
        Ok(text.to_owned().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_are_one_tree() {
        let json = LinedNode::from_json(r#"{"a": ["x", 1, true, null], "b": {"c": "d"}}"#).expect("JSON");
        let yaml = LinedNode::from_yaml("a: ['x', 1, true, null]\nb:\n  c: \"d\"\n").expect("YAML");
        fn without_lines<'a>(node: &LinedNode<'a>) -> LinedNode<'a> {
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
    fn plain_texts_stay_in_the_file() {
        let json = LinedNode::from_json(r#"{"a": ["x"], "b": "c"}"#).expect("JSON");
        let Value::Map(map) = json.value else { panic!("a map") };
        let is_borrowed = |text: &Cow<'_, str>| matches!(text, Cow::Borrowed(_));
        assert!(map.iter().all(|(key, _)| is_borrowed(key)));
        assert!(matches!(&map[1].1.value, Value::Scalar { text, .. } if is_borrowed(text)));
        let Value::List(list) = &map[0].1.value else { panic!("a list") };
        assert_eq!(list.capacity(), 1);
        // What is written with escapes is not.
        let json = LinedNode::from_json(r#"{"a\u0041": "\n"}"#).expect("JSON");
        let text = Value::Scalar { text: "\n".into(), is_plain: false };
        assert_eq!(json.value, Value::Map(vec![("aA".into(), LinedNode { line: 0, value: text })]));
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
