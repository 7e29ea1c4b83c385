//! Signatures as cosign makes them with a key: ECDSA over P-256 and SHA-256, beside the image in its repository.
//!
//! <https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md>

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use skiff_oci::digest::Digest;
use skiff_oci::manifest::Descriptor;
use skiff_oci::reference::Named;

use super::identity::IdentityMatch;
use crate::error::Result;
use crate::{Client, Resolved};

/// Of more than these, the rest is not looked at.
const MAX_SIGNATURES: usize = 64;
/// The media type of what is signed.
const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Where the signature of a payload stands.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// What a payload says it is.
const TYPE: &str = "cosign container image signature";
/// What precedes the point in the DER form of a P-256 key (RFC 5480): nothing else has it, so it need not be parsed.
const P256_SPKI: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A key that signatures are checked with.
#[derive(Debug, Clone)]
pub struct PublicKey(Vec<u8>);

impl PublicKey {
    /// From a PEM file, as `cosign generate-key-pair` and `openssl ec -pubout` write it.
    ///
    /// # Errors
    /// It holds none, or none on the curve P-256.
    pub fn from_pem(pem: &[u8]) -> Result<PublicKey, String> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|_| "it holds no PEM public key")?;
        match der.strip_prefix(&P256_SPKI) {
            Some(point) if point.len() == 65 => Ok(PublicKey(point.into())),
            _ => Err("it is no key on the curve P-256".into()),
        }
    }

    fn verifies(&self, payload: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.0).verify(payload, signature).is_ok()
    }
}

/// What was signed, and the signature; nothing of it is believed yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Signature {
    /// JSON that names an image.
    pub payload: Vec<u8>,
    /// In DER.
    pub signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
}

impl Client {
    /// The signatures of an image, and of the index that led to it: who signs an index signs all that it names.
    ///
    /// # Errors
    /// The registry cannot be asked, or gives a list of signatures that cannot be read.
    pub fn signatures(&self, image: &Resolved) -> Result<Vec<Signature>> {
        let mut signatures = vec![];
        let mut digests = vec![image.manifest_digest];
        digests.extend((image.digest != image.manifest_digest).then_some(image.digest));
        for digest in digests {
            let tag = format!("{}-{}.sig", digest.algorithm(), digest.hex());
            let object = format!("the signatures of {}", image.name);
            let Some(bytes) = self.beside(&image.source, &image.name, &tag)? else {
                continue;
            };
            let manifest: Manifest = serde_json::from_slice(&bytes)
                .map_err(|e| skiff_oci::Error::BadManifest { object: object.clone(), why: e.to_string() })?;
            let payloads = manifest.layers.iter().filter(|layer| layer.media_type == PAYLOAD);
            for layer in payloads.take(MAX_SIGNATURES) {
                let encoded = layer.annotations.get(SIGNATURE).map(String::as_str).unwrap_or_default();
                // One that cannot be read is none; another may count.
                let Ok(signature) = BASE64_STANDARD.decode(encoded) else { continue };
                let payload = self.small_blob(&image.source, &object, layer)?;
                signatures.push(Signature { payload, signature });
            }
        }
        Ok(signatures)
    }
}

#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Critical {
    #[serde(rename = "type")]
    kind: String,
    image: Image,
    identity: SignedIdentity,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: Digest,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedIdentity {
    #[serde(rename = "docker-reference")]
    reference: String,
}

/// What a payload says: the digest, and the name it was signed for.
///
/// # Errors
/// It is no payload, or has something critical that is not understood.
pub fn read_payload(payload: &[u8]) -> Result<(Digest, Named), String> {
    let Payload { critical } =
        serde_json::from_slice(payload).map_err(|e| format!("its payload is not understood ({e})"))?;
    if critical.kind != TYPE {
        return Err(format!("it is of the type {:?}", critical.kind));
    }
    let name = critical.identity.reference.parse().map_err(|e| format!("it is for no image ({e})"))?;
    Ok((critical.image.digest, name))
}

impl Signature {
    /// Whether it is one of these keys', for one of these digests, under a name that matches. Says why not.
    pub(super) fn holds(
        &self,
        keys: &[PublicKey],
        identity: &IdentityMatch,
        image: &Named,
        digests: &[Digest],
    ) -> Result<(), String> {
        // Before anything else: a payload that nobody signed is not even parsed.
        if !keys.iter().any(|key| key.verifies(&self.payload, &self.signature)) {
            return Err("it is not by one of the keys".into());
        }
        let (digest, name) = read_payload(&self.payload)?;
        if !digests.contains(&digest) {
            return Err(format!("it is for another image, {digest}"));
        }
        if !identity.matches(image, &name) {
            return Err(format!("it is for the name {name}"));
        }
        Ok(())
    }
}
