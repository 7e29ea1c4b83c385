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

/// The same of a snapshot that an environment's history names. Submitting again does not complete such a snapshot.
pub fn of_history(e: skiff_snapshot::Error, name: &EnvName, revision: &Revision) -> Error {
    use skiff_snapshot::Error::{BadLayer, BadManifest, Missing};
    if !matches!(e, BadLayer { .. } | BadManifest { .. } | Missing { .. }) {
        return ours(e);
    }
    let others =
        format!("`skiff env history {name}` marks those that are damaged or removed: name another one");
    let hint = match revision {
        Revision::Tag(tag) => {
            format!("{others}; `skiff env tag --remove {name}{AT}{tag}` takes the tag away")
        }
        _ => others,
    };
    // Of a tag nobody knows the id by heart, and of a layer only Skiff knows the name.
    let state = match &e {
        Missing { what, .. } if what.starts_with("snapshot") => "was removed",
        Missing { .. } => "is incomplete",
        _ => "is damaged",
    };
    Error::new(format!("snapshot {name}{AT}{revision} {state}: {e}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_done_about_a_tag_is_said() {
        let missing =
            || skiff_snapshot::Error::Missing { what: "a part of snapshot 12".into(), depot: "/d".into() };
        let name = "dev".parse().expect("a name");
        let fault = |revision: &str| of_history(missing(), &name, &revision.parse().expect("a revision"));
        let hint = |revision: &str| fault(revision).hint;
        let said = "snapshot dev@good is incomplete: a part of snapshot 12 is not in the depot /d";
        assert_eq!(fault("good").message, said);
        let tag = hint("good");
        assert!(tag.contains("`skiff env tag --remove dev@good`"), "{tag}");
        assert!(!tag.contains("submit again"), "{tag}");
        assert!(!hint("~2").contains("tag --remove"));
    }
}
