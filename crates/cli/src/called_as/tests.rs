use std::ffi::{OsStr, OsString};

use super::translate;
use crate::Cli;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn translated(line: &str) -> Result<Vec<String>, String> {
    let words = words(line);
    let commands = translate(&words[0], &words[1..]).expect("a known program").map_err(|e| {
        assert!(!e.hint.is_empty(), "{line}: {e}");
        e.message
    })?;
    let shown = |words: Vec<OsString>| words.join(OsStr::new(" ")).to_string_lossy().into_owned();
    Ok(commands.into_iter().map(shown).collect())
}

const OF_DOCKER: &str = "run --containall --no-home --root --writable";

#[test]
fn common_calls() {
    for (line, want) in [
        ("docker run -it --rm debian:12", format!("{OF_DOCKER} --rm debian:12")),
        ("docker run debian:12 ls -l --rm", format!("{OF_DOCKER} debian:12 ls -l --rm")),
        (
            "podman run -v /a:/b:ro,z -v ./c:/d debian",
            format!("{OF_DOCKER} --volume=/a:/b:ro,z --volume=./c:/d debian"),
        ),
        (
            "docker run -eA=1 -e B --env-file /dev/null debian",
            format!("{OF_DOCKER} --env=A=1 --env=B --env-file=/dev/null debian"),
        ),
        ("docker run --rm=true --detach=false -i=true debian", format!("{OF_DOCKER} --rm debian")),
        ("docker inspect -f {{.Id}} x", "inspect --format={{.Id}} x".into()),
        ("docker run -itd --name=web nginx", format!("{OF_DOCKER} --detach --name=web nginx")),
        ("docker run -u 1000 --read-only x", "run --containall --no-home --user=1000 x".into()),
        ("docker run --network bridge x", format!("{OF_DOCKER} --net=private x")),
        (
            "docker run -w /srv --entrypoint /bin/sh x -c id",
            format!("{OF_DOCKER} --workdir=/srv --entrypoint=/bin/sh x -c id"),
        ),
        (
            "docker run -h n1 --ulimit nofile=1024:4096 x",
            format!("{OF_DOCKER} --hostname=n1 --ulimit=nofile=1024:4096 x"),
        ),
        ("apptainer exec --hostname n1 x id", "run --entrypoint= --hostname=n1 x id".into()),
        ("docker exec -it web sh", "exec web sh".into()),
        ("docker exec -u root -e A=1 web id -u", "exec --user=root --env=A=1 web id -u".into()),
        ("docker ps -aq", "ps --all --quiet".into()),
        ("docker container ls -a", "ps --all".into()),
        ("docker images --format {{.Repository}}", "images --format={{.Repository}}".into()),
        ("docker image ls -a -q", "images --quiet".into()),
        ("docker rmi -f x y", "rmi x y".into()),
        ("docker rm -f web", "rm --force web".into()),
        ("docker logs -f web", "logs --follow web".into()),
        ("docker cp -aL web:/a .", "cp --archive --follow-link web:/a .".into()),
        ("docker container cp - web:/a", "cp - web:/a".into()),
        ("docker stop -t 5 web", "stop --time=5 web".into()),
        ("docker kill -s TERM web", "kill --signal=TERM web".into()),
        ("podman pull -q debian", "pull --quiet debian".into()),
        ("docker push -q r.example/a/b:1", "push --quiet r.example/a/b:1".into()),
        ("podman push a docker://r.example/a:1", "push a docker://r.example/a:1".into()),
        ("docker image push r.example/a", "push r.example/a".into()),
        ("docker tag a b", "tag a b".into()),
        ("docker load -i f.tar", "import f.tar".into()),
        ("docker save -o f.tar x", "export x docker-archive:f.tar".into()),
        (
            "docker login -u me --password-stdin quay.io",
            "login --username=me --password-stdin quay.io".into(),
        ),
        (
            "docker commit -p -m note -c USER=x web x:2",
            "commit --message=note --change=USER=x web x:2".into(),
        ),
        ("docker build --ssh default .", "build --ssh=default .".into()),
        (
            "docker build -t mine:1 -f Dockerfile.web --build-arg A=1 --rm --no-cache .",
            "build --tag=mine:1 --file=Dockerfile.web --build-arg=A=1 --no-cache .".into(),
        ),
        ("docker --version", "version".into()),
        ("docker", "help".into()),
        ("docker run --help", "help run".into()),
        ("docker image rm --help", "help rmi".into()),
        ("podman load --help", "help import".into()),
        ("apptainer exec --help", "help run".into()),
        ("apptainer instance --help", "help instance".into()),
        (
            "apptainer exec docker://debian:12 cat /etc/issue",
            "run --entrypoint= debian:12 cat /etc/issue".into(),
        ),
        ("singularity run -B /a,/b:/c --pwd /srv x.sif y", "run --bind=/a,/b:/c --pwd=/srv x.sif y".into()),
        ("apptainer shell -f --writable-tmpfs ./x.sif", "shell --root --writable-tmpfs ./x.sif".into()),
        (
            "apptainer -q exec -ceC --env A=1,B=2 x id",
            "run --entrypoint= --contain --cleanenv --containall --env=A=1 --env=B=2 x id".into(),
        ),
        ("apptainer exec --net --network none x id", "run --entrypoint= --net=none x id".into()),
        ("apptainer exec instance://web ls", "exec web ls".into()),
        ("apptainer shell instance://web", "exec web /bin/sh".into()),
        (
            "apptainer instance start docker://redis:7 cache --port 1",
            "instance start redis:7 cache --port 1".into(),
        ),
        ("apptainer instance list", "instance list".into()),
        ("apptainer instance stop cache", "instance stop cache".into()),
        ("apptainer pull docker://debian:12", "pull debian:12".into()),
        ("apptainer pull --arch arm64 docker://debian:12", "pull --arch=arm64 debian:12".into()),
        ("apptainer pull x.sqsh docker://debian:12", "pull debian:12; export debian:12 x.sqsh".into()),
        ("apptainer pull --name x.sqsh docker://debian:12", "pull debian:12; export debian:12 x.sqsh".into()),
        (
            "singularity build -F x.squashfs docker://debian:12",
            "pull debian:12; export debian:12 x.squashfs".into(),
        ),
        (
            "apptainer build --arch arm64 -f x.sqsh docker://debian:12",
            "pull --arch=arm64 debian:12; export debian:12 x.sqsh".into(),
        ),
        (
            "apptainer build --fakeroot -T --build-arg A=1 out/Solver.sqsh x.def",
            "build -t solver --notest --build-arg=A=1 x.def; export solver out/Solver.sqsh".into(),
        ),
        ("apptainer inspect x.sif", "inspect x.sif".into()),
        ("apptainer version", "version".into()),
        ("ch-run ./img -- ls -l", "run --entrypoint= --no-home ./img ls -l".into()),
        (
            "ch-run --home -b /a:/b -c /b debian:12 -- ls",
            "run --entrypoint= --bind=/a:/b --workdir=/b debian:12 ls".into(),
        ),
        (
            "ch-run --set-env=A=1 --unset-env=* -W -u0 x -- id",
            "run --entrypoint= --no-home --env=A=1 --cleanenv --writable --root x id".into(),
        ),
    ] {
        let got = translated(line).map(|commands| commands.join("; "));
        assert_eq!(got, Ok(want.clone()), "{line}");
        for command in want.split("; ") {
            let read = Cli::of(&words(&format!("skiff {command}")));
            let is_help = command == "help";
            assert!(
                read.is_ok() || is_help,
                "{line}: {command}: {}",
                read.err().map(|e| e.to_string()).unwrap_or_default()
            );
        }
    }
}

