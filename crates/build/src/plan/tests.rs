//! What a Dockerfile comes to, over made-up images and files.

use skiff_oci::manifest::Instructions;

use super::*;
use crate::dockerfile::parse;

/// Images and files that are not there.
#[derive(Default)]
struct MadeUp {
    config: Value,
    sum: String,
    asked: Vec<String>,
}

impl PlanLookup for MadeUp {
    fn image(&mut self, reference: &str) -> Result<BaseImage> {
        self.asked.push(reference.into());
        match reference {
            "missing" => Err(Fault::new("image missing: not pulled")),
            _ => Ok(BaseImage { id: ImageId([7; 32]), config: self.config.clone() }),
        }
    }

    fn local_image(&mut self, name: &str) -> Result<BaseImage> {
        self.image(&format!("local:{name}"))
    }

    fn remote(&mut self, address: &str) -> Result<String> {
        self.asked.push(address.into());
        Ok(format!("sha256:{}", self.sum))
    }

    fn commit(&mut self, repository: &GitSource) -> Result<String> {
        self.asked.push(repository.shown());
        Ok("c0ffee".repeat(7)[..40].into())
    }

    fn sum(&mut self, copy: &CopyAction) -> Result<String> {
        Ok(format!("{}{}", self.sum, copy.sources.len()))
    }
}

fn planned(text: &str, options: &BuildOptions, around: &mut MadeUp) -> Result<BuildPlan> {
    let file = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    plan(&file, options, around)
}

fn options(args: &[(&str, &str)]) -> BuildOptions {
    let args = args.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    BuildOptions { file: "Dockerfile".into(), args, ..BuildOptions::default() }
}

fn built(text: &str) -> BuildPlan {
    planned(text, &options(&[]), &mut MadeUp::default()).unwrap_or_else(|e| panic!("{text}: {e:?}"))
}

fn run_of(text: &str, args: &[(&str, &str)]) -> RunAction {
    let plan =
        planned(text, &options(args), &mut MadeUp::default()).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    let steps = plan.stages.last().expect("a stage").steps.clone();
    let run = steps.into_iter().rev().find_map(|step| match step.action {
        Some((_, Action::Run(run))) => Some(run),
        _ => None,
    });
    run.unwrap_or_else(|| panic!("{text}: no RUN"))
}

