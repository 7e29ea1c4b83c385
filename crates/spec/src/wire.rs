//! What `skiff` and its privileged helper say to each other: one request, one reply, over a socket that keeps messages
//! apart. A closed list; whatever is not on it is refused.

use std::net::Ipv4Addr;

use crate::image::ImageId;
use crate::network::{NetName, Reservation, ReservationRequest};

/// The descriptor under which the helper finds the socket.
pub const SOCKET_FD: i32 = 3;
/// The longest message.
pub const MOST_BYTES: usize = 4096;
/// What every request begins with: version, kind, and a number of four bytes, which is a process, an IPv4 address or zero.
const HEAD: usize = 6;
/// How many layers there may be: a snapshot has fewer than twenty, as a new one replaces those that are not much larger.
pub const MOST_LAYERS: usize = 32;
/// The longest command, words and variables: somewhat more than the kernel would start.
pub const MOST_ORDERED: usize = 8 << 20;
/// Raised when a message changes its meaning: the two programs are installed together.
const VERSION: u8 = 3;

/// The word by which the helper starts `skiff` as the trusted store's writer; behind it come the store's path, the uid for which it
/// works, as what images are mounted, the bytes that each user may have (or nothing: a share), and the numbers of the sockets to the user
/// and to the fetcher.
pub const STORE_WRITER: &str = "store-writer";
/// The word for the process that fetches for the writer; behind it come the store's path, the uid, and the number of the socket.
pub const STORE_FETCHER: &str = "store-fetcher";

/// The word by which the helper starts `skiff` again in another network namespace; behind it come the network's name and the address
/// there (or nothing, where there already was one), then what was behind the socket's number on the helper's own command line.
pub const ON_NETWORK: &str = "on-network";

/// What the helper can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Make ready for the next request, [`Base`](Request::Base) or [`Image`](Request::Image): what does not depend on the process, while the
    /// caller is still making it. The answer comes after that one.
    Prepare {
        /// The image, if it is going to be one.
        image: Option<ImageId>,
    },
    /// The next answer to [`Base`](Request::Base) or [`Image`](Request::Image) also has this layer of a snapshot, from the trusted store, as
    /// a detached mount. Before [`Prepare`](Request::Prepare) only, once for each layer, the topmost first; it has no answer of its own.
    Layer {
        /// The layer, as the store names it.
        id: ImageId,
    },
    /// Map the ids of the new user namespace of process `pid` and give the layers below the user's own: the stand-ins
    /// and the view of the host's root, as two detached mounts.
    Base {
        /// A process of the caller in a user namespace that the caller made and that has no map yet.
        pid: u32,
    },
    /// Map the ids likewise, and give the root of an image in the trusted store as a detached mount.
    Image {
        /// As above.
        pid: u32,
        /// The image.
        id: ImageId,
    },
    /// The command that is told next, of [`Order`](Request::Order) and [`Join`](Request::Join), gets no system call filter. As the first request
    /// only; it has no answer of its own.
    Unfiltered,
    /// The next bytes of a command that is to be started, as they fit.
    Order {
        /// Some.
        bytes: Vec<u8>,
    },
    /// Make a process that is to become the command told before, as the caller, without privilege, in the namespaces of
    /// process `pid`. The answer has a handle of it, and a pipe that says why it could not start. May come behind
    /// [`Base`](Request::Base) or [`Image`](Request::Image), too, when the root is still being made: it waits for [`Go`](Request::Go).
    Join {
        /// The first process of an environment of the caller.
        pid: u32,
    },
    /// To the process that [`Join`](Request::Join) has made: the root is there, start.
    Go,
    /// Let a view of the host's root forget what it has looked up: the descriptor sent along is a directory in it.
    Refresh,
    /// Let go of images that have been removed from the trusted store.
    Release,
    /// Become `skiff` again, as the caller, in a new network namespace on this network. There is no answer.
    Network {
        /// One of the site's networks.
        name: NetName,
    },
    /// Become `skiff` again, as the caller, in the network namespace of process `pid`. There is no answer.
    Follow {
        /// The first process of an environment of the caller.
        pid: u32,
    },
    /// Join the network namespace of process `pid`, which belongs to its own user namespace, to this network. The answer is the address
    /// there, and what keeps it.
    Connect {
        /// A process of the caller in namespaces that the caller made.
        pid: u32,
        /// One of the site's networks.
        name: NetName,
        /// The address that it is to have, which the caller had before.
        reserved: Option<ReservationRequest>,
    },
    /// Keep an address for the caller when the network namespace that has it has gone. The answer is their reservation.
    Leave {
        /// Of which network.
        name: NetName,
        /// An address that the caller has.
        address: Ipv4Addr,
    },
    /// Free an address that is kept for the caller.
    Free {
        /// Of which network.
        name: NetName,
        /// The address.
        address: Ipv4Addr,
    },
    /// Start the trusted store's writer, which talks by the socket sent along.
    Store,
}