#[test]
fn what_is_not_translated_is_named() {
    for (line, what) in [
        ("docker run --privileged x", "--privileged"),
        ("docker run -p 80:80 x", "-p"),
        ("docker run -v data:/x y", "-v data:/x"),
        ("docker run --net=mine x", "--net mine"),
        ("docker run --pull=newer x", "--pull newer"),
        ("docker run --detach=maybe x", "--detach=maybe"),
        ("docker run --sig-proxy=false x", "--sig-proxy=false"),
        ("docker inspect -s x", "-s"),
        ("docker build --cache-from x .", "--cache-from"),
        ("docker buildx build .", "buildx"),
        ("docker push --all-tags x", "--all-tags"),
        ("apptainer push x.sif oras://r.example/x", "push"),
        ("docker compose up", "compose"),
        ("docker load", "standard input"),
        ("apptainer exec --overlay o x id", "--overlay"),
        ("apptainer exec library://x id", "library://x"),
        ("apptainer build --sandbox x docker://debian", "--sandbox"),
        ("apptainer build x.sqsh library://y", "library://y"),
        ("apptainer build x.sqsh oras://y", "build from another image"),
        ("apptainer build --arch arm64 x.sqsh y.def", "build --arch"),
        ("apptainer exec --network=bridge x id", "--network bridge"),
        ("ch-run -w x -- id", "-w"),
        ("ch-run --unset-env=A* x -- id", "--unset-env A*"),
        ("ch-run -u 5 x -- id", "-u 5"),
    ] {
        let why = translated(line).expect_err(line);
        assert!(why.contains(what) && why.contains("not translated"), "{line}: {why}");
    }
}

