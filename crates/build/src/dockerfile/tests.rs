//! Dockerfiles and what they mean, as Docker's reference and BuildKit's tests have it.

use super::command::Command;
use super::*;

fn steps(text: &str) -> Vec<Instruction> {
    let file = parse(&format!("FROM scratch\n{text}")).unwrap_or_else(|e| panic!("{text}: {e}"));
    file.stages[0].steps.iter().map(|step| step.instruction.clone()).collect()
}

fn shell(text: &str) -> Instruction {
    Instruction::Run(RunInstruction::new(Command::Shell(text.into())))
}

fn written(from: &StageFrom) -> &str {
    match from {
        StageFrom::Written(text) => text,
        other => panic!("{other:?}"),
    }
}

fn copy(sources: &[&str], destination: &str) -> CopyInstruction {
    CopyInstruction {
        sources: sources.iter().map(|path| CopySource::Path((*path).into())).collect(),
        destination: destination.into(),
        ..CopyInstruction::default()
    }
}

#[test]
fn lines_are_joined_as_docker_does() {
    for (text, want) in [
        ("RUN a \\\n  b", vec![shell("a   b")]),
        ("RUN a\\\nb", vec![shell("ab")]),
        ("RUN a \\  \nb", vec![shell("a b")]),
        ("RUN a \\\n# a remark\n\n   # another\n b", vec![shell("a  b")]),
        ("RUN a \\\\\nRUN b", vec![shell("a \\\\"), shell("b")]),
        ("  run a\n\n# x\n\tRUN b # no remark\r\n", vec![shell("a"), shell("b # no remark")]),
        ("RUN a \\", vec![shell("a")]),
        ("\\\nRUN a", vec![shell("a")]),
    ] {
        assert_eq!(steps(text), want, "{text:?}");
    }
}

#[test]
fn directives_stand_at_the_beginning_only() {
    let escape = |text: &str| parse(text).map(|file| (file.escape, file.syntax));
    assert_eq!(escape("# escape=`\nFROM a"), Ok(('`', None)));
    assert_eq!(
        escape("#Escape = `\n# syntax=docker/dockerfile:1\nFROM a"),
        Ok(('`', Some("docker/dockerfile:1".into())))
    );
    for text in [
        "# about\n# escape=`\nFROM a",
        "\n# escape=`\nFROM a",
        "FROM a\n# escape=`",
        "# unknown=x\n# escape=`\nFROM a",
    ] {
        assert_eq!(escape(text), Ok(('\\', None)), "{text:?}");
    }
    for text in ["# escape=x\nFROM a", "# escape=`\n# escape=`\nFROM a"] {
        assert!(escape(text).is_err(), "{text:?}");
    }
    assert_eq!(
        parse("# escape=`\nFROM a\nRUN dir c:\\ `\n  x")
            .map(|file| file.stages[0].steps[0].instruction.clone()),
        Ok(shell("dir c:\\   x"))
    );
}

