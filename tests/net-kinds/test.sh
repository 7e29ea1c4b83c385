# Networks of the site's: of each kind, from one node to the other; whose address is whose; what is left when all is over.
. "$(dirname "$0")/../lib.sh"
dir=/etc/skiff/networks.d
cleanup() {
    rm -rf $dir
    for node in n1 n2; do on $node ip link property del dev "e-$node" altname uplink 2>&- || true; done
}
trap cleanup EXIT
mkdir -p $dir
address() { on "$1" ip -o -4 addr show "e-$1" | awk '{print $4}' | cut -d/ -f1; }
nodes() { # THIRD-BYTE...: ranges of n1 and n2
    printf '[nodes]\nn1 = { range = "10.%s.1.0/24", address = "%s" }\nn2 = { range = "10.%s.2.0/24", address = "%s" }\n' \
        "$1" "$(address n1)" "$1" "$(address n2)"
}
network() { cat >"$dir/$1.toml"; }
# A process of USER on NODE, in an environment on a network.
at() { # NODE USER NETWORK CMD...
    local node=$1 user=$2 net=$3
    shift 3
    login "$user"
    on "$node" timeout --foreground -k 2 25 "${login[@]}" skiff run --net "$net" -- "$@"
}
# It stays until the client has closed: the kernel keeps a closed connection, and with it the client's address, for up to 108 s if nobody
# is there any more to acknowledge that.
server='
import socket, sys
s = socket.socket(); s.bind(("", 7000)); s.listen()
open(sys.argv[1], "w").write(socket.gethostbyname(socket.gethostname()))
c, peer = s.accept(); c.sendall(peer[0].encode()); c.shutdown(socket.SHUT_WR); c.recv(1)'
serve() { # NETWORK: alice's server on n1, in the background; its address is $server_at, which no test can know: others may still be going
    rm -f /home/alice/ready
    login alice
    on n1 "${login[@]}" skiff run --net "$1" -- python3 -c "$server" /home/alice/ready 3>&- &
    eventually 10 test -s /home/alice/ready
    server_at=$(cat /home/alice/ready)
}
client='
import socket, sys
c = socket.create_connection((sys.argv[1], 7000), 5); print(c.recv(100).decode())'
# Not for the addresses of IPv6, of which a name server far from here would be asked.
look_up() { echo "getent ahostsv4 $1 | sed -n 's/ *STREAM.*//p'"; }
all_free() { # NETWORK, on n1
    login alice
    [ "$(json "$(on n1 "${login[@]}" skiff net show "$1" --json)" 'len(d["leases"])')" = 0 ]
}
my_address='ip -o -4 addr show eth0 | sed "s,.*inet \([0-9.]*\)/.*,\1,"'

# ---- One node ---------------------------------------------------------------------------------------------------------------
network lab <<X
kind = "bridge"
subnet = "10.20.0.0/24"
gateway = "10.20.0.1"
range = "10.20.0.16/29"
mtu = 1400
most_each = 6
X
network wire <<X
kind = "macvlan"
parent = "e-n1"
subnet = "10.30.0.0/24"
users = ["alice"]
X

