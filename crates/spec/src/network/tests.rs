use super::*;

const VXLAN: &str = r#"
kind = "vxlan"
parent = "eth0"
id = 42
subnet = "10.20.0.0/16"
gateway = "10.20.1.1"
users = ["alice", 7]
[nodes]
n1 = { range = "10.20.1.0/30", address = "192.0.2.1" }
n2 = { range = "10.20.2.0/24", address = "192.0.2.2" }
"#;

fn with(lines: &str) -> Result<Network, String> {
    Network::parse(&format!("subnet = \"10.20.0.0/24\"\n{lines}"))
}

#[test]
fn nodes_give_away_what_is_theirs() {
    let network = Network::parse(VXLAN).unwrap();
    let of = |node: &str| network.addresses(node).map(|all| all.map(|a| a.to_string()).collect::<Vec<_>>());
    assert_eq!(of("n1").unwrap(), ["10.20.1.0", "10.20.1.2", "10.20.1.3"], "all but the gateway");
    assert_eq!(of("n2").unwrap().len(), 256);
    assert!(of("n3").unwrap_err().contains("n3"));
    let whole = with("kind = \"bridge\"").unwrap();
    let all: Vec<_> = whole.addresses("any").unwrap().collect();
    assert_eq!((all.len(), all[0]), (254, Ipv4Addr::new(10, 20, 0, 1)), "neither the net nor all of it");
}

#[test]
fn what_one_user_may_have_leaves_room_for_others() {
    for (lines, capacity, each, kept) in [
        ("range = \"10.20.0.0/28\"", 15, 3, 1),
        ("range = \"10.20.0.16/28\"\ngateway = \"10.20.0.20\"", 15, 3, 1),
        ("range = \"10.20.0.4/32\"", 1, 1, 1),
        ("", 254, 63, 31),
        ("gateway = \"10.20.0.1\"", 253, 63, 31),
        ("range = \"10.20.0.16/29\"\nmost_each = 6", 8, 6, 3),
        ("most_each = 6\nmost_kept_each = 0", 254, 6, 0),
    ] {
        let network = with(&format!("kind = \"bridge\"\n{lines}")).unwrap();
        assert_eq!(network.addresses("any").unwrap().count() as u64, capacity, "{lines}");
        let found = (network.capacity("any"), network.most_each("any"), network.most_kept_each("any"));
        assert_eq!(found, (capacity, each, kept), "{lines}");
    }
    let huge = Network::parse("kind = \"bridge\"\nsubnet = \"10.0.0.0/8\"").unwrap();
    assert_eq!(huge.capacity("any"), (1 << 24) - 2);
}

#[test]
fn who_may_reach_members_is_nobody_unless_it_is_said() {
    assert_eq!(with("kind = \"bridge\"").unwrap().reach, []);
    let mut network =
        with("kind = \"bridge\"\nreach = [\"host\", \"lab\", \"gone\", \"192.0.2.0/24\"]").unwrap();
    let other =
        Network::parse("kind = \"bridge\"\nsubnet = \"10.9.0.0/24\"\ngateway = \"10.9.0.1\"").unwrap();
    network.resolve_reach(|name| Ok::<_, ()>((name.as_str() == "lab").then(|| other.clone()))).unwrap();
    let block = |block: &str| block.parse().unwrap();
    let gone = Reach::Network("gone".parse().unwrap());
    let lab = Reach::Members { blocks: vec![block("10.9.0.0/24")], but_for: Some([10, 9, 0, 1].into()) };
    assert_eq!(network.reach, [Reach::Host, lab, gone, Reach::Block(block("192.0.2.0/24"))]);
    assert!(with("kind = \"bridge\"\nreach = [\"No Net\"]").unwrap_err().contains("`reach`"));
}

#[test]
fn who_may() {
    let network = Network::parse(VXLAN).unwrap();
    let allows = |uid| network.allows(uid, &[100], |name| (name == "alice").then_some(1000), |_| None);
    assert!(allows(1000) && allows(7) && !allows(1001));
    assert!(with("kind = \"bridge\"").unwrap().allows(5, &[], |_| None, |_| None), "nobody named: everybody");
    let group = with("kind = \"bridge\"\ngroups = [\"hpc\"]").unwrap();
    let allows = |gids: &[u32]| group.allows(5, gids, |_| None, |name| (name == "hpc").then_some(20));
    assert!(allows(&[3, 20]) && !allows(&[3]));
    assert!(!with("kind = \"bridge\"\nusers = []").unwrap().allows(0, &[], |_| None, |_| None));
}

