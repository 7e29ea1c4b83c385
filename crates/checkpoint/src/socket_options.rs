//! Options of sockets that CRIU does not save: read when processes stand still, and set again before they go on.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::socket_option;

use crate::locks::copied;
use crate::notes::RestoreNotes;

/// An option that is not as a new socket has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketOption {
    /// A descriptor of the socket in the process.
    pub fd: i32,
    /// To whom the option belongs: the socket itself, or a protocol.
    pub level: i32,
    /// Number of the option.
    pub number: i32,
    /// What it is set to.
    pub value: Vec<u8>,
}

/// Levels and their options. Left out is what CRIU saves, what the kernel changes by itself (`TCP_QUICKACK`, `SO_INCOMING_CPU`), and what no process
/// can set. Sources: `asm-generic/socket.h`, `linux/in.h`, `linux/in6.h`, `linux/tcp.h`, `linux/udp.h`; `sk-inet.c`, `sockets.c` of CRIU.
const OPTIONS: [(i32, &[i32]); 5] = [
    // SO_REUSEADDR (of Unix sockets), SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, SO_RXQ_OVFL, SO_PEEK_OFF, SO_NOFCS, SO_SELECT_ERR_QUEUE,
    // SO_MAX_PACING_RATE, SO_ZEROCOPY, SO_TXREHASH, SO_RCVMARK, SO_PASSPIDFD, SO_RCVPRIORITY
    (1, &[2, 29, 35, 37, 40, 42, 43, 45, 47, 60, 74, 75, 76, 82]),
    // IP_MTU_DISCOVER, IP_RECVERR, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR, IP_MINTTL, IP_NODEFRAG, IP_BIND_ADDRESS_NO_PORT, IP_RECVFRAGSIZE,
    // IP_RECVERR_RFC4884, IP_MULTICAST_IF, _TTL, _LOOP, _ALL, IP_UNICAST_IF, IP_LOCAL_PORT_RANGE
    (0, &[10, 11, 12, 13, 20, 21, 22, 24, 25, 26, 32, 33, 34, 49, 50, 51]),
    // IPV6_UNICAST_HOPS, IPV6_MULTICAST_IF, _HOPS, _LOOP, IPV6_MTU_DISCOVER, IPV6_RECVERR, IPV6_MULTICAST_ALL, IPV6_RECVERR_RFC4884,
    // IPV6_FLOWINFO_SEND, IPV6_RECVHOPLIMIT, IPV6_RECVPATHMTU, IPV6_DONTFRAG, IPV6_RECVTCLASS, IPV6_TCLASS, IPV6_AUTOFLOWLABEL,
    // IPV6_ADDR_PREFERENCES, IPV6_MINHOPCOUNT, IPV6_ORIGDSTADDR, IPV6_UNICAST_IF, IPV6_RECVFRAGSIZE
    (41, &[16, 17, 18, 19, 23, 25, 29, 31, 33, 51, 60, 62, 66, 67, 70, 72, 73, 74, 76, 77]),
    // TCP_SYNCNT, TCP_LINGER2, TCP_DEFER_ACCEPT, TCP_CONGESTION, TCP_THIN_LINEAR_TIMEOUTS, TCP_USER_TIMEOUT, TCP_FASTOPEN, TCP_NOTSENT_LOWAT,
    // TCP_SAVE_SYN, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE, TCP_INQ, TCP_TX_DELAY, TCP_RTO_MAX_MS
    (6, &[7, 8, 9, 13, 16, 18, 23, 25, 27, 30, 34, 36, 37, 44]),
    // UDP_NO_CHECK6_TX, UDP_NO_CHECK6_RX, UDP_SEGMENT, UDP_GRO
    (17, &[101, 102, 103, 104]),
];

/// Joins a group. Source: `linux/in.h`.
const MCAST_JOIN_GROUP: i32 = 42;
/// Levels of the two protocols with groups.
const IP: i32 = 0;
const IPV6: i32 = 41;

/// Sockets with which others are compared, by their kind; nothing where none could be made. They are of the network that the others are of, which has
/// its own values for new sockets (`/proc/sys/net`).
pub(crate) struct NewSockets<'a> {
    inside: EnterTarget<'a>,
    made: BTreeMap<[i32; 3], Option<OwnedFd>>,
}