# Its own device and address, a way to the gateway, and not the host's.
ok at n1 alice lab sh -c "$my_address; ip route show default; ip -o link | wc -l; pwd; id -u; ip -o link show eth0 | sed 's/.* mtu \([0-9]*\) .*/\1/'"
equal "$out" $'10.20.0.16\ndefault via 10.20.0.1 dev eth0 proto static \n2\n/home/alice\n0\n1400'
eventually 10 all_free lab
fits as alice skiff net list --json
equal "$(json "$out" '[(n["name"], n["kind"], n["subnet"], n["in_use"]) for n in d]')" "[('lab', 'bridge', '10.20.0.0/24', 0), ('wire', 'macvlan', '10.30.0.0/24', 0)]"
# A port below 1024 is free, and oneself is reached by the loopback device.
ok at n1 alice lab python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 22)); s.listen(); socket.create_connection(("127.0.0.1", 22))'
# The host's name means oneself there; what else the host knows stays, and so does what the user has put there.
ok at n1 alice lab sh -c "$my_address; $(look_up n1); $(look_up n2)"
equal "$(xargs <<<"$out")" "${out%%[!0-9.]*} ${out%%[!0-9.]*} $(address n2)"
as alice sh -c 'echo 192.0.2.7 n1 >/home/alice/hosts'
login alice
ok on n1 "${login[@]}" skiff run --net lab -v /home/alice/hosts:/etc/hosts -- sh -c "$(look_up n1)"
equal "$out" 192.0.2.7
# By a printed plan, too, which is read again on the network.
ok on n1 "${login[@]}" skiff run --dry-run --json --net lab -v /home/alice/hosts:/etc/hosts -- sh -c "$(look_up n1); $my_address"
ok on n1 "${login[@]}" skiff run --plan - <<<"$out"
has "$out" $'192.0.2.7\n10.20.0.'
ok on n1 "${login[@]}" skiff env create --net lab dev
ok on n1 "${login[@]}" skiff env exec dev -- sh -c "$(look_up dev)"
has "$out" 10.20.0.
ok on n1 "${login[@]}" skiff env rm --force dev
# In /sys, too, are one's own devices only, with their addresses; inside an environment, as root and as oneself, likewise.
own_devices='echo $(ls /sys/class/net) $(cat /sys/class/net/eth0/address /sys/class/net/eth0/mtu); cat /proc/sys/net/ipv4/conf/eth0/forwarding >/dev/null; ls /sys/fs/cgroup >/dev/null'
for who in --root --me; do
    ok on n1 "${login[@]}" skiff run $who --net lab -- sh -c "$own_devices"
    has "$out" 'eth0 lo 0a:53:0a:14:00:1' "$who"
    has "$out" ' 1400' "$who"
done
ok on n1 "${login[@]}" skiff env create --net lab devices
ok on n1 "${login[@]}" skiff env exec devices -- sh -c "$own_devices; mount -o remount,rw /sys 2>/dev/null; echo 1 2>/dev/null >/sys/class/net/eth0/mtu && echo written; :"
has "$out" 'eth0 lo 0a:53:0a:14:00:1' 'in an environment'
lacks "$out" written
ok on n1 "${login[@]}" skiff env rm --force devices
# Directory, umask and exit code come through.
login alice
ok on n1 "${login[@]}" sh -c 'cd /usr/lib; umask 027; skiff run --net lab -- sh -c "pwd; umask"'
equal "$out" $'/usr/lib\n0027'
fails 7 at n1 alice lab sh -c 'exit 7'

# Nobody can take another's address, nor send as somebody else.
ok at n1 alice lab sh -c '
    ip addr add 10.20.0.99/24 dev eth0 2>/dev/null && echo address
    ip link set eth0 address 0a:53:0a:14:00:99 2>/dev/null && echo hardware
    ip link set eth0 down 2>/dev/null && echo down
    ip link add x type dummy 2>/dev/null && echo device
    ip route add 10.99.0.0/16 dev eth0 2>/dev/null && echo route
    python3 -c "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)" 2>/dev/null && echo packet
    python3 -c "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)" 2>/dev/null && echo raw
    :'
lacks "$out" address
for gained in hardware down device route packet raw; do lacks "$out" $gained; done
fails 125 at n1 bob wire true
has "$err" 'access denied'

# Each at a time has its own; the seventh of alice's is one too many, and bob gets what is left of eight.
pids=
for i in 1 2 3 4 5 6; do
    login alice
    on n1 "${login[@]}" skiff run --net lab -- sh -c "$my_address >address.$i; exec sleep 100" 3>&- &
    pids="$pids $!"
done
eventually 10 sh -c '[ "$(cat /home/alice/address.* | grep -c .)" = 6 ]'
equal "$(cat /home/alice/address.* | sort -u | wc -l)" 6 'different addresses'
login alice
fits on n1 "${login[@]}" skiff net show lab --json
equal "$(json "$out" 'sorted({l["user"] for l in d["leases"]})')" "['alice']"
equal "$(json "$out" 'len(d["leases"])')" 6
fails 125 at n1 alice lab true
has "$err" 'you have 6'
for i in 7 8; do
    login bob
    on n1 "${login[@]}" skiff run --net lab -- sleep 100 3>&- &
    pids="$pids $!"