#[test]
fn what_is_missing_is_named() {
    for (line, why) in [
        ("docker run -it", "docker run: no image given"),
        ("docker run -e", "docker -e: no value given"),
        ("apptainer run", "apptainer run: no image given"),
        ("apptainer instance", "apptainer instance: no command given"),
        ("ch-run -W", "ch-run: no image given"),
        ("apptainer pull x.sif docker://debian", "apptainer: x.sif: Skiff does not write SIF files"),
    ] {
        assert_eq!(translated(line).expect_err(line), why);
    }
}

#[test]
fn no_name_behind_dashes_becomes_an_option() {
    for line in [
        "docker run -- --volume=/root:/x debian cat /x",
        "docker run --rm -- -v debian",
        "docker exec -- --root web id",
        "docker rmi -- --help",
        "docker rm -f -- web --all",
        "docker save -o f.tar -- --help",
        "apptainer exec -- --bind=/root:/x debian id",
        "apptainer -- exec --bind=/root:/x -- --root debian",
        "apptainer instance start -- --bind=/ x",
        "apptainer instance stop -- x --all",
        "apptainer inspect -- --files x",
        "ch-run -- --bind=/root:/x -- ls",
        // Without them, where a name has something in front.
        "apptainer exec docker://--bind=/root:/x debian id",
        "apptainer exec instance://--root web id",
        "apptainer instance start x --bind=/root:/x",
        "apptainer pull --name --help.sqsh docker://debian",
    ] {
        let why = translated(line).expect_err(line);
        assert!(why.contains("no name begins with a dash"), "{line}: {why}");
    }
    for (line, want) in [
        ("docker run --rm -- debian ls -l", format!("{OF_DOCKER} --rm debian ls -l")),
        ("docker rmi -- x y", "rmi x y".into()),
        ("docker cp -- - web:/a", "cp - web:/a".into()),
        ("apptainer exec -- x -- id", "run --entrypoint= x id".into()),
    ] {
        assert_eq!(translated(line), Ok(vec![want]), "{line}");
    }
}

#[test]
fn others_are_nobodys_names() {
    for name in ["skiff", "srun", "", "docker-compose", "Docker"] {
        assert!(translate(OsStr::new(name), &[]).is_none(), "{name}");
    }
}