fn variable(run: &RunAction, name: &str) -> Option<String> {
    run.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

#[test]
fn arguments_and_variables_are_dockers() {
    for (text, args, name, want) in [
        ("FROM a\nARG V=1\nRUN x", vec![], "V", Some("1")),
        ("FROM a\nARG V=1\nRUN x", vec![("V", "2")], "V", Some("2")),
        ("FROM a\nARG V\nRUN x", vec![], "V", None),
        ("FROM a\nRUN x", vec![("V", "2")], "V", None),
        // An argument of the head is known in a stage that names it.
        ("ARG V=1\nFROM a\nRUN x", vec![], "V", None),
        ("ARG V=1\nFROM a\nARG V\nRUN x", vec![], "V", Some("1")),
        ("ARG V=1\nFROM a\nARG V=3\nRUN x", vec![], "V", Some("3")),
        ("ARG V=1\nFROM a\nARG V\nRUN x", vec![("V", "2")], "V", Some("2")),
        // ENV counts for more, wherever it stands.
        ("FROM a\nENV V=e\nARG V=1\nRUN x", vec![("V", "2")], "V", Some("e")),
        ("FROM a\nARG V=1\nENV V=${V:-x}\nRUN x", vec![("V", "2")], "V", Some("2")),
        ("FROM a\nENV abc=hello\nENV abc=bye def=$abc\nRUN x", vec![], "def", Some("hello")),
        ("FROM a\nENV abc=hello\nENV abc=bye def=$abc\nENV ghi=$abc\nRUN x", vec![], "ghi", Some("bye")),
        ("FROM a\nENV A=\"x y\" B=a\\ b\nRUN x", vec![], "B", Some("a b")),
        ("FROM a\nARG TARGETOS\nRUN x", vec![], "TARGETOS", Some("linux")),
        ("FROM a\nRUN x", vec![], "TARGETOS", None),
        ("FROM a\nARG TARGETSTAGE\nRUN x", vec![], "TARGETSTAGE", Some("default")),
        ("FROM a AS Last\nARG TARGETSTAGE\nRUN x", vec![], "TARGETSTAGE", Some("last")),
        ("FROM a AS last\nRUN x", vec![], "TARGETSTAGE", None),
        // A stage has the arguments of the one that it begins with.
        ("FROM a AS b\nARG V=1\nFROM b\nRUN x", vec![], "V", Some("1")),
        ("FROM a AS b\nARG V=1\nFROM b\nRUN x", vec![("V", "2")], "V", Some("2")),
        ("FROM a AS b\nARG V=1\nFROM b AS c\nFROM c\nARG V\nRUN x", vec![], "V", Some("1")),
        ("FROM a AS b\nARG V=1\nFROM b\nARG V=3\nRUN x", vec![], "V", Some("3")),
        ("FROM a AS b\nARG V=1\nFROM a\nRUN x", vec![], "V", None),
        ("FROM a AS b\nENV V=1\nFROM b\nRUN x", vec![], "V", Some("1")),
    ] {
        assert_eq!(variable(&run_of(text, &args), name).as_deref(), want, "{text} {args:?}");
    }
}

#[test]
fn proxies_are_known_without_arg_and_count_only_with_it() {
    let text = "FROM a\nRUN x";
    let key = |text: &str, args: &[(&str, &str)]| {
        planned(text, &options(args), &mut MadeUp::default()).expect("planned").stages[0].key.clone()
    };
    let run = run_of(text, &[("http_proxy", "p")]);
    assert_eq!(run.uncounted, [("http_proxy".into(), "p".into())]);
    assert_eq!(key(text, &[("http_proxy", "p")]), key(text, &[]));
    let named = "FROM a\nARG http_proxy\nRUN x";
    assert_ne!(key(named, &[("http_proxy", "p")]), key(named, &[]));
}

#[test]
fn commands_begin_where_and_as_whom_the_file_says() {
    for (text, workdir, user) in [
        ("FROM a\nRUN x", "/", "0"),
        ("FROM a\nWORKDIR /a\nWORKDIR b\nWORKDIR ../c\nRUN x", "/a/c", "0"),
        ("FROM a\nENV D=/d\nWORKDIR $D/$E\nUSER u:g\nRUN x", "/d", "u:g"),
        ("FROM a\nWORKDIR ../..\nRUN x", "/", "0"),
    ] {
        let run = run_of(text, &[]);
        assert_eq!((&*run.workdir, &*run.user), (workdir, user), "{text}");
    }
    assert_eq!(run_of("FROM a\nRUN a b", &[]).words, ["/bin/sh", "-c", "a b"]);
    assert_eq!(
        run_of("FROM a\nSHELL [\"/bin/bash\", \"-ec\"]\nRUN a b", &[]).words,
        ["/bin/bash", "-ec", "a b"]
    );
    assert_eq!(run_of("FROM a\nRUN [\"a\", \"$b\"]", &[]).words, ["a", "$b"]);
}

#[test]
fn the_configuration_is_dockers() {
    let config = |before: Value, text: &str| {
        let mut around = MadeUp { config: json!({"config": before}), ..MadeUp::default() };
        let plan = planned(text, &options(&[]), &mut around).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        let mut config = Instructions::new(&plan.stages[0].config);
        // What each has: see below.
        let env: Vec<String> =
            config.list("Env").into_iter().filter(|setting| *setting != DEFAULT_PATH).collect();
        match env.is_empty() {
            true => drop(config.take("Env")),
            false => config.set("Env", env),
        }
        config.into_config()
    };
    for (before, text, want) in [
        (json!({"Cmd": ["x"]}), "FROM a", json!({"Cmd": ["x"]})),
        (json!({"Cmd": ["x"]}), "FROM a\nENTRYPOINT [\"e\"]", json!({"Entrypoint": ["e"]})),
        (json!({}), "FROM a\nCMD a b", json!({"Cmd": ["/bin/sh", "-c", "a b"]})),
        (json!({}), "FROM a\nSHELL [\"s\"]\nCMD a", json!({"Shell": ["s"], "Cmd": ["s", "a"]})),
        (json!({"Env": ["A=1"]}), "FROM a\nENV B=$A", json!({"Env": ["A=1", "B=1"]})),
        (
            json!({}),
            "FROM a\nARG P=80\nEXPOSE $P 53/udp",
            json!({"ExposedPorts": {"80/tcp": {}, "53/udp": {}}}),
        ),
        (json!({}), "FROM a\nVOLUME /a /b", json!({"Volumes": {"/a": {}, "/b": {}}})),
        (json!({}), "FROM a\nLABEL a.b=\"c d\" e=f", json!({"Labels": {"a.b": "c d", "e": "f"}})),
        (
            json!({}),
            "FROM a\nSTOPSIGNAL QUIT\nUSER 5\nWORKDIR /x/",
            json!({"StopSignal": "QUIT", "User": "5", "WorkingDir": "/x"}),
        ),
        (
            json!({}),
            "FROM a\nHEALTHCHECK --timeout=3s CMD x",
            json!({"Healthcheck": {"Test": ["CMD-SHELL", "x"], "Timeout": 3_000_000_000u64}}),
        ),
        (json!({}), "FROM a\nHEALTHCHECK NONE", json!({"Healthcheck": {"Test": ["NONE"]}})),
        (json!({}), "FROM a\nONBUILD RUN x", json!({"OnBuild": ["RUN x"]})),
        (
            json!({"OnBuild": ["ENV A=1", "WORKDIR /w"]}),
            "FROM a\nENV B=$A",
            json!({"Env": ["A=1", "B=1"], "WorkingDir": "/w"}),
        ),
    ] {
        assert_eq!(config(before, text), want, "{text}");
    }
}

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The commit counts, and neither the name by which it was found nor whose word it is.
#[test]
fn repositories_are_known_by_their_commit() {
    const COMMIT: &str = "c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ff";
    let key = |add: &str| {
        let mut around = MadeUp::default();
        let text = format!("FROM a\nADD {}", add.replace("COMMIT", COMMIT));
        let plan = planned(&text, &options(&[]), &mut around).unwrap_or_else(|e| panic!("{add}: {e:?}"));
        (plan.stages[0].key.clone(), around.asked.contains(&"https://x/y.git".to_owned()))
    };
    let (whole, is_asked) = key("https://x/y.git /d/");
    assert!(is_asked);
    for (add, is_same, is_asked) in [
        ("https://x/y.git#v1 /d/", true, true),
        ("--checksum=c0ffee https://x/y.git#v1 /d/", true, true),
        ("--checksum=COMMIT https://x/y.git#v1 /d/", true, false),
        ("https://x/y.git#COMMIT /d/", true, false),
        ("https://x/y.git#v1:sub /d/", false, true),
        ("--keep-git-dir https://x/y.git /d/", false, true),
        ("--exclude=x https://x/y.git /d/", false, true),
        ("git://x/y.git#COMMIT /d/", false, false),
    ] {
        let (found, asked) = key(add);
        assert_eq!((found == whole, asked), (is_same, is_asked), "{add}");
    }
}

#[test]
fn agents_have_a_place_and_a_number() {
    let targets = |mounts: &str| {
        let run = run_of(&format!("FROM a\nWORKDIR /w\nRUN {mounts} x"), &[]);
        run.mounts.into_iter().map(|mount| mount.target).collect::<Vec<_>>()
    };
    assert_eq!(targets("--mount=type=ssh"), ["/run/buildkit/ssh_agent.0"]);
    assert_eq!(
        targets("--mount=type=ssh,id=a,target=s --mount=type=tmpfs,target=/t --mount=type=ssh,id=b"),
        ["/w/s", "/t", "/run/buildkit/ssh_agent.1"]
    );
}

#[test]
fn path_is_always_set() {
    let (_, default) = DEFAULT_PATH.split_once('=').expect("a setting");
    for (before, text, want) in [
        (json!({}), "FROM a", vec![DEFAULT_PATH.into()]),
        (json!({"Env": ["A=1"]}), "FROM a", vec!["A=1".into(), DEFAULT_PATH.into()]),
        (json!({"Env": ["PATH=/x"]}), "FROM a", vec!["PATH=/x".to_owned()]),
        (json!({"Env": ["PATH="]}), "FROM a", vec!["PATH=".into()]),
        (json!({}), "FROM scratch", vec![DEFAULT_PATH.into()]),
        (json!({}), "FROM scratch\nENV PATH=/opt/bin:$PATH", vec![format!("PATH=/opt/bin:{default}")]),
        (
            json!({}),
            "FROM a AS b\nENV PATH=/opt:$PATH\nFROM b\nENV PATH=/x:$PATH",
            vec![format!("PATH=/x:/opt:{default}")],
        ),
        (json!({}), "FROM a\nARG P=${PATH}\nENV Q=$P", vec![DEFAULT_PATH.into(), format!("Q={default}")]),
    ] {
        let mut around = MadeUp { config: json!({"config": before}), ..MadeUp::default() };
        let plan = planned(text, &options(&[]), &mut around).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        let last = plan.stages.last().expect("a stage");
        assert_eq!(Instructions::new(&last.config).list("Env"), want, "{text}");
    }
    assert_eq!(
        variable(&run_of("FROM scratch\nENV PATH=/o:$PATH\nRUN x", &[]), "PATH"),
        Some(format!("/o:{default}"))
    );
    assert_eq!(variable(&run_of("FROM a\nARG PATH=/x\nRUN x", &[]), "PATH").as_deref(), Some(default));
}

#[test]
fn directories_of_workdir_are_those_of_user() {
    let made = |text: &str| {
        let plan = built(text);
        let steps = plan.stages.into_iter().flat_map(|stage| stage.steps).filter_map(|step| step.action);
        let owners = steps.filter_map(|(key, action)| match action {
            Action::MakeDirectory { path, owner } => Some((key, path, owner)),
            _ => None,
        });
        owners.collect::<Vec<_>>()
    };
    for (text, want) in [
        ("FROM a\nWORKDIR /w", None),
        ("FROM a\nUSER app\nWORKDIR /w", Some("app")),
        ("FROM a\nARG U=5:6\nUSER $U\nWORKDIR /w", Some("5:6")),
        ("FROM a\nWORKDIR /w\nUSER app", None),
        ("FROM a AS b\nUSER app\nFROM b\nWORKDIR /w", Some("app")),
    ] {
        let [(_, path, owner)] = &made(text)[..] else { panic!("{text}: not one directory") };
        assert_eq!((&**path, owner.as_deref()), ("/w", want), "{text}");
    }
    let key = |text| made(text)[0].0.clone();
    assert_ne!(key("FROM a\nUSER app\nWORKDIR /w"), key("FROM a\nWORKDIR /w"));
    assert_ne!(key("FROM a\nUSER app\nWORKDIR /w"), key("FROM a\nUSER other\nWORKDIR /w"));
}

#[test]
fn only_stages_that_are_needed_are_planned() {
    let text =
        "FROM one AS a\nRUN x\nFROM two AS b\nRUN y\nFROM three AS c\nCOPY --from=a /x /\nFROM b\nRUN z";
    let labels = |target: Option<&str>| {
        let mut around = MadeUp::default();
        let options = BuildOptions { target: target.map(String::from), ..options(&[]) };
        let plan = planned(text, &options, &mut around).expect("planned");
        (plan.stages.iter().map(|stage| stage.label.clone()).collect::<Vec<_>>(), around.asked)
    };
    let texts = |words: &[&str]| words.iter().map(|word| String::from(*word)).collect::<Vec<_>>();
    assert_eq!(labels(None), (texts(&["b", "3"]), texts(&["two"])));
    assert_eq!(labels(Some("C")), (texts(&["a", "c"]), texts(&["three", "one"])));
    assert_eq!(labels(Some("0")), (texts(&["a"]), texts(&["one"])));
}

#[test]
fn keys_change_with_all_that_a_step_depends_on_and_nothing_else() {
    let keys = |text: &str, sum: &str, ids: &str| {
        let mut around = MadeUp { sum: sum.into(), ..MadeUp::default() };
        let options = BuildOptions { ids: ids.into(), ..options(&[]) };
        let plan = planned(text, &options, &mut around).expect("planned");
        let steps = plan.stages.iter().flat_map(|stage| &stage.steps);
        steps.filter_map(|step| step.action.as_ref().map(|(key, _)| key.clone())).collect::<Vec<_>>()
    };
    let text = "FROM a\nRUN x\nCOPY f /\nRUN y";
    let before = keys(text, "s", "i");
    assert_eq!(keys(text, "s", "i"), before);
    let same = |other: &[BuildKey]| before.iter().zip(other).take_while(|(a, b)| a == b).count();
    for (text, sum, ids, want) in [
        ("FROM a\nRUN x\nCOPY f /\nRUN z", "s", "i", 2),
        (text, "t", "i", 1),
        (text, "s", "j", 0),
        ("FROM scratch\nRUN x\nCOPY f /\nRUN y", "s", "i", 0),
        ("FROM a\nRUN x\nCOPY --chown=1 f /\nRUN y", "s", "i", 1),
        ("FROM a\nENV A=1\nRUN x\nCOPY f /\nRUN y", "s", "i", 0),
        ("FROM a\nUSER 1\nRUN x\nCOPY f /\nRUN y", "s", "i", 0),
        ("FROM a\nLABEL a=b\nRUN x\nCOPY f /\nRUN y\nCMD z", "s", "i", 3),
        ("FROM a\n# a remark\nRUN x\nEXPOSE 80\nCOPY f /\nRUN y", "s", "i", 3),
    ] {
        assert_eq!(same(&keys(text, sum, ids)), want, "{text} {sum} {ids}");
    }
    let of_stage =
        |first: &str| keys(&format!("FROM a AS b\nRUN {first}\nFROM c\nCOPY --from=b /x /"), "s", "i").pop();
    assert_ne!(of_stage("x"), of_stage("y"), "files of another stage");
}

#[test]
fn what_cannot_be_had_is_refused_with_its_line() {
    for (text, part) in [
        ("FROM missing", "Dockerfile:1: image missing"),
        ("ARG V\nFROM $V", "Dockerfile:2: FROM: no image is named"),
        ("FROM --platform=linux/s390x a", "Dockerfile:1: --platform=linux/s390x"),
        ("FROM a\nCOPY https://x/y /", "Dockerfile:2: COPY: https://x/y: files from other hosts"),
        ("FROM a\nADD http://x/y /", "Dockerfile:2: ADD: http://x/y: by http anybody"),
        ("FROM a\nADD http://x/y.git /", "Dockerfile:2: ADD: http://x/y.git: by http"),
        ("FROM a\nADD git://x/y /", "Dockerfile:2: ADD: git://x/y: by git://"),
        ("FROM a\nADD git://x/y#v1 /", "Dockerfile:2: ADD: git://x/y: by git://"),
        ("FROM a\nADD --checksum=c0ffee git://x/y /", "Dockerfile:2: ADD: git://x/y: by git://"),
        (
            "FROM a\nADD --checksum=c0ff00 https://x/y.git /",
            "Dockerfile:2: ADD: https://x/y.git: it is at c0ffee",
        ),
        (
            "FROM a\nADD --checksum=sha256:1 https://x/y.git /",
            "Dockerfile:2: ADD: --checksum=sha256:1: not a commit",
        ),
        ("FROM a\nCOPY https://x/y.git /", "Dockerfile:2: COPY: https://x/y.git: files from other"),
        ("FROM a\nCOPY git@x:y /", "Dockerfile:2: COPY: git@x:y: files from other"),
        ("FROM a\nADD --checksum=sha256:1 https://x/y /", "Dockerfile:2: ADD: --checksum=sha256:1:"),
        ("FROM a\nADD --checksum=sha256:1 y /", "Dockerfile:2: ADD: y: --checksum is for files"),
        (
            "FROM a\nADD --checksum=sha256:1 https://x/y https://x/z /",
            "Dockerfile:2: ADD: https://x/y: --checksum is for one",
        ),
        ("FROM a\nADD https://x/ /d/", "Dockerfile:2: ADD: https://x/: the address has no name"),
        ("FROM a\nCOPY --chmod=64a x /", "Dockerfile:2: COPY: --chmod=64a"),
        ("FROM a\nCOPY --chmod=10000 x /", "Dockerfile:2: COPY: --chmod=10000"),
        ("FROM a\nCOPY --from=b x /\nFROM a AS b", "Dockerfile:2: COPY: --from=b: the stage is not before"),
        (
            "FROM a AS tools\nFROM a\nCOPY --from=missing x /",
            "Dockerfile:3: COPY: --from=missing: no stage of this name, and no image: image missing",
        ),
        // The one place that is wrong, not those on the way to it.
        ("FROM missing AS b\nFROM a\nCOPY --from=b x /", "Dockerfile:1: image missing"),
        ("FROM a\nENV A=${B:?missing}", "Dockerfile:2: ENV: variable B: missing"),
        ("FROM a\nENV A='b", "Dockerfile:2: ENV: unclosed quote"),
        ("FROM a\nUSER $U", "Dockerfile:2: USER: no user"),
        ("FROM a\nEXPOSE x", "Dockerfile:2: EXPOSE: x: not a port"),
        ("FROM a\nENV D=x\nCOPY a b $D", "Dockerfile:3: COPY: x: several files"),
    ] {
        let mut around = MadeUp::default();
        let last = text.lines().next_back().is_some_and(|line| line == "FROM a AS b");
        let options = BuildOptions { target: last.then(|| "0".into()), ..options(&[]) };
        let fault = planned(text, &options, &mut around).expect_err(text);
        assert!(fault.message.starts_with(part), "{text}: {}", fault.message);
    }
}

#[test]
fn users_are_told_what_had_no_effect() {
    let plan = planned(
        "# syntax=docker/dockerfile:1\nFROM a\nARG B",
        &options(&[("A", "1"), ("B", "2"), ("no_proxy", "x")]),
        &mut MadeUp::default(),
    );
    let notes = plan.expect("planned").notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("--build-arg A:") && notes[1].contains("syntax"), "{notes:?}");
}

