//! Instructions of a Dockerfile that change how an image's programs are run, as `docker commit --change` takes them.

use serde_json::{Map, Value, json};

/// An instruction that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("instruction {text:?}: {why}")]
pub struct InstructionError {
    text: String,
    why: &'static str,
}

/// Changes to a configuration, in the order in which they were given.
#[derive(Debug, Default)]
pub struct Instructions {
    /// The `config` part of a configuration as far as it is changed.
    config: Map<String, Value>,
    cmd_is_given: bool,
}

impl Instructions {
    /// Begins with the `config` part of an image's configuration.
    #[must_use]
    pub fn new(configuration: &Value) -> Self {
        let config = configuration.get("config").and_then(Value::as_object);
        Self { config: config.cloned().unwrap_or_default(), cmd_is_given: false }
    }

    /// Applies one instruction: `ENV A=B`.
    ///
    /// # Errors
    /// It is not an instruction of this kind, or its arguments cannot be read.
    pub fn apply(&mut self, text: &str) -> Result<(), InstructionError> {
        let (word, arguments) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
        let arguments = arguments.trim();
        let word = word.to_ascii_uppercase();
        let unreadable = |why| InstructionError { text: text.into(), why };
        if arguments.is_empty() && !matches!(&*word, "CMD" | "ENTRYPOINT") {
            return Err(unreadable("nothing is said behind the instruction"));
        }
        match &*word {
            "CMD" => {
                self.cmd_is_given = true;
                self.config.insert("Cmd".into(), command(arguments).into());
            }
            "ENTRYPOINT" => {
                // The command was of the entrypoint that goes.
                if !self.cmd_is_given {
                    self.config.remove("Cmd");
                }
                self.config.insert("Entrypoint".into(), command(arguments).into());
            }
            "ENV" => {
                for (name, value) in pairs(arguments).ok_or_else(|| unreadable("write NAME=VALUE"))? {
                    self.set_variable(&name, &value);
                }
            }
            "LABEL" => {
                let labels = pairs(arguments).ok_or_else(|| unreadable("write NAME=VALUE"))?;
                self.extend("Labels", labels.into_iter().map(|(name, value)| (name, value.into())));
            }
            "EXPOSE" => {
                let ports: Option<Vec<String>> = arguments.split_whitespace().map(port_of).collect();
                let ports = ports.ok_or_else(|| unreadable("write PORT or PORT/udp"))?;
                self.extend("ExposedPorts", ports.into_iter().map(|port| (port, json!({}))));
            }
            "VOLUME" => {
                let paths = list(arguments)
                    .unwrap_or_else(|| arguments.split_whitespace().map(String::from).collect());
                self.extend("Volumes", paths.into_iter().map(|path| (path, json!({}))));
            }
            "WORKDIR" => {
                let before = self.config.get("WorkingDir").and_then(Value::as_str).unwrap_or_default();
                let path = match arguments.starts_with('/') {
                    true => arguments.into(),
                    false => format!("/{}/{arguments}", before.trim_matches('/')).replace("//", "/"),
                };
                self.config.insert("WorkingDir".into(), path.into());
            }
            "USER" | "STOPSIGNAL" => {
                let key = if word == "USER" { "User" } else { "StopSignal" };
                self.config.insert(key.into(), arguments.into());
            }
            _ => {
                return Err(unreadable(
                    "only CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, USER, VOLUME and WORKDIR are known",
                ));
            }
        }
        Ok(())
    }

    /// The changed `config` part.
    #[must_use]
    pub fn into_config(self) -> Value {
        self.config.into()
    }

    /// In the place of a variable's value before, as the last of a name need not be the one that programs see.
    fn set_variable(&mut self, name: &str, value: &str) {
        let before = self.config.get("Env").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_this =
            |entry: &Value| entry.as_str().is_some_and(|entry| entry.split('=').next() == Some(name));
        let mut all: Vec<Value> = before.into_iter().filter(|entry| !is_this(entry)).collect();
        all.push(format!("{name}={value}").into());
        self.config.insert("Env".into(), all.into());
    }

