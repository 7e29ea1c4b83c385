//! Whether the name that was signed is the name that was asked for (containers-policy.json(5), `signedIdentity`). Pure.

use skiff_oci::reference::Named;

/// How the two names must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IdentityMatch {
    /// Repository and tag, or repository and digest.
    Exact,
    /// The repository where the image is asked for by digest, else repository and tag.
    RepoDigestOrExact,
    /// The repository.
    Repository,
    /// The signature must name just this.
    ExactReference(Named),
    /// The signature must name an image of this repository, `SERVER/PATH`.
    ExactRepository(String),
    /// As `RepoDigestOrExact`, after one beginning of the name asked for was replaced by another.
    Remap { prefix: String, signed_prefix: String },
}

impl IdentityMatch {
    /// Whether a signature for `signed` is one for `asked`.
    pub(super) fn matches(&self, asked: &Named, signed: &Named) -> bool {
        match self {
            IdentityMatch::Exact => exact(asked, signed),
            IdentityMatch::RepoDigestOrExact => repo_digest_or_exact(asked, &asked.name(), signed),
            IdentityMatch::Repository => asked.name() == signed.name(),
            IdentityMatch::ExactReference(only) => is_full(signed) && only == signed,
            IdentityMatch::ExactRepository(only) => *only == signed.name(),
            IdentityMatch::Remap { prefix, signed_prefix } => {
                let name = asked.name();
                let rest = name.strip_prefix(prefix).filter(|rest| {
                    rest.is_empty()
                        || rest.starts_with('/')
                        || (rest.starts_with(':') && !prefix.contains('/'))
                });
                let name = rest.map_or(name.clone(), |rest| format!("{signed_prefix}{rest}"));
                repo_digest_or_exact(asked, &name, signed)
            }
        }
    }
}

fn is_full(name: &Named) -> bool {
    name.tag().is_some() || name.digest().is_some()
}

fn exact(asked: &Named, signed: &Named) -> bool {
    is_full(asked) && asked == signed
}

fn repo_digest_or_exact(asked: &Named, name: &str, signed: &Named) -> bool {
    let same_image = match asked.digest() {
        // The digest that was signed is compared with the image's anyway.
        Some(_) => true,
        None => asked.tag().is_some() && asked.tag() == signed.tag() && signed.digest().is_none(),
    };
    same_image && name == signed.name()
}
