//! The networks of a site, on the hosts of a test bed: one of each kind between the first two, by real devices.

use super::super::people::RunAs;

/// The two hosts.
pub const HOSTS: [&str; 2] = ["n1", "n2"];

/// The networks' names, which are those of their kinds.
pub const NETWORKS: [&str; 4] = ["macvlan", "bridge", "routed", "vxlan"];

/// On the login node, for one host: a second wire into the bed's switch, without an address: a bridge of ours takes the whole device.
/// Then what the administrator writes down, over `/etc/skiff` of this host alone: nothing of it outlives the bed.
const SET_UP: &str = r#"set -eu
pid=$(on $HOST sh -c 'readlink /proc/1/ns/net' >/dev/null && cat $SKIFF_TESTBED_DIR/nodes/$HOST/pid)
ip link add w-$HOST type veth peer name wire netns $pid
ip link set w-$HOST master br0 up
on $HOST ip link set wire up
on $HOST sysctl -qw net.ipv4.ip_forward=1
address() { on $1 ip -o -4 addr show e-$1 | awk '{print $4}' | cut -d/ -f1; }
first=$(address n1) second=$(address n2)
on $HOST sh -c 'cp -a /etc/skiff /tmp/etc-skiff; mkdir -p /tmp/etc-skiff/networks.d; mount --bind /tmp/etc-skiff /etc/skiff'
network() { # KIND NUMBER LINE...
    kind=$1 number=$2; shift 2
    { printf 'kind = "%s"\nsubnet = "10.%s.0.0/16"\n' $kind $number
      printf '%s\n' "$@"
      printf '[nodes]\nn1 = { range = "10.%s.1.0/24", address = "%s" }\n' $number $first
      printf 'n2 = { range = "10.%s.2.0/24", address = "%s" }\n' $number $second
    } | on $HOST sh -c "cat >/etc/skiff/networks.d/$kind.toml"
}
network macvlan 31 "parent = \"e-$HOST\""
network bridge 32 'parent = "wire"'
network routed 33
network vxlan 34 "parent = \"e-$HOST\"" 'id = 34'
"#;

/// Makes them.
pub fn set_up() -> anyhow::Result<()> {
    for host in HOSTS {
        RunAs::Root.bash(&format!("HOST={host}\n{SET_UP}"))?;
    }
    Ok(())
}
