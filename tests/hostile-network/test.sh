# mallory against networks of the site's: she holds locks and stops, takes and keeps addresses, and bob's start waits for none of it; she sends what
# seems to come from members, and knocks where she is no member.
# takes: 8
. "$(dirname "$0")/../lib.sh"
dir=/etc/skiff/networks.d
stopped=
cleanup() {
    rm -rf $dir
    [ -z "$stopped" ] || kill -KILL $stopped 2>&- || true
    on n1 ip link del v-other 2>&- || true
    on n2 ip route del 10.99.0.2 2>&- || true
    for node in n1 n2; do on $node ip link property del dev "e-$node" altname uplink 2>&- || true; done
}
trap cleanup EXIT
mkdir -p $dir
network() { cat >"$dir/$1.toml"; }
at() { # NODE USER CMD...
    local node=$1 user=$2
    shift 2
    login "$user"
    on "$node" timeout --foreground -k 2 25 "${login[@]}" "$@"
}
milliseconds() { # CMD...: how long it takes
    local begin=${EPOCHREALTIME/./}
    ok "$@"
    took=$(((${EPOCHREALTIME/./} - begin) / 1000))
}
quick() { # WHAT CMD...: within a second of what it takes when nobody is in the way
    local what=$1
    shift
    milliseconds "$@"
    [ $took -le $((usual + 1000)) ] || fail "$what: $took ms, $usual ms when nobody is in the way"
    echo "$what: $took ms"
}
bobs() { quick "$1" at n1 bob skiff run --net lab -- true; }
leases_of() { # USER
    ok at n1 "$1" skiff net show lab --json
    json "$out" "len([l for l in d['leases'] if l['user'] == '$1'])"
}
gone() { # USER: ends all of theirs, time and again as what begins as root's helper becomes theirs later; no address is left
    on n1 pkill -KILL -u "$1" || true
    [ "$(leases_of "$1")" = 0 ]
}

# ---- Nobody else waits ------------------------------------------------------------------------------------------------------
network lab <<Z
kind = "bridge"
subnet = "10.20.0.0/24"
gateway = "10.20.0.1"
range = "10.20.0.16/28"
Z
milliseconds at n1 bob skiff run --net lab -- true
milliseconds at n1 bob skiff run --net lab -- true
usual=$took

# Locks on all that she can open.
cat >/shared/hold.py <<'P'
import fcntl, os, time
held = []
for top in ("/run/skiff", "/etc/skiff"):
    for place, _, files in os.walk(top):
        for path in [place] + [os.path.join(place, name) for name in files]:
            try:
                held.append(os.open(path, os.O_RDONLY))
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass
print(len(held), flush=True)
time.sleep(60)
P
login mallory
on n1 "${login[@]}" python3 /shared/hold.py >/home/mallory/held 3>&- &
holder=$!
eventually 5 test -s /home/mallory/held
bobs "$(cat /home/mallory/held) files and directories locked"
kill $holder

# Her starts stand still wherever they are, as in a control group of hers that is frozen.
for after in 0.000 0.003 0.006 0.009 0.012 0.015 0.018 0.021 0.024 0.027 0.030 0.035 0.040 0.050; do
    login mallory
    on n1 "${login[@]}" skiff run --net lab -- sleep 60 >&- 2>&- 3>&- &
    sleep $after
    # What `on` has started is of the same PID namespace.
    frozen=$(pgrep -u root,mallory -x 'skiff|skiff-helper' --newest || true)
    [ -z "$frozen" ] || { kill -STOP $frozen 2>&- && stopped="$stopped $frozen"; } || true
done
[ "$(wc -w <<<"$stopped")" -ge 5 ] || fail "only these stand still: $stopped"
bobs "$(wc -w <<<"$stopped") starts stopped"
bobs 'the same, once more'
kill -KILL $stopped
stopped=
eventually 25 gone mallory

