//! Which of a user's images a text means.

use skiff_oci::reference::ImageReference;
use skiff_user::context::Context;

use crate::error::{Error, Result};
use crate::file::{ImageFile, parse};
use crate::index::{Entry, Names};

/// What names an image as a base: `image:REF`.
pub const PREFIX: &str = "image:";
/// An image is also found by this many digits of its id.
const FEWEST_DIGITS: usize = 8;

/// The image that the user means: one they have pulled or imported.
pub fn find(context: &Context, text: &str) -> Result<Entry> {
    known(context, text)?.ok_or_else(|| Error::NotPulled(text.into()))
}

/// Likewise, if there is one.
pub fn known(context: &Context, text: &str) -> Result<Option<Entry>> {
    let names = Names::of(context)?;
    if let Some(entry) = by_digits(&names, text)? {
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

fn by_digits(names: &Names, text: &str) -> Result<Option<Entry>> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    if digits.len() < FEWEST_DIGITS || !digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(None);
    }
    let all = names.all()?;
    let mut found: Vec<&Entry> = all.iter().filter(|e| e.id.to_string().starts_with(digits)).collect();
    found.dedup_by_key(|e| e.id);
    match found[..] {
        [] => Ok(None),
        [entry] => Ok(Some(entry.clone())),
        _ => Err(Error::Ambiguous(digits.into())),
    }
}

/// Under which names an image may have been pulled, the likeliest first.
fn full_names(reference: &ImageReference, text: &str) -> Vec<String> {
    match reference {
        ImageReference::Registry(named) => vec![named.clone().with_default_tag().to_string()],
        ImageReference::Short(short) => vec![short.at_docker_hub().with_default_tag().to_string()],
        _ => vec![text.to_owned()],
    }
}
