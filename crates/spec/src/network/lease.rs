//! Who has an address, and who may come back to one.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::NetName;

/// Who has an address: what the file of that name says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Of which network.
    pub network: NetName,
    /// The user.
    pub uid: u32,
    /// The number by which the host's kernel knows the network namespace.
    pub space: i32,
    /// Until when it is kept for them though that namespace has gone, in seconds since 1970: what had it was saved, and may come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}

impl Lease {
    /// In the place of a user: somebody has the address on another node, and this one does not know who.
    pub const UNKNOWN: u32 = u32::MAX;

    /// As text.
    #[must_use]
    pub fn to_text(&self) -> String {
        // Numbers and a checked name: nothing that JSON cannot say.
        serde_json::to_string(self).unwrap_or_else(|_| String::new())
    }

    /// From text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether it is kept at a time, in seconds since 1970, whoever lives.
    #[must_use]
    pub fn is_kept(&self, now: u64) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

/// An address that is kept for a user who wants it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservation {
    /// The address.
    pub address: Ipv4Addr,
    /// Until when nobody else gets it, in seconds since 1970.
    pub until: u64,
    /// When the user last had it in use where this was said, in seconds since 1970; 0 if that is not known.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub in_use: u64,
    /// That this is so, told by who has the site's key; without it, only the node that has kept the address knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<[u8; Reservation::PROOF]>,
}

/// A user asks for an address that was kept for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationRequest {
    /// What was kept for the user.
    pub reservation: Reservation,
    /// The address is still in use where it was, and the user moves it from there to here: nobody need be asked who has
    /// it, if it was in use there a moment ago ([`Reservation::in_use`]).
    pub moves: bool,
}

fn is_unknown(seconds: &u64) -> bool {
    *seconds == 0
}

impl Reservation {
    /// How long a proof is, in bytes.
    pub const PROOF: usize = 32;
    const BYTES: usize = 4 + 8 + 8 + 1 + Self::PROOF;

    /// What is proved: that this user had this address of this network, which is kept until then.
    #[must_use]
    pub fn proved(&self, uid: u32, network: &NetName) -> Vec<u8> {
        let head = [&self.address.octets()[..], &self.until.to_le_bytes(), &uid.to_le_bytes()].concat();
        // Reservations of earlier versions say nothing of it. A time of today has zero bytes, and no name has.
        let in_use = if self.in_use == 0 { vec![] } else { self.in_use.to_le_bytes().to_vec() };
        [&head[..], &in_use, network.as_str().as_bytes()].concat()
    }

    /// As bytes, always as many.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let proof = self.proof.unwrap_or_default();
        let times = [self.until.to_le_bytes(), self.in_use.to_le_bytes()].concat();
        [&self.address.octets()[..], &times, &[u8::from(self.proof.is_some())], &proof].concat()
    }

    /// From the beginning of some bytes; and the rest of them.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (own, rest) = bytes.split_at_checked(Self::BYTES)?;
        let (address, own) = own.split_first_chunk::<4>()?;
        let (until, own) = own.split_first_chunk()?;
        let (in_use, own) = own.split_first_chunk()?;
        let (has_proof, proof) = own.split_first()?;
        let proof = match has_proof {
            0 if proof.iter().all(|byte| *byte == 0) => None,
            1 => Some(proof.try_into().ok()?),
            _ => return None,
        };
        let (until, in_use) = (u64::from_le_bytes(*until), u64::from_le_bytes(*in_use));
        Some((Self { address: (*address).into(), until, in_use, proof }, rest))
    }
}
