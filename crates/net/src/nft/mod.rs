//! Tables of nftables', as messages to the kernel. No program is run for it, hosts may lack `nft`; and there is no crate
//! with a licence of ours that has these messages.
//!
//! A table is replaced as a whole in one transaction, and nobody else's is touched.

mod uapi;

use std::io;

use rustix::net::netlink::NETFILTER;
use uapi::*;
pub use uapi::{
    NF_ACCEPT as ACCEPT, NF_CT_STATE_ESTABLISHED as ESTABLISHED, NF_CT_STATE_RELATED as RELATED,
    NF_DROP as DROP, NF_INET_FORWARD as FORWARD, NF_INET_LOCAL_IN as INPUT, NF_INET_LOCAL_OUT as OUTPUT,
    NF_INET_PRE_ROUTING as PREROUTING, NFT_META_IIFNAME as DEVICE_IN, NFT_META_L4PROTO as PROTOCOL,
    NFT_META_OIFNAME as DEVICE_OUT, NFT_META_SKUID as SENDER, NFT_REG32_00 as FIRST, NFT_REG32_01 as SECOND,
};

use crate::wire::{ACK, APPEND, CREATE, ask, attribute, message, nest, text, value_of};

/// An attribute's length has 16 bits.
const ELEMENTS_AT_ONCE: usize = 500;

/// Whose packets a table looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Ipv4 = NFPROTO_IPV4 as isize,
    Ipv6 = NFPROTO_IPV6 as isize,
}

/// Where a chain looks at packets, and what becomes of those that no rule decides about.
pub struct Hook {
    pub kind: &'static str,
    pub number: u32,
    pub priority: i32,
    pub policy: u32,
}

/// A step of a rule: it goes on to the next if this one finds what it looks for.
pub type RuleExpr = Vec<u8>;

/// What part of a packet.
#[derive(Clone, Copy)]
pub enum From {
    Network = NFT_PAYLOAD_NETWORK_HEADER as isize,
    Transport = NFT_PAYLOAD_TRANSPORT_HEADER as isize,
}

/// How bytes compare, in the order of the network.
#[derive(Clone, Copy)]
pub enum Is {
    Equal = NFT_CMP_EQ as isize,
    Not = NFT_CMP_NEQ as isize,
    Less = NFT_CMP_LT as isize,
    Greater = NFT_CMP_GT as isize,
    AtLeast = NFT_CMP_GTE as isize,
}

/// Takes bytes of the packet into a register.
pub fn load(from: From, at: u32, length: u32, register: u32) -> RuleExpr {
    expression(
        "payload",
        &[
            number(NFTA_PAYLOAD_DREG, register),
            number(NFTA_PAYLOAD_BASE, from as u32),
            number(NFTA_PAYLOAD_OFFSET, at),
            number(NFTA_PAYLOAD_LEN, length),
        ],
    )
}

/// Takes what the kernel knows of the packet into the first register.
pub fn meta(key: u32) -> RuleExpr {
    expression("meta", &[number(NFTA_META_DREG, FIRST), number(NFTA_META_KEY, key)])
}

/// Takes what is known of its connection into the first register, as bits in the host's order.
pub fn connection_state() -> RuleExpr {
    expression("ct", &[number(NFTA_CT_DREG, FIRST), number(NFTA_CT_KEY, NFT_CT_STATE)])
}

/// Takes the number of the device that the packet came by into the first register if this host would send to the packet's source by the same
/// device, else 0 (`fib saddr . iif oif`).
pub fn device_towards_source() -> RuleExpr {
    let flags = NFTA_FIB_F_SADDR | NFTA_FIB_F_IIF;
    expression(
        "fib",
        &[
            number(NFTA_FIB_DREG, FIRST),
            number(NFTA_FIB_RESULT, NFT_FIB_RESULT_OIF),
            number(NFTA_FIB_FLAGS, flags),
        ],
    )
}

/// Compares the first register.
pub fn compare(is: Is, bytes: &[u8]) -> RuleExpr {
    expression(
        "cmp",
        &[number(NFTA_CMP_SREG, FIRST), number(NFTA_CMP_OP, is as u32), data(NFTA_CMP_DATA, bytes)],
    )
}

/// Leaves only these bits in the first register.
pub fn mask(bits: [u8; 4]) -> RuleExpr {
    expression(
        "bitwise",
        &[
            number(NFTA_BITWISE_SREG, FIRST),
            number(NFTA_BITWISE_DREG, FIRST),
            number(NFTA_BITWISE_LEN, 4),
            data(NFTA_BITWISE_MASK, &bits),
            data(NFTA_BITWISE_XOR, &[0; 4]),
        ],
    )
}

/// Looks the registers from the first on up in a set.
pub fn lookup(set: &str, is_in: bool) -> RuleExpr {
    let flags = if is_in { 0 } else { NFT_LOOKUP_F_INV };
    expression(
        "lookup",
        &[text(NFTA_LOOKUP_SET, set), number(NFTA_LOOKUP_SREG, FIRST), number(NFTA_LOOKUP_FLAGS, flags)],
    )
}

