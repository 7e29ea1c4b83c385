//! What passes from one device to another without the kernel's routing: traffic control's filters, told to the kernel.

use std::io;
use std::net::Ipv4Addr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionMirror, TcActionMirrorOption, TcActionOption, TcActionType,
    TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcMessage, TcMirror, TcMirrorActionType, TcOption,
    TcU32Key, TcU32Selector, TcU32SelectorFlags,
};

use crate::netlink::Netlink;

/// Ethernet's numbers of what it carries; the first stands for all of them.
const ALL: u16 = 3;
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;

/// What of a frame must be which value: four bytes at a place relative to the end of Ethernet's header.
type Word = (i32, u32, u32);

/// Sends what comes by the device `from` out by `to`, if it is for this hardware address or for several. (A bridge sends to all what is for
/// somebody that it does not know.)
pub fn pass_to(netlink: &mut Netlink, (from, to): (u32, u32), hardware: [u8; 6]) -> io::Result<()> {
    listen(netlink, from)?;
    pass(netlink, (from, to), (1, ALL), &receiver(hardware))?;
    pass(netlink, (from, to), (2, ALL), &GROUP)
}

/// Sends what comes by the device `from` out by `to`, if its sender is the one with these addresses, and says so. Everything else goes
/// no further than this namespace.
pub fn pass_from(
    netlink: &mut Netlink,
    (from, to): (u32, u32),
    hardware: [u8; 6],
    address: Ipv4Addr,
) -> io::Result<()> {
    listen(netlink, from)?;
    pass(netlink, (from, to), (1, IPV4), &ipv4_from(hardware, address))?;
    pass(netlink, (from, to), (2, ARP), &arp_from(hardware, address))
}

/// Ethernet's destination, and two bytes before it that are anything.
fn receiver([a, b, c, d, e, f]: [u8; 6]) -> [Word; 2] {
    [(-16, word([0, 0, a, b]), 0xffff), (-12, word([c, d, e, f]), !0)]
}

/// A destination that stands for several.
const GROUP: [Word; 1] = [(-16, 0x100, 0x100)];

/// Ethernet's source, and behind it what the frame carries. (The kernel tells frames with a VLAN's tag from others by the filter's own
/// protocol: the tag may not be in the frame.)
fn sender([a, b, c, d, e, f]: [u8; 6], carries: u16) -> [Word; 2] {
    let [high, low] = carries.to_be_bytes();
    [(-8, word([a, b, c, d]), !0), (-4, word([e, f, high, low]), !0)]
}

fn ipv4_from(hardware: [u8; 6], address: Ipv4Addr) -> Vec<Word> {
    [&sender(hardware, IPV4)[..], &[(12, word(address.octets()), !0)]].concat()
}

/// A question or an answer of Ethernet's and IPv4's kind, whose sender has both addresses (RFC 826).
fn arp_from(hardware: [u8; 6], address: Ipv4Addr) -> Vec<Word> {
    let [a, b, c, d, e, f] = hardware;
    let [g, h, i, j] = address.octets();
    let kind = [(0, word([0, 1, 8, 0]), !0), (4, word([6, 4, 0, 0]), 0xffff_0000)];
    let who =
        [(8, word([a, b, c, d]), !0), (12, word([e, f, g, h]), !0), (16, word([i, j, 0, 0]), 0xffff_0000)];
    [&sender(hardware, ARP)[..], &kind, &who].concat()
}

fn word(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes)
}

/// What filters of arriving frames hang on.
const INGRESS: TcHandle = TcHandle { major: 0xffff, minor: 0 };

fn listen(netlink: &mut Netlink, device: u32) -> io::Result<()> {
    let mut message = on(device);
    message.header.handle = INGRESS;
    message.header.parent = TcHandle { major: 0xffff, minor: 0xfff1 };
    message.attributes.push(TcAttribute::Kind("ingress".into()));
    netlink.tell(RouteNetlinkMessage::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_EXCL)
}

fn pass(
    netlink: &mut Netlink,
    (from, to): (u32, u32),
    (order, carries): (u16, u16),
    words: &[Word],
) -> io::Result<()> {
    let mut message = on(from);
    message.header.parent = INGRESS;
    message.header.info = u32::from(order) << 16 | u32::from(carries.to_be());
    message.attributes.push(TcAttribute::Kind(TcFilterU32::KIND.into()));
    message.attributes.push(TcAttribute::Options(vec![
        TcOption::U32(TcFilterU32Option::Selector(selector(words))),
        TcOption::U32(TcFilterU32Option::Action(vec![send_out_by(to)])),
    ]));
    netlink.tell(RouteNetlinkMessage::NewTrafficFilter(message), NLM_F_CREATE | NLM_F_EXCL)
}