#[test]
fn history_tells_the_steps() {
    let plan = built("FROM a\nENV A=1\nRUN x");
    let history = &plan.stages[0].config["history"];
    assert_eq!(history[0]["created_by"], "ENV A=1");
    assert_eq!((&history[0]["empty_layer"], &history[1]["empty_layer"]), (&json!(true), &Value::Null));
}

/// Of a file of some lines a plan of gigabytes could be made: what is put in for variables is counted, and what each step has of it.
#[test]
fn what_values_come_to_has_a_limit() {
    let long = format!("FROM scratch AS s0\nARG X={}\n{}", "0".repeat(100), "ENV X=$X$X\n".repeat(13));
    let many = |line: &dyn Fn(usize) -> String| (0..40).map(line).collect::<String>();
    let path = "0".repeat(600_000);
    for (text, line) in [
        (format!("{long}ENV{}", many(&|n| format!(" A{n}=$X"))), 16),
        (format!("{long}LABEL{}", many(&|n| format!(" A{n}=$X"))), 16),
        (format!("{long}LABEL a=\"{}\"", "$X".repeat(40)), 16),
        (format!("{long}LABEL a={}", "${X:+}".repeat(40)), 16),
        (format!("{long}{}", many(&|_| "COPY <<A /\n$X$X$X\nA\n".into())), 0),
        (format!("ARG X={}\n{}FROM scratch\n", "0".repeat(100), "ARG X=$X$X\n".repeat(18)), 18),
        (format!("{long}{}", many(&|_| "RUN true\n".into())), 0),
        (format!("{long}{}", many(&|n| format!("FROM s{n} AS s{}\n", n + 1))), 0),
        (format!("FROM scratch\nWORKDIR /{path}\n{}", many(&|_| "WORKDIR a\n".into())), 0),
        (format!("FROM scratch\n{}", many(&|_| "EXPOSE 1-65535\n".into())), 0),
    ] {
        let shown = &text[text.len().saturating_sub(80)..];
        let fault = planned(&text, &options(&[]), &mut MadeUp::default()).expect_err(shown);
        assert!(fault.message.contains("take more than 16 MiB in all steps"), "{shown}: {}", fault.message);
        let at = format!("Dockerfile:{line}: ");
        assert!(line == 0 || fault.message.starts_with(&at), "{shown}: {}", fault.message);
        assert!(fault.hint.contains("COPY"), "{shown}");
    }
}

