//! Who asks registries for a pull: this process, or another one that has the network while this one has not.
//!
//! What two processes are for: whoever takes over the one that talks to servers can write nothing but layers as they came, of this user's;
//! whoever takes over the one that unpacks layers reaches nobody. So the second believes nothing that the first says of digests: it follows
//! the documents from the digest of the name to the layers, checks signatures, and hashes the very bytes that it unpacks. The first does
//! nothing for the second but ask for the one image that the user named.
//!
//! ```text
//! RemoteFetcher (the writer)                  serve (the fetcher)
//!   question, answer ...       <- socket ->     Client
//!   Want, Read, Settle         -> socket ->     Fetch: threads that bring blobs
//!   Growing, by events         <- socket <-
//!   bytes                      <- blobs/UID/* <-  (the page cache)
//! ```

mod blob;
mod local;
pub mod process;
mod protocol;
mod remote;
mod serve;

use skiff_image::blob::Blob;
use skiff_oci::digest::Digest;
use skiff_oci::hash::sha256_bytes;
use skiff_oci::manifest::Descriptor;
use skiff_oci::platform::Platform;
use skiff_oci::reference::Named;
use skiff_registry::policy::Signature;
use skiff_registry::{BlobDir, Origin, Resolved};
use skiff_spec::image::ImageId;

use crate::error::Result;

pub use protocol::{FetcherAnswer, FetcherQuestion, told};
pub use remote::RemoteFetcher;
pub use serve::serve;

/// The image that a registry's manifest stands for.
pub(crate) fn image_id(found: &Resolved) -> ImageId {
    ImageId(sha256_bytes(&found.manifest_bytes))
}

/// What a pull needs of registries.
pub trait Fetcher: Sync {
    /// The digest that a name has now.
    ///
    /// # Errors
    /// The image is not there, or its server cannot be asked.
    fn digest(&self, image: &Named) -> Result<Digest>;

    /// The image's manifest and configuration.
    ///
    /// # Errors
    /// It is not there, not for this platform, not sound, or its server cannot be asked.
    fn resolve(&self, image: &Named, platform: &Platform) -> Result<Resolved>;

    /// The signatures beside an image.
    ///
    /// # Errors
    /// Its server cannot be asked, or gives none that can be read.
    fn signatures(&self, found: &Resolved) -> Result<Vec<Signature>>;

    /// Where this image was found, if that can be an origin.
    fn origin(&self, found: &Resolved) -> Option<Origin>;

    /// The places of an image that could be origins, if the site's authorities vouch for them.
    fn claimed_origins(&self, found: &Resolved) -> Vec<Origin>;

    /// Has an origin show that it gives this user the manifest and these layers of it.
    ///
    /// # Errors
    /// It denies one of them, or cannot be reached.
    fn ask_origin(&self, found: &Resolved, origin: &Origin, layers: &[&Descriptor]) -> Result<()>;

    /// Begins to fetch all layers of an image into a directory.
    ///
    /// # Errors
    /// Threads cannot be started.
    fn fetch(&self, found: &Resolved, dir: BlobDir) -> Result<Box<dyn Fetching>>;
}

/// An image's layers while they are fetched.
pub trait Fetching: Sync {
    /// The layers, the lowest first.
    fn blobs(&self) -> Vec<&dyn Blob>;

    /// How many bytes of one of them are here.
    fn arrived(&self, layer: usize) -> u64;
}