#[test]
fn what_makes_no_sense_is_said() {
    for (lines, says) in [
        ("", "kind"),
        ("kind = \"token-ring\"", "token-ring"),
        ("kind = \"bridge\"\ncolour = 1", "colour"),
        ("kind = \"macvlan\"", "parent"),
        ("kind = \"vxlan\"\nparent = \"eth0\"", "id"),
        ("kind = \"vxlan\"\nparent = \"eth0\"\nid = 16777216", "id"),
        ("kind = \"vxlan\"\nparent = \"eth0\"\nid = 1", "nodes"),
        ("kind = \"bridge\"\nid = 5", "vxlan"),
        ("kind = \"macvlan\"\nparent = \"../eth0\"", "parent"),
        ("kind = \"bridge\"\ngateway = \"10.21.0.1\"", "gateway"),
        ("kind = \"bridge\"\nmtu = 100", "mtu"),
        ("kind = \"bridge\"\nrange = \"10.21.0.0/24\"", "not in"),
        ("kind = \"bridge\"\nrange = \"10.20.0.0/16\"", "not in"),
        ("kind = \"bridge\"\nrange = \"10.20.0.1/24\"", "beyond"),
        (
            "kind = \"bridge\"\n[nodes]\na = { range = \"10.20.0.0/25\" }\nb = { range = \"10.20.0.64/26\" }",
            "overlap",
        ),
    ] {
        let said = with(lines).unwrap_err();
        assert!(said.contains(says), "{lines}: {said}");
    }
}

#[test]
fn who_knows_of_an_address() {
    let network = Network::parse(VXLAN).unwrap();
    let gives = |node: &str, address: [u8; 4]| network.gives_away(node, address.into());
    assert!(gives("n1", [10, 20, 1, 2]) && gives("n2", [10, 20, 2, 0]));
    assert!(!gives("n1", [10, 20, 2, 0]), "another node's");
    assert!(!gives("n1", [10, 20, 1, 1]), "the gateway's");
    assert!(!gives("n3", [10, 20, 1, 2]), "a node without any");
    assert!(with("kind = \"bridge\"").unwrap().gives_away("any", [10, 20, 0, 9].into()));
    for (lines, spans) in [
        ("kind = \"macvlan\"\nparent = \"eth0\"", true),
        ("kind = \"bridge\"\nparent = \"eth0\"", true),
        ("kind = \"bridge\"", false),
        ("kind = \"routed\"", false),
    ] {
        let network = with(lines).unwrap();
        assert_eq!((network.spans_nodes(), network.kept_hours), (spans, 168), "{lines}");
    }
    assert!(network.spans_nodes());
    assert!(with("kind = \"bridge\"\nkept_hours = 100000").unwrap_err().contains("kept_hours"));
}

#[test]
fn a_lease_is_kept_until_its_time() {
    let old = r#"{"network":"lab","uid":7,"space":3}"#;
    let mut lease = Lease::parse(old).unwrap();
    assert_eq!(lease.to_text(), old);
    assert!(!lease.is_kept(0));
    lease.until = Some(100);
    assert_eq!(Lease::parse(&lease.to_text()).as_ref(), Some(&lease));
    assert!(lease.is_kept(99) && !lease.is_kept(100));
}

#[test]
fn words_for_networks() {
    for (word, net) in [("host", Net::Host), ("none", Net::None), ("private", Net::Private)] {
        assert_eq!(word.parse(), Ok(net.clone()));
        assert_eq!(net.to_string(), word);
    }
    assert_eq!("lab-2".parse(), Ok(Net::Named(NetName("lab-2".into()))));
    for bad in ["", "Lab", "2lab", "../x", "a b", "a/b", "abcdefghijklm", "lab\0"] {
        assert_eq!(bad.parse::<Net>(), Err(NotANetwork(bad.into())));
    }
}

#[test]
fn addresses_and_their_hardware() {
    assert_eq!(hardware_address(Ipv4Addr::new(10, 20, 1, 255)), [0x0a, 0x53, 10, 20, 1, 255]);
    let slash: Subnet = "10.0.0.0/8".parse().unwrap();
    assert_eq!((slash.last(), slash.prefix()), (Ipv4Addr::new(10, 255, 255, 255), 8));
    let one: Subnet = "10.0.0.9/32".parse().unwrap();
    assert_eq!(one.addresses().collect::<Vec<_>>(), [Ipv4Addr::new(10, 0, 0, 9)]);
    for (bad, reason) in [
        ("10.0.0.0", "no length"),
        ("10.0.0.0/7", "its length is 8 to 32"),
        ("10.0.0.0/33", "its length is 8 to 32"),
        ("10.0.0.0/x", "its length is 8 to 32"),
        ("10.0.0/24", "no IPv4 address"),
        ("::/8", "no IPv4 address"),
        ("10.0.0.1/24", "bits beyond the length"),
    ] {
        let refused = bad.parse::<Subnet>().expect_err(bad);
        assert!(refused.contains(reason), "{refused}");
    }
}
