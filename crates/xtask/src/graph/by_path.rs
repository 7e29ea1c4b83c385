//! Code that acts on places another user could reach does so by descriptors (`TrustedDir`): a path that was checked and is resolved
//! again later may lead elsewhere by then.

use std::path::Path;

use anyhow::Context;

use super::lex::skipped;

/// Where root acts, or a user's process on a shared file system.
const BY_DESCRIPTOR: &[&str] = &[
    "crates/app/src/record.rs",
    "crates/env/src/deploy.rs",
    "crates/env/src/depot/background.rs",
    "crates/env/src/depot/keepers.rs",
    "crates/env/src/depot/uses.rs",
    "crates/env/src/depot_dir.rs",
    "crates/env/src/latest.rs",
    "crates/env/src/remove.rs",
    "crates/runtime/src/environments.rs",
    "crates/skiff/src/sweep.rs",
    "crates/slurm/src/job_dirs.rs",
    "crates/slurm/src/node.rs",
    "crates/slurm/src/trash.rs",
    "crates/snapshot/src/cache.rs",
    "crates/snapshot/src/collect.rs",
    "crates/snapshot/src/depot.rs",
    "crates/snapshot/src/file.rs",
    "crates/snapshot/src/remove.rs",
    "crates/user/src/dirs.rs",
    "crates/user/src/named.rs",
    "crates/user/src/scratch.rs",
];

/// Where records of the user's are read or written. A program of theirs may have put a named pipe in the place of each, since it sees their home.
const WITHOUT_WAITING: &[&str] = &[
    "crates/app/src/record.rs",
    "crates/checkpoint/src/member.rs",
    "crates/cluster/src/local/record.rs",
    "crates/instance/src/logs.rs",
    "crates/migrate/src/decision.rs",
    "crates/migrate/src/leaving.rs",
    "crates/runtime/src/environments.rs",
    "crates/runtime/src/host_changes/state.rs",
    "crates/runtime/src/lock.rs",
    "crates/runtime/src/package_database/mod.rs",
    "crates/runtime/src/record.rs",
    "crates/sandbox/src/adopt.rs",
    "crates/store/src/index.rs",
];

/// What opens a file and waits for whoever has its other end.
const WAITS: &[&str] = &["File::open", "fs::read", "fs::read_to_string"];

/// What is the kernel's, in `/proc`.
const EXCEPT: &[(&str, &str)] = &[("crates/snapshot/src/cache.rs", "fs::open")];

/// What takes a path, be it the standard library's or rustix's; words that end here.
const BY_PATH: &[&str] = &[
    "CWD",
    "DirBuilder",
    "File::create",
    "File::create_new",
    "File::open",
    "File::options",
    "OpenOptions",
    "chown",
    "fs::canonicalize",
    "fs::chmod",
    "fs::copy",
    "fs::create_dir",
    "fs::create_dir_all",
    "fs::exists",
    "fs::hard_link",
    "fs::metadata",
    "fs::open",
    "fs::read",
    "fs::read_dir",
    "fs::read_link",
    "fs::read_to_string",
    "fs::remove_dir",
    "fs::remove_dir_all",
    "fs::remove_file",
    "fs::rename",
    "fs::symlink",
    "fs::symlink_metadata",
    "fs::write",
    "lchown",
    "set_permissions",
    "std::fs::*",
    "std::fs::{",
];

/// Each use of such a thing in that code.
pub fn wrong(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut wrong = vec![];
    for file in BY_DESCRIPTOR {
        let path = root.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        for (line, word) in uses(&text).into_iter().filter(|(_, word)| !EXCEPT.contains(&(file, word))) {
            wrong
                .push(format!("{file}:{line}: {word} takes a path that others may exchange; use TrustedDir"));
        }
    }
    for file in WITHOUT_WAITING {
        let path = root.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        for (line, word) in uses(&text).into_iter().filter(|(_, word)| WAITS.contains(word)) {
            wrong.push(format!(
                "{file}:{line}: {word} waits where a named pipe was put; use skiff_sys::small_file"
            ));
        }
    }
    Ok(wrong)
}

/// Lines and words, not counting comments, literals and tests.
fn uses(text: &str) -> Vec<(usize, &'static str)> {
    let code = code_of(text);
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = vec![];
    for word in BY_PATH {
        for (at, _) in code.match_indices(word) {
            let ends = !word.ends_with(is_word) || !code[at + word.len()..].starts_with(is_word);
            if ends && !code[..at].ends_with(is_word) {
                found.push((code[..at].matches('\n').count() + 1, *word));
            }
        }
    }
    found.sort_unstable();
    found
}

/// The text with comments and literals left out, but for the ends of their lines.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        // A name may end in a letter that a literal begins with.
        let in_name = first.is_alphabetic() && (before.is_alphanumeric() || before == '_');
        let length = if in_name { 0 } else { skipped(rest) };
        let (out, next) = rest.split_at(length.max(first.len_utf8()));
        match length {
            0 => code.push_str(out),
            _ => code.extend(out.chars().filter(|c| *c == '\n')),
        }
        before = if length == 0 { first } else { ' ' };
        rest = next;
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_a_path_is_found() {
        let cases: &[(&str, &[(usize, &str)])] = &[
            ("let a = 1;\nfs::write(&path, text)?;", &[(2, "fs::write")]),
            ("std::fs::remove_dir_all(dir)", &[(1, "fs::remove_dir_all")]),
            ("use std::os::unix::fs::{chown, symlink};", &[(1, "chown")]),
            ("use std::os::unix::fs::symlink;", &[(1, "fs::symlink")]),
            ("use std::fs::{self, read};", &[(1, "std::fs::{")]),
            ("openat(CWD, path, flags, mode)", &[(1, "CWD")]),
            ("fs::File::open(p); fs::File::from(fd)", &[(1, "File::open")]),
            (
                "fs::set_permissions(p, m); file.set_permissions(m)",
                &[(1, "set_permissions"), (1, "set_permissions")],
            ),
            ("fchown(&dir, uid, gid)?; fchmod(&dir, mode)?; dir.read(name)", &[]),
            ("// fs::write(\n/* chown */ let a = \"CWD\"; let b = '\\''; // chown", &[]),
            ("fn f() {}\n#[cfg(test)]\nmod tests { fn g() { fs::write(a, b) } }", &[]),
            ("f(b\"CWD\"); let or = r\"chown\"; for\"x\"; CWD", &[(1, "CWD")]),
            ("fs::writer(); myfs::readable()", &[]),
        ];
        for (text, want) in cases {
            assert_eq!(&uses(text), want, "{text}");
        }
    }

    #[test]
    fn listed_code_is_there_and_sorted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert!(BY_DESCRIPTOR.is_sorted() && BY_PATH.is_sorted());
        assert!(WITHOUT_WAITING.is_sorted() && WAITS.iter().all(|word| BY_PATH.contains(word)));
        assert!(BY_DESCRIPTOR.iter().chain(WITHOUT_WAITING).all(|file| root.join(file).is_file()));
    }
}
