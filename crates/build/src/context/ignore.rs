//! `.dockerignore`: which files of the context a build does not see.

use super::pattern::Pattern;

/// The lines of the file, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoreRules {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    pattern: Pattern,
    /// Whether it takes back what rules before it say.
    is_exception: bool,
}

impl IgnoreRules {
    /// Reads the file. Each line is a pattern; the last one that is meant decides.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { rules: text.lines().filter_map(rule).collect() }
    }

    /// The same of patterns, none of which is a remark.
    #[must_use]
    pub fn of_patterns(patterns: &[String]) -> Self {
        Self { rules: patterns.iter().filter_map(|pattern| pattern_rule(pattern)).collect() }
    }

    /// Whether the file at this path, or a directory that it is in, is left out.
    #[must_use]
    pub fn are_left_out(&self, path: &[u8]) -> bool {
        let mut is_out = false;
        for rule in &self.rules {
            // One that would change nothing need not be looked at.
            if rule.is_exception == is_out && rule.is_for(path) {
                is_out = !rule.is_exception;
            }
        }
        is_out
    }

    /// Whether something in a directory that is left out may be seen all the same.
    #[must_use]
    pub fn have_exceptions(&self) -> bool {
        self.rules.iter().any(|rule| rule.is_exception)
    }
}

impl Rule {
    fn is_for(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).any(|end| self.pattern.matches(&path[..end]))
    }
}

fn rule(line: &str) -> Option<Rule> {
    if line.starts_with('#') { None } else { pattern_rule(line) }
}

fn pattern_rule(line: &str) -> Option<Rule> {
    let line = line.trim();
    let (line, is_exception) = line.strip_prefix('!').map_or((line, false), |line| (line.trim(), true));
    let mut names: Vec<&str> = vec![];
    for name in line.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    let text = names.join("/");
    (!text.is_empty()).then(|| Rule { pattern: Pattern::of_path(text.as_bytes()), is_exception })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_dockers() {
        for (text, out, seen) in [
            ("*.md\n!README.md", vec!["a.md"], vec!["README.md", "x/a.md", "a.txt"]),
            ("*.md\n!README*.md\nREADME-secret.md", vec!["README-secret.md"], vec!["README.md"]),
            ("*.md\nREADME-secret.md\n!README*.md", vec!["x.md"], vec!["README.md", "README-secret.md"]),
            ("*/temp*", vec!["a/temp", "a/temporary.txt", "a/temp/x"], vec!["temp", "a/b/temp"]),
            ("*/*/temp*", vec!["a/b/temp"], vec!["a/temp"]),
            ("temp?", vec!["tempa"], vec!["temp", "tempab"]),
            ("**/*.go", vec!["a.go", "x/y/a.go"], vec!["a.gox"]),
            ("/dir/", vec!["dir", "dir/a"], vec!["x/dir"]),
            ("# dir\n\n  dir  ", vec!["dir"], vec!["# dir"]),
            ("dir\n!dir/keep", vec!["dir", "dir/a"], vec!["dir/keep", "dir/keep/x"]),
            ("**\n!a/b", vec!["x", "a", "a/c"], vec!["a/b"]),
            ("./a/../b", vec!["b"], vec!["a"]),
            ("", vec![], vec!["a"]),
            (".", vec![], vec!["a"]),
        ] {
            let rules = IgnoreRules::parse(text);
            out.iter().for_each(|path| assert!(rules.are_left_out(path.as_bytes()), "{text:?} {path}"));
            seen.iter().for_each(|path| assert!(!rules.are_left_out(path.as_bytes()), "{text:?} {path}"));
        }
    }
}
