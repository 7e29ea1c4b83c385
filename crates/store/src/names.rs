//! Which of a user's images a text means.

use skiff_oci::reference::ImageReference;
use skiff_user::context::UserContext;

use crate::error::{Error, Result};
use crate::file::{ImageFile, parse};
use crate::index::{ImageName, Names};

/// What names an image as a base: `image:REF`.
pub const PREFIX: &str = "image:";
/// An image is also found by this many digits of its id.
const FEWEST_DIGITS: usize = 8;

/// The image that the user means: one they have pulled or imported.
pub fn find(context: &UserContext, text: &str) -> Result<ImageName> {
    known(context, text)?.ok_or_else(|| Error::NotPulled(text.into()))
}

/// The image that the user means, or nothing if they have none of that name.
pub fn known(context: &UserContext, text: &str) -> Result<Option<ImageName>> {
    meant(&Names::of(context)?, text)
}

fn meant(names: &Names, text: &str) -> Result<Option<ImageName>> {
    if let Some(entry) = by_digits(names, text)? {
        return Ok(Some(entry));
    }
    if let Some(file) = ImageFile::of(text) {
        return names.find(&file.name)?.map(Some).ok_or_else(|| Error::NotImported(text.into()));
    }
    for name in full_names(&parse(text)?, text) {
        if let Some(entry) = names.find(&name)? {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

fn by_digits(names: &Names, text: &str) -> Result<Option<ImageName>> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    if digits.len() < FEWEST_DIGITS || !digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(None);
    }
    let all = names.all()?;
    let mut found: Vec<&ImageName> = all.iter().filter(|e| e.id.to_string().starts_with(digits)).collect();
    found.dedup_by_key(|e| e.id);
    match found[..] {
        [] => Ok(None),
        [entry] => Ok(Some(entry.clone())),
        _ => Err(Error::Ambiguous(digits.into())),
    }
}

/// Under which names an image may have been imported or pulled. What the user has imported themselves they mean first.
fn full_names(reference: &ImageReference, text: &str) -> Vec<String> {
    match reference {
        ImageReference::Registry(named) => vec![named.clone().with_default_tag().to_string()],
        ImageReference::Artifact(named) => {
            vec![ImageReference::Artifact(named.clone().with_default_tag()).to_string()]
        }
        ImageReference::Short(short) => {
            [short.local(), short.at_docker_hub()].map(|name| name.with_default_tag().to_string()).into()
        }
        _ => vec![text.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use skiff_spec::image::ImageId;

    use super::*;

    #[test]
    fn images_are_found_by_what_users_call_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let images = dir.path().join("images");
        let none = Names::in_dir(images.clone()).expect("no names yet");
        assert!(matches!(meant(&none, "debian:12"), Ok(None)));
        let id = |first: u8, last: u8| {
            let mut id = [first; 32];
            id[31] = last;
            ImageId(id)
        };
        for (reference, id) in [
            ("docker.io/library/debian:12", id(0xaa, 1)),
            ("docker.io/library/debian:13", id(0xaa, 2)),
            ("site.example/tool:latest", id(0xbb, 1)),
            ("site.example/same:latest", id(0xbb, 1)),
            ("/no/such/x.sqsh", id(0xcc, 1)),
        ] {
            none.put(&ImageName::of_test(reference, id)).expect("noted");
        }
        let names = Names::in_dir(images).expect("names");
        let found = |text: &str| meant(&names, text).map(|entry| entry.map(|entry| entry.reference));
        for (text, reference) in [
            ("debian:12", Some("docker.io/library/debian:12")),
            ("docker.io/library/debian:13", Some("docker.io/library/debian:13")),
            ("debian", None),
            ("site.example/tool", Some("site.example/tool:latest")),
            ("/no/such/x.sqsh", Some("/no/such/x.sqsh")),
            ("cccccccc", Some("/no/such/x.sqsh")),
            ("sha256:cccccccc", Some("/no/such/x.sqsh")),
            // Too few digits; and of one image with two names either will do.
            ("ccccccc", None),
            ("bbbbbbbb", Some("site.example/same:latest")),
        ] {
            assert_eq!(found(text).expect(text).as_deref(), reference, "{text}");
        }
        assert!(matches!(found("aaaaaaaa"), Err(Error::Ambiguous(digits)) if digits == "aaaaaaaa"));
        assert!(
            matches!(found("/no/such/y.sqsh"), Err(Error::NotImported(file)) if file == "/no/such/y.sqsh")
        );
        assert!(matches!(found("Debian"), Err(Error::Reference(_))));
    }
}
