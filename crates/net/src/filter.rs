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
use skiff_spec::network::{Network, Subnet};

use crate::netlink::Netlink;

/// Ethernet's numbers of what it carries; the first stands for all of them.
const ALL: u16 = 3;
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;

/// What of a frame must be which value: four bytes at a place relative to the end of Ethernet's header.
type Word = (i32, u32, u32);

/// What becomes of a frame that a filter matches. The first filter that matches decides.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    /// The frame leaves by the other device.
    Pass,
    /// The frame goes to the IPv4 stack of this namespace, which forwards nothing, and so is dropped.
    Hold,
}

struct Filter {
    verdict: Verdict,
    carries: u16,
    words: Vec<Word>,
}

impl Filter {
    fn pass(carries: u16, words: Vec<Word>) -> Self {
        Self { verdict: Verdict::Pass, carries, words }
    }

    fn hold(words: Vec<Word>) -> Self {
        Self { verdict: Verdict::Hold, carries: IPV4, words }
    }
}

/// Sends what comes by the device `from` out by `to`, if it is for this hardware address or for several. (A bridge sends to all what is for
/// somebody that it does not know.)
pub fn pass_to(netlink: &mut Netlink, devices: (u32, u32), hardware: [u8; 6]) -> io::Result<()> {
    let filters = [Filter::pass(ALL, receiver(hardware).to_vec()), Filter::pass(ALL, GROUP.to_vec())];
    install(netlink, devices, &filters)
}

/// Sends what comes by the device `from` out by `to`, if its sender is the one with these addresses, and says so. Everything else goes
/// no further than this namespace; so does what comes from a low port to others than members, unless the network has `low_ports`.
///
/// Netfilter cannot do this here: frames that a filter redirects skip its egress hook.
pub fn pass_from(
    netlink: &mut Netlink,
    devices: (u32, u32),
    hardware: [u8; 6],
    address: Ipv4Addr,
    network: &Network,
) -> io::Result<()> {
    install(netlink, devices, &filters_from(hardware, address, network))
}

fn filters_from(hardware: [u8; 6], address: Ipv4Addr, network: &Network) -> Vec<Filter> {
    let ipv4 = |more: &[Word]| Filter::pass(IPV4, [&ipv4_from(hardware, address)[..], more].concat());
    let low_port = |more: &[Word]| {
        LOW_PORT_PROTOCOLS.map(|protocol| Filter::hold([&from_low_port(protocol)[..], more].concat()))
    };
    let mut filters = vec![];
    if network.low_ports {
        filters.push(ipv4(&[]));
    } else {
        // The gateway is a host, and hosts hear what is for all, even where these addresses are in a node's range.
        for other in network.never_members() {
            let other = to_block((other.into(), 32));
            filters.extend(low_port(&[other]));
            filters.push(ipv4(&[NO_OPTIONS, other]));
            filters.push(Filter::hold(vec![other]));
        }
        filters.extend(joined(&network.ranges()).into_iter().map(|block| ipv4(&[to_block(block)])));
        filters.extend(low_port(&[]));
        filters.push(ipv4(&[NO_OPTIONS]));
    }
    filters.push(Filter::pass(ARP, arp_from(hardware, address)));
    filters
}

/// The same addresses in as few blocks (first address, prefix length) as there can be.
fn joined(blocks: &[Subnet]) -> Vec<(u32, u8)> {
    let mut blocks: Vec<_> = blocks.iter().map(|block| (u32::from(block.first()), block.prefix())).collect();
    blocks.sort_unstable();
    let mut joined: Vec<(u32, u8)> = vec![];
    for mut block in blocks {
        while let Some((first, prefix)) = joined.last()
            && *prefix == block.1
            && *prefix > 0
            && first ^ block.0 == 1 << (32 - prefix)
        {
            block = (*first, prefix - 1);
            joined.pop();
        }
        joined.push(block);
    }
    joined
}

/// The protocols with ports: TCP, UDP, UDP-Lite, SCTP, DCCP.
const LOW_PORT_PROTOCOLS: [u8; 5] = [6, 17, 136, 132, 33];

/// An IPv4 header without options: what follows it is at a known place.
const NO_OPTIONS: Word = (0, 0x4500_0000, 0xff00_0000);

/// A packet of this protocol, or its first fragment, whose source port is below 1024. Without the first fragment nobody takes the others.
fn from_low_port(protocol: u8) -> [Word; 4] {
    let protocol = (8, word([0, protocol, 0, 0]), 0x00ff_0000);
    [NO_OPTIONS, (4, 0, 0x1fff), protocol, (20, 0, 0xfc00_0000)]
}

fn to_block((first, prefix): (u32, u8)) -> Word {
    (16, first, u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0))
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

fn install(netlink: &mut Netlink, (from, to): (u32, u32), filters: &[Filter]) -> io::Result<()> {
    listen(netlink, from)?;
    (1..).zip(filters).try_for_each(|(order, filter)| add(netlink, (from, to), order, filter))
}

