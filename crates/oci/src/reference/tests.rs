use proptest::prelude::*;

use super::*;

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn names_mean_what_docker_means_by_them() {
    let pinned = format!("debian:12@sha256:{HEX}");
    let pinned_full = format!("docker.io/library/debian:12@sha256:{HEX}");
    for (text, full) in [
        ("debian", "docker.io/library/debian"),
        ("debian:12", "docker.io/library/debian:12"),
        ("docker.io/debian", "docker.io/library/debian"),
        ("index.docker.io/team/tool", "docker.io/team/tool"),
        ("team/tool:V1.0_x-y", "docker.io/team/tool:V1.0_x-y"),
        ("localhost/tool", "localhost/tool"),
        ("localhost:5000/tool:1", "localhost:5000/tool:1"),
        ("Reg/tool", "Reg/tool"),
        ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c"),
        ("[::1]:5000/tool", "[::1]:5000/tool"),
        ("[fe80::2]/tool", "[fe80::2]/tool"),
        ("ghcr.io/a__b/c-d---e.f", "ghcr.io/a__b/c-d---e.f"),
        ("nvcr.io/nvidia/pytorch:24.05-py3", "nvcr.io/nvidia/pytorch:24.05-py3"),
        ("nvcr.io#nvidia/pytorch:24.05-py3", "nvcr.io/nvidia/pytorch:24.05-py3"),
        ("$oauthtoken@nvcr.io#nvidia/pytorch", "nvcr.io/nvidia/pytorch"),
        ("docker.io#debian:12", "docker.io/library/debian:12"),
        (&pinned, &pinned_full),
    ] {
        assert_eq!(text.parse::<Named>().map(|n| n.to_string()), Ok(full.to_owned()), "{text}");
    }
    let pinned: Named = pinned.parse().expect("both may be given");
    assert_eq!((pinned.tag(), pinned.wanted()), (Some("12"), format!("sha256:{HEX}")));
    assert_eq!(
        "x".parse::<Named>().map(|n| n.with_default_tag().to_string()),
        Ok("docker.io/library/x:latest".into())
    );
}

#[test]
fn what_is_wrong_is_named() {
    let long = format!("x/{}", "a".repeat(500));
    let almost_too_long = "a".repeat(248);
    let long_tag = format!("x:{}", "a".repeat(129));
    for (text, part) in [
        ("", ReferencePart::Whole),
        ("a b", ReferencePart::Whole),
        ("debian ", ReferencePart::Whole),
        ("deb\u{7}ian", ReferencePart::Whole),
        ("Debian", ReferencePart::Repository),
        ("ghcr.io/Team/tool", ReferencePart::Repository),
        (&long, ReferencePart::Repository),
        (&almost_too_long, ReferencePart::Repository),
        ("a//b", ReferencePart::Repository),
        ("/a", ReferencePart::Path),
        ("a/", ReferencePart::Repository),
        ("a..b", ReferencePart::Repository),
        ("a___b", ReferencePart::Repository),
        ("-a", ReferencePart::Repository),
        ("a-", ReferencePart::Repository),
        ("a_.b", ReferencePart::Repository),
        ("bücher", ReferencePart::Repository),
        ("a:b/c", ReferencePart::Server),
        ("a:99999/c", ReferencePart::Server),
        ("library://a/b:1", ReferencePart::Transport),
        ("shub://a", ReferencePart::Transport),
        ("https://a/b", ReferencePart::Transport),
        ("a.b:0/c", ReferencePart::Server),
        ("a_b.c/d", ReferencePart::Server),
        ("[::1/x", ReferencePart::Server),
        ("[zz]/x", ReferencePart::Server),
        ("-x.y/z", ReferencePart::Server),
        ("registry#tool", ReferencePart::Server),
        ("#tool", ReferencePart::Server),
        ("a.b#c#d", ReferencePart::Repository),
        ("a:", ReferencePart::Tag),
        ("a:-b", ReferencePart::Tag),
        ("a:b:c", ReferencePart::Tag),
        (&long_tag, ReferencePart::Tag),
        ("a@sha256:12", ReferencePart::Digest),
        ("a@", ReferencePart::Digest),
        ("a@md5:0123", ReferencePart::Digest),
        (HEX, ReferencePart::Repository),
        ("./a", ReferencePart::Path),
        ("/data/image.img", ReferencePart::Path),
        ("oci:", ReferencePart::Path),
        ("dir:", ReferencePart::Path),
        ("oci:/x:", ReferencePart::Tag),
    ] {
        match text.parse::<ImageReference>() {
            Err(e) => assert_eq!(e.part, part, "{e}"),
            Ok(parsed) => panic!("{text:?} was taken as {parsed:?}"),
        }
    }
    let capitals = "Debian:12".parse::<ImageReference>().expect_err("capitals");
    assert_eq!(capitals.to_string(), "image reference \"Debian:12\": the repository has capitals");
    assert_eq!(capitals.hint(), "repositories are named in lower case: debian:12");
    let long = long.parse::<ImageReference>().expect_err("too long").to_string();
    assert!(long.len() < 200 && long.contains("255"), "{long}");
}