#[test]
fn commands_are_lists_or_lines() {
    let exec = |words: &[&str]| Command::Exec(words.iter().map(|word| (*word).into()).collect());
    for (text, want) in [
        (r#"["a", "b c"]"#, exec(&["a", "b c"])),
        ("[]", exec(&[])),
        ("['a']", Command::Shell("['a']".into())),
        (r#"[ "$x" = y ] && z"#, Command::Shell(r#"[ "$x" = y ] && z"#.into())),
    ] {
        assert_eq!(steps(&format!("CMD {text}")), [Instruction::Cmd(want.clone())], "{text}");
        assert_eq!(steps(&format!("ENTRYPOINT {text}")), [Instruction::Entrypoint(want)], "{text}");
    }
    assert_eq!(exec(&["a"]).words(&["sh".into()]), ["a"]);
    assert_eq!(Command::Shell("a".into()).words(&["sh".into(), "-c".into()]), ["sh", "-c", "a"]);
}

#[test]
fn here_documents_are_buildkits() {
    for (text, want) in [
        ("RUN <<EOF\na $b\nEOF\nRUN c", vec![shell("a $b\n"), shell("c")]),
        ("RUN <<-EOF\n\ta\n\tEOF", vec![shell("a\n")]),
        ("RUN cat <<EOF >x\na\nEOF", vec![shell("cat <<EOF >x\na\nEOF")]),
        ("RUN <<EOF cat >/x\na\nEOF", vec![shell("<<EOF cat >/x\na\nEOF")]),
        ("RUN <<'EOF' \na\nEOF", vec![shell("a\n")]),
        ("RUN cat <<A <<B\n1\nA\n2\nB", vec![shell("cat <<A <<B\n1\nA\n2\nB")]),
        ("RUN sh -c \"cat <<EOF\"", vec![shell("sh -c \"cat <<EOF\"")]),
        ("RUN cat <<<x", vec![shell("cat <<<x")]),
        ("RUN <<'E' | python\nprint(\"x\")\nE", vec![shell("<<'E' | python\nprint(\"x\")\nE")]),
        ("RUN [ \"$a\" = b ]", vec![shell("[ \"$a\" = b ]")]),
    ] {
        assert_eq!(steps(text), want, "{text:?}");
    }
    // A program of its own is run itself.
    let [Instruction::Run(run)] = &steps("RUN <<EOF\n#!/bin/x\n$y\nEOF")[..] else { panic!() };
    assert_eq!(run.command, Command::Exec(vec![RunInstruction::SCRIPT.into()]));
    assert_eq!(run.mounts[0].kind, MountKind::Script("#!/bin/x\n$y\n".into()));
    let [Instruction::Copy(copied)] = &steps("COPY <<a.txt <<\"b\" /d/\n$x\na.txt\n# no remark\\\nb")[..]
    else {
        panic!()
    };
    let docs: Vec<_> = copied
        .sources
        .iter()
        .map(|source| match source {
            CopySource::Text(doc) => (&*doc.name, &*doc.content, doc.is_expanded),
            CopySource::Path(path) => panic!("{path}"),
        })
        .collect();
    assert_eq!(docs, [("a.txt", "$x\n", true), ("b", "# no remark\\\n", false)]);
}

/// The facts are those of BuildKit's own tests: name, content, whether variables have their values.
#[test]
fn here_documents_are_called_as_in_buildkit() {
    for (text, want) in [
        ("RUN <<EMPTY\nEMPTY", vec![("EMPTY", "", true)]),
        ("RUN 3<<EMPTY2\nEMPTY2", vec![("EMPTY2", "", true)]),
        ("RUN \"<<NOHEREDOC\"", vec![]),
        ("RUN '<<EOF'", vec![]),
        ("RUN <<INDENT\n\tfoo\n\tbar\nINDENT", vec![("INDENT", "\tfoo\n\tbar\n", true)]),
        ("RUN <<-UNINDENT\n\tbaz\n\tUNINDENT", vec![("UNINDENT", "baz\n", true)]),
        ("RUN <<-'NOEXPAND'\n\tdon't $N\nNOEXPAND", vec![("NOEXPAND", "don't $N\n", false)]),
        ("RUN <<COPY\n# a\nb # c\nCOPY", vec![("COPY", "# a\nb # c\n", true)]),
        ("RUN --mount=type=cache,target=/foo <<M\na\nM", vec![("M", "a\n", true)]),
        ("COPY <<F1 <<F2 /dest/\n1\nF1\n2\nF2", vec![("F1", "1\n", true), ("F2", "2\n", true)]),
        ("COPY <<X <<Y /dest/\nY\nX\nX\nY", vec![("X", "Y\n", true), ("Y", "X\n", true)]),
        ("COPY <<EOF /q\n\"foo\"\n'bar'\nEOF", vec![("EOF", "\"foo\"\n'bar'\n", true)]),
        ("RUN <<COMPLEX python3\nx\nCOMPLEX", vec![("COMPLEX", "x\n", true)]),
        ("COPY <<file.txt /d\nx\nfile.txt", vec![("file.txt", "x\n", true)]),
        ("RUN <<eo'f'\nx\neof", vec![("eof", "x\n", false)]),
        ("RUN <<eo\\'f\nx\neo'f", vec![("eo'f", "x\n", true)]),
        ("RUN <<'e'o\\'f\nx\neo'f", vec![("eo'f", "x\n", false)]),
        ("RUN <<'one two'\nx\none two", vec![("one two", "x\n", false)]),
        ("RUN <<$EOF\n$EOF", vec![("$EOF", "", true)]),
        ("RUN <<  EOF\nEOF", vec![("EOF", "", true)]),
        ("RUN <<- EOF\n\tx\nEOF", vec![("EOF", "x\n", true)]),
        ("RUN << -EOF\nx\n-EOF", vec![("-EOF", "x\n", true)]),
        ("RUN cat <<  EOF  > foo\nEOF", vec![("EOF", "", true)]),
        ("COPY << EOF /d\nx\nEOF", vec![("EOF", "x\n", true)]),
        ("RUN [\"<<EOF\"]", vec![]),
        ("USER <<INVALID", vec![]),
        ("RUN <<<EOF", vec![]),
        ("RUN << ", vec![]),
        ("RUN <EOF", vec![]),
    ] {
        let lines = lines::read(text).unwrap_or_else(|e| panic!("{text}: {e}")).lines;
        let found: Vec<_> =
            lines[0].heredocs.iter().map(|doc| (&*doc.name, &*doc.content, doc.is_expanded)).collect();
        assert_eq!((lines.len(), found), (1, want), "{text:?}");
        parse(&format!("FROM a\n{text}")).unwrap_or_else(|e| panic!("{text}: {e}"));
    }
}

#[test]
fn stages_and_arguments() {
    let file = parse("ARG V=1 W\nFROM --platform=linux/amd64 a:$V as Build\nRUN x\nFROM build\nCOPY --from=build --chown=1:2 a b/ c/\n").expect("read");
    assert_eq!(file.args, [(1, "V".into(), Some("1".into())), (1, "W".into(), None)]);
    let stages: Vec<_> = file
        .stages
        .iter()
        .map(|stage| (written(&stage.from), stage.name.as_deref(), stage.platform.as_deref(), stage.line))
        .collect();
    assert_eq!(stages, [("a:$V", Some("build"), Some("linux/amd64"), 2), ("build", None, None, 4)]);
    let want =
        CopyInstruction { from: Some("build".into()), chown: Some("1:2".into()), ..copy(&["a", "b/"], "c/") };
    assert_eq!(file.stages[1].steps[0].instruction, Instruction::Copy(want));
}

#[test]
fn files_are_copied() {
    for (text, want) in [
        ("COPY a b", copy(&["a"], "b")),
        (r#"COPY ["a b", "c d"]"#, copy(&["a b"], "c d")),
        ("COPY a b .", copy(&["a", "b"], ".")),
        ("COPY --chmod=755 a /", CopyInstruction { chmod: Some("755".into()), ..copy(&["a"], "/") }),
        ("COPY --link a /", copy(&["a"], "/")),
        ("COPY --link=false a /", copy(&["a"], "/")),
        ("ADD a.tar /", CopyInstruction { is_add: true, ..copy(&["a.tar"], "/") }),
        (
            "COPY --parents --exclude=*.o --exclude=b a /",
            CopyInstruction {
                directories: DirectoryCopy::WithParents,
                excludes: vec!["*.o".into(), "b".into()],
                ..copy(&["a"], "/")
            },
        ),
        ("COPY --parents=false a /", copy(&["a"], "/")),
        (
            "ADD --unpack=false --keep-git-dir=TRUE --link --exclude=x a /",
            CopyInstruction {
                is_add: true,
                unpack: Some(false),
                keeps_git: true,
                excludes: vec!["x".into()],
                ..copy(&["a"], "/")
            },
        ),
    ] {
        assert_eq!(steps(text), [Instruction::Copy(want)], "{text}");
    }
}

#[test]
fn what_is_kept_in_the_configuration() {
    let pair = |name: &str, value: &str| (String::from(name), String::from(value));
    for (text, want) in [
        ("ENV a=1 b='x y'", Instruction::Env(vec![pair("a", "1"), pair("b", "'x y'")])),
        ("ENV a x y", Instruction::Env(vec![pair("a", "x y")])),
        ("LABEL a=b", Instruction::Label(vec![pair("a", "b")])),
        ("ARG a", Instruction::Arg(vec![("a".into(), None)])),
        ("EXPOSE 80 53/udp", Instruction::Expose(vec!["80".into(), "53/udp".into()])),
        (r#"VOLUME ["/a b"]"#, Instruction::Volume(vec!["/a b".into()])),
        ("SHELL [\"/bin/bash\", \"-c\"]", Instruction::Shell(vec!["/bin/bash".into(), "-c".into()])),
        ("ONBUILD RUN x", Instruction::Onbuild("RUN x".into())),
        ("ONBUILD run <<E\nx\nE", Instruction::Onbuild("run <<E\nx\nE".into())),
        (
            "ONBUILD COPY <<-E <<F /d/\n\tx\n\tE\ny\nF",
            Instruction::Onbuild("COPY <<-E <<F /d/\n\tx\nE\ny\nF".into()),
        ),
        ("HEALTHCHECK NONE", Instruction::Healthcheck(Healthcheck::None)),
        (
            "HEALTHCHECK --interval=30s --retries=3 CMD a b",
            Instruction::Healthcheck(Healthcheck::Command {
                command: Command::Shell("a b".into()),
                times: vec![("Interval", 30_000_000_000)],
                retries: Some(3),
            }),
        ),
    ] {
        assert_eq!(steps(text), [want], "{text}");
    }
    assert_eq!(
        steps("RUN --network=none a"),
        [Instruction::Run(RunInstruction {
            no_network: true,
            ..RunInstruction::new(Command::Shell("a".into()))
        })]
    );
}

#[test]
fn triggers_are_instructions_of_their_own() {
    let read = |text: &str| parse_trigger(7, text).map(|step| step.instruction);
    assert_eq!(read("RUN <<E\na\nE\n"), Ok(shell("a\n")));
    assert_eq!(read(" run a \\\n b"), Ok(shell("a  b")));
    for text in ["", "# a remark", "RUN a\nRUN b", "RUN <<E\na", "FROM a", "ONBUILD RUN a"] {
        assert_eq!(parse_trigger(7, text).expect_err(text).line, 7, "{text:?}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name_with_its_line() {
    for (text, line, part) in [
        ("", 1, "no FROM"),
        ("RUN x", 1, "no FROM before it"),
        ("FROM a b", 1, "write FROM IMAGE"),
        ("FROM a AS 1x", 1, "not a name of a stage"),
        ("FROM a AS x\nFROM b AS X", 2, "two stages"),
        ("FROM --odd=1 a", 1, "--odd"),
        ("FROM a\n\nRUNN x", 3, "RUNN: no such instruction"),
        ("FROM a\nRUN --mount=type=ssh,source=x y", 2, "source: not supported"),
        ("FROM a\nRUN --mount=type=cache y", 2, "no target"),
        ("FROM a\nRUN --security=insecure y", 2, "--security"),
        ("FROM a\nRUN --network=x y", 2, "--network=x"),
        ("FROM a\nRUN <<EOF\nx", 2, "EOF has no end"),
        ("FROM a\nCOPY a", 2, "DESTINATION"),
        ("FROM a\nCOPY a b c", 2, "several files need a directory"),
        ("FROM a\nCOPY --from=$X a b", 2, "variables"),
        ("FROM a\nADD --parents a b", 2, "--parents"),
        ("FROM a\nCOPY --parents=1 a b", 2, "--parents=1: not a boolean"),
        ("FROM a\nCOPY --exclude a b", 2, "--exclude: no value"),
        ("FROM a\nCOPY --unpack a b", 2, "--unpack"),
        ("FROM a\nADD --from=x a b", 2, "--from"),
        ("FROM a\nCOPY --keep-git-dir a b", 2, "--keep-git-dir"),
        ("FROM a\nCOPY --checksum=x a b", 2, "--checksum"),
        ("FROM a\nENV a", 2, "no value"),
        ("FROM a\nENV", 2, "the instruction has no arguments"),
        ("FROM a\nARG =x", 2, "not a name"),
        ("FROM a\nSHELL /bin/sh", 2, "not a list"),
        ("FROM a\nONBUILD FROM b", 2, "not allowed"),
        ("FROM a\nONBUILD ONBUILD RUN b", 2, "not allowed"),
        ("FROM a\nHEALTHCHECK x", 2, "HEALTHCHECK CMD"),
        ("FROM a\nHEALTHCHECK --interval=x CMD y", 2, "not a time"),
        ("FROM a\nUSER --x y", 2, "--x"),
        ("FROM a\nHEALTHCHECK --interval=50ns CMD y", 2, "not a time of 1ms or more"),
        ("FROM a\nHEALTHCHECK", 2, "no arguments"),
        ("FROM a\nVOLUME []", 2, "no name"),
        ("FROM a\nRUN [\"a\",42,\"b\"]", 2, "texts only"),
        ("FROM a\nCMD [\"a\",{},\"b\"]", 2, "texts only"),
        ("FROM a\nCOPY [\"a\",[\"c\"],\"b\"]", 2, "texts only"),
        ("FROM a\nENTRYPOINT [\"a\",null]", 2, "texts only"),
        ("FROM a\nRUN --network=none [true]", 2, "texts only"),
        ("FROM a\nCOPY /foo <<EOF\nEOF", 2, "no destination"),
        ("FROM a\nMAINTAINER --boo x", 2, "--boo"),
        ("FROM a\nfoo bar", 2, "FOO: no such instruction"),
        ("FROM a\nRUN a\0b", 2, "zero"),
    ] {
        let error = parse(text).expect_err(text);
        assert_eq!(error.line, line, "{text:?}: {error}");
        assert!(error.to_string().contains(part), "{text:?}: {error}");
    }
}