impl Request {
    /// The messages that tell of a command.
    pub fn orders(command: &[u8]) -> impl Iterator<Item = Self> {
        command.chunks(MOST_BYTES - HEAD).map(|some| Self::Order { bytes: some.to_vec() })
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, number) = match *self {
            Self::Prepare { .. } => (b'p', 0),
            Self::Layer { .. } => (b'y', 0),
            Self::Base { pid } => (b'b', pid),
            Self::Image { pid, .. } => (b'i', pid),
            Self::Unfiltered => (b'u', 0),
            Self::Order { .. } => (b'o', 0),
            Self::Join { pid } => (b'j', pid),
            Self::Go => (b'g', 0),
            Self::Refresh => (b'r', 0),
            Self::Release => (b'l', 0),
            Self::Store => (b's', 0),
            Self::Network { .. } => (b'n', 0),
            Self::Follow { pid } => (b'f', pid),
            Self::Connect { pid, .. } => (b'c', pid),
            Self::Leave { address, .. } => (b'k', address.into()),
            Self::Free { address, .. } => (b'd', address.into()),
        };
        let mut bytes = vec![VERSION, kind];
        bytes.extend(number.to_le_bytes());
        match self {
            Self::Image { id, .. } | Self::Prepare { image: Some(id) } | Self::Layer { id } => {
                bytes.extend(id.0)
            }
            Self::Order { bytes: some } => bytes.extend(some),
            Self::Network { name } | Self::Leave { name, .. } | Self::Free { name, .. } => {
                bytes.extend(name.as_str().bytes());
            }
            Self::Connect { name, reserved, .. } => {
                bytes.push(reserved.as_ref().map_or(0, |reserved| 1 + u8::from(reserved.moves)));
                bytes.extend(reserved.iter().flat_map(|reserved| reserved.reservation.encode()));
                bytes.extend(name.as_str().bytes());
            }
            _ => {}
        }
        bytes
    }

    /// From bytes; nothing for all that is not exactly a request.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [VERSION, kind, rest @ ..] = bytes else { return None };
        let (number, rest) = rest.split_first_chunk()?;
        let number = u32::from_le_bytes(*number);
        let (pid, is_zero) = (number, number == 0);
        match (kind, rest) {
            (b'p', []) if is_zero => Some(Self::Prepare { image: None }),
            (b'p', id) if is_zero => Some(Self::Prepare { image: Some(ImageId(id.try_into().ok()?)) }),
            (b'y', id) if is_zero => Some(Self::Layer { id: ImageId(id.try_into().ok()?) }),
            (b'b', []) => Some(Self::Base { pid }),
            (b'i', id) => Some(Self::Image { pid, id: ImageId(id.try_into().ok()?) }),
            (b'u', []) if is_zero => Some(Self::Unfiltered),
            (b'o', [_, ..]) if is_zero => Some(Self::Order { bytes: rest.to_vec() }),
            (b'j', []) => Some(Self::Join { pid }),
            (b'g', []) if is_zero => Some(Self::Go),
            (b'r', []) if is_zero => Some(Self::Refresh),
            (b'l', []) if is_zero => Some(Self::Release),
            (b's', []) if is_zero => Some(Self::Store),
            (b'n', name) if is_zero => Some(Self::Network { name: net_name(name)? }),
            (b'c', [0, name @ ..]) => Some(Self::Connect { pid, name: net_name(name)?, reserved: None }),
            (b'c', [how @ (1 | 2), rest @ ..]) => {
                let (reservation, name) = Reservation::decode(rest)?;
                let reserved = Some(ReservationRequest { reservation, moves: *how == 2 });
                Some(Self::Connect { pid, name: net_name(name)?, reserved })
            }
            (b'k', name) => Some(Self::Leave { name: net_name(name)?, address: number.into() }),
            (b'd', name) => Some(Self::Free { name: net_name(name)?, address: number.into() }),
            (b'f', []) => Some(Self::Follow { pid }),
            _ => None,
        }
    }
}

