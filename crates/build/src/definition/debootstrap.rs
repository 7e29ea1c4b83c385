//! `Bootstrap: debootstrap`: what the header may say. Its text may be a stranger's, and its words become arguments of a program: each is of few
//! characters, and none can be taken for an option, a file, or a pattern of apt's.

use crate::dockerfile::{DebootstrapInstruction, DockerfileError};

/// Keys that only such a header has.
pub(super) const HEADERS: [&str; 3] = ["osversion", "mirrorurl", "include"];
/// A longer word is none of a package, a release or a server.
const LONGEST_WORD: usize = 128;
const LONGEST_ADDRESS: usize = 1024;
/// More packages than this belong in `%post`.
const MOST_PACKAGES: usize = 500;

/// Reads the values, each with its line; `line` is that of the stage.
pub(super) fn instruction<'a>(
    line: usize,
    value: impl Fn(&str) -> Option<(usize, &'a str)>,
) -> Result<DebootstrapInstruction, DockerfileError> {
    let needed = |key: &str, name: &str, hint: &str| match value(key) {
        Some((line, value)) if !value.is_empty() => Ok((line, value)),
        _ => Err(DockerfileError::new(line, format!("Bootstrap: debootstrap: no {name}")).hint(hint)),
    };
    let (at, suite) = needed("osversion", "OSVersion", "add a line such as `OSVersion: bookworm`")?;
    if !is_suite(suite) {
        return Err(DockerfileError::new(at, format!("OSVersion: {suite:?} is not the name of a release"))
            .hint("a name as `bookworm`: lowercase letters, digits, `-` and `.`"));
    }
    let (at, mirror) =
        needed("mirrorurl", "MirrorURL", "add a line such as `MirrorURL: http://deb.debian.org/debian`")?;
    if !is_mirror(mirror) {
        return Err(DockerfileError::new(
            at,
            format!("MirrorURL: {mirror:?} is not the address of a mirror"),
        )
        .hint("http:// or https://, a server and a path, without a user, a password, `?` or `#`"));
    }
    let (at, include) = value("include").unwrap_or((line, ""));
    let words = include.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let mut packages: Vec<String> = vec![];
    for word in words {
        if !is_package(word) {
            return Err(DockerfileError::new(at, format!("Include: {word:?} is not the name of a package"))
                .hint(
                    "names alone, without versions and options: lowercase letters, digits, `+`, `-` and `.`",
                ));
        }
        if packages.len() == MOST_PACKAGES {
            return Err(DockerfileError::new(at, format!("Include: more than {MOST_PACKAGES} packages"))
                .hint("install the others in %post"));
        }
        packages.push(word.into());
    }
    Ok(DebootstrapInstruction { suite: suite.into(), mirror: mirror.trim_end_matches('/').into(), packages })
}

fn is_word(word: &str, more: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    word.len() <= LONGEST_WORD
        && word.starts_with(is_plain)
        && word.chars().all(|c| is_plain(c) || more.contains(c))
}

fn is_suite(word: &str) -> bool {
    is_word(word, "-.") && !word.contains("..")
}

/// A name as Debian's policy has it (5.6.1). One with a hyphen at its end would be removed by apt.
fn is_package(word: &str) -> bool {
    word.len() >= 2 && is_word(word, "+-.") && !word.ends_with('-')
}

fn is_mirror(address: &str) -> bool {
    let Some(rest) = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://")) else {
        return false;
    };
    let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match server.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (server, None),
    };
    let of = |text: &str, more: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
    let is_port = |port: &str| port.parse::<u16>().is_ok() && of(port, "");
    address.len() <= LONGEST_ADDRESS
        && host.starts_with(|c: char| c.is_ascii_alphanumeric())
        && of(host, "-.")
        && port.is_none_or(is_port)
        && of(path, "-._~+/")
        && !path.split('/').any(|name| name == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(suite: &str, mirror: &str, include: &str) -> Result<DebootstrapInstruction, DockerfileError> {
        instruction(1, |key| {
            let (line, value) = match key {
                "osversion" => (2, suite),
                "mirrorurl" => (3, mirror),
                _ => (4, include),
            };
            Some((line, value))
        })
    }

    const MIRROR: &str = "http://deb.debian.org/debian/";

    #[test]
    fn words_are_names_and_addresses_and_nothing_else() {
        let read_all = read("bookworm-backports", MIRROR, "g++, libc6-dev  \n\tpython3.11,").expect("read");
        assert_eq!(read_all.suite, "bookworm-backports");
        assert_eq!(read_all.mirror, "http://deb.debian.org/debian");
        assert_eq!(read_all.packages, ["g++", "libc6-dev", "python3.11"]);
        for mirror in ["https://m.example", "http://10.0.0.1:3142/debian", "http://h/a~b/c+d_e.f"] {
            read("sid", mirror, "").expect(mirror);
        }
    }

    #[test]
    fn nothing_is_an_option_a_file_or_a_pattern() {
        let long = "a".repeat(200);
        for suite in
            ["", "--no-check-gpg", "-x", "a b", "../sid", "sid/x", "Sid", "a..b", "sid;id", "$x", &long]
        {
            let error = read(suite, MIRROR, "").expect_err(suite);
            assert!(error.what.contains("OSVersion"), "{error}");
        }
        for mirror in [
            "",
            "deb.debian.org/debian",
            "file:///srv/debian",
            "copy:/srv",
            "cdrom:[x]/",
            "ssh://h/debian",
            "-",
            "/etc/shadow",
            "deb [trusted=yes] http://h/debian",
            "http://h/debian sid main\ndeb [trusted=yes] http://h/x",
            "http://user:secret@h/debian",
            "http://h/debian?x=1",
            "http://h/debian#x",
            "http://h/a/../b",
            "http://h:99999/debian",
            "http://h:+80/debian",
            "http://h:/debian",
            "http:///debian",
            "http://-h/debian",
            "http://[::1]/debian",
            "HTTP://h/debian",
            "http://h/%2e%2e/x",
            "http://h/a,b",
            "http://h/ä",
        ] {
            let error = read("sid", mirror, "").expect_err(mirror);
            assert!(error.what.contains("MirrorURL"), "{mirror}: {error}");
        }
        for include in [
            "--allow-unauthenticated",
            "a",
            "./x.deb",
            "/tmp/x.deb",
            "hello-",
            "hello=1",
            "hello/sid",
            "?essential",
            "~i",
            "hello:i386",
            "Hello",
            "a;b",
            &long,
        ] {
            let error = read("sid", MIRROR, include).expect_err(include);
            assert!(error.what.contains("Include") && error.line == 4, "{include}: {error}");
            assert!(!error.hint.is_empty());
        }
        read("sid", MIRROR, &"ab ".repeat(501)).expect_err("too many");
    }
}