fn on(device: u32) -> TcMessage {
    let mut message = TcMessage::default();
    message.header.index = device.cast_signed();
    message
}

fn selector(words: &[Word]) -> TcU32Selector {
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = u8::try_from(words.len()).unwrap_or(u8::MAX);
    selector.keys = words
        .iter()
        .map(|(off, val, mask)| {
            let mut key = TcU32Key::default();
            (key.off, key.val, key.mask) = (*off, *val, *mask);
            key
        })
        .collect();
    selector
}

fn send_out_by(device: u32) -> TcAction {
    let mut how = TcMirror::default();
    how.generic.action = TcActionType::Stolen;
    how.eaction = TcMirrorActionType::EgressRedir;
    how.ifindex = device;
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind(TcActionMirror::KIND.into()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(how))]),
    ];
    action
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARDWARE: [u8; 6] = [0x0a, 0x53, 10, 31, 1, 2];
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 31, 1, 2);

    /// Whether a frame has all of the words, as the kernel looks for them.
    fn passes(words: &[Word], frame: &[u8]) -> bool {
        words.iter().all(|(off, val, mask)| {
            let frame = [&[0xee; 2][..], frame].concat();
            let at = usize::try_from(16 + off).unwrap();
            let found = frame.get(at..at + 4).map(|bytes| word(bytes.try_into().unwrap()));
            found.is_some_and(|found| (found ^ val) & mask == 0)
        })
    }

    fn frame(source: [u8; 6], carries: u16, rest: &[u8]) -> Vec<u8> {
        [&[0xff; 6][..], &source, &carries.to_be_bytes(), rest].concat()
    }

    #[test]
    fn only_its_own_packets_pass() {
        let packet = |from: [u8; 4]| [&[0x45; 12][..], &from, &[0; 8]].concat();
        let words = ipv4_from(HARDWARE, ADDRESS);
        assert!(passes(&words, &frame(HARDWARE, IPV4, &packet([10, 31, 1, 2]))));
        assert!(!passes(&words, &frame(HARDWARE, IPV4, &packet([10, 31, 1, 3]))), "another address");
        let mut other = HARDWARE;
        for at in 0..6 {
            other[at] ^= 1;
            assert!(!passes(&words, &frame(other, IPV4, &packet([10, 31, 1, 2]))), "another sender");
            other[at] ^= 1;
        }
        assert!(!passes(&words, &frame(HARDWARE, 0x86dd, &packet([10, 31, 1, 2]))), "IPv6");
    }

    #[test]
    fn only_what_is_for_it_arrives() {
        let to = |to: [u8; 6]| [&to[..], &[2; 6], &[8, 0, 0x45]].concat();
        let arrives = |frame: &[u8]| passes(&receiver(HARDWARE), frame) || passes(&GROUP, frame);
        assert!(arrives(&to(HARDWARE)));
        assert!(arrives(&to([0xff; 6])), "for all");
        assert!(arrives(&to([1, 0, 0x5e, 0, 0, 1])), "for a group");
        let mut other = HARDWARE;
        for at in 0..6 {
            other[at] ^= 2;
            assert!(!arrives(&to(other)), "for somebody else");
            other[at] ^= 2;
        }
    }

    #[test]
    fn only_its_own_answers_pass() {
        let arp = |kind: [u8; 6], sha: [u8; 6], spa: [u8; 4]| {
            [&kind[..], &[0, 2], &sha, &spa, &[1; 6], &[10, 31, 1, 9]].concat()
        };
        let (kind, mine) = ([0, 1, 8, 0, 6, 4], ADDRESS.octets());
        let words = arp_from(HARDWARE, ADDRESS);
        assert!(passes(&words, &frame(HARDWARE, ARP, &arp(kind, HARDWARE, mine))));
        let mut other = HARDWARE;
        other[5] ^= 1;
        for (why, wrong) in [
            ("another address", arp(kind, HARDWARE, [10, 31, 1, 3])),
            ("another half of one", arp(kind, HARDWARE, [10, 30, 1, 2])),
            ("another hardware address", arp(kind, other, mine)),
            ("places moved by longer addresses", arp([0, 1, 8, 0, 6, 16], HARDWARE, mine)),
        ] {
            assert!(!passes(&words, &frame(HARDWARE, ARP, &wrong)), "{why}");
        }
        assert!(!passes(&words, &frame(other, ARP, &arp(kind, HARDWARE, mine))), "another sender");
        assert!(!passes(&words, &frame(HARDWARE, IPV4, &arp(kind, HARDWARE, mine))), "no question");
    }
}
