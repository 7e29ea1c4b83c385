//! `--format`: what a list prints of each of its entries, by the templates that Docker's and Podman's users know.

use serde_json::Value;
use skiff_spec::fault::{Fault, Result};

use crate::{json, line, note, table};

/// Fields by Docker's names, and what the lists call them; of several the first that there is.
const SYNONYMS: [(&str, &[&str]); 9] = [
    ("names", &["name"]),
    ("containerid", &["name"]),
    ("id", &["name"]),
    ("image", &["of", "base"]),
    ("imageid", &["id"]),
    ("createdat", &["created", "started", "made"]),
    ("createdsince", &["created", "started", "made"]),
    ("status", &["state", "running"]),
    ("networks", &["net"]),
];

/// A piece of a template.
#[derive(Debug, PartialEq)]
enum Piece<'a> {
    Text(String),
    /// The path to a field; an empty one is all of the entry.
    Field {
        path: Vec<&'a str>,
        as_json: bool,
    },
}

/// Prints entries by a template: `json`, or text with `{{.Field}}` and `{{json .Field}}` in it; with `table` in front, in columns.
pub fn formatted(template: &str, entries: &[Value]) -> Result<()> {
    if template == "json" {
        return json(&entries);
    }
    let (is_table, text) = match template.strip_prefix("table ") {
        Some(text) => (true, text),
        None => (false, template),
    };
    let pieces = parse(text)?;
    unknown_fields(&pieces, entries).iter().for_each(|name| {
        note(&format!("--format: no entry has a field {name:?}, so it is empty; --json shows the fields"));
    });
    let rows = entries.iter().map(|entry| filled(&pieces, entry)).collect::<Vec<_>>();
    if !is_table {
        return rows.iter().try_for_each(|row| line(row));
    }
    let head: String = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Field { path, .. } => path.last().unwrap_or(&"entry").to_uppercase(),
        })
        .collect();
    let cells = |row: &str| row.split('\t').map(String::from).collect::<Vec<_>>();
    let (head, mut rows) = (cells(&head), rows.iter().map(|row| cells(row)).collect::<Vec<_>>());
    // A tab within a field makes no column.
    rows.iter_mut().for_each(|row| row.resize(head.len(), String::new()));
    table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
}

fn bad(template: &str, why: &str) -> Fault {
    Fault::new(format!("--format {template:?}: {why}"))
        .hint("it is json, or text with {{.Field}} and {{json .Field}} in it; --json shows the fields")
}

fn parse(template: &str) -> Result<Vec<Piece<'_>>> {
    let (mut pieces, mut rest) = (vec![], template);
    while let Some((before, after)) = rest.split_once("{{") {
        let (action, behind) = after.split_once("}}").ok_or_else(|| bad(template, "{{ without }}"))?;
        if !before.is_empty() {
            pieces.push(Piece::Text(unescaped(before)));
        }
        let action = action.trim();
        let (as_json, path) = match action.strip_prefix("json ") {
            Some(path) => (true, path.trim()),
            None => (false, action),
        };
        let path = path.strip_prefix('.').ok_or_else(|| bad(template, "not a field"))?;
        if path.contains(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_'))) {
            return Err(bad(template, "not a field"));
        }
        pieces
            .push(Piece::Field { path: path.split('.').filter(|part| !part.is_empty()).collect(), as_json });
        rest = behind;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(unescaped(rest)));
    }
    Ok(pieces)
}

/// Fields that none of the entries has. It may be one that only some entries have: so that is no error.
fn unknown_fields<'a>(pieces: &[Piece<'a>], entries: &[Value]) -> Vec<&'a str> {
    let names = pieces.iter().filter_map(|piece| match piece {
        Piece::Field { path, .. } => path.first().copied(),
        Piece::Text(_) => None,
    });
    let is_unknown =
        |name: &&str| !entries.is_empty() && entries.iter().all(|entry| find_field(entry, name).is_none());
    names.filter(is_unknown).collect()
}

fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

fn filled(pieces: &[Piece<'_>], entry: &Value) -> String {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(piece) => text.push_str(piece),
            Piece::Field { path, as_json } => {
                let found = path.iter().fold(entry, |value, name| field(value, name));
                match (found, as_json) {
                    (Value::String(string), false) => text.push_str(string),
                    (Value::Null, false) => {}
                    (other, _) => text.push_str(&other.to_string()),
                }
            }
        }
    }
    text
}

/// A field by its name, without regard to case and underscores. One that only others of the list have is empty.
fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    find_field(value, name).unwrap_or(&Value::Null)
}

fn find_field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let plain = |name: &str| name.to_lowercase().replace('_', "");
    let Value::Object(fields) = value else { return None };
    let by = |wanted: &str| fields.iter().find(|(known, _)| plain(known) == wanted).map(|(_, value)| value);
    let wanted = plain(name);
    let others = SYNONYMS.iter().find(|(known, _)| *known == wanted).map_or(&[][..], |(_, names)| names);
    by(&wanted).or_else(|| others.iter().find_map(|name| by(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled() {
        let entry = serde_json::json!({
            "name": "web", "of": "image:x", "size": 12, "config": {"Cmd": ["a"]}, "state": "running", "exit_code": null,
        });
        for (template, want) in [
            ("{{.Name}}", "web"),
            ("{{ .Names }} {{.Image}}\\t{{.Size}}", "web image:x\t12"),
            ("{{.ID}}={{.Status}}", "web=running"),
            ("{{json .Config.Cmd}}", "[\"a\"]"),
            ("{{.Config.Cmd}}", "[\"a\"]"),
            ("{{json .Name}}", "\"web\""),
            ("{{.ExitCode}}|{{.NoSuch}}", "|"),
            ("plain", "plain"),
        ] {
            let pieces = parse(template).expect(template);
            assert_eq!(filled(&pieces, &entry), want, "{template}");
        }
        let pieces = parse("{{.Name}} {{.ExitCode}} {{.Nosuch}} {{.Image}}").expect("a template");
        assert_eq!(unknown_fields(&pieces, std::slice::from_ref(&entry)), ["Nosuch"]);
        assert!(unknown_fields(&pieces, &[]).is_empty());
        for template in
            ["{{", "{{.Name", "{{Name}}", "{{range .}}", "{{if .Name}}x{{end}}", "{{.Name | upper}}"]
        {
            assert!(parse(template).is_err(), "{template}");
        }
    }
}