# ---- Addresses: a quarter is the most that one may have ------------------------------------------------------------------------
for i in 1 2 3 4 5 6; do
    login mallory
    on n1 "${login[@]}" skiff run --net lab -- sh -c "echo >address.$i; exec sleep 60" 3>&- 2>"/home/mallory/said.$i" &
done
eventually 10 sh -c '[ "$(cat /home/mallory/address.? /home/mallory/said.? | grep -cE "^$|you have")" = 6 ]'
equal "$(leases_of mallory)" 4 'addresses of hers'
has "$(cat /home/mallory/said.?)" 'nobody may have more than 4'
bobs 'all taken that she may have'
eventually 25 gone mallory

# All are kept for her, as they were when nothing bounded that; what goes beyond her share goes first.
ok at n1 mallory skiff run --net lab -- true
lease=$(on n1 sh -c 'cat /run/skiff/net/lab/10.20.0.16' | sed 's/,"until":[0-9]*//; s/"uid":[0-9]*/"uid":'"$(id -u mallory)"'/; s/"space":[0-9]*/"space":1000000/')
for i in $(seq 16 31); do
    on n1 sh -c "echo '${lease%\}},\"until\":$((4000000000 + i))}' >/run/skiff/net/lab/10.20.0.$i"
done
ok on n1 skiff sweep
has "$out" 'kept lease lab/10.20.0.17 for mallory'
bobs 'all kept for her'
eventually 10 gone bob
ok at n1 bob skiff run --net lab -- ip -o -4 addr show eth0
has "$out" 10.20.0.16/24 'what was kept first'
fails 125 at n1 mallory skiff run --net lab -- true
has "$err" 'of them kept for saved instances'
fails 125 at n1 bob skiff net release lab 10.20.0.20
has "$err" 'not kept for you'
for i in $(seq 17 28); do ok at n1 mallory skiff net release lab 10.20.0.$i; done
ok on n1 skiff net release lab 10.20.0.29
ok at n1 mallory skiff run --net lab -- true
for i in 30 31; do ok on n1 skiff net release lab 10.20.0.$i; done