done
eventually 10 on n1 sh -c '[ "$(ls /run/skiff/net/lab | wc -l)" = 8 ]'
fails 125 at n1 bob lab true
has "$err" 'all of its addresses on this node are taken'
# Two of one network speak to each other by their addresses; killed at any moment, they hold nothing.
on n1 pkill -KILL -x sleep
for pid in $pids; do wait "$pid" || true; done
eventually 10 all_free lab
serve lab
ok at n1 bob lab python3 -c "$client" "$server_at"
has "$out" 10.20.0.
wait $!

# ---- From node to node --------------------------------------------------------------------------------------------------------
{ printf 'kind = "macvlan"\nparent = "NODE"\nsubnet = "10.31.0.0/16"\n' && nodes 31; } >"$SKIFF_TEST_TMP/mv"
{ printf 'kind = "vxlan"\nparent = "NODE"\nid = 77\nsubnet = "10.32.0.0/16"\n' && nodes 32; } >"$SKIFF_TEST_TMP/vx"
{ printf 'kind = "routed"\nsubnet = "10.33.0.0/16"\n' && nodes 33; } | network routed
for node in n1 n2; do
    on $node sysctl -qw net.ipv4.ip_forward=1
    # The nodes of the test bed share /etc, and their devices have names of their own.
    on $node ip link property add dev e-$node altname uplink
done
sed s/NODE/uplink/ "$SKIFF_TEST_TMP/mv" | network mv
sed s/NODE/uplink/ "$SKIFF_TEST_TMP/vx" | network vx
for net in mv vx routed; do
    serve $net
    ok at n2 alice $net python3 -c "$client" "$server_at"
    has "$out" .2. "$net"
    wait $!
done
login alice
fails 1 on n2 "${login[@]}" skiff net check --json
described skiff net check --json
fails 1 on n2 "${login[@]}" skiff net check
for net in lab mv routed vx; do has "$out" "pass  $net"; done
has "$out" $'fail  wire\n      this node has no device e-n1'

# ---- What is wrong is said ----------------------------------------------------------------------------------------------------
# The rules that members need are tried, without any right on the host.
cp "$here/without_nftables.py" /shared
login alice
for net in lab vx; do
    ok on n1 "${login[@]}" skiff net check $net
    fails 1 on n1 "${login[@]}" /usr/bin/python3 /shared/without_nftables.py skiff net check $net
    has "$out" 'nftables: Protocol not supported'
    has "$out" CONFIG_NF_TABLES
done
ok on n1 "${login[@]}" /usr/bin/python3 /shared/without_nftables.py sh -c 'skiff doctor || :'
has "$out" 'would not work here'
printf 'kind = "bridge"\nsubnet = "10.1.0.0/33"\n' | network bad
fails 125 at n1 alice bad true
has "$err" bad.toml
fails 1 on n1 "${login[@]}" skiff net check bad
printf 'kind = "macvlan"\nparent = "gone0"\nsubnet = "10.1.0.0/24"\n' | network bad
fails 125 at n1 alice bad true
has "$err" 'no device gone0'
chmod 666 $dir/bad.toml
fails 125 at n1 alice bad true
has "$err" 'not be writable by others'
rm $dir/bad.toml
fails 125 at n1 alice nosuch true
fails 125 at n1 alice ../lab true
fails 125 as alice skiff env create --net nosuch there
has "$err" 'there is none of that name'

# ---- An environment that stays --------------------------------------------------------------------------------------------------
login alice
ok on n1 "${login[@]}" skiff env create --net lab dev
on n1 "${login[@]}" skiff env exec dev -- sh -c "$my_address >address.dev; exec sleep 100" 3>&- &
first=$!
eventually 10 test -s /home/alice/address.dev
for who in --root --me; do
    ok on n1 "${login[@]}" skiff env exec $who dev -- sh -c "$my_address; exit 0"
    equal "$out" "$(cat /home/alice/address.dev)" "$who"
done
on n1 "${login[@]}" skiff env stop dev
wait $first || true

# ---- Nothing is left ------------------------------------------------------------------------------------------------------------
for node in n1 n2; do
    eventually 30 on $node sh -c '! pgrep -u alice,bob'
    # The kernel lets go of namespaces one batch after the other, and others have some, too.
    eventually 30 on $node sh -c 'skiff sweep >/dev/null; [ -z "$(find /run/skiff/net -type f)" ]'
    equal "$(on $node ip -o link | grep -cE 'sk-|sv|sx-' || true)" 0 "devices on $node"
done
