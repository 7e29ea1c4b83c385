//! The known name that somebody may have meant who wrote another one.

/// More slips than these are another word.
const MOST_SLIPS: usize = 3;

/// How many slips are between what was written and a name (letters left out, added, wrong, or two exchanged; capitals are none). Nothing if these are
/// too many for its length.
#[must_use]
pub fn slips(written: &str, name: &str) -> Option<usize> {
    let length = written.chars().count();
    let most = MOST_SLIPS.min(length.div_ceil(3));
    // What was written may be of any length, and comparing takes time.
    if length.abs_diff(name.chars().count()) > most {
        return None;
    }
    let slips = strsim::osa_distance(&written.to_lowercase(), &name.to_lowercase());
    (slips <= most).then_some(slips)
}

/// The nearest of some names to what was written, if it has only a few slips for its length.
pub fn nearest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.into_iter().filter_map(|name| Some((slips(written, name)?, name)));
    near.min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::{nearest, slips};

    #[test]
    fn slips_are_few_for_the_length() {
        let long = "x".repeat(1 << 20);
        for (written, name, want) in [
            ("image", "image", Some(0)),
            ("Image", "image", Some(0)),
            ("imag", "image", Some(1)),
            ("iamge", "image", Some(1)),
            ("library", "libraries", Some(3)),
            ("env", "var", None),
            ("x", "env", None),
            ("", "env", None),
            (&*long, "env", None),
        ] {
            assert_eq!(slips(written, name), want, "{name}");
        }
    }

    #[test]
    fn the_nearest_is_the_one_with_the_fewest_slips() {
        for (written, want) in [("mount", Some("mounts")), ("amount", Some("mounts")), ("devices", None)] {
            assert_eq!(nearest(written, ["env", "mounts"]), want, "{written}");
        }
    }
}