/// With a walk through all variables for each, this took longer than a minute.
#[test]
fn thousands_of_variables_are_planned() {
    let lines = |word: &str| (0..4_900).map(|n| format!("{word} A{n}=$X\n")).collect::<String>();
    let text = format!("FROM scratch\nARG X={}\n{}{}", "0".repeat(100), lines("ENV"), lines("LABEL"));
    let plan = built(&text);
    let config = Instructions::new(&plan.stages[0].config);
    assert_eq!(config.list("Env").len(), 4_901);
    assert_eq!(plan.stages[0].config["config"]["Labels"].as_object().map(serde_json::Map::len), Some(4_900));
}

#[test]
fn a_variable_that_an_image_has_twice_is_set_once() {
    let config = json!({"config": {"Env": ["A=1", "B=2", "A=3", "odd"]}});
    for (text, want) in [
        ("FROM a\nENV C=$A$odd", vec!["A=1", "B=2", "A=3", "odd", DEFAULT_PATH, "C=3"]),
        ("FROM a\nENV A=$A", vec!["B=2", "odd", DEFAULT_PATH, "A=3"]),
    ] {
        let mut around = MadeUp { config: config.clone(), ..MadeUp::default() };
        let plan = planned(text, &options(&[]), &mut around).expect(text);
        assert_eq!(Instructions::new(&plan.stages[0].config).list("Env"), want, "{text}");
    }
}