fn add(netlink: &mut Netlink, (from, to): (u32, u32), order: u16, filter: &Filter) -> io::Result<()> {
    let mut message = on(from);
    message.header.parent = INGRESS;
    message.header.info = u32::from(order) << 16 | u32::from(filter.carries.to_be());
    message.attributes.push(TcAttribute::Kind(TcFilterU32::KIND.into()));
    let mut options = vec![TcOption::U32(TcFilterU32Option::Selector(selector(&filter.words)))];
    // A filter without an action lets the frame go on to this namespace.
    if filter.verdict == Verdict::Pass {
        options.push(TcOption::U32(TcFilterU32Option::Action(vec![send_out_by(to)])));
    }
    message.attributes.push(TcAttribute::Options(options));
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

    const OUTSIDER: [u8; 4] = [10, 99, 0, 1];
    const MEMBER: [u8; 4] = [10, 31, 7, 7];
    const GATEWAY: [u8; 4] = [10, 31, 0, 1];

    fn network(more: &str) -> Network {
        let text = "kind = \"bridge\"\nsubnet = \"10.31.0.0/16\"\ngateway = \"10.31.0.1\"\n";
        Network::parse(&format!("{text}{more}")).unwrap()
    }

    /// An IPv4 packet from `ADDRESS`: its first byte, its fragment field, and what it carries.
    fn packet(first: u8, fragment: u16, protocol: u8, to: [u8; 4], port: u16) -> Vec<u8> {
        let options = vec![1; usize::from((first & 0xf) - 5) * 4];
        let [high, low] = fragment.to_be_bytes();
        let head = [first, 0, 0, 40, 0, 0, high, low, 64, protocol, 0xab, 0xcd];
        [&head[..], &ADDRESS.octets(), &to, &options, &port.to_be_bytes(), &[0xff; 18]].concat()
    }

    fn leaves(network: &Network, packet: &[u8]) -> bool {
        let frame = frame(HARDWARE, IPV4, packet);
        let filters = filters_from(HARDWARE, ADDRESS, network);
        let first = filters.iter().find(|filter| filter.carries == IPV4 && passes(&filter.words, &frame));
        first.is_some_and(|filter| filter.verdict == Verdict::Pass)
    }

    #[test]
    fn low_ports_reach_members_only() {
        let network = network("");
        for protocol in LOW_PORT_PROTOCOLS {
            let leaves = |to, port| leaves(&network, &packet(0x45, 0, protocol, to, port));
            for port in [0, 1, 700, 1023] {
                assert!(leaves(MEMBER, port), "{protocol} from {port} to a member");
                assert!(!leaves(OUTSIDER, port), "{protocol} from {port} to somebody else");
                assert!(!leaves(GATEWAY, port), "{protocol} from {port} to the gateway");
            }
            for to in [MEMBER, OUTSIDER, GATEWAY] {
                assert!([1024, 2048, 65535].into_iter().all(|port| leaves(to, port)), "{protocol} to {to:?}");
            }
        }
        assert!(leaves(&network, &packet(0x45, 0, 1, OUTSIDER, 0x0800)), "ICMP has no ports");
    }

    #[test]
    fn what_is_for_all_is_for_hosts_too() {
        for to in [[10, 31, 255, 255], [10, 31, 0, 0], [255; 4], [224, 0, 0, 1]] {
            assert!(!leaves(&network(""), &packet(0x45, 0, 17, to, 700)), "{to:?} from a low port");
            assert!(leaves(&network(""), &packet(0x45, 0, 17, to, 7000)), "{to:?} from another");
        }
    }

    #[test]
    fn neither_fragments_nor_options_hide_a_low_port() {
        const MORE: u16 = 0x2000;
        let network = network("");
        for to in [OUTSIDER, GATEWAY] {
            assert!(!leaves(&network, &packet(0x45, MORE, 17, to, 700)), "a first fragment");
            assert!(!leaves(&network, &packet(0x45, 0x4000, 17, to, 700)), "not to be fragmented");
            assert!(
                leaves(&network, &packet(0x45, MORE | 185, 17, to, 700)),
                "a later fragment has no ports"
            );
            for first in [0x46, 0x4f, 0x55, 0x65] {
                assert!(!leaves(&network, &packet(first, 0, 17, to, 700)), "{first:x}");
                assert!(!leaves(&network, &packet(first, 0, 17, to, 7000)), "{first:x}");
            }
        }
        assert!(leaves(&network, &packet(0x46, 0, 17, MEMBER, 700)), "options, to a member");
    }

    #[test]
    fn low_ports_reach_everybody_where_the_site_wants_it() {
        let network = network("low_ports = true\n");
        for to in [MEMBER, OUTSIDER, GATEWAY] {
            assert!(leaves(&network, &packet(0x45, 0, 6, to, 700)));
        }
    }

    #[test]
    fn blocks_side_by_side_are_one() {
        let blocks = |texts: &[&str]| {
            joined(&texts.iter().map(|text| text.parse::<Subnet>().unwrap()).collect::<Vec<_>>())
        };
        let ten = |c: u32, prefix| (0x0a00_0000 | c << 8, prefix);
        assert_eq!(blocks(&["10.0.3.0/24", "10.0.0.0/24", "10.0.2.0/24", "10.0.1.0/24"]), [ten(0, 22)]);
        assert_eq!(blocks(&["10.0.1.0/24", "10.0.2.0/24"]), [ten(1, 24), ten(2, 24)], "not of one block");
    }
}
