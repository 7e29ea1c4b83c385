//! How an agent that calls back and the head prove to each other that they belong together: both know a secret of this run,
//! which neither of them says. The protocol is Noise's [`NNpsk0`](https://noiseprotocol.org/noise.html#pattern-modifiers), by `snow`.
//!
//! The agent sends [`HELLO`] bytes, which nobody can make without the secret; the head answers with as many. The agent's proof, [`PROOF`]
//! bytes with the name of its host, is made with keys of this connection, so a hello that was recorded proves nothing. All lengths are
//! fixed: what follows belongs to whoever talks then, unencrypted.

pub(crate) mod noise;
mod secret;

use serde::{Deserialize, Serialize};
use skiff_ipc::{Framing, Message, Protocol, Unanswered};
use skiff_spec::fault::Fault;
use snow::{HandshakeState, TransportState};

pub use secret::SharedSecret;

/// Bytes of the agent's first message, and of the head's answer: a public key of the connection's and a tag.
pub const HELLO: usize = 32 + noise::TAG;
/// The longest name, in bytes.
const LONGEST_NAME: usize = 255;
/// Bytes of the agent's proof: the name's length, the name, zeros, a tag.
pub const PROOF: usize = PAYLOAD + noise::TAG;
const PAYLOAD: usize = 1 + LONGEST_NAME;

/// So that no other use of a secret is taken for this one.
const PURPOSE: &str = "skiff handshake\n";

/// What an agent needs to call back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Where the head may be reached: names and addresses, to be tried in turn.
    pub hosts: Vec<String>,
    /// At which port.
    pub port: u16,
    /// The secret; nothing where nobody calls, or where the agent has it already.
    pub secret: Option<SharedSecret>,
    /// What tells this call from others by the same secret; no secret itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub word: String,
}

impl Message for Call {
    // Names and addresses of one host.
    const LONGEST: usize = 64 << 10;
}

impl Protocol for Call {
    type Answer = Unanswered;
    const NAME: &'static str = "Calling back";
    const SIDES: [&'static str; 2] = ["who starts a program on another host", "that program"];
    const FRAMING: Framing = Framing::Own("A line of JSON on the program's standard input, or a file.");
}

/// Why two sides do not come together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Neither secrets nor keys can be made.
    #[error("the kernel gives no random bytes")]
    NoRandomBytes,
    /// Another secret, another purpose, a message that was changed, cut or sent before.
    #[error("the other side does not prove that it knows the secret")]
    NotProven,
    /// A name that does not fit.
    #[error("name {0:?} is longer than {LONGEST_NAME} bytes")]
    LongName(String),
    /// Text that is no secret.
    #[error("a secret has 64 lower-case hex digits")]
    NotASecret,
}

impl HandshakeError {
    /// How to mend it; empty if there is nothing to say.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotProven => "have the same version installed on all hosts",
            Self::NoRandomBytes | Self::LongName(_) | Self::NotASecret => "",
        }
    }
}

impl From<HandshakeError> for Fault {
    fn from(e: HandshakeError) -> Self {
        Self::new(e.to_string()).hint(e.hint())
    }
}

/// The agent's side.
pub struct Initiator(HandshakeState);

impl Initiator {
    /// Begins; the hello is to be sent.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn begin(secret: &SharedSecret, word: &str) -> Result<(Self, [u8; HELLO]), HandshakeError> {
        let mut state = noise::initiator(&purpose(word), Some(secret)).map_err(noise::own_fault)?;
        let mut hello = [0; HELLO];
        let length = state.write_message(&[], &mut hello).map_err(noise::own_fault)?;
        debug_assert_eq!(length, HELLO);
        Ok((Self(state), hello))
    }

    /// The proof, which is to be sent, if the answer proves that this is the head.
    ///
    /// # Errors
    /// The answer proves nothing, or the name is too long.
    pub fn prove(mut self, answer: &[u8], name: &str) -> Result<[u8; PROOF], HandshakeError> {
        let mut payload = [0; PAYLOAD];
        let long = || HandshakeError::LongName(name.into());
        payload[0] = u8::try_from(name.len()).map_err(|_| long())?;
        payload[1..=name.len()].copy_from_slice(name.as_bytes());
        self.read(answer)?;
        let mut keys = self.0.into_transport_mode().map_err(noise::own_fault)?;
        let mut proof = [0; PROOF];
        keys.write_message(&payload, &mut proof).map_err(noise::own_fault)?;
        Ok(proof)
    }

    fn read(&mut self, answer: &[u8]) -> Result<(), HandshakeError> {
        self.0.read_message(answer, &mut []).map(drop).map_err(|_| HandshakeError::NotProven)
    }
}

/// The head's side.
pub struct Responder(TransportState);

impl Responder {
    /// Answers a hello; the answer is to be sent.
    ///
    /// # Errors
    /// The hello was made without the secret, or the kernel has no random bytes.
    pub fn begin(
        secret: &SharedSecret,
        word: &str,
        hello: &[u8],
    ) -> Result<(Self, [u8; HELLO]), HandshakeError> {
        let mut state = noise::responder(&purpose(word), Some(secret)).map_err(noise::own_fault)?;
        state.read_message(hello, &mut []).map_err(|_| HandshakeError::NotProven)?;
        let mut answer = [0; HELLO];
        state.write_message(&[], &mut answer).map_err(noise::own_fault)?;
        Ok((Self(state.into_transport_mode().map_err(noise::own_fault)?), answer))
    }

    /// The name of the agent's host, if its proof is one.
    ///
    /// # Errors
    /// The proof was made without the keys of this connection.
    pub fn name(mut self, proof: &[u8]) -> Result<String, HandshakeError> {
        self.read(proof)
    }

    fn read(&mut self, proof: &[u8]) -> Result<String, HandshakeError> {
        let not_proven = || HandshakeError::NotProven;
        let mut payload = [0; PAYLOAD];
        let length = self.0.read_message(proof, &mut payload).map_err(|_| not_proven())?;
        let (end, name) = payload[..length].split_first().ok_or_else(not_proven)?;
        let name = name.get(..usize::from(*end)).ok_or_else(not_proven)?;
        String::from_utf8(name.to_vec()).map_err(|_| not_proven())
    }
}

fn purpose(word: &str) -> Vec<u8> {
    [PURPOSE, word].concat().into_bytes()
}

#[cfg(test)]
pub(crate) mod tests;
