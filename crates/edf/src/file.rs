//! One file, as it stands: every value with the line that it is on.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::check::suggest_key;
use crate::template::Template;
use crate::{Error, TemplateError};

/// Nothing is meant by more levels of annotations.
const DEEPEST: usize = 16;

/// A value, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lined<T> {
    pub place: String,
    pub value: T,
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DefinitionFile {
    pub bases: Vec<Lined<Template>>,
    pub image: Option<Lined<Template>>,
    pub mounts: Vec<Lined<Template>>,
    pub env: Vec<(String, Lined<Template>)>,
    pub workdir: Option<Lined<Template>>,
    pub writable: Option<bool>,
    pub entrypoint: Option<bool>,
    pub devices: Vec<Lined<Template>>,
    pub annotations: Vec<(String, Lined<Template>)>,
}

/// A file on its way to being understood.
struct Reader<'a> {
    path: &'a Path,
    /// Where each line ends.
    line_ends: Vec<usize>,
}

impl DefinitionFile {
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let (found, errors) = Self::read_all(path, bytes)?;
        errors.into_iter().next().map_or(Ok(found), Err)
    }

    /// All that is wrong with the keys of a file.
    pub(crate) fn errors(path: &Path, bytes: &[u8]) -> Vec<Error> {
        Self::read_all(path, bytes).map_or_else(|e| vec![e], |(_, errors)| errors)
    }

    /// What can be read of a file, and what is wrong with its keys, in the order of its lines.
    fn read_all(path: &Path, bytes: &[u8]) -> Result<(Self, Vec<Error>), Error> {
        let in_file =
            |what: String, hint: &str| Error { place: path.display().to_string(), what, hint: hint.into() };
        let text = std::str::from_utf8(bytes).map_err(|e| in_file(e.to_string(), "TOML is text in UTF-8"))?;
        let line_ends =
            text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
        let reader = Reader { path, line_ends };
        let table = DeTable::parse(text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            reader.wrong(
                at,
                e.message().trim_end().replace('\n', "; "),
                "a definition is a TOML file: `skiff edf new` prints one",
            )
        })?;
        let (mut found, mut errors) = (Self::default(), vec![]);
        for (key, value) in table.get_ref() {
            if let Err(e) = reader.key(key, value, &mut found) {
                errors.push((key.span().start, e));
            }
        }
        errors.sort_by_key(|(at, _)| *at);
        Ok((found, errors.into_iter().map(|(_, e)| e).collect()))
    }
}

impl Reader<'_> {
    fn key(
        &self,
        key: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
        found: &mut DefinitionFile,
    ) -> Result<(), Error> {
        let name = &**key.get_ref();
        match name {
            "base_environment" => found.bases = self.list(name, value, true)?,
            "image" => found.image = Some(self.template(name, value)?),
            "mounts" => found.mounts = self.list(name, value, false)?,
            "workdir" => found.workdir = Some(self.template(name, value)?),
            "writable" => found.writable = Some(self.boolean(name, value)?),
            "entrypoint" => found.entrypoint = Some(self.boolean(name, value)?),
            "devices" => found.devices = self.list(name, value, false)?,
            "env" => found.env = self.variables(value)?,
            "annotations" => self.annotations("", value, DEEPEST, &mut found.annotations)?,
            unknown => {
                let what = format!("there is no key {unknown:?}");
                return Err(self.wrong(key.span().start, what, &suggest_key(unknown)));
            }
        }
        Ok(())
    }

    fn template(&self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<Lined<Template>, Error> {
        match value.get_ref() {
            DeValue::String(text) => self.parsed(value, text),
            other => Err(self.other(name, "a text", other, value)),
        }
    }

    fn parsed(&self, value: &Spanned<DeValue<'_>>, text: &str) -> Result<Lined<Template>, Error> {
        let at = value.span().start;
        if text.contains('\0') {
            return Err(self.wrong(at, "a zero byte in a text".into(), "no name or value can have one"));
        }
        let template = Template::parse(text).map_err(|e| self.wrong(at, e.to_string(), hint_of(&e)))?;
        Ok(Lined { place: self.place(at), value: template })
    }

    fn boolean(&self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<bool, Error> {
        match value.get_ref() {
            DeValue::Boolean(value) => Ok(*value),
            other => Err(self.other(name, "true or false", other, value)),
        }
    }

    /// A list of texts, or where that is allowed a single one.
    fn list(
        &self,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        may_be_one: bool,
    ) -> Result<Vec<Lined<Template>>, Error> {
        match value.get_ref() {
            DeValue::Array(values) => values.iter().map(|value| self.template(name, value)).collect(),
            DeValue::String(_) if may_be_one => Ok(vec![self.template(name, value)?]),
            other => Err(self.other(name, "a list of texts", other, value)),
        }
    }

    fn variables(&self, value: &Spanned<DeValue<'_>>) -> Result<Vec<(String, Lined<Template>)>, Error> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.other("env", "a table", value.get_ref(), value));
        };
        let mut found = vec![];
        for (key, value) in table {
            let name = &**key.get_ref();
            if name.is_empty() || name.contains(['=', '\0']) {
                let what = format!("{name:?} is not the name of a variable");
                return Err(self.wrong(key.span().start, what, "a name has no = in it"));
            }
            found.push((name.to_owned(), self.scalar(&format!("env.{name}"), value)?));
        }
        Ok(found)
    }

    /// A text, or what a text can be made of.
    fn scalar(&self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<Lined<Template>, Error> {
        match value.get_ref() {
            DeValue::String(text) => self.parsed(value, text),
            DeValue::Integer(number) if number.radix() == 10 => self.parsed(value, number.as_str()),
            DeValue::Float(number) => self.parsed(value, number.as_str()),
            DeValue::Boolean(value_) => self.parsed(value, if *value_ { "true" } else { "false" }),
            other => Err(self.other(name, "a text", other, value)),
        }
    }

    /// Tables in tables, with dots between their names.
    fn annotations(
        &self,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        levels: usize,
        into: &mut Vec<(String, Lined<Template>)>,
    ) -> Result<(), Error> {
        match value.get_ref() {
            DeValue::Table(table) if levels > 0 => table.iter().try_for_each(|(key, value)| {
                let dot = if name.is_empty() { "" } else { "." };
                self.annotations(&format!("{name}{dot}{}", key.get_ref()), value, levels - 1, into)
            }),
            other if name.is_empty() => Err(self.other("annotations", "a table", other, value)),
            _ => {
                into.push((name.to_owned(), self.scalar(&format!("annotations.{name}"), value)?));
                Ok(())
            }
        }
    }

    fn other(&self, name: &str, wanted: &str, found: &DeValue<'_>, at: &Spanned<DeValue<'_>>) -> Error {
        let found = match found {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) | DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.wrong(
            at.span().start,
            format!("{name} is {found}, and must be {wanted}"),
            "`skiff edf new` shows how each is written",
        )
    }

    fn place(&self, at: usize) -> String {
        let before = self.line_ends.partition_point(|end| *end < at);
        format!("{}:{}", self.path.display(), before + 1)
    }

    fn wrong(&self, at: usize, what: String, hint: &str) -> Error {
        Error { place: self.place(at), what, hint: hint.into() }
    }
}

/// What to do about a text whose variables are wrong.
pub(crate) fn hint_of(e: &TemplateError) -> &'static str {
    match e {
        TemplateError::Unset(_) => {
            "${NAME:-TEXT} stands for TEXT where NAME is not set, ${NAME:-} for nothing"
        }
        _ => "a variable is written ${NAME}, a dollar sign before a brace $$",
    }
}