# ---- Nobody is heard who is not on the network -----------------------------------------------------------------------------------
# Frames in a VXLAN's datagrams as anybody may send them who has a socket. One of root's, of a node's, shows that they are well made.
cp "$here/"{forge,knock,serve,unrule}.py /shared
address() { # NODE
    if [ "$1" = ctl ]; then ip -o route get "$(address n1)" | sed 's/.* src \([0-9.]*\).*/\1/'; else on "$1" ip -o -4 addr show "e-$1" | awk '{print $4}' | cut -d/ -f1; fi
}
{
    printf 'kind = "vxlan"\nparent = "uplink"\nid = 79\nsubnet = "10.32.0.0/16"\n[nodes]\n'
    for node in n1 n2; do printf '%s = { range = "10.32.%s.0/28", address = "%s" }\n' $node ${node#n} "$(address $node)"; done
} | network vx
for node in n1 n2; do on $node ip link property add dev e-$node altname uplink; done
login alice
on n1 "${login[@]}" skiff run --net vx -- /usr/bin/python3 /shared/forge.py listen >/home/alice/heard 3>&- &
listener=$!
eventually 10 grep -q listening /home/alice/heard
ok on n1 ip -d -o link show sx-vx
has "$out" nolearning
ok on n1 bridge fdb show dev sx-vx
has "$out" "0a:53:0a:20:02:01 dst $(address n2) self permanent"
second=0a:53:0a:20:02:01
forge=(/usr/bin/python3 /shared/forge.py send "$(address n1)")
# From a host that is not of the network: from a user's port, and from root's.
ok as mallory "${forge[@]}" 79 10.32.1.0 forged-outside 10.32.2.1 $second 0
ok "${forge[@]}" 79 10.32.1.0 forged-outside-root 10.32.2.1 $second 700
# From a node that has no rules yet, as nobody has been on the network there.
ok at n2 mallory "${forge[@]}" 79 10.32.1.0 forged-no-rules 10.32.2.1 $second 0
# Where there are, it does not even leave; nor can the member's own node be told so. Other VXLANs are none of ours.
ok at n2 bob skiff run --net vx -- true
for node in n1 n2; do
    fails 1 at $node mallory "${forge[@]}" 79 10.32.1.0 forged-rules 10.32.2.1 $second 0
    has "$err" 'not permitted' "what mallory sends from $node"
    ok at $node mallory "${forge[@]}" 80 10.32.1.0 other 10.32.2.1 $second 0
done
# A node speaks for its own addresses only.
by_root() { ok on n2 "${forge[@]}" 79 10.32.1.0 "$@"; }
by_root forged-hardware 10.32.2.1 0a:53:0a:20:01:05 700
by_root forged-address 10.32.1.5 $second 700
by_root forged-maker 10.32.2.1 02:00:00:00:00:01 700
by_root forged-tag 10.32.2.1 $second 700 0.0.0.0 8100
by_root honest-last 10.32.2.1 $second 700
wait $listener
equal "$(tail -1 /home/alice/heard)" honest-last 'what arrived'

# What a node passes on between others must come by the device by which it reaches the sender: a container of this host that takes another node's address
# is not that node. (Datagrams of other numbers pass: those are not ours to judge.)
on n1 sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
on n1 ip link add v-other type veth peer name e0
cat >/shared/container.sh <<Z
echo \$\$ >/shared/container
until ip link set e0 up 2>/dev/null; do sleep 0.05; done
ip addr add 10.99.0.2/30 dev e0
ip route add default via 10.99.0.1
/usr/bin/python3 /shared/numbers.py 79
ip addr replace $(address n2)/32 dev e0
for id in 79 80; do
    /usr/bin/python3 /shared/forge.py send $(address ctl) \$id 10.32.1.0 passing 10.32.2.1 $second 700 $(address n2)
done
Z
cp "$here/numbers.py" /shared
on n1 unshare -n sh /shared/container.sh >/shared/container.heard 2>&1 3>&- &
container=$!
eventually 10 test -s /shared/container
on n1 ip link set e0 netns "$(cat /shared/container)"
on n1 ip addr add 10.99.0.1/30 dev v-other
on n1 ip link set v-other up
on n2 ip route replace 10.99.0.2 via "$(address n1)"
/usr/bin/python3 /shared/numbers.py 80 >/shared/passed 3>&- &
listener=$!
eventually 10 grep -q listening /shared/passed
eventually 10 grep -q listening /shared/container.heard
ok on n2 /usr/bin/python3 /shared/forge.py send 10.99.0.2 79 10.32.1.0 passing 10.32.2.1 $second 700
wait $container
equal "$(tail -1 /shared/container.heard)" 79 'what a node sends through another'
wait $listener
equal "$(tail -1 /shared/passed)" 80 "what a container sends under a node's address"

# ---- Nobody reaches a member who is none ----------------------------------------------------------------------------------------
on n1 sysctl -qw net.ipv4.ip_forward=1
printf 'kind = "routed"\nsubnet = "10.21.0.0/24"\ngateway = "10.21.0.1"\n' | network other
serve() { # NETWORK: alice's server on n1; its address is $server_at
    rm -f /home/alice/ready
    login alice
    on n1 "${login[@]}" skiff run --net "$1" -- /usr/bin/python3 /shared/serve.py /home/alice/ready 3>&- &
    server=$!
    eventually 10 test -s /home/alice/ready
    server_at=$(cat /home/alice/ready)
}
knocks() { # WHAT USER NETWORK: what they get from the server
    if [ "$3" = host ]; then
        ok at n1 "$2" /usr/bin/python3 /shared/knock.py "$server_at"
    else
        ok at n1 "$2" skiff run --net "$3" -- /usr/bin/python3 /shared/knock.py "$server_at"
    fi
    equal "$out" "$1 $1" "$2 on $3, to $server_at"
}
stop_server() {
    on n1 pkill -KILL -u alice -f serve.py
    wait $server || true
}
for net in lab other; do
    [ $net = lab ] && else=other || else=lab
    serve $net
    knocks in bob $net
    knocks out mallory host
    knocks out mallory $else
    # What members begin is answered, by the host, too.
    login bob
    on n1 "${login[@]}" /usr/bin/python3 /shared/serve.py "/home/bob/host.$net" 3>&- &
    eventually 10 test -s "/home/bob/host.$net"
    # (By the address that it answers from.)
    [ $net = lab ] && seen=10.20.0.1 || seen=$(address n1)
    ok at n1 bob skiff run --net $net -- /usr/bin/python3 /shared/knock.py "$seen"
    equal "$out" 'in in' "from $net to the host"
    on n1 pkill -KILL -u bob -f serve.py
    stop_server
done
for net in lab other; do
    [ $net = lab ] && else=other || else=lab
    sed -i "1i reach = [\"host\", \"$else\"]" $dir/$net.toml
    serve $net
    knocks in mallory host
    knocks in mallory $else
    stop_server
done
# Whoever is in a network listens on every port; but a service that takes those below 1024 for root's (NFS) is not to take it for that.
login bob
on n1 "${login[@]}" /usr/bin/python3 /shared/serve.py /home/bob/host 3>&- &
eventually 10 test -s /home/bob/host
from_low() { ok at n1 mallory skiff run --net lab -- /usr/bin/python3 /shared/knock.py 10.20.0.1 700; }
from_low
equal "$out" 'out out' 'from a low port to the host'
# Nor does what is for all, which hosts hear, too.
printf 'kind = "bridge"\nsubnet = "10.22.0.0/24"\ngateway = "10.22.0.1"\n' | network wide
login bob
on n1 "${login[@]}" /usr/bin/python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 7001)); s.settimeout(20)
print("listening", flush=True)
while (said := s.recv(9).decode()) != "0": print(said, flush=True)' >/home/bob/all 3>&- &
listener=$!
eventually 10 grep -q listening /home/bob/all
ok at n1 mallory skiff run --net wide -- /usr/bin/python3 -c '
import socket
for port in 700, 0:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", port)); s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try: s.sendto(str(port).encode(), ("10.22.0.255", 7001))
    except OSError as e: print(e)'