/// Groups of which some socket of a network is a member: the level of the protocol, and what names the group on an interface.
pub(crate) fn groups(table: impl Fn(&str) -> String) -> Vec<(i32, Vec<u8>)> {
    let mut found = vec![];
    let mut interface = None;
    for line in table("igmp").lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with(['\t', ' ']) {
            interface = words.first().and_then(|number| number.parse().ok());
            continue;
        }
        let address = words.first().and_then(|word| u32::from_str_radix(word, 16).ok());
        if let (Some(interface), Some(address)) = (interface, address) {
            found.push((IP, socket_option::group(interface, Ipv4Addr::from(address.to_ne_bytes()).into())));
        }
    }
    for line in table("igmp6").lines() {
        let mut words = line.split_whitespace();
        let interface = words.next().and_then(|number| number.parse().ok());
        let address = words.nth(1).and_then(|word| u128::from_str_radix(word, 16).ok());
        if let (Some(interface), Some(address)) = (interface, address) {
            found.push((IPV6, socket_option::group(interface, Ipv6Addr::from(address).into())));
        }
    }
    found
}

impl<'a> NewSockets<'a> {
    /// Of the network of this instance.
    pub(crate) fn of(inside: EnterTarget<'a>) -> Self {
        Self { inside, made: BTreeMap::new() }
    }

    /// The options of the socket behind a descriptor of a process that are not as a new one has them.
    ///
    /// # Errors
    /// When the instance has ended.
    pub(crate) fn differ(
        &mut self,
        outer: i32,
        fd: i32,
        groups: &[(i32, Vec<u8>)],
    ) -> Result<Vec<SocketOption>> {
        let Ok(copy) = copied(outer, fd) else { return Ok(vec![]) };
        let mut found = self.compare(copy.as_fd(), fd)?;
        let of_member =
            groups.iter().filter(|(level, group)| socket_option::is_member(copy.as_fd(), *level, group));
        let join = |(level, group): &(i32, Vec<u8>)| SocketOption {
            fd,
            level: *level,
            number: MCAST_JOIN_GROUP,
            value: group.clone(),
        };
        found.extend(of_member.map(join));
        Ok(found)
    }

    fn compare(&mut self, socket: BorrowedFd<'_>, fd: i32) -> Result<Vec<SocketOption>> {
        let Ok(kind) = socket_option::kind(socket) else { return Ok(vec![]) };
        let new = match self.made.entry(kind) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(none) => none.insert(enter::open_socket(self.inside, kind)?),
        };
        // Of a kind of which there is none to be had, the options stay as CRIU has them.
        let Some(new) = new else { return Ok(vec![]) };
        let all = OPTIONS.iter().flat_map(|(level, numbers)| numbers.iter().map(|number| (*level, *number)));
        let changed = |(level, number): (i32, i32)| {
            let value = socket_option::get(socket, level, number).ok()?;
            let is_new = socket_option::get(new.as_fd(), level, number).is_ok_and(|new| new == value);
            (!is_new).then_some(SocketOption { fd, level, number, value })
        };
        Ok(all.filter_map(changed).collect())
    }
}

