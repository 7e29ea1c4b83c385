//! The parsers of what somebody else may have written, for fuzzing: each takes any bytes, tells whether they were taken, and panics where what
//! must hold of what was taken does not.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::context::ignore::IgnoreRules;
use crate::context::mode::ModeChange;
use crate::definition::{self, DefinitionOptions};
use crate::dockerfile::words::expand;
use crate::dockerfile::{Instruction, parse, parse_trigger};
use crate::git::GitSource;

/// A Dockerfile.
pub fn dockerfile(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    // Any of it may stand in an image's configuration, too.
    match parse_trigger(1, &text) {
        Ok(_) | Err(_) => {}
    }
    match expand(&text, '\\', &|name| Some(name.to_owned())) {
        Ok(_) | Err(_) => {}
    }
    if let Some(Ok(repository)) = GitSource::parse(&text) {
        assert!(!repository.shown().starts_with('-'));
    }
    if let Some(change) = ModeChange::parse(&text) {
        assert!(change.apply(0o644, false) <= 0o7777);
    }
    let lines = text.lines().count().max(1);
    match parse(&text) {
        Ok(file) => {
            assert!(!file.stages.is_empty());
            for step in file.stages.iter().flat_map(|stage| &stage.steps) {
                assert!((1..=lines).contains(&step.line));
                if let Instruction::Copy(transfer) = &step.instruction {
                    assert!(!transfer.sources.is_empty());
                }
            }
            true
        }
        Err(error) => {
            assert!((1..=lines).contains(&error.line), "{error}");
            false
        }
    }
}

/// A definition of Apptainer's.
pub fn definition(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let [here, context] = ["/home/a/work", "/home/a"].map(PathBuf::from);
    let args = BTreeMap::from([("A".to_owned(), "x {{ B }}".to_owned())]);
    let options = DefinitionOptions { args, here, context, no_test: false };
    let lines = text.lines().count().max(1);
    match definition::parse(&text, &options) {
        Ok(file) => {
            assert!(definition::is_definition(None, &text));
            for step in file.stages.iter().flat_map(|stage| &stage.steps) {
                assert!((1..=lines).contains(&step.line), "{step:?}");
                if let Instruction::Copy(transfer) = &step.instruction {
                    assert!(!transfer.sources.is_empty() && transfer.destination.starts_with('/'));
                }
            }
            true
        }
        Err(error) => {
            assert!((1..=lines).contains(&error.line), "{error}");
            false
        }
    }
}

/// The list of files that a build does not see.
pub fn ignore_rules(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let rules = IgnoreRules::parse(&text);
    [&b"a/b/c.txt"[..], b"x"].iter().any(|path| rules.are_left_out(path).is_ok_and(|is_out| is_out))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// What Dockerfiles are made of, so that more than the first line of most is read.
    fn pieces() -> impl Strategy<Value = String> {
        let words = [
            "FROM a",
            "FROM scratch AS b",
            "RUN ",
            "COPY ",
            "ADD ",
            "ENV ",
            "ARG ",
            "LABEL ",
            "HEALTHCHECK ",
            "ONBUILD ",
            "SHELL ",
            "\n",
            "\\\n",
            "`",
            "# escape=`",
            "#",
            " ",
            "\t",
            "<<EOF",
            "<<-'x'",
            "EOF",
            "x",
            "--from=b",
            "--mount=type=x",
            "--interval=1h",
            "--parents",
            "--exclude=!x",
            "--mount=type=ssh,id=",
            "git@x:y#z:",
            "u+rwX,g=u",
            "[\"a\", \"b\"]",
            "'",
            "\"",
            "$",
            "${A:-",
            "${A##",
            "${A/",
            "?",
            "\\",
            "<< ",
            "--checksum=sha256:0",
            "https://x/y",
            "}",
            "=",
            "A",
            "/",
            ".",
            "*",
            "[a-",
            "!",
            "**/",
            "\u{0}",
            "\u{1b}[2J",
            "ß",
        ];
        vec(prop::sample::select(words.to_vec()), 0..60).prop_map(|words| words.concat())
    }

    /// The same of definitions.
    fn sections() -> impl Strategy<Value = String> {
        let words = [
            "Bootstrap: docker",
            "Bootstrap: scratch\n",
            "From: a",
            "Stage: s",
            "%post",
            "%files",
            "%files from s",
            "%environment",
            "%runscript",
            "%arguments",
            "%labels",
            "%test",
            "%",
            "\n",
            " ",
            "\\",
            "{{ A }}",
            "{{ B }}",
            "{{",
            "}}",
            "B={{ A }}",
            "#",
            "#!/bin/x",
            "-c",
            "x",
            "/",
            "..",
            "\"",
            "'",
            "$",
            ":",
            "\u{0}",
            "ß",
        ];
        vec(prop::sample::select(words.to_vec()), 0..60)
            .prop_map(|words| format!("Bootstrap: docker\nFrom: a\n{}", words.concat()))
    }

    proptest! {
        #[test]
        fn any_definition_is_read_or_refused(text in sections()) {
            super::definition(text.as_bytes());
        }

        #[test]
        fn any_text_is_read_or_refused(text in pieces()) {
            super::dockerfile(text.as_bytes());
            super::ignore_rules(text.as_bytes());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..400)) {
            super::dockerfile(&bytes);
            super::ignore_rules(&bytes);
            super::definition(&bytes);
        }
    }
}