/// Each stage is planned within the planning of the one that needs it.
#[test]
fn stages_that_need_each_other_do_not_overflow_the_stack() {
    let chain = |count, step: &str| -> String {
        let stage = |n: usize| match n {
            0 => "FROM scratch AS s0\n".into(),
            n => step.replace("BEFORE", &format!("s{}", n - 1)).replace("THIS", &format!("s{n}")),
        };
        (0..count).map(stage).collect()
    };
    let try_it = move || {
        for step in ["FROM BEFORE AS THIS\n", "FROM scratch AS THIS\nCOPY --from=BEFORE /a /\n"] {
            assert_eq!(built(&chain(MOST_STAGES, step)).stages.len(), MOST_STAGES, "{step}");
            let long = planned(&chain(4_900, step), &options(&[]), &mut MadeUp::default());
            let why = long.expect_err(step).message;
            assert!(why.ends_with("FROM: more than 250 stages"), "{why}");
        }
    };
    // As much as the first thread of a program has.
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(try_it).expect("a thread");
    thread.join().expect("both ways");
}

#[test]
fn files_that_a_step_puts_into_nothing_are_for_this_machine_alone() {
    let plan = planned("FROM scratch\nWORKDIR /a", &options(&[]), &mut MadeUp::default()).expect("planned");
    let (key, action) = plan.stages[0].steps[0].action.as_ref().expect("files");
    let machine = Platform::host().to_string();
    let below = BuildKey::of(&json!(["scratch", options(&[]).ids, machine]));
    assert_eq!(*key, BuildKey::of(&json!([below, action])));
}
