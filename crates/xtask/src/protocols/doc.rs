//! Doc comments and serde's attributes, as a page shows them.

/// The documentation of something as one paragraph: up to the first heading or code.
pub fn documentation(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let text: Vec<String> = lines
        .map(|line| line.trim().to_owned())
        .take_while(|line| !line.starts_with("```") && !line.starts_with('#'))
        .collect();
    without_links(text.join(" ").split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches(':'))
}

/// Without links to code, which lead nowhere from a page: ``[`A`](B)`` and ``[`A`]`` become `` `A` ``.
fn without_links(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::new();
    while let Some((before, link)) = rest.split_once("[`") {
        plain.push_str(before);
        let Some((name, after)) = link.split_once("`]") else {
            plain.push_str("[`");
            rest = link;
            continue;
        };
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        match target {
            Some((address, _)) if address.starts_with("http") => {
                plain.push_str(&format!("[`{name}`]"));
                rest = after;
            }
            Some((_, behind)) => {
                plain.push_str(&format!("`{name}`"));
                rest = behind;
            }
            None => {
                plain.push_str(&format!("`{name}`"));
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

/// What serde does with a type.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Serde {
    /// How names of variants are written: `kebab-case`, say.
    pub rename_all: Option<String>,
    /// Whether the type is a text, which another type or code of its own reads.
    pub is_text: bool,
}

impl Serde {
    /// From a type's attributes.
    pub fn of(attributes: &[syn::Attribute]) -> Self {
        let mut found = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            let read = attribute.parse_nested_meta(|meta| {
                let value = match meta.input.peek(syn::Token![=]) {
                    true => Some(meta.value()?.parse::<syn::LitStr>()?.value()),
                    false => None,
                };
                if meta.path.is_ident("rename_all") {
                    found.rename_all = value;
                } else if meta.path.is_ident("try_from") {
                    found.is_text = value.is_some_and(|from| from == "String");
                }
                Ok(())
            });
            // What is written otherwise says nothing of either.
            if read.is_err() {
                continue;
            }
        }
        found
    }

    /// The name of a variant in a message.
    pub fn rename(&self, name: &str) -> String {
        let parts = |between: &str| {
            let mut written = String::new();
            for (at, letter) in name.char_indices() {
                if letter.is_uppercase() && at > 0 {
                    written.push_str(between);
                }
                written.extend(letter.to_lowercase());
            }
            written
        };
        match self.rename_all.as_deref() {
            Some("kebab-case") => parts("-"),
            Some("snake_case") => parts("_"),
            Some("lowercase") => parts(""),
            _ => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_becomes_a_paragraph() {
        let item: syn::ItemStruct = syn::parse_str(
            "/// As [`Base`](Request::Base), or [`Noise`](https://noise.example) and\n/// [`A`]:\n///\n/// # Errors\n/// None.\nstruct A;",
        )
        .unwrap();
        assert_eq!(documentation(&item.attrs), "As `Base`, or [`Noise`](https://noise.example) and `A`");
    }

    #[test]
    fn names_are_those_of_the_messages() {
        let serde = |text: &str| Serde::of(&syn::parse_str::<syn::ItemStruct>(text).unwrap().attrs);
        let kebab = serde("#[serde(deny_unknown_fields, rename_all = \"kebab-case\")] struct A;");
        assert_eq!(kebab.rename("NotExecuted"), "not-executed");
        assert_eq!(
            serde("#[serde(rename_all = \"lowercase\")] struct A;").rename("NotExecuted"),
            "notexecuted"
        );
        assert_eq!(serde("struct A;").rename("NotExecuted"), "NotExecuted");
        assert!(serde("#[serde(try_from = \"String\", into = \"String\")] struct A;").is_text);
    }
}