/// Sets them again, of processes that are there and stand still. What this host does not have is noted.
///
/// # Errors
/// A descriptor is not there.
pub fn set_again(
    inside: EnterTarget<'_>,
    options: &[(i32, SocketOption)],
    notes: &RestoreNotes,
) -> Result<()> {
    if options.is_empty() {
        return Ok(());
    }
    let refused = enter::run(EnterTarget { number: None, ..inside }, &[], || {
        let mut refused = vec![];
        for (pid, option) in options {
            let socket =
                copied(*pid, option.fd).context(|| format!("process {pid}: socket {}", option.fd))?;
            let SocketOption { fd, level, number, value } = option;
            if let Err(e) = socket_option::set(socket.as_fd(), *level, *number, value) {
                refused.push(format!("process {pid}: socket {fd}: option {number} of level {level}: {e}"));
            }
        }
        Ok(refused)
    })?;
    refused.iter().for_each(|why| notes.add(why));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::UdpSocket;
    use std::process::{Child, Command, Stdio};

    use rustix::process::Pid;
    use skiff_sandbox::join::NetSpace;

    use super::*;
    use crate::apart::is_apart;

    #[test]
    fn groups_are_read() {
        let igmp = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n";
        let igmp6 = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n";
        let found = groups(|name| if name == "igmp" { igmp.into() } else { igmp6.into() });
        assert_eq!(found[0], (IP, socket_option::group(1, Ipv4Addr::new(224, 0, 0, 1).into())));
        let all_nodes: Ipv6Addr = "ff02::1".parse().expect("an address");
        assert_eq!(found[1], (IPV6, socket_option::group(1, all_nodes.into())));
    }

    #[test]
    fn a_member_is_seen_and_made_again() {
        let group = Ipv4Addr::new(239, 1, 2, 3);
        let (one, other) =
            (UdpSocket::bind("0.0.0.0:0").expect("bound"), UdpSocket::bind("0.0.0.0:0").expect("bound"));
        one.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).expect("joined");
        let lo = socket_option::group(1, group.into());
        let is_in = |socket: &UdpSocket| socket_option::is_member(socket.as_fd(), IP, &lo);
        assert_eq!((is_in(&one), is_in(&other)), (true, false));
        socket_option::set(other.as_fd(), IP, MCAST_JOIN_GROUP, &lo).expect("set");
        assert!(is_in(&other));
    }

    /// What is in the namespaces of a process.
    fn of_process(pid: Pid) -> OwnedFd {
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("there")
    }

    #[test]
    fn only_what_was_changed_is_kept() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let own = of_process(rustix::process::getpid());
        let mut new = NewSockets::of(EnterTarget { init: own.as_fd(), net: NetSpace::Ours, number: None });
        assert_eq!(new.compare(socket.as_fd(), 3).expect("compared"), []);
        socket.set_multicast_ttl_v4(5).expect("set");
        let changed = new.compare(socket.as_fd(), 3).expect("compared");
        assert!(matches!(&changed[..], [SocketOption { fd: 3, level: 0, number: 33, .. }]), "{changed:?}");
        let other = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let SocketOption { level, number, value, .. } = &changed[0];
        socket_option::set(other.as_fd(), *level, *number, value).expect("set");
        assert_eq!(other.multicast_ttl_v4().expect("asked"), 5);
    }

    /// A process that ends with the test, whatever comes of that.
    struct EndedChild(Child);

    impl Drop for EndedChild {
        fn drop(&mut self) {
            self.0.kill().and_then(|()| self.0.wait()).expect("ended");
        }
    }

    #[test]
    fn new_sockets_are_those_of_the_instances_network() {
        if !is_apart("socket_options::tests::new_sockets_are_those_of_the_instances_network") {
            return;
        }
        // One with another number of tries than here.
        let program = "import socket, time\n\
            open('/proc/sys/net/ipv4/tcp_syn_retries', 'w').write('3')\n\
            one = socket.socket(); other = socket.socket()\n\
            other.setsockopt(socket.IPPROTO_TCP, 7, 6)\n\
            print(one.fileno(), other.fileno(), flush=True); time.sleep(60)";
        let unshare = ["--user", "--map-root-user", "--net", "python3", "-c", program];
        let child = Command::new("unshare").args(unshare).stdout(Stdio::piped()).spawn().expect("started");
        let mut child = EndedChild(child);
        let mut said = String::new();
        BufReader::new(child.0.stdout.take().expect("a pipe")).read_line(&mut said).expect("read");
        let fds: Vec<i32> = said.split_whitespace().map(|fd| fd.parse().expect("a number")).collect();
        let pid = i32::try_from(child.0.id()).expect("a number");
        let init = of_process(Pid::from_child(&child.0));
        let mut new = NewSockets::of(EnterTarget { init: init.as_fd(), net: NetSpace::Its, number: None });
        let mut differ = |fd| new.differ(pid, fd, &[]).expect("compared");
        let (one, other) = (differ(fds[0]), differ(fds[1]));
        assert_eq!(one, []);
        assert!(matches!(&other[..], [SocketOption { level: 6, number: 7, .. }]), "{other:?}");
    }
}
