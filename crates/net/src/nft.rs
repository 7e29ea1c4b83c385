//! Tables of nftables', as messages to the kernel (linux/netfilter/nf_tables.h). No program is run for it, hosts may lack `nft`; and there is no crate
//! with a licence of ours that has these messages.
//!
//! A table is replaced as a whole in one transaction, and nobody else's is touched.

use std::io;

use rustix::net::netlink::NETFILTER;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// IPv4's packets.
const IPV4: u8 = 2;
/// nf_tables among netfilter's parts.
const PART: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

/// More than any table of ours takes.
const MOST_BYTES: usize = 16 << 20;
/// An attribute's length has 16 bits.
const ELEMENTS_AT_ONCE: usize = 500;

/// Where a chain looks at packets, and what becomes of those that no rule decides about.
pub struct Hook {
    pub kind: &'static str,
    pub number: u32,
    pub priority: i32,
    pub policy: u32,
}

pub const PREROUTING: u32 = 0;
pub const INPUT: u32 = 1;
pub const FORWARD: u32 = 2;
pub const OUTPUT: u32 = 3;

pub const DROP: u32 = 0;
pub const ACCEPT: u32 = 1;

/// A step of a rule: it goes on to the next if this one finds what it looks for.
pub type Step = Vec<u8>;

/// The first of the kernel's registers of four bytes, and the next one.
pub const FIRST: u32 = 8;
pub const SECOND: u32 = 9;

/// What part of a packet.
#[derive(Clone, Copy)]
pub enum From {
    Network = 1,
    Transport = 2,
}

/// How bytes compare, in the order of the network.
#[derive(Clone, Copy)]
pub enum Is {
    Equal = 0,
    Not = 1,
    Less = 2,
    Greater = 4,
    AtLeast = 5,
}

/// Takes bytes of the packet into a register.
pub fn load(from: From, at: u32, length: u32, register: u32) -> Step {
    step("payload", &[number(1, register), number(2, from as u32), number(3, at), number(4, length)])
}

/// Takes what the kernel knows of the packet into the first register.
pub fn meta(key: u32) -> Step {
    step("meta", &[number(1, FIRST), number(2, key)])
}
pub const PROTOCOL: u32 = 16;
pub const SENDER: u32 = 10;
pub const DEVICE_IN: u32 = 6;
pub const DEVICE_OUT: u32 = 7;

/// Takes what is known of its connection into the first register, as bits in the host's order.
pub fn connection_state() -> Step {
    step("ct", &[number(1, FIRST), number(2, 0)])
}
pub const ESTABLISHED: u32 = 2;
pub const RELATED: u32 = 4;

/// Compares the first register.
pub fn compare(is: Is, bytes: &[u8]) -> Step {
    step("cmp", &[number(1, FIRST), number(2, is as u32), nest(3, &[attribute(1, bytes)])])
}

/// Leaves only these bits in the first register.
pub fn mask(bits: [u8; 4]) -> Step {
    let data = |kind, bytes: [u8; 4]| nest(kind, &[attribute(1, &bytes)]);
    step("bitwise", &[number(1, FIRST), number(2, FIRST), number(3, 4), data(4, bits), data(5, [0; 4])])
}

/// Looks the registers from the first on up in a set.
pub fn lookup(set: &str, is_in: bool) -> Step {
    step("lookup", &[text(1, set), number(2, FIRST), number(5, u32::from(!is_in))])
}

/// Ends a packet's way through the table.
pub fn verdict(code: u32) -> Step {
    step("immediate", &[number(1, 0), nest(2, &[nest(2, &[number(1, code)])])])
}

/// Has the rest of the table looked at by another chain.
pub fn jump(chain: &str) -> Step {
    const JUMP: u32 = (-3_i32).cast_unsigned();
    step("immediate", &[number(1, 0), nest(2, &[nest(2, &[number(1, JUMP), text(2, chain)])])])
}

/// Has nobody remember the packet's connection.
pub fn untracked() -> Step {
    step("notrack", &[])
}

/// A table, as the messages that make it.
pub struct Table {
    name: String,
    messages: Vec<(u16, u16, Vec<u8>)>,
    sets: u32,
}

const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const ACK: u16 = 4;
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const NEW_SET: u16 = 9;
const NEW_ELEMENTS: u16 = 12;

