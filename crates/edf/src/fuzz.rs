//! For fuzz targets.

use std::path::Path;

use crate::{Definition, DefinitionContext};

/// Reads bytes as a definition; those that it builds upon are the same bytes again, up to a depth.
///
/// # Panics
/// When what was read is not as a definition must be.
pub fn edf(bytes: &[u8]) {
    let read = |path: &Path| match path.as_os_str().len() {
        0..100 => Ok(bytes.to_vec()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    let variable = |name: &str| (name.len() < 6).then(|| "${NESTED}".into());
    let context = DefinitionContext { variable: &variable, home: "/home/alice".into(), read: &read };
    let Ok(found) = Definition::read("/x/definition.toml", &context) else { return };
    for mount in &found.mounts {
        assert!(mount.source.starts_with(['/', '.']) && mount.target.starts_with('/'), "{mount:?}");
        let of_target = found.mounts.iter().filter(|other| other.target == mount.target);
        assert_eq!(of_target.count(), 1, "each target once: {mount:?}");
    }
    assert!(found.workdir.is_none_or(|dir| dir.is_absolute()));
    for value in found.env.values() {
        drop(value.fill(&|_| Some(String::new())).map(|text| assert!(!text.contains('\0'))));
    }
}

#[cfg(test)]
mod tests {
    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            lines in proptest::collection::vec("(image|mounts|env|workdir|base_environment|annotations|x)? ?=? ?(\"[/a:${}-]{0,12}\"|\\[\"/a:/b\", \"/\\$\\{A\\}\"\\]|true|1|\\{ a = \"b\" \\})?", 0..6)
        ) {
            super::edf(lines.join("\n").as_bytes());
        }
    }
}