/// Ends a packet's way through the table.
pub fn verdict(code: u32) -> RuleExpr {
    immediate_verdict(&[number(NFTA_VERDICT_CODE, code)])
}

/// Has the rest of the table looked at by another chain.
pub fn jump(chain: &str) -> RuleExpr {
    immediate_verdict(&[number(NFTA_VERDICT_CODE, NFT_JUMP), text(NFTA_VERDICT_CHAIN, chain)])
}

fn immediate_verdict(parts: &[Vec<u8>]) -> RuleExpr {
    let verdict = nest(NFTA_DATA_VERDICT, parts);
    let data = nest(NFTA_IMMEDIATE_DATA, &[verdict]);
    expression("immediate", &[number(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT), data])
}

/// Has nobody remember the packet's connection.
pub fn untracked() -> RuleExpr {
    expression("notrack", &[])
}

/// A table, as the messages that make it.
pub struct Table {
    name: String,
    family: Family,
    messages: Vec<(u16, u16, Vec<u8>)>,
    sets: u32,
}

impl Table {
    /// Without anything in it. `comment` goes with it: [`comment`] says it again.
    pub fn new(name: &str, family: Family, comment: &str) -> Self {
        // As `nft` does it: kind, length, text.
        let mut noted = vec![0, u8::try_from(comment.len() + 1).unwrap_or(u8::MAX)];
        noted.extend(comment.bytes());
        noted.push(0);
        let made = [text(NFTA_TABLE_NAME, name), attribute(NFTA_TABLE_USERDATA, &noted)].concat();
        Self { name: name.into(), family, messages: vec![(NFT_MSG_NEWTABLE, CREATE, made)], sets: 0 }
    }

    /// In the place of one of the same name. (Not where there can be none: to wait until the old one is gone takes 10 ms.)
    pub fn replacing(name: &str, family: Family, comment: &str) -> Self {
        let mut table = Self::new(name, family, comment);
        table.messages.splice(0..0, deletion(name));
        table
    }

    fn add(&mut self, kind: u16, flags: u16, parts: &[Vec<u8>]) {
        self.messages.push((kind, flags, [text(NFTA_TABLE, &self.name), parts.concat()].concat()));
    }

    /// Adds a chain, which looks at packets by itself if it has a hook.
    pub fn chain(&mut self, name: &str, hook: Option<&Hook>) {
        let mut parts = vec![text(NFTA_CHAIN_NAME, name)];
        if let Some(hook) = hook {
            let priority = number(NFTA_HOOK_PRIORITY, hook.priority.cast_unsigned());
            parts.push(nest(NFTA_CHAIN_HOOK, &[number(NFTA_HOOK_HOOKNUM, hook.number), priority]));
            parts.push(number(NFTA_CHAIN_POLICY, hook.policy));
            parts.push(text(NFTA_CHAIN_TYPE, hook.kind));
        }
        self.add(NFT_MSG_NEWCHAIN, CREATE, &parts);
    }

    /// Adds a rule to the end of a chain.
    pub fn rule(&mut self, chain: &str, steps: &[RuleExpr]) {
        let expressions = nest(NFTA_RULE_EXPRESSIONS, &[steps.concat()]);
        self.add(NFT_MSG_NEWRULE, CREATE | APPEND, &[text(NFTA_RULE_CHAIN, chain), expressions]);
    }

    /// Adds a set of ranges of four bytes, none of which overlap.
    pub fn ranges(&mut self, name: &str, elements: &[(u32, u32)]) {
        self.set(name, NFT_SET_INTERVAL, 4, None);
        let key = |at: u32| data(NFTA_SET_ELEM_KEY, &at.to_be_bytes());
        let mut edges = vec![];
        for (first, last) in elements {
            edges.push(nest(NFTA_LIST_ELEM, &[key(*first)]));
            // After the highest of all there is none to end before.
            edges.extend(last.checked_add(1).map(|next| {
                nest(NFTA_LIST_ELEM, &[key(next), number(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END)])
            }));
        }
        self.elements(name, edges);
    }

    /// Adds a set of pairs: four bytes, and a range of four bytes, both ends included.
    pub fn pairs(&mut self, name: &str, elements: &[([u8; 4], [u8; 4], [u8; 4])]) {
        let field = || nest(NFTA_LIST_ELEM, &[number(NFTA_SET_FIELD_LEN, 4)]);
        let fields = nest(NFTA_SET_DESC_CONCAT, &[field(), field()]);
        self.set(name, NFT_SET_INTERVAL | NFT_SET_CONCAT, 8, Some(nest(NFTA_SET_DESC, &[fields])));
        let key = |kind, first: &[u8; 4], second: &[u8; 4]| data(kind, &[*first, *second].concat());
        let one = |(first, low, high): &([u8; 4], [u8; 4], [u8; 4])| {
            let ends = [key(NFTA_SET_ELEM_KEY, first, low), key(NFTA_SET_ELEM_KEY_END, first, high)];
            nest(NFTA_LIST_ELEM, &ends)
        };
        self.elements(name, elements.iter().map(one).collect());
    }

