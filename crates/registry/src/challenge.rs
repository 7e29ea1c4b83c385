//! `WWW-Authenticate`: how a server wants to be told who asks (RFC 9110, 11.6.1). Pure.

use std::collections::BTreeMap;

/// One way to authenticate that a server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    /// "bearer" or "basic", in lower case.
    pub scheme: String,
    /// The parameters; their names in lower case.
    pub parameters: BTreeMap<String, String>,
}

/// No header is longer that means well.
const MAX_HEADER: usize = 16 << 10;

/// All challenges of one header; what cannot be read ends the list.
pub fn parse(header: &str) -> Vec<Challenge> {
    let mut challenges: Vec<Challenge> = vec![];
    if header.len() > MAX_HEADER {
        return challenges;
    }
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (word, after) = token(rest);
        if word.is_empty() {
            return challenges;
        }
        let value = after.trim_start_matches([' ', '\t']).strip_prefix('=');
        match (value, challenges.last_mut()) {
            // A name with a value is a parameter of the scheme before it.
            (Some(value), Some(challenge)) => {
                let Some((value, after)) = parameter_value(value.trim_start_matches([' ', '\t'])) else {
                    return challenges;
                };
                challenge.parameters.insert(word.to_ascii_lowercase(), value);
                rest = after;
            }
            (Some(_), None) => return challenges,
            (None, _) => {
                let parameters = BTreeMap::new();
                challenges.push(Challenge { scheme: word.to_ascii_lowercase(), parameters });
                rest = after;
            }
        }
    }
}

fn token(text: &str) -> (&str, &str) {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let end = text.bytes().position(|b| !is_token(b)).unwrap_or(text.len());
    text.split_at(end)
}

/// A token, or a string in quotes with backslashes.
fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = token(text);
        return Some((value.into(), rest));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(header: &str) -> String {
        let show = |c: &Challenge| {
            let parameters: Vec<_> =
                c.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("{} {}", c.scheme, parameters.join(" "))
        };
        parse(header).iter().map(show).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn what_servers_send() {
        for (header, meant) in [
            (
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#,
                "bearer realm=https://auth.docker.io/token scope=repository:a/b:pull,push service=registry.docker.io",
            ),
            (r#"Basic realm="Registry Realm""#, "basic realm=Registry Realm"),
            (r#"BASIC Realm=x , Bearer realm = "y\"z""#, "basic realm=x; bearer realm=y\"z"),
            ("Negotiate, Basic realm=\"a\"", "negotiate ; basic realm=a"),
            (r#"Bearer realm="open"#, "bearer "),
            (r#"realm="x""#, ""),
            ("", ""),
            (",,,", ""),
        ] {
            assert_eq!(shown(header), meant, "{header}");
        }
    }

    proptest! {
        #[test]
        fn any_text_ends(header in "\\PC{0,200}") {
            prop_assert!(parse(&header).len() <= header.len());
        }
    }
}