    /// Adds to a map of the configuration.
    fn extend(&mut self, key: &str, entries: impl IntoIterator<Item = (String, Value)>) {
        let mut map = self.config.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
        map.extend(entries);
        self.config.insert(key.into(), map.into());
    }
}

/// A JSON list of words, or a line for the shell.
fn command(text: &str) -> Vec<String> {
    match list(text) {
        Some(words) => words,
        None if text.is_empty() => vec![],
        None => vec!["/bin/sh".into(), "-c".into(), text.into()],
    }
}

fn list(text: &str) -> Option<Vec<String>> {
    serde_json::from_str(text).ok()
}

/// `A=B C="D E"`, or of one alone `A B`.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let words = shlex::split(text)?;
    if words.first().is_some_and(|first| !first.contains('=')) {
        let (name, value) = text.split_once(char::is_whitespace)?;
        return Some(vec![(name.into(), value.trim().into())]);
    }
    let pair = |word: &String| {
        let (name, value) = word.split_once('=')?;
        (!name.is_empty()).then(|| (name.into(), value.into()))
    };
    words.iter().map(pair).collect()
}

/// `80` is `80/tcp`.
fn port_of(text: &str) -> Option<String> {
    let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let number: u16 = number.parse().ok()?;
    matches!(protocol, "tcp" | "udp" | "sctp").then(|| format!("{number}/{protocol}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(before: &Value, texts: &[&str]) -> Result<Value, InstructionError> {
        let mut instructions = Instructions::new(&json!({"config": before}));
        for text in texts {
            instructions.apply(text)?;
        }
        Ok(instructions.into_config())
    }

    #[test]
    fn instructions_change_a_configuration() {
        for (before, texts, want) in [
            (json!({}), vec!["CMD [\"a\", \"b c\"]"], json!({"Cmd": ["a", "b c"]})),
            (json!({}), vec!["cmd a $B"], json!({"Cmd": ["/bin/sh", "-c", "a $B"]})),
            (json!({"Cmd": ["x"]}), vec!["CMD []"], json!({"Cmd": []})),
            (json!({"Cmd": ["x"]}), vec!["ENTRYPOINT [\"e\"]"], json!({"Entrypoint": ["e"]})),
            (
                json!({"Cmd": ["x"]}),
                vec!["CMD [\"y\"]", "ENTRYPOINT [\"e\"]"],
                json!({"Cmd": ["y"], "Entrypoint": ["e"]}),
            ),
            (
                json!({"Env": ["A=1", "B=2"]}),
                vec!["ENV A=\"3 4\" C=5"],
                json!({"Env": ["B=2", "A=3 4", "C=5"]}),
            ),
            (json!({}), vec!["ENV A  b c"], json!({"Env": ["A=b c"]})),
            (json!({"Labels": null}), vec!["LABEL a=b"], json!({"Labels": {"a": "b"}})),
            (json!({}), vec!["EXPOSE 80 53/udp"], json!({"ExposedPorts": {"80/tcp": {}, "53/udp": {}}})),
            (
                json!({}),
                vec!["VOLUME /a /b", "VOLUME [\"/c d\"]"],
                json!({"Volumes": {"/a": {}, "/b": {}, "/c d": {}}}),
            ),
            (json!({"WorkingDir": "/a"}), vec!["WORKDIR b"], json!({"WorkingDir": "/a/b"})),
            (json!({}), vec!["WORKDIR b", "WORKDIR /c"], json!({"WorkingDir": "/c"})),
            (json!({}), vec!["USER 5:6", "STOPSIGNAL QUIT"], json!({"User": "5:6", "StopSignal": "QUIT"})),
        ] {
            assert_eq!(applied(&before, &texts).expect("read"), want, "{texts:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for text in
            ["", "RUN x", "ENV", "ENV A", "ENV =b", "LABEL a=b c", "EXPOSE x", "EXPOSE 70000", "ENV A='b"]
        {
            let error = applied(&json!({}), &[text]).expect_err(text);
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
