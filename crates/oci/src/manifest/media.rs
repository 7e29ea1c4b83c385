//! The media types of registries: which documents are understood, and how layers are packed.

/// What we say we understand when asking for a manifest.
pub const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// What a layer's tar stream is packed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Nothing.
    Plain,
    /// gzip (RFC 1952).
    Gzip,
    /// Zstandard (RFC 8878).
    Zstd,
}

impl Compression {
    /// The media type of a layer that is packed so.
    #[must_use]
    pub fn layer_type(self) -> &'static str {
        match self {
            Compression::Plain => "application/vnd.oci.image.layer.v1.tar",
            Compression::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Compression::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }
}

/// What a document says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DocumentType {
    Manifest,
    Index,
    /// The document does not say; OCI allows that.
    Untold,
}

/// By what the document says it is and what the server says it is, which must not disagree.
pub(super) fn document_type(own: &str, told: Option<&str>) -> Result<DocumentType, String> {
    let told = told.map_or("", |told| told.split(';').next().unwrap_or_default().trim());
    match (type_of(own), type_of(told)) {
        (None, _) => Err(format!("its media type {own:?} is none of an image")),
        (Some(DocumentType::Untold), told) => Ok(told.unwrap_or(DocumentType::Untold)),
        (Some(own), None | Some(DocumentType::Untold)) => Ok(own),
        (Some(one), Some(other)) if one == other => Ok(one),
        _ => Err(format!("it says it is {own:?}, the server says it is {told:?}")),
    }
}

fn type_of(media_type: &str) -> Option<DocumentType> {
    match media_type {
        "" | "application/json" | "application/octet-stream" | "text/plain" => Some(DocumentType::Untold),
        "application/vnd.oci.image.manifest.v1+json"
        | "application/vnd.docker.distribution.manifest.v2+json" => Some(DocumentType::Manifest),
        "application/vnd.oci.image.index.v1+json"
        | "application/vnd.docker.distribution.manifest.list.v2+json" => Some(DocumentType::Index),
        _ => None,
    }
}

/// What the layer is packed with, or why it is no layer.
pub(super) fn layer_kind(media_type: &str) -> Result<Compression, String> {
    match media_type {
        "application/vnd.docker.image.rootfs.diff.tar.gzip"
        | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
        | "application/vnd.oci.image.layer.v1.tar+gzip"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip" => Ok(Compression::Gzip),
        "application/vnd.docker.image.rootfs.diff.tar.zstd"
        | "application/vnd.oci.image.layer.v1.tar+zstd"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd" => Ok(Compression::Zstd),
        "application/vnd.docker.image.rootfs.diff.tar"
        | "application/vnd.docker.image.rootfs.foreign.diff.tar"
        | "application/vnd.oci.image.layer.v1.tar"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar" => Ok(Compression::Plain),
        encrypted if encrypted.ends_with("+encrypted") => Err("its layers are encrypted".into()),
        other => Err(format!(
            "it has a layer of media type {other:?}: it is not an image, but something else kept in a registry"
        )),
    }
}
