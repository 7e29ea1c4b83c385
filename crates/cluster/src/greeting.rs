//! How an agent that calls back and the head prove to each other that they belong together: both know a secret of this run,
//! which neither of them says.
//!
//! The agent sends 32 random bytes; the head answers with 32 of its own and a proof over both; the agent with its own proof
//! and its host's name, which that covers.

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use skiff_sandbox::{Error, Result};

/// What the agent starts with.
pub type Nonce = [u8; 32];
/// How long the head's answer is.
pub const ANSWER: usize = 64;
/// The longest of all that the agent says.
pub const LONGEST: usize = 32 + 32 + 1 + 255;

/// What an agent needs to call back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Where the head may be reached: names and addresses, to be tried in turn.
    pub hosts: Vec<String>,
    /// At which port.
    pub port: u16,
    /// The secret, in hexadecimal.
    pub secret: String,
}

/// A new secret.
///
/// # Errors
/// When the kernel has no random bytes.
pub fn secret() -> Result<String> {
    random().map(|bytes| hex(&bytes))
}

/// The secret of one visit, of what both sides know already and a word that anybody may hear.
#[must_use]
pub fn derive(known: &str, word: &str) -> String {
    hex(hmac::sign(&key(known), &over("visit", word.as_bytes(), &[], "")).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 32 random bytes.
///
/// # Errors
/// As above.
pub fn random() -> Result<Nonce> {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| Error::new("random bytes: the kernel gives none"))
}

fn over(side: &str, agents: &[u8], heads: &[u8], name: &str) -> Vec<u8> {
    [side.as_bytes(), agents, heads, name.as_bytes()].concat()
}

fn key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

/// The head's answer to the agent's random bytes.
#[must_use]
pub fn answer(secret: &str, agents: &Nonce, heads: &Nonce) -> Vec<u8> {
    let proof = hmac::sign(&key(secret), &over("head", agents, heads, ""));
    [heads, proof.as_ref()].concat()
}

/// The agent's last word, if the head's answer proves that it is the head.
#[must_use]
pub fn last_word(secret: &str, agents: &Nonce, answer: &[u8], name: &str) -> Option<Vec<u8>> {
    let (heads, proof) = answer.split_at_checked(32)?;
    hmac::verify(&key(secret), &over("head", agents, heads, ""), proof).ok()?;
    let proof = hmac::sign(&key(secret), &over("agent", agents, heads, name));
    let length = u8::try_from(name.len()).ok()?;
    Some([proof.as_ref(), &[length], name.as_bytes()].concat())
}

/// What the head makes of an agent's last word.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is more to come.
    More,
    /// An agent of ours, on a host of this name; so many bytes were its last word.
    Ours(String, usize),
    /// Not an agent of ours.
    Stranger,
}

/// Judges an agent's last word.
#[must_use]
pub fn judge(secret: &str, agents: &Nonce, heads: &Nonce, word: &[u8]) -> Verdict {
    let Some((proof, rest)) = word.split_at_checked(32) else { return Verdict::More };
    let Some((length, rest)) = rest.split_first() else { return Verdict::More };
    let Some(name) = rest.get(..usize::from(*length)) else { return Verdict::More };
    let Ok(name) = std::str::from_utf8(name) else { return Verdict::Stranger };
    match hmac::verify(&key(secret), &over("agent", agents, heads, name), proof) {
        Ok(()) => Verdict::Ours(name.into(), 33 + name.len()),
        Err(_) => Verdict::Stranger,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_secret_gets_in_and_only_to_the_head() {
        let (agents, heads) = ([1; 32], [2; 32]);
        let good = secret().expect("random bytes");
        let said = answer(&good, &agents, &heads);
        assert_eq!(said.len(), ANSWER);
        let word = last_word(&good, &agents, &said, "n1").expect("the head's proof");
        for end in 0..word.len() {
            assert_eq!(judge(&good, &agents, &heads, &word[..end]), Verdict::More, "{end}");
        }
        assert_eq!(judge(&good, &agents, &heads, &word), Verdict::Ours("n1".into(), word.len()));
        let more = [&word[..], b"m"].concat();
        assert_eq!(judge(&good, &agents, &heads, &more), Verdict::Ours("n1".into(), word.len()));
        // Another secret, other random bytes, another name, the head's own words sent back.
        assert_eq!(judge("x", &agents, &heads, &word), Verdict::Stranger);
        assert_eq!(judge(&good, &agents, &[3; 32], &word), Verdict::Stranger);
        let mut renamed = word.clone();
        renamed[34] = b'2';
        assert_eq!(judge(&good, &agents, &heads, &renamed), Verdict::Stranger);
        let echo = [&said[32..], &[0]].concat();
        assert_eq!(judge(&good, &agents, &heads, &echo), Verdict::Stranger);
        assert_eq!(last_word("x", &agents, &said, "n1"), None);
        assert_eq!(last_word(&good, &[9; 32], &said, "n1"), None);
        assert_eq!(last_word(&good, &agents, &said[..40], "n1"), None);
    }
}