#[test]
fn transports_are_told_apart() {
    let some = |tag: &str| Some(tag.to_owned());
    for (text, meant) in [
        ("oci:/d", ImageReference::Oci { dir: "/d".into(), tag: None }),
        ("oci:d:v1", ImageReference::Oci { dir: "d".into(), tag: some("v1") }),
        ("oci-archive:a.tar:x", ImageReference::OciArchive { file: "a.tar".into(), tag: some("x") }),
        (
            "docker-archive:/a.tar:debian:12",
            ImageReference::DockerArchive { file: "/a.tar".into(), tag: some("debian:12") },
        ),
        ("dir:/a b", ImageReference::Dir("/a b".into())),
        ("/a/b c.sqsh", ImageReference::Squashfs("/a/b c.sqsh".into())),
        ("x.squashfs", ImageReference::Squashfs("x.squashfs".into())),
        ("./x.erofs", ImageReference::Erofs("./x.erofs".into())),
        ("x.sif", ImageReference::Sif("x.sif".into())),
    ] {
        assert_eq!(text.parse().as_ref(), Ok(&meant), "{text}");
        assert_eq!(meant.to_string(), text);
    }
    for (text, name) in [
        ("oras://ghcr.io/team/tool:1.sif", "oras://ghcr.io/team/tool:1.sif"),
        ("oras://localhost:5000/a/b", "oras://localhost:5000/a/b"),
        ("oras://tool", "oras://docker.io/library/tool"),
    ] {
        let artifact = text.parse::<ImageReference>().expect(text);
        assert!(matches!(artifact, ImageReference::Artifact(_)), "{text}");
        assert_eq!(artifact.to_string(), name);
    }
    let hub = "docker://debian".parse::<ImageReference>().map(|r| r.to_string());
    assert_eq!(hub, Ok("docker.io/library/debian".into()));
    assert!(matches!("debian".parse(), Ok(ImageReference::Short(_))));
    assert!(matches!("oci:5000/x".parse(), Ok(ImageReference::Registry(_))), "a server called oci");
    assert!(matches!("dir:5000/x".parse(), Ok(ImageReference::Registry(_))), "a server called dir");
}

#[test]
fn short_names_are_completed() {
    let Ok(ImageReference::Short(short)) = "tool:1".parse() else { panic!("short") };
    assert_eq!(short.below("quay.io").map(|n| n.to_string()), Ok("quay.io/tool:1".into()));
    assert_eq!(short.below("quay.io/team").map(|n| n.to_string()), Ok("quay.io/team/tool:1".into()));
    assert_eq!(short.below("docker.io").map(|n| n.to_string()), Ok("docker.io/library/tool:1".into()));
    let target: Named = "registry.fedoraproject.org/tool".parse().expect("a full name");
    assert_eq!(short.alias(&target).to_string(), "registry.fedoraproject.org/tool:1");
    let refused = short.below("no server").expect_err("a server's name has no space");
    assert_eq!(refused.part, ReferencePart::Server);
}

proptest! {
    /// Whatever is taken is shown in a form that means the same.
    #[test]
    fn shown_and_read_again_it_is_the_same(
        text in "((docker://|oci:|dir:|docker-archive:)?([a-zA-Z0-9.-]{1,9}(:[0-9]{1,5})?/)?[a-z0-9._/-]{1,12}(:[a-zA-Z0-9_.-]{1,6})?(@sha256:[0-9a-f]{64})?(\\.sif)?)"
    ) {
        if let Ok(reference) = text.parse::<ImageReference>() {
            prop_assert_eq!(reference.to_string().parse(), Ok(reference), "{}", text);
        }
        if let Ok(named) = text.parse::<Named>() {
            prop_assert_eq!(named.to_string().parse(), Ok(named), "{}", text);
        }
    }

    #[test]
    fn anything_is_taken_or_refused_with_a_short_message(text in "\\PC{0,600}") {
        if let Err(error) = text.parse::<ImageReference>() {
            prop_assert!(error.to_string().len() < 1200);
        }
    }
}
