use skiff_oci::reference::ImageReference;

use super::*;

fn conf(text: &str) -> RegistriesConf {
    let mut conf = RegistriesConf::default();
    conf.add("t", text).expect("sound");
    conf
}

fn places(conf: &RegistriesConf, image: &str) -> Vec<String> {
    let endpoints = conf.endpoints(&image.parse().expect("a name")).expect("allowed");
    let show =
        |e: &Endpoint| format!("{}/{}{}", e.server, e.repository, if e.insecure { " insecure" } else { "" });
    endpoints.iter().map(show).collect()
}

fn meanings(conf: &RegistriesConf, short: &str) -> Vec<String> {
    let Ok(ImageReference::Short(short)) = short.parse() else { panic!("{short} is not short") };
    conf.candidates(&short).expect("sound").iter().map(ToString::to_string).collect()
}

const SITE: &str = r#"
unqualified-search-registries = ["quay.io", "docker.io"]
credential-helpers = ["containers-auth.json"]
[aliases]
"tool" = "registry.site.example/team/tool"
[[registry]]
prefix = "docker.io"
location = "docker.io"
[[registry.mirror]]
location = "mirror.site.example/hub"
[[registry.mirror]]
location = "other.example:5000"
insecure = true
pull-from-mirror = "digest-only"
[[registry]]
prefix = "docker.io/secret"
blocked = true
[[registry]]
location = "localhost:5000"
insecure = true
[[registry]]
prefix = "*.lab.example"
insecure = true
[[registry]]
prefix = "old.example/a"
location = "new.example/b/c"
mirror-by-digest-only = true
mirror = [{ location = "near.example/a" }]
"#;

#[test]
fn the_longest_prefix_decides() {
    let conf = conf(SITE);
    let pinned = format!("debian@sha256:{}", "0".repeat(64));
    for (image, expected) in [
        ("debian:12", &["mirror.site.example/hub/library/debian", "docker.io/library/debian"][..]),
        (
            &pinned,
            &[
                "mirror.site.example/hub/library/debian",
                "other.example:5000/library/debian insecure",
                "docker.io/library/debian",
            ],
        ),
        ("localhost:5000/x", &["localhost:5000/x insecure"]),
        ("localhost:50001/x", &["localhost:50001/x"]),
        ("a.lab.example/x", &["a.lab.example/x insecure"]),
        ("a.lab.example:99/x", &["a.lab.example:99/x insecure"]),
        ("lab.example/x", &["lab.example/x"]),
        ("old.example/a/x", &["new.example/b/c/x"]),
        ("old.example/ab/x", &["old.example/ab/x"]),
        ("docker.iox/x", &["docker.iox/x"]),
    ] {
        assert_eq!(places(&conf, image), expected, "{image}");
    }
    let blocked = conf.endpoints(&"secret/x".parse().expect("a name"));
    assert!(matches!(blocked, Err(Error::Blocked { .. })));
}

#[test]
fn short_names_are_looked_up() {
    let conf = conf(SITE);
    assert_eq!(meanings(&conf, "tool:2"), ["registry.site.example/team/tool:2"]);
    assert_eq!(meanings(&conf, "debian"), ["quay.io/debian", "docker.io/library/debian"]);
    assert_eq!(meanings(&RegistriesConf::default(), "debian"), ["docker.io/library/debian"]);
}

#[test]
fn a_later_file_wins() {
    let mut conf = conf(SITE);
    let text = "[[registry]]\nlocation = 'localhost:5000'\n[aliases]\ntool = ''";
    conf.add("u", text).expect("sound");
    assert_eq!(places(&conf, "localhost:5000/x"), ["localhost:5000/x"]);
    assert_eq!(meanings(&conf, "tool"), ["quay.io/tool", "docker.io/library/tool"]);
}

#[test]
fn what_is_wrong_names_the_file() {
    for (text, word) in [
        ("x", "t:"),
        ("[[registry]]\ninsecure = true", "neither"),
        ("[registries.search]\nregistries = ['x']", "version 1"),
        ("[[registry]]\nlocation='a.b'\n[[registry.mirror]]\ninsecure=true", "no location"),
        ("[[registry]]\nlocation='a.b'\ninsecure='yes'", "insecure"),
    ] {
        let error = RegistriesConf::default().add("t", text).expect_err("wrong").to_string();
        assert!(error.contains(word) && error.starts_with("t:"), "{error}");
    }
    let bad = conf("unqualified-search-registries = ['no server']");
    let Ok(ImageReference::Short(short)) = "x".parse() else { panic!("short") };
    assert!(bad.candidates(&short).is_err());
}

#[test]
fn a_mirror_of_ones_own_comes_before_all_other_places() {
    let pinned = format!("@sha256:{}", "0".repeat(64));
    let mirror = Endpoint { server: "127.0.0.1:4000".into(), repository: "relay/ab".into(), insecure: true };
    for image in
        ["debian", "old.example/a/x", "box.lab.example/y/z", "localhost:5000/t", "elsewhere.example/t"]
    {
        let image = format!("{image}{pinned}");
        let mut known = conf(SITE);
        let before = places(&known, &image);
        let text = known.text_with_mirror(&image.parse().expect("a name"), &mirror).expect("allowed");
        known.add("mirror", &text).expect("sound");
        let mut expected = vec!["127.0.0.1:4000/relay/ab insecure".to_owned()];
        expected.extend(before);
        assert_eq!(places(&known, &image), expected, "{image}");
    }
    let secret = "docker.io/secret/x".parse().expect("a name");
    assert!(matches!(conf(SITE).text_with_mirror(&secret, &mirror), Err(Error::Blocked { .. })));
}
