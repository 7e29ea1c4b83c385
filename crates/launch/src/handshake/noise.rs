//! What `snow` computes Noise with: `ring`'s random bytes, SHA-256 and AES-256-GCM, and `curve25519-dalek`'s X25519. (`ring` lets nobody
//! keep its private keys, as Noise must. `snow`'s own way to `ring` would bring a second SHA-2, AES, BLAKE2 and source of random bytes.)

use curve25519_dalek::MontgomeryPoint;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};

use super::{HandshakeError, SharedSecret};

/// Bytes by which a message is longer than what is in it.
pub(crate) const TAG: usize = 16;

/// Without a static key on either side; the pre-shared key goes in first.
const WITH_SECRET: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Where nobody but the two can change what goes between them, but others may read it.
const WITHOUT: &str = "Noise_NN_25519_AESGCM_SHA256";

/// Who speaks first.
pub(crate) fn initiator(purpose: &[u8], secret: Option<&SharedSecret>) -> Result<HandshakeState, Error> {
    builder(purpose, secret)?.build_initiator()
}

/// Who answers.
pub(crate) fn responder(purpose: &[u8], secret: Option<&SharedSecret>) -> Result<HandshakeState, Error> {
    builder(purpose, secret)?.build_responder()
}

pub(super) fn builder<'a>(purpose: &'a [u8], secret: Option<&'a SharedSecret>) -> Result<Builder<'a>, Error> {
    let pattern = if secret.is_some() { WITH_SECRET } else { WITHOUT };
    let builder = Builder::with_resolver(pattern.parse()?, Box::new(Primitives)).prologue(purpose)?;
    match secret {
        Some(secret) => builder.psk(0, secret.bytes()),
        None => Ok(builder),
    }
}

/// What can go wrong where nothing of the other side's has been read: all else is fixed above.
pub(crate) fn own_fault(_: Error) -> HandshakeError {
    HandshakeError::NoRandomBytes
}

pub(crate) struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(RandomBytes(SystemRandom::new())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::<X25519>::default() as _)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::<Sha256>::default() as _)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(Aes256Gcm(None)) as _)
    }
}

struct RandomBytes(SystemRandom);

impl Random for RandomBytes {
    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), Error> {
        self.0.fill(to).map_err(|_| Error::Rng)
    }
}

/// RFC 7748.
#[derive(Default)]
struct X25519 {
    private: [u8; 32],
    public: [u8; 32],
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        self.public.len()
    }

    fn priv_len(&self) -> usize {
        self.private.len()
    }

    fn set(&mut self, private: &[u8]) {
        self.private.copy_from_slice(private);
        self.public = MontgomeryPoint::mul_base_clamped(self.private).to_bytes();
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut private = [0; 32];
        rng.try_fill_bytes(&mut private)?;
        self.set(&private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        // snow keeps room for the longest keys there are.
        let public = public.first_chunk::<32>().ok_or(Error::Dh)?;
        let shared = MontgomeryPoint(*public).mul_clamped(self.private);
        out.get_mut(..32).ok_or(Error::Dh)?.copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

struct Sha256(digest::Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }
}

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        digest::SHA256.block_len()
    }

    fn hash_len(&self) -> usize {
        digest::SHA256_OUTPUT_LEN
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..digest::SHA256_OUTPUT_LEN].copy_from_slice(self.0.clone().finish().as_ref());
    }
}

/// The key, once there is one.
struct Aes256Gcm(Option<LessSafeKey>);

impl Aes256Gcm {
    /// Noise, section 12.3: 32 zero bits, then the counter, big-endian.
    fn nonce(counter: u64) -> Nonce {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&counter.to_be_bytes());
        Nonce::assume_unique_for_key(bytes)
    }

    /// Noise asks for nothing before it has set a key.
    fn key(&self) -> &LessSafeKey {
        self.0.as_ref().expect("a key is set first")
    }
}

impl Cipher for Aes256Gcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0 = UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new);
    }

    fn encrypt(&self, counter: u64, covered: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let (text, rest) = out.split_at_mut(plain.len());
        text.copy_from_slice(plain);
        // Only a text of 64 GiB is too long, and a message of Noise's has 65,535 bytes at most.
        let tag = self.key().seal_in_place_separate_tag(Self::nonce(counter), Aad::from(covered), text);
        let tag = tag.expect("a short text");
        rest[..TAG].copy_from_slice(tag.as_ref());
        plain.len() + TAG
    }

    fn decrypt(&self, counter: u64, covered: &[u8], sealed: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let mut bytes = sealed.to_vec();
        let opened = self.key().open_in_place(Self::nonce(counter), Aad::from(covered), &mut bytes);
        let plain = opened.map_err(|_| Error::Decrypt)?;
        out.get_mut(..plain.len()).ok_or(Error::Decrypt)?.copy_from_slice(plain);
        Ok(plain.len())
    }
}