/// Of a set: that its elements are ranges of several fields.
const RANGES_OF_FIELDS: u32 = 0x84;

impl Table {
    /// Without anything in it. `comment` goes with it: [`comment`] says it again.
    pub fn new(name: &str, comment: &str) -> Self {
        // As `nft` does it: kind, length, text.
        let mut noted = vec![0, u8::try_from(comment.len() + 1).unwrap_or(u8::MAX)];
        noted.extend(comment.bytes());
        noted.push(0);
        let made = [text(1, name), attribute(6, &noted)].concat();
        Self { name: name.into(), messages: vec![(NEW_TABLE, CREATE, made)], sets: 0 }
    }

    /// In the place of one of the same name. (Not where there can be none: to wait until the old one is gone takes 10 ms.)
    pub fn replacing(name: &str, comment: &str) -> Self {
        let mut table = Self::new(name, comment);
        table.messages.splice(0..0, [(NEW_TABLE, CREATE, text(1, name)), (DELETE_TABLE, 0, text(1, name))]);
        table
    }

    fn add(&mut self, kind: u16, flags: u16, parts: &[Vec<u8>]) {
        self.messages.push((kind, flags, [text(1, &self.name), parts.concat()].concat()));
    }

    /// Adds a chain, which looks at packets by itself if it has a hook.
    pub fn chain(&mut self, name: &str, hook: Option<&Hook>) {
        let mut parts = vec![text(3, name)];
        if let Some(hook) = hook {
            let place = [number(1, hook.number), number(2, hook.priority.cast_unsigned())];
            parts.push(nest(4, &place));
            parts.push(number(5, hook.policy));
            parts.push(text(7, hook.kind));
        }
        self.add(NEW_CHAIN, CREATE, &parts);
    }

    /// Adds a rule to the end of a chain.
    pub fn rule(&mut self, chain: &str, steps: &[Step]) {
        self.add(NEW_RULE, CREATE | APPEND, &[text(2, chain), nest(4, &[steps.concat()])]);
    }

    /// Adds a set of ranges of four bytes, none of which overlap.
    pub fn ranges(&mut self, name: &str, elements: &[(u32, u32)]) {
        const RANGES: u32 = 4;
        const END: u32 = 1;
        self.sets += 1;
        self.add(
            NEW_SET,
            CREATE,
            &[text(2, name), number(3, RANGES), number(4, 0), number(5, 4), number(10, self.sets)],
        );
        let key = |at: u32| nest(1, &[attribute(1, &at.to_be_bytes())]);
        let mut edges = vec![];
        for (first, last) in elements {
            edges.push(nest(1, &[key(*first)]));
            // After the highest of all there is none to end before.
            edges.extend(last.checked_add(1).map(|next| nest(1, &[key(next), number(3, END)])));
        }
        self.elements(name, edges);
    }

    /// Adds a set of pairs: four bytes, and a range of four bytes, both ends included.
    pub fn pairs(&mut self, name: &str, elements: &[([u8; 4], [u8; 4], [u8; 4])]) {
        self.sets += 1;
        let fields = nest(2, &[nest(1, &[number(1, 4)]), nest(1, &[number(1, 4)])]);
        let described = nest(9, &[fields]);
        let parts = [
            text(2, name),
            number(3, RANGES_OF_FIELDS),
            number(4, 0),
            number(5, 8),
            described,
            number(10, self.sets),
        ];
        self.add(NEW_SET, CREATE, &parts);
        let key = |kind, first: &[u8; 4], second: &[u8; 4]| {
            nest(kind, &[attribute(1, &[*first, *second].concat())])
        };
        let one = |(first, low, high): &([u8; 4], [u8; 4], [u8; 4])| {
            nest(1, &[key(1, first, low), key(10, first, high)])
        };
        self.elements(name, elements.iter().map(one).collect());
    }

    fn elements(&mut self, set: &str, elements: Vec<Vec<u8>>) {
        for some in elements.chunks(ELEMENTS_AT_ONCE) {
            self.add(NEW_ELEMENTS, CREATE, &[text(2, set), number(4, self.sets), nest(3, some)]);
        }
    }

