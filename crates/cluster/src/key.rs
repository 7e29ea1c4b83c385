//! Keys for one run: made in memory, in the forms that OpenSSH reads.
//!
//! Format of the private half: PROTOCOL.key of OpenSSH; of the public one: RFC 8709.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};
use skiff_spec::fault::{Fault, Result};

/// Both halves.
pub struct SshKey {
    /// As a file that only its owner may read.
    pub private: String,
    /// As a line.
    pub public: String,
}

const KIND: &[u8] = b"ssh-ed25519";

impl SshKey {
    /// A new one.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn generate(comment: &str) -> Result<Self> {
        let random = || Fault::new("random bytes for a key: the kernel gives none");
        let (mut seed, mut check) = ([0; 32], [0; 4]);
        let source = SystemRandom::new();
        source.fill(&mut seed).and_then(|()| source.fill(&mut check)).map_err(|_| random())?;
        Self::of(seed, check, comment).ok_or_else(random)
    }

    fn of(seed: [u8; 32], check: [u8; 4], comment: &str) -> Option<Self> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).ok()?;
        let public = pair.public_key().as_ref();
        let blob = [field(KIND), field(public)].concat();
        let both = [&seed[..], public].concat();
        let mut secret = [&check[..], &check, &field(KIND), &field(public), &field(&both)].concat();
        secret.extend(field(comment.as_bytes()));
        // Up to a whole block of the cipher, which is none: 8 bytes.
        secret.extend((1..=7).take((8 - secret.len() % 8) % 8));
        let file = [
            b"openssh-key-v1\0",
            &field(b"none")[..],
            &field(b"none"),
            &field(b""),
            &1_u32.to_be_bytes(),
            &field(&blob),
            &field(&secret),
        ]
        .concat();
        let text = STANDARD.encode(file);
        let lines = text.as_bytes().chunks(70).map(String::from_utf8_lossy).collect::<Vec<_>>().join("\n");
        Some(Self {
            private: format!(
                "-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"
            ),
            public: format!("ssh-ed25519 {}", STANDARD.encode(blob)),
        })
    }
}

fn field(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], bytes].concat()
}

/// Whether this is the line of a public key, and nothing but that.
#[must_use]
pub fn is_public(line: &str) -> bool {
    line.strip_prefix("ssh-ed25519 ").and_then(|text| STANDARD.decode(text).ok()).is_some_and(|blob| {
        let head = field(KIND).into_iter().chain([0, 0, 0, 32]);
        blob.len() == 51 && blob.iter().copied().zip(head).all(|(a, b)| a == b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn openssh_reads_it() {
        let dir = std::env::temp_dir().join(format!("skiff-key.{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        // Of several lengths, for the padding.
        for comment in ["", "a", "skiff", "a longer one"] {
            let key = SshKey::generate(comment).expect("random bytes");
            let path = dir.join("key");
            std::fs::write(&path, &key.private).expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
            let output = std::process::Command::new("ssh-keygen").arg("-y").arg("-f").arg(&path).output();
            let output = output.expect("ssh-keygen runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(said.trim_end(), format!("{} {comment}", key.public).trim_end());
            assert!(is_public(&key.public));
        }
        std::fs::remove_dir_all(&dir).expect("it goes");
    }

    #[test]
    fn only_lines_of_keys_pass() {
        let key = SshKey::generate("").expect("random bytes").public;
        for bad in
            ["", "ssh-ed25519 ", "ssh-rsa AAAA", &format!("{key}\n{key}"), &format!("x {key}"), &key[..60]]
        {
            assert!(!is_public(bad), "{bad}");
        }
    }
}
