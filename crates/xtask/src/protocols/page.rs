//! The page: each protocol with its messages, and the types that these hold.

use std::collections::{BTreeMap, VecDeque};

use syn::visit::Visit;

use super::declared::{Declared, Frames, Messages};
use super::doc::{Serde, documentation};
use super::sources::{Declaration, SourceItem, Sources, text};

/// What stands above the protocols.
const HEAD: &str = "\
# Protocols

How Skiff's processes talk to each other. `cargo xtask protocols` writes this page from the declarations in the sources (`impl Protocol for`),
which say what each message means. The fuzz target `protocols` reads any bytes as a message of each of them.

Unless a protocol says otherwise, a message is JSON as `serde` writes it: a variant with fields is `{\"Name\": {\"field\": ...}}`. By a stream it
stands behind its length, 4 bytes, little endian; by a socket that keeps messages apart it is one packet. Descriptors come with the packet, or behind the
message. A receiver refuses what is longer, and descriptors beyond the number given, before it has memory for them. Both sides must be of
one version.

Not here: a child process reports to its parent by a pipe, as JSON (`Ok` or a fault, `crates/ipc/src/child.rs`). Formats of others are theirs:
registries', Docker's, Slurm's and munge's, and CRIU's, in which a migration's memory travels.
";

/// The page's text.
pub fn write(sources: &Sources, protocols: &[Declared]) -> String {
    let mut page = Page { sources, text: HEAD.into(), described: BTreeMap::new() };
    page.line("\n| protocol | begins | answers | how |\n|---|---|---|---|");
    for protocol in protocols {
        let how = match protocol.framing {
            Frames::Stream => "JSON, stream",
            Frames::Packets => "JSON, packets",
            Frames::Own(_) => "its own",
        };
        let [begins, answers] = &protocol.sides;
        page.line(&format!(
            "| [{0}]({1}) | {begins} | {answers} | {how} |",
            protocol.name,
            anchor(&protocol.name)
        ));
    }
    protocols.iter().for_each(|protocol| page.protocol(protocol));
    page.text
}

struct Page<'a> {
    sources: &'a Sources,
    text: String,
    /// Types with a description, and in which protocol.
    described: BTreeMap<Declaration, String>,
}

impl Page<'_> {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn protocol(&mut self, protocol: &Declared) {
        let source = self.sources.source(protocol.question.place.0);
        self.line(&format!("\n## {}\n\n{}", protocol.name, documentation(&source.parsed.attrs)));
        if let Frames::Own(reason) = &protocol.framing {
            self.line(&format!("\n{reason}"));
        }
        self.line(&format!("\nDeclared for `{}` (`{}`).", protocol.question.place.1, source.path));
        let mut todo = VecDeque::new();
        for (side, messages) in
            protocol.sides.iter().zip([Some(&protocol.question), protocol.answer.as_ref()])
        {
            match messages {
                Some(messages) => self.messages(&protocol.name, side, messages, &mut todo),
                None => self.line(&format!("\n### From {side}\n\nNothing.")),
            }
        }
        let mut known = BTreeMap::new();
        let mut new = vec![];
        while let Some(place) = todo.pop_front() {
            match self.described.get(&place) {
                Some(name) if *name == protocol.name => {}
                Some(name) => drop(known.insert(place.1, name.clone())),
                None => {
                    self.described.insert(place.clone(), protocol.name.clone());
                    todo.extend(mentioned(self.sources, &place));
                    new.push(place);
                }
            }
        }
        if !new.is_empty() || !known.is_empty() {
            self.line("\n### What these hold\n");
        }
        for place in &new {
            let is_alone = new.iter().filter(|other| other.1 == place.1).count() == 1;
            self.held(place, is_alone);
        }
        for (name, protocol) in known {
            self.line(&format!("- `{name}`: see [{protocol}]({}).", anchor(&protocol)));
        }
    }

    fn messages(
        &mut self,
        protocol: &str,
        side: &str,
        messages: &Messages,
        todo: &mut VecDeque<Declaration>,
    ) {
        let Messages { place, longest, descriptors } = messages;
        let with = match descriptors {
            0 => String::new(),
            1 => ", with at most 1 descriptor".into(),
            count => format!(", with at most {count} descriptors"),
        };
        self.line(&format!("\n### From {side}: `{}`\n\nAt most {}{with}.\n", place.1, size(*longest)));
        self.parts(place, 0);
        self.described.insert(place.clone(), protocol.into());
        todo.extend(mentioned(self.sources, place));
    }

    /// A type that messages hold, as an item of a list; with its file, unless its name is enough.
    fn held(&mut self, place: &Declaration, is_alone: bool) {
        let (name, sources) = (&place.1, self.sources);
        let (attributes, is_text) = match sources.get(place) {
            Some(SourceItem::Struct(item)) => (&item.attrs, Serde::of(&item.attrs).is_text),
            Some(SourceItem::Enum(item)) => (&item.attrs, Serde::of(&item.attrs).is_text),
            Some(SourceItem::Alias(item)) => (&item.attrs, false),
            _ => return,
        };
        let form = match sources.get(place) {
            _ if is_text => ", a text".to_owned(),
            Some(SourceItem::Alias(item)) => format!(", `{}`", plain(&text(&item.ty))),
            Some(SourceItem::Struct(item)) => {
                unnamed(&item.fields).map_or_else(String::new, |held| format!(", `{held}`"))
            }
            _ => String::new(),
        };
        let file = if is_alone { String::new() } else { format!(" of `{}`", sources.source(place.0).path) };
        self.line(&format!("- `{name}`{file}{form}: {}", documentation(attributes)));
        if !is_text {
            self.parts(place, 1);
        }
    }

    /// Variants or fields, as a list.
    fn parts(&mut self, place: &Declaration, depth: usize) {
        let indent = "  ".repeat(depth);
        match self.sources.get(place) {
            Some(SourceItem::Enum(item)) => {
                let serde = Serde::of(&item.attrs);
                for variant in &item.variants {
                    let held = unnamed(&variant.fields).map_or_else(String::new, |held| format!("({held})"));
                    let name = serde.rename(&variant.ident.to_string());
                    self.line(&format!("{indent}- `{name}{held}`: {}", documentation(&variant.attrs)));
                    self.fields(&variant.fields, depth + 1);
                }
            }
            Some(SourceItem::Struct(item)) => self.fields(&item.fields, depth),
            _ => {}
        }
    }

    fn fields(&mut self, fields: &syn::Fields, depth: usize) {
        let syn::Fields::Named(named) = fields else { return };
        for field in &named.named {
            let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
            let line = format!("{}- `{name}: {}`", "  ".repeat(depth), plain(&text(&field.ty)));
            match documentation(&field.attrs).as_str() {
                "" => self.line(&line),
                said => self.line(&format!("{line}: {said}")),
            }
        }
    }
}

