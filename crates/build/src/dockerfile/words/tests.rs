//! Words of instructions, as BuildKit's own tables have them.

use super::*;

fn value(name: &str) -> Option<String> {
    let known =
        [("PWD", "/home"), ("NULL", ""), ("1", "one"), ("1x", "wrong"), ("KOREAN", "한국어"), ("abc", "bar")];
    known.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
}

/// The facts are those of BuildKit's own table of variables.
#[test]
fn words_are_buildkits() {
    for (word, want) in [
        ("hello", "hello"),
        ("he'll'o", "hello"),
        ("he'll''o'", "hello"),
        (r"he\'llo", "he'llo"),
        (r"he\\'llo'", r"he\llo"),
        (r"abc\tdef", "abctdef"),
        (r#""abc\tdef""#, r"abc\tdef"),
        (r#""abc\\tdef""#, r"abc\tdef"),
        (r"'abc\tdef'", r"abc\tdef"),
        (r#""he\"llo""#, "he\"llo"),
        (r#"'he\"llo'"#, r#"he\"llo"#),
        ("'hello there'", "hello there"),
        ("''", ""),
        (r#""""#, ""),
        ("he$PWD.", "he/home."),
        (r"he\$PWD", "he$PWD"),
        (r"he\\$PWD", r"he\/home"),
        ("he$PWD$PWD", "he/home/home"),
        (r#""he$PWD""#, "he/home"),
        ("'he$PWD'", "he$PWD"),
        (r#""he\$PWD""#, "he$PWD"),
        ("he$hi", "he"),
        ("he${hi}", "he"),
        ("he${PWD}x", "he/homex"),
        ("he${XXX:-000}xx", "he000xx"),
        ("he${PWD:-000}xx", "he/homexx"),
        ("he${XXX:-$PWD}xx", "he/homexx"),
        ("he${XXX:-${PWD:-yyy}}xx", "he/homexx"),
        ("he${XXX:-${YYY:-yyy}}xx", "heyyyxx"),
        ("he${NULL:-def}xx", "hedefxx"),
        ("he${NULL-def}xx", "hexx"),
        ("he${XXX-def}xx", "hedefxx"),
        ("he${XXX:+000}xx", "hexx"),
        ("he${PWD:+000}xx", "he000xx"),
        ("he${NULL:+000}xx", "hexx"),
        ("he${NULL+000}xx", "he000xx"),
        ("he${PWD:+${XXX:-alt}}xx", "healtxx"),
        ("he${XXX:-'a b'}", "hea b"),
        ("${PWD:?no}", "/home"),
        ("${NULL?no}", ""),
        ("$1x", "onex"),
        ("$.x", "$.x"),
        ("he$", "he$"),
        ("he\\", "he"),
        ("안녕$KOREAN", "안녕한국어"),
        ("$abc,$def", "bar,"),
        (r"\${foo}", "${foo}"),
    ] {
        assert_eq!(expand(word, '\\', &value).as_deref(), Ok(want), "{word}");
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    for word in [
        "'",
        "he'llo",
        "\"x",
        "${",
        "${}",
        "${PWD",
        "${PWD:",
        "${PWD:}",
        "${PWD:-x",
        "${.x}",
        "${PWD x}",
        "${XXX:?}",
        "${NULL:?no}",
        "${PWD=x}",
        "${PWD:=x}",
        "${PWD=}",
        "${PWD#x",
        "${PWD#\\x}",
        "${PWD/a}",
        "${PWD//a}",
        "${PWD//}",
        "${PWD/a/b",
        "${{PWD}",
        "${:}",
        "${:x}",
    ] {
        assert!(expand(word, '\\', &value).is_err(), "{word}");
    }
    assert_eq!(expand(&"${A:-".repeat(100_000), '\\', &value), Err(WordError::Nested));
    let missing = expand("${XXX:?set it}", '\\', &value).expect_err("missing").to_string();
    assert_eq!(missing, "variable XXX: set it");
}

#[test]
fn texts_keep_their_quotes() {
    assert_eq!(expand_text("it's \"$PWD\" \\$PWD\n", '\\', &value).as_deref(), Ok("it's \"/home\" $PWD\n"));
}

#[test]
fn another_escape_character() {
    assert_eq!(expand(r"c:\dir`$x", '`', &value).as_deref(), Ok(r"c:\dir$x"));
}

#[test]
fn quotes_keep_whitespace_in_a_word() {
    for (text, want) in [
        ("a=1  b='x y'", vec!["a=1", "b='x y'"]),
        (r"a=x\ y b", vec![r"a=x\ y", "b"]),
        (r#"a="x \" y" b"#, vec![r#"a="x \" y""#, "b"]),
        (r"a='\' b", vec![r"a='\'", "b"]),
        ("", vec![]),
        (" \t ", vec![]),
    ] {
        assert_eq!(split_quoted(text, '\\'), want, "{text}");
    }
}

/// The facts are those of BuildKit's own table of substitutions.
#[test]
fn substitutions_are_buildkits() {
    for (word, values, want) in [
        (r"${FOO#()[]{\}^$.\*\?|\\}", vec![("FOO", r"()[]{}^$.*?|\x")], "x"),
        (r"${FOO%%\**}", vec![("FOO", "xx**")], "xx"),
        ("${FOO#*x*y}", vec![("FOO", "xxyy")], "y"),
        ("${FOO#*}", vec![("FOO", "xxyy")], "xxyy"),
        ("${FOO#$BAR}", vec![("FOO", "xxyy"), ("BAR", "x")], "xyy"),
        ("${FOO#$BAR}", vec![("FOO", "xxyy"), ("BAR", "")], "xxyy"),
        ("${FOO#}", vec![("FOO", "xxyy")], "xxyy"),
        ("${FOO##*x}", vec![("FOO", "xxyy")], "yy"),
        ("${FOO##}", vec![("FOO", "xxyy")], "xxyy"),
        (r"${FOO#?\?}", vec![("FOO", "???y")], "?y"),
        ("${ABC:-.}${FOO%x}${ABC:-.}", vec![("FOO", "xxyy")], ".xxyy."),
        (r"${FOO%%\**\*}", vec![("FOO", "a***yy*")], "a"),
        ("${FOO%}", vec![("FOO", "xxyy")], "xxyy"),
        ("${FOO%%$BAR}", vec![("FOO", "xxyy"), ("BAR", "")], "xxyy"),
        (
            "${FOO/$NEEDLE/.} - ${FOO//$NEEDLE/.}",
            vec![("FOO", "/foo*/*/*.txt"), ("NEEDLE", r"\*/")],
            "/foo.*/*.txt - /foo..*.txt",
        ),
        (
            "${FOO/$NEEDLE/} - ${FOO//$NEEDLE/}",
            vec![("FOO", "/tmp/tmp/bar.txt"), ("NEEDLE", "/tmp")],
            "/tmp/bar.txt - /bar.txt",
        ),
        (
            "${FOO/$NEEDLE/$TEXT} - ${FOO//$NEEDLE/$TEXT}",
            vec![("FOO", "/a/foo/b/c.txt"), ("NEEDLE", "/?/"), ("TEXT", "/")],
            "/foo/b/c.txt - /foo/c.txt",
        ),
        (
            "${FOO/$NEEDLE/$TEXT}",
            vec![("FOO", "http://google.de"), ("NEEDLE", "http://"), ("TEXT", "https://")],
            "https://google.de",
        ),
        (r"${FOO//\//\/}", vec![("FOO", "/tmp/foo.txt")], r"\/tmp\/foo.txt"),
        ("${FOO/$BAR/ww}", vec![("FOO", "xxyy"), ("BAR", "")], "wwxxyy"),
        ("${FOO///}", vec![("FOO", "xxyy")], "xxyy"),
        ("${FOO///}", vec![], ""),
        ("${FOO%.tar.*}-${FOO##*.}", vec![("FOO", "a.tar.gz")], "a-gz"),
        ("${FOO##*/}", vec![("FOO", "/usr/lib/x.so")], "x.so"),
        ("${FOO%/*}", vec![("FOO", "/usr/lib/x.so")], "/usr/lib"),
        ("${FOO#*ö}", vec![("FOO", "aößöb")], "ßöb"),
        (
            "x-${V}.${OS}-${ARCH}${VARIANT:+-${VARIANT}}.gz",
            vec![("V", "v1"), ("OS", "linux"), ("ARCH", "arm"), ("VARIANT", "v7")],
            "x-v1.linux-arm-v7.gz",
        ),
    ] {
        let value = |name: &str| {
            values.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(expand(word, '\\', &value).as_deref(), Ok(want), "{word} {values:?}");
    }
}

#[test]
fn nothing_takes_too_long() {
    let value = |_: &str| Some("a".repeat(10_000));
    assert_eq!(expand("${A#*b}", '\\', &value), Err(WordError::Pattern(PatternError::TooLong)));
    let value = |_: &str| Some("a".repeat(1000));
    let word = format!("${{A//{}b/x}}", "*a".repeat(60));
    assert_eq!(expand(&word, '\\', &value).map(|text| text.len()), Ok(1000));
}
