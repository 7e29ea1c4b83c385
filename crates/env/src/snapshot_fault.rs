//! Errors of snapshots, the depot and caches as the command line shows them.

use skiff_spec::fault::Fault as Error;
use skiff_spec::name::EnvName;
use skiff_spec::revision::{AT, Revision};

/// An error of the environment's contents, as the command line shows it.
pub fn ours(e: skiff_snapshot::Error) -> Error {
    match e {
        skiff_snapshot::Error::Untrusted(e) => e.into(),
        e => {
            let hint = e.hint().unwrap_or_default();
            Error::new(e.to_string()).hint(hint)
        }
    }
}

/// The same of a snapshot that an environment's history names. Submitting again makes no such snapshot whole.
pub fn of_history(e: skiff_snapshot::Error, name: &EnvName, revision: &Revision) -> Error {
    use skiff_snapshot::Error::{BadLayer, BadManifest, Missing};
    if !matches!(e, BadLayer { .. } | BadManifest { .. } | Missing { .. }) {
        return ours(e);
    }
    let others = format!("`skiff env history {name}` marks those that are damaged: name another one");
    let hint = match revision {
        Revision::Tag(tag) => {
            format!("{others}; `skiff env tag --remove {name}{AT}{tag}` takes the tag away")
        }
        _ => others,
    };
    Error::new(e.to_string()).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_done_about_a_tag_is_said() {
        let missing =
            || skiff_snapshot::Error::Missing { what: "a part of snapshot 12".into(), depot: "/d".into() };
        let name = "dev".parse().expect("a name");
        let hint = |revision: &str| of_history(missing(), &name, &revision.parse().expect("a revision")).hint;
        let tag = hint("good");
        assert!(tag.contains("`skiff env tag --remove dev@good`"), "{tag}");
        assert!(!tag.contains("submit again"), "{tag}");
        assert!(!hint("~2").contains("tag --remove"));
    }
}
