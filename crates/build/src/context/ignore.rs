//! `.dockerignore`: which files of the context a build does not see.

use std::cell::Cell;

use skiff_spec::fault::{Fault, Result};

use super::pattern::Pattern;

/// So many steps all comparisons of a list with paths may take: as many as a million usual paths and a hundred usual patterns need (64 each).
const MOST_STEPS: u64 = 7_000_000_000;

/// The lines of the file, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoreRules {
    /// What they are called in messages.
    of: &'static str,
    rules: Vec<Rule>,
    /// Steps that comparisons took.
    spent: Cell<u64>,
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
        Self::of_rules(".dockerignore", text.lines().filter_map(rule).collect())
    }

    /// The same of patterns, none of which is a remark.
    #[must_use]
    pub fn of_patterns(patterns: &[String]) -> Self {
        Self::of_rules("--exclude", patterns.iter().filter_map(|pattern| pattern_rule(pattern)).collect())
    }

    fn of_rules(of: &'static str, rules: Vec<Rule>) -> Self {
        Self { of, rules, spent: Cell::new(0) }
    }

    /// Whether the file at this path, or a directory that it is in, is left out.
    ///
    /// # Errors
    /// All comparisons together take too long.
    pub fn are_left_out(&self, path: &[u8]) -> Result<bool> {
        let mut is_out = false;
        for rule in &self.rules {
            // One that would change nothing need not be looked at.
            if rule.is_exception != is_out {
                continue;
            }
            let (is_for, steps) = rule.pattern.matches_part(path);
            self.spend(steps)?;
            if is_for {
                is_out = !rule.is_exception;
            }
        }
        Ok(is_out)
    }

    fn spend(&self, steps: u64) -> Result<()> {
        let spent = self.spent.get().saturating_add(steps);
        self.spent.set(spent);
        if spent <= MOST_STEPS {
            return Ok(());
        }
        Err(Fault::new(format!("{}: comparing its patterns with the files takes too long", self.of))
            .hint("use fewer patterns with `*`, or leave out whole directories by their names"))
    }

    /// Whether something in a directory that is left out may be seen all the same.
    #[must_use]
    pub fn have_exceptions(&self) -> bool {
        self.rules.iter().any(|rule| rule.is_exception)
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
            for (path, want) in
                out.iter().map(|path| (path, true)).chain(seen.iter().map(|path| (path, false)))
            {
                assert_eq!(rules.are_left_out(path.as_bytes()).ok(), Some(want), "{text:?} {path}");
            }
        }
    }

    #[test]
    fn a_list_that_takes_too_long_ends_the_build() {
        let rules = IgnoreRules::parse(&format!("**/{}b", "a*".repeat(100)));
        let name = "a".repeat(200);
        assert_eq!(rules.are_left_out(name.as_bytes()).ok(), Some(false));
        assert!(rules.spent.get() > 1000, "{:?}", rules.spent);
        rules.spent.set(MOST_STEPS - 1000);
        let fault = rules.are_left_out(name.as_bytes()).expect_err("too long");
        assert_eq!(fault.message, ".dockerignore: comparing its patterns with the files takes too long");
    }

    /// A list of 2.4 MB and 300 files took more than a minute.
    #[test]
    fn patterns_of_any_length_take_no_time() {
        let begun = std::time::Instant::now();
        let rules = IgnoreRules::parse(&format!("**/{}b\n", "a*".repeat(20_000)).repeat(60));
        for number in 0..300 {
            let name = format!("{}{number:03}", "a".repeat(197));
            assert_eq!(rules.are_left_out(name.as_bytes()).ok(), Some(false));
        }
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
