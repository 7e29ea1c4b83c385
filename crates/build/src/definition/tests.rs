//! Definitions: what Apptainer's documentation and its parser's own tests say of them.

use super::*;
use crate::dockerfile::{Command, CopyInstruction, CopySource, DirectoryCopy, MountKind, RunInstruction};

fn options(args: &[(&str, &str)]) -> DefinitionOptions {
    let args = args.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    DefinitionOptions { args, here: "/home/a/work".into(), context: "/home/a/work".into(), no_test: false }
}

fn read(text: &str) -> Dockerfile {
    parse(text, &options(&[])).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn instructions(text: &str) -> Vec<Instruction> {
    let stage = read(text).stages.pop().expect("a stage");
    stage.steps.into_iter().map(|step| step.instruction).collect()
}

/// Below a header.
fn with_header(sections: &str) -> String {
    format!("Bootstrap: docker\nFrom: alpine\n{sections}\n")
}

fn copies(sections: &str) -> Vec<CopyInstruction> {
    let all = instructions(&with_header(sections));
    let copies = all.into_iter().filter_map(|one| match one {
        Instruction::Copy(copy) => Some(copy),
        _ => None,
    });
    copies.collect()
}

/// `FILE=CONTENT` of what is put below `/.singularity.d`.
fn kept(sections: &str, name: &str) -> Option<(String, String)> {
    copies(sections).into_iter().find_map(|copy| {
        let mode = copy.chmod.clone().unwrap_or_default();
        copy.sources.into_iter().find_map(|source| match source {
            CopySource::Text(doc) if doc.name == name => Some((mode.clone(), doc.content)),
            _ => None,
        })
    })
}

fn runs(sections: &str) -> Vec<RunInstruction> {
    let all = instructions(&with_header(sections));
    let runs = all.into_iter().filter_map(|one| match one {
        Instruction::Run(run) => Some(run),
        _ => None,
    });
    runs.collect()
}

fn script(run: &RunInstruction) -> String {
    match &run.mounts[..] {
        [mount] => match &mount.kind {
            MountKind::Script(text) => text.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_are_known_by_name_or_content() {
    for (name, text, want) in [
        (Some("solver.def"), "", true),
        (Some("a/Singularity"), "", true),
        (Some("Apptainer"), "", true),
        (Some("Dockerfile"), "FROM x", false),
        (Some("x"), "# a remark\n\nBootstrap: docker", true),
        (None, "bootstrap:docker", true),
        (None, "FROM a\nBootstrap: docker", false),
        (None, "Böotstrap:", false),
        (Some("def"), "", false),
    ] {
        assert_eq!(is_definition(name.map(Path::new), text), want, "{name:?} {text}");
    }
}

#[test]
fn headers_are_apptainers() {
    for (header, want) in [
        ("Bootstrap: docker\nFrom: a/b:c@d", StageFrom::Image("a/b:c@d".into())),
        (
            "# some comment\n\nBootstrap: docker # remark\nFrom: x\nIncludeCmd: yes",
            StageFrom::Image("x".into()),
        ),
        ("BOOTSTRAP:docker\nfrom:x", StageFrom::Image("x".into())),
        (
            "Bootstrap: docker\nRegistry: r.example:5000\nNamespace: n\nFrom: x",
            StageFrom::Image("r.example:5000/n/x".into()),
        ),
        ("Bootstrap: docker\nFrom: a\\\n  b", StageFrom::Image("ab".into())),
        ("Bootstrap: oras\nFrom: r.example/x:1", StageFrom::Image("oras://r.example/x:1".into())),
        ("Bootstrap: localimage\nFrom: ./base.sif", StageFrom::Local("./base.sif".into())),
        ("Bootstrap: docker-archive\nFrom: /a/b.tar", StageFrom::Local("/a/b.tar".into())),
        ("Bootstrap: scratch", StageFrom::Scratch),
    ] {
        assert_eq!(read(header).stages[0].from, want, "{header}");
    }
}

#[test]
fn what_is_not_supported_is_refused_with_its_line_and_a_hint() {
    for (text, line, part) in [
        ("", 1, "no Bootstrap"),
        ("# only this\n", 1, "no Bootstrap"),
        ("%post\necho", 1, "no Bootstrap before"),
        ("Bootstrap: docker", 1, "no From"),
        ("Bootstrap: docker-daemon\nFrom: x", 1, "docker-daemon"),
        ("Bootstrap: library\nFrom: x", 1, "library"),
        ("Bootstrap: debootstrap\nMirrorURL: http://h/debian", 1, "no OSVersion"),
        ("Bootstrap: debootstrap\nOSVersion: sid", 1, "no MirrorURL"),
        ("Bootstrap: debootstrap\nOSVersion: sid\nMirrorURL: file:///x", 3, "not the address of a mirror"),
        (
            "Bootstrap: debootstrap\nOSVersion: sid\nMirrorURL: http://h/x\nKeyring: /k",
            4,
            "unknown header key keyring",
        ),
        ("Bootstrap: docker\nFrom: x\nInclude: y", 3, "unknown header key include"),
        ("Bootstrap: yum\nOSVersion: 7\nFrom: x", 2, "unknown header key osversion"),
        ("Bootstrap: localimage\nFrom: x\nFingerprints: F3,22", 3, "signatures are not checked"),
        ("Bootstrap: docker\nheaderTest\nFrom: x", 2, "not a line of a header"),
        ("Bootstrap: docker\nFrom: x\n%setup\ntouch x", 3, "%setup: not supported"),
        ("Bootstrap: docker\nFrom: x\n\n%appinstall foo\nx", 4, "%appinstall: not supported"),
        ("Bootstrap: docker\nFrom: x\n%bad\nx", 3, "%bad: no such section"),
        ("Bootstrap: docker\nFrom: x\n%post\n  %date", 4, "begins with `%`"),
        ("Bootstrap: docker\nFrom: x\n%files from y\na b", 3, "no stage before"),
        ("Bootstrap: docker\nFrom: x\n%files of y\na b", 3, "not known"),
        ("Bootstrap: docker\nFrom: x\n%files\n\n../a /b", 5, "outside of"),
        ("Bootstrap: docker\nFrom: x\n%files\n/etc/passwd", 4, "outside of"),
        ("Bootstrap: docker\nFrom: x\n%files\n*.txt", 4, "no destination"),
        ("Bootstrap: docker\nFrom: x\n%post -c\necho", 3, "no program"),
        ("Bootstrap: docker\nFrom: {{ A }}", 2, "{{ A }} has no value"),
        ("Bootstrap: docker\nFrom: x\n\0", 3, "byte of zero"),
    ] {
        let error = parse(text, &options(&[])).expect_err(text);
        assert!(error.line == line && error.what.contains(part), "{text}: {error}");
        assert!(!error.hint.is_empty() || part.contains("zero"), "{text}: no hint");
    }
}

#[test]
fn arguments_have_their_values() {
    let body = |text: &str, args: &[(&str, &str)]| {
        let text = format!(
            "Bootstrap: docker\nFrom: x\n%arguments\n# C=no\n V = 1 \nNEST=a{{{{ V }}}}b\nodd\n%runscript\n{text}"
        );
        let file = parse(&text, &options(args));
        file.map(|file| {
            let all = file.stages[0].steps.iter().map(|step| &step.instruction);
            let script = all.filter_map(|one| match one {
                Instruction::Copy(CopyInstruction { sources, .. }) => match &sources[0] {
                    CopySource::Text(doc) if doc.name == "runscript" => Some(doc.content.clone()),
                    _ => None,
                },
                _ => None,
            });
            script.collect::<String>().trim_start_matches("#!/bin/sh").trim().to_owned()
        })
        .map_err(|error| error.line)
    };
    for (text, args, want) in [
        ("/script-{{ V }}.sh {{V}}", vec![], Ok("/script-1.sh 1")),
        ("{{ V }}", vec![("V", "2")], Ok("2")),
        ("{{ W }}", vec![("W", "2")], Ok("2")),
        ("{{ NEST }}", vec![("V", "2")], Ok("a2b")),
        ("# {{ W }}", vec![], Ok("# {{ W }}")),
        ("a\necho # {{ W }}\n{{ V }}", vec![], Ok("a\necho # {{ W }}\n1")),
        ("#!{{ V }}", vec![], Ok("#!1")),
        ("{{{ V }}} {{ a b }} {{}} {{", vec![], Ok("{1} {{ a b }} {{}} {{")),
        ("${V} {{\nV }}", vec![], Ok("${V} 1")),
        ("a\n{{ W }}", vec![], Err(10)),
        ("{{ C }}", vec![], Err(9)),
    ] {
        assert_eq!(body(text, &args).as_deref().map_err(|line| *line), want, "{text} {args:?}");
    }
    let used = |args: &[(&str, &str)]| {
        parse("Bootstrap: docker\nFrom: {{ A }}\n%arguments\nB=1", &options(args)).expect("read").used_args
    };
    assert_eq!(used(&[("A", "a"), ("B", "b"), ("C", "c")]), BTreeSet::from(["A".into(), "B".into()]));
}

#[test]
fn files_are_copied_as_cp_does() {
    for (lines, sources) in [
        ("a /b", vec![("/a", "/b")]),
        ("a", vec![("/a", "/a")]),
        ("./d/ /e/", vec![("/d", "/e/")]),
        ("/home/a/work/x /", vec![("/x", "/")]),
        ("/home/a/work/x", vec![("/x", "/home/a/work/x")]),
        ("x opt/y # no remark", vec![("/x", "/opt/y")]),
        ("# none\n\n*.txt /t", vec![("/*.txt", "/t")]),
        (
            "\"file 1\"\n\"file 1\" \"with space 1\"",
            vec![("/file 1", "/file 1"), ("/file 1", "/with space 1")],
        ),
        ("'file 2' nospace", vec![("/file 2", "/nospace")]),
        ("a$b /c", vec![("/a\\$b", "/c")]),
        ("../work/x /c", vec![("/x", "/c")]),
    ] {
        let found = copies(&format!("%files\n{lines}"));
        let found: Vec<_> = found.iter().filter(|copy| copy.directories == DirectoryCopy::LikeCp).collect();
        let want: Vec<(CopySource, String)> = sources
            .iter()
            .map(|(source, to)| (CopySource::Path((*source).into()), (*to).to_owned()))
            .collect();
        let have: Vec<(CopySource, String)> =
            found.iter().map(|copy| (copy.sources[0].clone(), copy.destination.clone())).collect();
        assert_eq!(have, want, "{lines}");
    }
}

#[test]
fn stages_are_known_by_their_names() {
    let text = "Bootstrap: docker\nFrom: a\nStage: One\n%post\nx\n\nBootstrap: docker\nFrom: one\nStage: final\n%files\nh /h\n%files from one # remark\n/root/hello /bin/hello\n";
    let file = read(text);
    assert_eq!(
        file.stages.iter().map(|stage| stage.name.as_deref()).collect::<Vec<_>>(),
        [Some("one"), Some("final")]
    );
    assert_eq!(file.stages[1].from, StageFrom::Image("one".into()), "an image of a stage's name");
    let copies: Vec<_> = file.stages[1]
        .steps
        .iter()
        .filter_map(|step| match &step.instruction {
            Instruction::Copy(copy) if copy.directories == DirectoryCopy::LikeCp => {
                Some((step.line, copy.from.as_deref(), copy.destination.as_str()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(copies, [(13, Some("0"), "/bin/hello"), (11, None, "/h")]);
}

#[test]
fn post_is_run_as_apptainer_does() {
    let words = |sections: &str| match &runs(sections)[0].command {
        Command::Exec(words) => words.join(" "),
        Command::Shell(line) => panic!("{line}"),
    };
    for (args, want) in [
        ("", "/bin/sh -ex /.skiff-build/script"),
        (" # remark", "/bin/sh -ex /.skiff-build/script"),
        (" -u", "/bin/sh -ex -u /.skiff-build/script"),
        (" -c /bin/bash -x", "/bin/sh -ex -c /bin/bash -x /.skiff-build/script"),
    ] {
        assert_eq!(words(&format!("%post{args}\n echo")), want, "{args}");
    }
    // Several of one name are one; what is in them stays as it is.
    let all = runs("%post\n    echo a \\\n    b # c\n%post\n    d\n");
    assert_eq!(script(&all[0]), "    echo a \\\n    b # c\n    d\n\n");
    let env =
        |name: &str| all[0].env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert_eq!(env("APPTAINER_ENVIRONMENT"), Some("/.singularity.d/env/91-environment.sh"));
    assert_eq!(env("SINGULARITY_LABELS"), Some("/.build.labels"));
    assert!(runs("").is_empty() && runs("%post\n\n").is_empty(), "nothing to run");
}

#[test]
fn scripts_are_kept() {
    for (sections, name, want) in [
        (
            "%runscript\n    exec echo \"$@\"\n",
            "runscript",
            ("0755", "#!/bin/sh\n\n    exec echo \"$@\"\n\n\n"),
        ),
        (
            "%runscript\n#!/usr/bin/python3\nprint()",
            "runscript",
            ("0755", "#!/usr/bin/python3\n\nprint()\n\n"),
        ),
        ("%startscript -x # remark\na", "startscript", ("0755", "#!/bin/sh -x\n\na\n\n")),
        ("%test\n#!/usr/local/csh\necho $0", "test", ("0755", "#!/usr/local/csh\n\necho $0\n\n")),
        ("%help\nHello!\n# # two", "runscript.help", ("0644", "Hello!\n# # two\n")),
    ] {
        let (mode, content) = kept(sections, name).unwrap_or_else(|| panic!("{sections}"));
        assert_eq!(
            (&*mode, content.trim_end_matches('\n')),
            (want.0, want.1.trim_end_matches('\n')),
            "{sections}"
        );
    }
    assert_eq!(kept("", "runscript"), None);
    let text = with_header("%post\nx");
    assert_eq!(kept("%post\nx", "Singularity"), Some(("0644".into(), text)));
    let entry = |sections: &str| {
        instructions(&with_header(sections)).iter().any(|one| matches!(one, Instruction::Entrypoint(_)))
    };
    assert!(entry("%runscript\nx") && !entry("%post\nx"));
}

#[test]
fn tests_are_run_unless_that_is_declined() {
    let is_run = |no_test| {
        let file =
            parse(&with_header("%test\nx"), &DefinitionOptions { no_test, ..options(&[]) }).expect("read");
        file.stages[0]
            .steps
            .iter()
            .any(|step| matches!(&step.instruction, Instruction::Run(RunInstruction { is_test: true, .. })))
    };
    assert!(is_run(false) && !is_run(true));
}

#[test]
fn labels_are_words() {
    let all = instructions(&with_header("%labels\n    Version v1.0\nMaintainer It's $me\n# no\nEmpty\n"));
    let found = all.into_iter().find_map(|one| match one {
        Instruction::Label(labels) => Some(labels),
        _ => None,
    });
    let read =
        |word: &str| crate::dockerfile::words::expand(word, '\\', &|_| Some("wrong".into())).expect("read");
    let labels: Vec<(String, String)> =
        found.expect("labels").iter().map(|(name, value)| (read(name), read(value))).collect();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(labels, [pair("Version", "v1.0"), pair("Maintainer", "It's $me"), pair("Empty", "")]);
}