fn net_name(bytes: &[u8]) -> Option<NetName> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// What the helper answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success, without a result.
    Done,
    /// For [`Base`](Request::Base) and [`Image`](Request::Image), with the mounts, those of layers first: it is done, and so many ids there are inside.
    Ids(u32),
    /// For [`Join`](Request::Join), with a pidfd and the pipe: the process.
    Process(u32),
    /// For [`Connect`](Request::Connect), with what keeps it: the address.
    Address(Ipv4Addr),
    /// For [`Leave`](Request::Leave): it is done.
    Kept(Reservation),
    /// Not done: as much of this is at work for the user as there may be. Some of it will end.
    Busy,
    /// Not done, and nothing has changed: why, and how to mend it.
    Refused {
        /// What, on which object, why.
        message: String,
        /// How to mend it; may be empty.
        hint: String,
    },
}

impl Reply {
    /// As bytes, at most [`MOST_BYTES`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = match self {
            Self::Done => vec![VERSION, b'+'],
            Self::Ids(count) => [&[VERSION, b'+', b'i'][..], &count.to_le_bytes()].concat(),
            Self::Process(pid) => [&[VERSION, b'+', b'p'][..], &pid.to_le_bytes()].concat(),
            Self::Address(address) => [&[VERSION, b'+', b'a'][..], &address.octets()].concat(),
            Self::Kept(reservation) => [&[VERSION, b'k'][..], &reservation.encode()].concat(),
            Self::Busy => vec![VERSION, b'b'],
            Self::Refused { message, hint } => {
                [&[VERSION, b'-'][..], message.as_bytes(), b"\n", hint.as_bytes()].concat()
            }
        };
        bytes.truncate(MOST_BYTES);
        bytes
    }

    /// From bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [VERSION, b'+'] => Some(Self::Done),
            [VERSION, b'+', b'i', count @ ..] => Some(Self::Ids(u32::from_le_bytes(count.try_into().ok()?))),
            [VERSION, b'+', b'p', pid @ ..] => Some(Self::Process(u32::from_le_bytes(pid.try_into().ok()?))),
            [VERSION, b'+', b'a', a, b, c, d] => Some(Self::Address(Ipv4Addr::new(*a, *b, *c, *d))),
            [VERSION, b'k', reservation @ ..] => match Reservation::decode(reservation)? {
                (reservation, []) => Some(Self::Kept(reservation)),
                _ => None,
            },
            [VERSION, b'b'] => Some(Self::Busy),
            [VERSION, b'-', text @ ..] => {
                let text = String::from_utf8_lossy(text);
                let (message, hint) = text.split_once('\n').unwrap_or((&text, ""));
                Some(Self::Refused { message: message.into(), hint: hint.into() })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(proof: Option<[u8; Reservation::PROOF]>) -> Reservation {
        Reservation { address: Ipv4Addr::new(10, 1, 2, 3), until: 1 << 40, in_use: 1 << 30, proof }
    }

    fn reserved(moves: bool) -> Option<ReservationRequest> {
        Some(ReservationRequest { reservation: reservation(None), moves })
    }

    #[test]
    fn requests_come_back_as_they_went() {
        let image = Request::Image { pid: 7, id: ImageId([0xab; 32]) };
        let others = [
            Request::Prepare { image: None },
            Request::Prepare { image: Some(ImageId([7; 32])) },
            Request::Base { pid: 7 },
            Request::Layer { id: ImageId([9; 32]) },
            Request::Order { bytes: vec![0; MOST_BYTES - HEAD] },
            Request::Join { pid: u32::MAX },
            Request::Go,
            Request::Refresh,
            Request::Release,
            Request::Store,
            Request::Network { name: "lab".parse().unwrap() },
            Request::Follow { pid: 9 },
            Request::Connect { pid: 9, name: "lab".parse().unwrap(), reserved: None },
            Request::Connect { pid: 9, name: "lab".parse().unwrap(), reserved: reserved(false) },
            Request::Connect { pid: 9, name: "lab".parse().unwrap(), reserved: reserved(true) },
            Request::Leave { name: "lab".parse().unwrap(), address: Ipv4Addr::new(10, 1, 2, 3) },
            Request::Free { name: "lab".parse().unwrap(), address: Ipv4Addr::new(10, 1, 2, 3) },
        ];
        for r in others.into_iter().chain([image]) {
            let bytes = r.encode();
            assert!(bytes.len() <= MOST_BYTES);
            assert_eq!(Request::decode(&bytes), Some(r));
        }
    }

    #[test]
    fn anything_else_is_no_request() {
        for bad in [
            &[][..],
            &[VERSION],
            &[VERSION, b'b'],
            &[VERSION, b'x', 0, 0, 0, 0],
            &[1, b'b', 0, 0, 0, 0],
            &[VERSION, b'p', 1, 0, 0, 0],
            &[&[VERSION, b'p', 0, 0, 0, 0][..], &[0; 31]].concat(),
            &[VERSION, b'b', 0, 0, 0, 0, 0],
            &[VERSION, b'i', 0, 0, 0, 0],
            &[&[VERSION, b'i', 0, 0, 0, 0][..], &[0; 31]].concat(),
            &[&[VERSION, b'y', 0, 0, 0, 0][..], &[0; 31]].concat(),
            &[&[VERSION, b'y', 1, 0, 0, 0][..], &[0; 32]].concat(),
            &[VERSION, b'l', 1, 0, 0, 0],
            &[VERSION, b'g', 1, 0, 0, 0],
            &[VERSION, b'o', 0, 0, 0, 0],
            &[VERSION, b'o', 1, 0, 0, 0, b'a'],
            &[VERSION, b'n', 0, 0, 0, 0],
            &[VERSION, b'n', 1, 0, 0, 0, b'a'],
            b"\x03n\0\0\0\0../lab",
            b"\x03c\x07\0\0\0\0",
            b"\x03c\x07\0\0\0\x01lab",
            b"\x03c\x07\0\0\0\x02lab",
            &[&b"\x03c\x07\0\0\0\x03"[..], &reservation(None).encode(), b"lab"].concat(),
            b"\x03k\x07\0\0\0",
        ] {
            assert_eq!(Request::decode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn replies_come_back_as_they_went() {
        let refused = Reply::Refused { message: "no".into(), hint: "do".into() };
        let kept = [None, Some([7; Reservation::PROOF])].map(|proof| Reply::Kept(reservation(proof)));
        let address = Reply::Address(Ipv4Addr::new(10, 1, 2, 3));
        let others = [Reply::Done, Reply::Ids(65537), Reply::Process(7), address, Reply::Busy, refused];
        for r in others.into_iter().chain(kept) {
            assert_eq!(Reply::decode(&r.encode()), Some(r));
        }
    }

    #[test]
    fn replies_of_another_kind_or_length_are_none() {
        for bad in [
            &b""[..],
            b"\x03",
            b"\x03+\0\0\x01\0",
            b"\x03+x\x07\0\0\0",
            b"\x03+i\x07\0\0",
            b"\x03+a\x07\0\0\0\0",
            b"\x01+",
        ] {
            assert_eq!(Reply::decode(bad), None, "{bad:?}");
        }
    }
}
