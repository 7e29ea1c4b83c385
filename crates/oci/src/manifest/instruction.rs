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
            "CMD" => self.set_cmd(command(arguments)),
            "ENTRYPOINT" => self.set_entrypoint(command(arguments)),
            "ENV" => {
                for (name, value) in pairs(arguments).ok_or_else(|| unreadable("write NAME=VALUE"))? {
                    self.set_variable(&name, &value);
                }
            }
            "LABEL" => {
                self.add_labels(pairs(arguments).ok_or_else(|| unreadable("write NAME=VALUE"))?);
            }
            "EXPOSE" => self.add_ports(arguments).ok_or_else(|| unreadable("write PORT or PORT/udp"))?,
            "VOLUME" => {
                let paths = list(arguments)
                    .unwrap_or_else(|| arguments.split_whitespace().map(String::from).collect());
                self.add_volumes(paths);
            }
            "WORKDIR" => {
                let path = match arguments.starts_with('/') {
                    true => arguments.into(),
                    false => format!("/{}/{arguments}", self.text("WorkingDir").trim_matches('/'))
                        .replace("//", "/"),
                };
                self.set("WorkingDir", path);
            }
            "USER" => self.set("User", arguments),
            "STOPSIGNAL" => self.set("StopSignal", arguments),
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

    /// The command that runs where nobody names one.
    pub fn set_cmd(&mut self, words: Vec<String>) {
        self.cmd_is_given = true;
        self.set("Cmd", words);
    }

    /// What always runs. A command that was given before belongs to the entrypoint that goes.
    pub fn set_entrypoint(&mut self, words: Vec<String>) {
        if !self.cmd_is_given {
            self.config.remove("Cmd");
        }
        self.set("Entrypoint", words);
    }

    /// Sets a part of the configuration, by its name there.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.config.insert(key.into(), value.into());
    }

    /// Takes a part of the configuration away.
    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.config.remove(key)
    }

    /// A part of the configuration that is a text; an empty one where there is none.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.config.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// A part of the configuration that is a list of texts; an empty one where there is none.
    #[must_use]
    pub fn list(&self, key: &str) -> Vec<String> {
        let list = self.config.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(Value::as_str).map(String::from).collect()
    }

    /// Adds remarks.
    pub fn add_labels(&mut self, labels: impl IntoIterator<Item = (String, String)>) {
        self.extend("Labels", labels.into_iter().map(|(name, value)| (name, value.into())));
    }

    /// Adds ports, written `80`, `53/udp` or `8000-8010`; nothing if one of them cannot be read.
    #[must_use]
    pub fn add_ports(&mut self, text: &str) -> Option<()> {
        let mut ports = Map::new();
        for range in text.split_whitespace() {
            ports.extend(ports_of(range)?.into_iter().map(|port| (port, json!({}))));
        }
        self.extend("ExposedPorts", ports);
        Some(())
    }

    /// Adds directories meant for data.
    pub fn add_volumes(&mut self, paths: impl IntoIterator<Item = String>) {
        self.extend("Volumes", paths.into_iter().map(|path| (path, json!({}))));
    }

    /// In the place of a variable's value before, as the last of a name need not be the one that programs see.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        let is_this =
            |entry: &Value| entry.as_str().is_some_and(|entry| entry.split('=').next() == Some(name));
        let mut all = self.take_array("Env");
        all.retain(|entry| !is_this(entry));
        all.push(format!("{name}={value}").into());
        self.set("Env", all);
    }

    /// Adds an instruction for those who build on the image.
    pub fn add_trigger(&mut self, instruction: &str) {
        let mut all = self.take_array("OnBuild");
        all.push(instruction.into());
        self.set("OnBuild", all);
    }

    /// Takes a list away: what is long is not copied.
    fn take_array(&mut self, key: &str) -> Vec<Value> {
        match self.config.remove(key) {
            Some(Value::Array(list)) => list,
            _ => vec![],
        }
    }

    /// Adds to a map of the configuration.
    fn extend(&mut self, key: &str, entries: impl IntoIterator<Item = (String, Value)>) {
        let value = self.config.entry(key).or_insert_with(|| json!({}));
        match value.as_object_mut() {
            Some(map) => map.extend(entries),
            None => *value = entries.into_iter().collect::<Map<String, Value>>().into(),
        }
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

/// `80` is `80/tcp`, and `80-82/udp` three ports.
fn ports_of(text: &str) -> Option<Vec<String>> {
    let (numbers, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    let is_known = matches!(&*protocol, "tcp" | "udp" | "sctp") && first <= last;
    is_known.then(|| (first..=last).map(|number| format!("{number}/{protocol}")).collect())
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
                vec!["EXPOSE 8000-8001 9/TCP"],
                json!({"ExposedPorts": {"8000/tcp": {}, "8001/tcp": {}, "9/tcp": {}}}),
            ),
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
        for text in [
            "",
            "RUN x",
            "ENV",
            "ENV A",
            "ENV =b",
            "LABEL a=b c",
            "EXPOSE x",
            "EXPOSE 2-1",
            "EXPOSE 70000",
            "ENV A='b",
        ] {
            let error = applied(&json!({}), &[text]).expect_err(text);
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
