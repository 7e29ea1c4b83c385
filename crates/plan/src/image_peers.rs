//! Where an image is to be had beside the places that its name says.

use std::fs::File;

use skiff_spec::image::ImageId;
use skiff_store::client::PullMirror;
use skiff_user::context::UserContext;

/// The other nodes of a job, as far as an image can be had from them.
pub trait ImagePeers {
    /// Where to ask for an image before its registry, if there is somebody who answers.
    fn mirror(&self) -> Option<PullMirror>;

    /// The bytes of an image's file, by its SHA-256 and length; nothing where it is to be read where it lies.
    fn file(&self, context: &UserContext, digest: ImageId, length: u64) -> Option<File>;
}
