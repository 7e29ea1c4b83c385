# A server that sends without a pause is saved, restored and moved in the midst of it, its send queue full and its peer slow: the peer gets each
# byte once and in order, and an orderly end.
# takes: 50
# time: 240
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
needs_criu
dir=/etc/skiff/networks.d key=/etc/skiff/network.key
nodes='n1 n2'
cleanup() {
    rm -rf $dir $key
    for node in $nodes; do
        on $node ip link property del dev e-$node altname uplink 2>&- || true
        # Addresses of saved instances are kept for a week.
        on $node sh -c 'pkill -KILL -u alice,bob; grep -l until /run/skiff/net/*/*.* | xargs -r rm; skiff sweep >/dev/null; rm -rf /tmp/skiff-alice /tmp/skiff-bob /tmp/skiff-root' || true
    done
}
trap cleanup EXIT
mkdir -p $dir
reached() { on "$1" ip -o -4 addr show "e-$1" | awk '{print $4}' | cut -d/ -f1; }
network() { # NAME THIRD-BYTE LINES: each node gives away 10.X.NODE.0/28
    printf 'subnet = "10.%s.0.0/16"\n%s\n[nodes]\n' "$2" "$3" >$dir/$1.toml
    for node in $nodes; do
        printf '%s = { range = "10.%s.%s.0/28", address = "%s" }\n' $node "$2" ${node#n} "$(reached $node)" >>$dir/$1.toml
    done
}
own_disks
at() { # NODE USER CMD...
    local node=$1 user=$2
    shift 2
    login "$user"
    on "$node" timeout --foreground -k 2 25 "${login[@]}" "$@"
}

cat >/shared/sender.py <<'P'
import os, socket, struct
server = socket.create_server(('', 7000))
print('ready', flush=True)
peer, _ = server.accept()
n, ends = 0, '/home/alice/enough'
while not os.path.exists(ends):
    peer.sendall(b''.join(struct.pack('>Q', n + i) for i in range(8192)))
    n += 8192
peer.sendall(struct.pack('>Q', 2 ** 64 - 1))
peer.shutdown(socket.SHUT_WR)
# What ends takes its network along, and with it what has not been sent.
peer.recv(1)
print('sent', n, flush=True)
P
cat >/shared/taker.py <<'P'
import os, socket, struct, sys, time
address, name = sys.argv[1:]
peer = socket.create_connection((address, 7000), 10)
peer.settimeout(60)
n, rest = 0, b''
while data := peer.recv(65536):
    rest += data
    words = struct.unpack(f'>{len(rest) // 8}Q', rest[:len(rest) // 8 * 8])
    rest = rest[len(rest) // 8 * 8:]
    for word in words:
        if word == 2 ** 64 - 1:
            print('right', n, flush=True)
            break
        assert word == n, (word, n)
        n += 1
    with open(name + '.new', 'w') as file: file.write(str(n))
    os.rename(name + '.new', name)
    time.sleep(0.002)
assert not rest, 'an end in the midst of a word'
P
taken() { cat /home/bob/count 2>&- || echo 0; }
beyond() { [ "$(taken)" -gt "$1" ]; }
# More than both sides' buffers hold.
goes_on() { # AFTER
    local before end=$((SECONDS + 20 * slowness))
    before=$(taken)
    while [ $SECONDS -lt $end ]; do
        ! beyond $((before + 3000000)) || return 0
        sleep 0.1
    done
    login alice
    on $where "${login[@]}" skiff instance exec web -- sh -c 'ss -tnoi; cat /proc/net/tcp; ps axo pid,stat,wchan:20,args; ip -o -4 addr; ip -o link; ip neigh' || true
    on n2 sh -c 'for pid in $(pgrep -u bob -f taker.py); do nsenter -n -t $pid ss -tnoi; nsenter -n -t $pid ip neigh; done' || true
    on $where cat /tmp/skiff-alice/instance/web/output || true
    cat /home/bob/said
    fail "stands still after $1: $before words, now $(taken)"
}

for node in $nodes; do on $node ip link property add dev e-$node altname uplink; done
head -c 32 /dev/urandom | base64 >$key && chmod 600 $key
daemons
network mv 41 $'kind = "macvlan"\nparent = "uplink"'
where=n1
ok at n1 alice skiff instance start --checkpoint --net mv host web python3 /shared/sender.py
eventually 10 on n1 grep -qs ready /tmp/skiff-alice/instance/web/output
login bob
on n2 "${login[@]}" skiff run --net mv -- python3 /shared/taker.py 10.41.1.0 /home/bob/count >/home/bob/said 2>&1 3>&- &
peer=$!
goes_on begin
other() { if [ $where = n1 ]; then echo n2; else echo n1; fi; }
for round in 1 2; do
    ok at $where alice skiff checkpoint save web --leave-running
    goes_on "save --leave-running $round"
    ok at $where alice skiff checkpoint save web
    ok at $where alice skiff instance rm web
    where=$(other)
    ok at $where alice skiff checkpoint restore web
    goes_on "restore $round"
    for mode in diskless precopy disk; do
        ok at $where alice skiff migrate --mode $mode web $(other)
        where=$(other)
        goes_on "$mode $round to $where"
    done
done
as alice touch enough
wait $peer || fail "the peer: $(cat /home/bob/said)"
has "$(cat /home/bob/said)" right
eventually 10 on $where grep -qs sent /tmp/skiff-alice/instance/web/output
equal "$(grep -o '[0-9]*' /home/bob/said)" "$(on $where grep -o '[0-9]*' /tmp/skiff-alice/instance/web/output | tail -1)" 'what was sent and what came'
ok at $where alice skiff instance rm --force web
