# An encrypted network: what its members say is not to be read on the wire between nodes, nothing forged is taken from there, and a node with
# another key is heard by nobody. mallory has the wire, a node's address and root's ports; she has not the site's key.
. "$(dirname "$0")/../lib.sh"
dir=/etc/skiff/networks.d key=/etc/skiff/network.key
cleanup() {
    rm -rf $dir $key
    on n2 umount $key 2>&- || true
    for node in n1 n2; do
        on $node ip link del sw-sec 2>&- || true
        on $node ip link property del dev "e-$node" altname uplink 2>&- || true
    done
}
trap cleanup EXIT
mkdir -p $dir
address() { on "$1" ip -o -4 addr show "e-$1" | awk '{print $4}' | cut -d/ -f1; }
network() { # NAME ID THIRD-BYTE LINE
    printf 'kind = "vxlan"\nparent = "uplink"\nid = %s\nsubnet = "10.%s.0.0/16"\n%s\n[nodes]\n' "$2" "$3" "$4" >$dir/$1.toml
    for node in n1 n2; do
        printf '%s = { range = "10.%s.%s.0/28", address = "%s" }\n' $node "$3" ${node#n} "$(address $node)" >>$dir/$1.toml
    done
}
at() { # NODE USER NETWORK CMD...
    local node=$1 user=$2 net=$3
    shift 3
    login "$user"
    on "$node" timeout --foreground -k 2 $((25 * slowness)) "${login[@]}" skiff run --net "$net" -- "$@"
}
for node in n1 n2; do on $node ip link property add dev e-$node altname uplink; done
network plain 90 50 ''
network sec 91 51 'encrypt = true'
cp "$here"/{capture,secrets,unguard}.py "$here"/../hostile-network/forge.py /shared

# ---- What it takes -------------------------------------------------------------------------------------------------------------
printf 'encrypt = true\n' | cat - $dir/plain.toml >$dir/both.toml
sed -i '1i port = 4789' $dir/both.toml
fails 125 at n1 alice both true
has "$err" 'from 1 to 1023'
rm $dir/both.toml
# No key that all nodes have: neither the site's nor munge's.
on n1 mount -t tmpfs -o mode=700 tmpfs /etc/munge
fails 125 at n1 alice sec true
on n1 umount /etc/munge
has "$err" 'no key that all nodes have'
has "$err" /etc/munge/munge.key
# The kernel's WireGuard, or a program that root starts.
if on n1 ip link add wg-probe type wireguard 2>&-; then
    on n1 ip link del wg-probe
    serve() { :; }
else
    fails 125 at n1 alice sec true
    has "$err" 'the kernel has no WireGuard'
    has "$err" 'modprobe wireguard'
    has "$err" 'wireguard-go sw-sec'
    login alice
    fails 1 on n1 "${login[@]}" skiff net check sec
    has "$out" 'the kernel has no WireGuard'
    serve() { on "$1" env -i PATH=/usr/bin:/bin LOG_LEVEL=silent wireguard-go sw-sec >/dev/null 2>&1; }
fi
for node in n1 n2; do serve $node; done
login alice
ok on n1 "${login[@]}" skiff net check sec
# Of the key from which the helper has made the others nothing is in its memory as it becomes the user's program.
kept() { # FILE
    ok on n1 env -i HOME=/home/alice PATH=/usr/bin:/bin /usr/bin/python3 /shared/secrets.py alice "$1" skiff run --net sec -- true
    equal "$out" 'looked at 1' 'what the helper keeps'
}
kept /etc/munge/munge.key
# Nor of this node's own, which a program tells.
if on n1 test -S /var/run/wireguard/sw-sec.sock; then
    on n1 /usr/bin/python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect("/var/run/wireguard/sw-sec.sock"); s.send(b"get=1\n\n")
key = s.recv(65536).partition(b"private_key=")[2][:64].decode(); open("/shared/own.key", "wb").write(bytes.fromhex(key))'
    equal "$(stat -c %s /shared/own.key)" 32 "a node's key"
    kept /shared/own.key
fi

# ---- Read on the wire ------------------------------------------------------------------------------------------------------------
say='import socket, sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 7000))'
repeat="import time
while True:
    $say
    time.sleep(0.5)"
listen() { # NETWORK: alice on n1, in the background
    rm -f /home/alice/heard
    login alice
    on n1 "${login[@]}" skiff run --net "$1" -- /usr/bin/python3 /shared/forge.py listen $((30 * slowness)) >/home/alice/heard 3>&- &
    listener=$!
    eventually 10 grep -q listening /home/alice/heard
}
arrived() { grep -q honest-last /home/alice/heard; }
tell() { # NETWORK ADDRESS: alice on n2. A datagram may be lost: the kernel asks for an address for 3 s, and a handshake of WireGuard's may take longer.
    for try in 1 2 3 4 5; do
        ok at n2 alice "$1" /usr/bin/python3 -c "$say" "$2" honest-last
        for _ in {1..50}; do
            ! arrived || return 0
            sleep 0.1
        done
    done
    fail "$1: nothing arrived in $try tries"
}
capture() {
    on n1 timeout $((30 * slowness)) /usr/bin/python3 /shared/capture.py e-n1 honest-last >"$SKIFF_TEST_TMP/seen" 3>&- &
    capture=$!
    eventually 10 grep -q capturing "$SKIFF_TEST_TMP/seen"
}
heard() { # WHAT WANTED: alice, and whoever had the wire
    wait $listener
    equal "$(tail -1 /home/alice/heard)" honest-last "$1: what arrived"
    on n1 pkill -TERM -f 'capture[.]py e-n1'
    wait $capture || true
    seen=$(tail -1 "$SKIFF_TEST_TMP/seen")
    [ "${seen##* }" -ge 1 ] || fail "$1: nothing captured: $seen"
    [ "$2" = clear ] && [ "${seen%% *}" -ge 1 ] || { [ "$2" = sealed ] && [ "${seen%% *}" = 0 ]; } || fail "$1: in the clear $seen"
}
listen plain
capture
tell plain 10.50.1.0
heard plain clear

listen sec
capture
# Forged in plain VXLAN by who has a node's address and its root's ports, before and after somebody has flushed the rules.
forge=(/usr/bin/python3 /shared/forge.py send "$(address n1)" 91 10.51.1.0)
member=(10.51.2.1 0a:53:0a:33:02:01)
ok on n2 "${forge[@]}" forged-plain "${member[@]}" 700
ok on n1 /usr/bin/python3 /shared/unguard.py ip6 skiff.sec
ok on n2 "${forge[@]}" forged-flushed "${member[@]}" 700
ok as mallory "${forge[@]}" forged-outside "${member[@]}" 0
tell sec 10.51.1.0
heard sec sealed
# No user of a node's sends anything through the tunnel.
inner=fe80::$(address n1 | tr . ' ' | xargs printf '%02x%02x:%02x%02x')
ok at n1 bob sec true
login mallory
for port in 4789 22; do
    fails 1 on n2 "${login[@]}" /usr/bin/python3 -c "import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'?', ('$inner', $port, 0, socket.if_nametoindex('sw-sec')))"
    has "$err" 'not permitted' "mallory to port $port"
done

# ---- Another key -------------------------------------------------------------------------------------------------------------------
# Until here the keys came from munge's. With the site's own both nodes have others; one that has another site's is heard by nobody.
head -c 32 /dev/urandom | base64 >$key && chmod 600 $key
head -c 32 /dev/urandom | base64 >/shared/other.key && chmod 600 /shared/other.key
on n2 mount --bind /shared/other.key $key
listen sec
capture
ok at n2 alice sec /usr/bin/python3 -c "$say" 10.51.1.0 forged-key
# Until the namespace has gone, the kernel may go on asking for the address in it.
eventually 10 on n2 sh -c '! ip -o link | grep -q " sv"'
on n2 umount $key
# With the right one it is, here from an instance whose network namespace is her own: that helper may start no program.
login alice
ok on n2 "${login[@]}" skiff instance start --checkpoint --net sec host teller /usr/bin/python3 -c "$repeat" 10.51.1.0 honest-last
heard 'the site key' sealed
ok on n2 "${login[@]}" skiff instance rm --force teller
chmod 644 $key
fails 125 at n1 alice sec true
has "$err" "nobody else's to read"

# Where the description no longer says so, nothing of it stays.
rm -f $key
sed -i /encrypt/d $dir/sec.toml
ok at n1 alice sec true
fails 1 on n1 ip link show sw-sec
ok on n1 ip -d -o link show sx-sec
has "$out" "local $(address n1)"

# ---- Nothing is left -----------------------------------------------------------------------------------------------------------------
for node in n1 n2; do
    eventually 20 on $node sh -c 'skiff sweep >/dev/null; ! pgrep -x wireguard-go && [ "$(ip -o link | grep -cE " sk-| sv| sx-| sw-" || true)" = 0 ]'
done