    /// Has the kernel make it in this thread's network namespace.
    ///
    /// # Errors
    /// What the kernel says; nothing has changed then.
    pub fn apply(self) -> io::Result<()> {
        let last = self.messages.len() - 1;
        let of_table = |(at, (kind, flags, body)): (usize, (u16, u16, Vec<u8>))| {
            message(PART << 8 | kind, flags | if at == last { ACK } else { 0 }, IPV4, 0, &body)
        };
        let messages: Vec<u8> = self.messages.into_iter().enumerate().flat_map(of_table).collect();
        transact(messages)
    }
}

/// Removes a table, if there is one.
///
/// # Errors
/// What the kernel says.
pub fn remove(name: &str) -> io::Result<()> {
    let table = text(1, name);
    let make = message(PART << 8 | NEW_TABLE, CREATE, IPV4, 0, &table);
    let delete = message(PART << 8 | DELETE_TABLE, ACK, IPV4, 0, &table);
    transact([make, delete].concat())
}

/// What was noted with a table of this thread's network namespace; nothing if there is none.
///
/// # Errors
/// What the kernel says.
pub fn comment(name: &str) -> io::Result<Option<String>> {
    let asked = message(PART << 8 | GET_TABLE, 0, IPV4, 0, &text(1, name));
    let answer = match ask(&asked) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut rest = answer.get(HEAD..).unwrap_or_default();
    while let Some(([low, high, kind_low, kind_high], _)) = rest.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let kind = u16::from_ne_bytes([*kind_low, *kind_high]);
        let Some(value) = rest.get(4..length) else { break };
        if kind == 6 {
            let noted = value.get(2..).unwrap_or_default();
            return Ok(Some(String::from_utf8_lossy(noted).trim_end_matches('\0').to_owned()));
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(Some(String::new()))
}

fn transact(messages: Vec<u8>) -> io::Result<()> {
    let edge = |kind| message(kind, 0, 0, PART, &[]);
    ask(&[edge(BATCH_BEGIN), messages, edge(BATCH_END)].concat()).map(drop)
}

/// The first answer: of a transaction, either what was refused first, or that the last message was not.
fn ask(messages: &[u8]) -> io::Result<Vec<u8>> {
    const ERROR: u16 = 2;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(NETFILTER))?;
    set_socket_send_buffer_size_force(&socket, MOST_BYTES)?;
    send(&socket, messages, SendFlags::empty())?;
    let mut answer = vec![0; 64 << 10];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    answer.truncate(length);
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    let code = answer.get(16..20).map(|code| i32::from_ne_bytes([code[0], code[1], code[2], code[3]]));
    match (kind, code) {
        (Some(ERROR), Some(code)) if code != 0 => Err(io::Error::from_raw_os_error(-code)),
        (Some(_), Some(_)) => Ok(answer),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The kernel's head of a message, and netfilter's.
const HEAD: usize = 20;

fn message(kind: u16, flags: u16, family: u8, number: u16, body: &[u8]) -> Vec<u8> {
    const REQUEST: u16 = 1;
    let length = u32::try_from(HEAD + body.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(number.to_be_bytes());
    bytes.extend(body);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nest(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    const NESTED: u16 = 0x8000;
    attribute(kind | NESTED, &parts.concat())
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

/// One of a list of steps.
fn step(name: &str, parts: &[Vec<u8>]) -> Step {
    nest(1, &[text(1, name), nest(2, parts)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_as_the_kernel_takes_them() {
        assert_eq!(
            attribute(3, b"abcde"),
            [&9_u16.to_ne_bytes()[..], &3_u16.to_ne_bytes(), b"abcde\0\0\0"].concat()
        );
        assert_eq!(number(4, 1)[4..], [0, 0, 0, 1]);
        assert_eq!(u16::from_ne_bytes([nest(2, &[])[2], nest(2, &[])[3]]), 0x8002);
    }

    #[test]
    fn many_elements_go_in_several_messages_none_too_long() {
        let mut table = Table::new("t", "");
        let before = table.messages.len();
        table.pairs("p", &vec![([1; 4], [2; 4], [3; 4]); 1201]);
        assert_eq!(table.messages.len() - before, 1 + 3);
        assert!(table.messages.iter().all(|(_, _, body)| body.len() < usize::from(u16::MAX)));
    }
}