/// Types of the workspace that a type's parts mention.
fn mentioned(sources: &Sources, place: &Declaration) -> Vec<Declaration> {
    struct Paths<'a>(&'a Sources, usize, Vec<Declaration>);
    impl<'ast> Visit<'ast> for Paths<'_> {
        fn visit_type_path(&mut self, ty: &'ast syn::TypePath) {
            self.2.extend(self.0.find(self.1, &ty.path));
            syn::visit::visit_type_path(self, ty);
        }
        fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    }
    let mut paths = Paths(sources, place.0, vec![]);
    match sources.get(place) {
        Some(SourceItem::Enum(item)) if !Serde::of(&item.attrs).is_text => {
            item.variants.iter().for_each(|variant| paths.visit_fields(&variant.fields));
        }
        Some(SourceItem::Struct(item)) if !Serde::of(&item.attrs).is_text => paths.visit_fields(&item.fields),
        Some(SourceItem::Alias(item)) => paths.visit_type(&item.ty),
        _ => {}
    }
    paths.2
}

/// Types of fields without names.
fn unnamed(fields: &syn::Fields) -> Option<String> {
    let syn::Fields::Unnamed(fields) = fields else { return None };
    Some(fields.unnamed.iter().map(|field| plain(&text(&field.ty))).collect::<Vec<_>>().join(", "))
}

/// A type's text without boxes, which no message shows.
fn plain(ty: &str) -> String {
    let Some((before, boxed)) = ty.split_once("Box<") else { return ty.to_owned() };
    let mut depth = 1;
    let end = boxed.find(|letter| {
        depth += i32::from(letter == '<') - i32::from(letter == '>');
        depth == 0
    });
    let (inner, after) = boxed.split_at(end.unwrap_or(boxed.len()));
    format!("{before}{}{}", plain(inner), plain(after.strip_prefix('>').unwrap_or(after)))
}

fn anchor(name: &str) -> String {
    format!("#{}", name.to_lowercase().replace(' ', "-"))
}

fn size(bytes: u64) -> String {
    match bytes {
        1 => "1 byte".into(),
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_not_shown() {
        for (ty, shown) in [
            ("Box<Record>", "Record"),
            ("Option<Box<Vec<u8>>>", "Option<Vec<u8>>"),
            ("(Box<A>, Box<B>)", "(A, B)"),
            ("u8", "u8"),
        ] {
            assert_eq!(plain(ty), shown);
        }
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, shown) in
            [(1, "1 byte"), (5, "5 bytes"), (4096, "4 KiB"), (16 << 20, "16 MiB"), (0, "0 bytes")]
        {
            assert_eq!(size(bytes), shown);
        }
    }

    #[test]
    fn a_page_has_all_that_messages_hold() {
        let sources = Sources::of(&[(
            "crates/a/src/lib.rs",
            "//! Asks [`Say`] for things.
             /// Asked.
             #[serde(rename_all = \"kebab-case\")]
             enum Ask { /// One of them.
               GetOne(Box<Id>), /// Two.
               Two { /// Which.
                 id: Id, more: Vec<More> } }
             /// A name.
             #[serde(try_from = \"String\")] struct Id(Vec<u8>);
             /// More of it.
             struct More { /// How many.
               pub count: u32 }
             impl Message for Ask { const LONGEST: usize = 4 << 10; const DESCRIPTORS: usize = 1; }
             impl Protocol for Ask { type Answer = Unanswered; const NAME: &str = \"Things\";
               const SIDES: [&str; 2] = [\"one\", \"another\"]; const FRAMING: Framing = Framing::Stream; }",
        )]);
        let page = write(&sources, &super::super::declared::all(&sources).unwrap());
        let expected = "
## Things

Asks `Say` for things.

Declared for `Ask` (`crates/a/src/lib.rs`).

### From one: `Ask`

At most 4 KiB, with at most 1 descriptor.

- `get-one(Id)`: One of them.
- `two`: Two.
  - `id: Id`: Which.
  - `more: Vec<More>`

### From another

Nothing.

### What these hold

- `Id`, a text: A name.
- `More`: More of it.
  - `count: u32`: How many.
";
        let shown = page.split_once("\n## Things").map(|(_, rest)| format!("\n## Things{rest}"));
        assert_eq!(shown.as_deref(), Some(expected));
        assert!(page.contains("| [Things](#things) | one | another | JSON, stream |"), "{page}");
    }
}