    /// Adds a set of keys of this length in bytes.
    fn set(&mut self, name: &str, flags: u32, length: u32, description: Option<Vec<u8>>) {
        // The type of a key matters to `nft` only, which ends by a fault on one that it does not know, and has six bits for each field.
        const ADDRESS: u32 = 7;
        let key_type = if length == 4 { ADDRESS } else { ADDRESS << 6 | ADDRESS };
        self.sets += 1;
        let mut parts = vec![
            text(NFTA_SET_NAME, name),
            number(NFTA_SET_FLAGS, flags),
            number(NFTA_SET_KEY_TYPE, key_type),
            number(NFTA_SET_KEY_LEN, length),
        ];
        parts.extend(description);
        parts.push(number(NFTA_SET_ID, self.sets));
        self.add(NFT_MSG_NEWSET, CREATE, &parts);
    }

    fn elements(&mut self, set: &str, elements: Vec<Vec<u8>>) {
        for some in elements.chunks(ELEMENTS_AT_ONCE) {
            let parts = [
                text(NFTA_SET_ELEM_LIST_SET, set),
                number(NFTA_SET_ELEM_LIST_SET_ID, self.sets),
                nest(NFTA_SET_ELEM_LIST_ELEMENTS, some),
            ];
            self.add(NFT_MSG_NEWSETELEM, CREATE, &parts);
        }
    }

    /// Has the kernel make it in this thread's network namespace.
    ///
    /// # Errors
    /// What the kernel says; nothing has changed then.
    pub fn apply(self) -> io::Result<()> {
        transact(self.family, self.messages)
    }
}

/// Removes a table, if there is one.
///
/// # Errors
/// What the kernel says.
pub fn remove(name: &str, family: Family) -> io::Result<()> {
    transact(family, deletion(name).into())
}

/// Deletes a table; one that is not there is made first.
fn deletion(name: &str) -> [(u16, u16, Vec<u8>); 2] {
    let table = || text(NFTA_TABLE_NAME, name);
    [(NFT_MSG_NEWTABLE, CREATE, table()), (NFT_MSG_DELTABLE, 0, table())]
}

/// What was noted with a table of this thread's network namespace; nothing if there is none.
///
/// # Errors
/// What the kernel says.
pub fn comment(name: &str, family: Family) -> io::Result<Option<String>> {
    let asked = of_tables(NFT_MSG_GETTABLE, 0, family, &text(NFTA_TABLE_NAME, name));
    let answer = match ask(NETFILTER, &asked) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let noted = value_of(&answer, NFTA_TABLE_USERDATA).and_then(|noted| noted.get(2..)).unwrap_or_default();
    Ok(Some(String::from_utf8_lossy(noted).trim_end_matches('\0').to_owned()))
}

/// Has all of these messages (type, flags, attributes) take effect, or none.
fn transact(family: Family, messages: Vec<(u16, u16, Vec<u8>)>) -> io::Result<()> {
    let edge = |kind| message(kind, 0, [NFPROTO_UNSPEC, 0], NFNL_SUBSYS_NFTABLES, &[]);
    let last = messages.len() - 1;
    let mut batch = edge(NFNL_MSG_BATCH_BEGIN);
    for (at, (kind, flags, body)) in messages.into_iter().enumerate() {
        let answered = if at == last { ACK } else { 0 };
        batch.extend(of_tables(kind, flags | answered, family, &body));
    }
    batch.extend(edge(NFNL_MSG_BATCH_END));
    ask(NETFILTER, &batch).map(drop)
}

fn of_tables(kind: u16, flags: u16, family: Family, body: &[u8]) -> Vec<u8> {
    message(NFNL_SUBSYS_NFTABLES << 8 | kind, flags, [family as u8, 0], 0, body)
}

/// An attribute that is a number, as nf_tables has them: in the order of the network.
fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

/// An attribute that is the value of a register.
fn data(kind: u16, bytes: &[u8]) -> Vec<u8> {
    nest(kind, &[attribute(NFTA_DATA_VALUE, bytes)])
}

/// One of a rule's expressions.
fn expression(name: &str, parts: &[Vec<u8>]) -> RuleExpr {
    nest(NFTA_LIST_ELEM, &[text(NFTA_EXPR_NAME, name), nest(NFTA_EXPR_DATA, parts)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_the_order_of_the_network() {
        assert_eq!(number(4, 1)[4..], [0, 0, 0, 1]);
    }

    #[test]
    fn many_elements_go_in_several_messages_none_too_long() {
        let mut table = Table::new("t", Family::Ipv4, "");
        let before = table.messages.len();
        table.pairs("p", &vec![([1; 4], [2; 4], [3; 4]); 1201]);
        assert_eq!(table.messages.len() - before, 1 + 3);
        assert!(table.messages.iter().all(|(_, _, body)| body.len() < usize::from(u16::MAX)));
    }
}