wait $listener
equal "$(tail -1 /home/bob/all)" listening 'from a low port to all'
# Who rules his network namespace, as in an instance that can be saved, has no more of it.
ok at n1 mallory skiff instance start --checkpoint --net lab host rules sh -c 'nsenter --version >/dev/null; exec sleep 60'
ruling_low() {
    ok at n1 mallory skiff instance list --json
    ok at n1 mallory nsenter --preserve-credentials -U -n -t "$(json "$out" "d[0]['pid']")" /usr/bin/python3 /shared/knock.py 10.20.0.1 "$1"
}
ok at n1 mallory skiff instance list --json
ok at n1 mallory /usr/bin/python3 /shared/unrule.py "$(json "$out" "d[0]['pid']")"
ruling_low 700
equal "$out" 'out out' 'from a low port of a namespace of her own'
ruling_low 0
equal "$out" 'in in' 'the same from another port'
ok at n1 mallory skiff instance rm --force rules
sed -i '1i low_ports = true' $dir/lab.toml
from_low
equal "$out" 'in in' 'the same, where the site wants it'
on n1 pkill -KILL -u bob -f serve.py

# ---- Nothing is left --------------------------------------------------------------------------------------------------------------
eventually 20 on n1 sh -c 'skiff sweep >/dev/null; [ -z "$(find /run/skiff/net -type f)" ]'
for node in n1 n2; do
    eventually 20 on $node sh -c 'skiff sweep >/dev/null; [ "$(ip -o link | grep -cE " sk-| sv| sx-" || true)" = 0 ]'
done
