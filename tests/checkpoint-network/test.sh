# An instance on a network of the site's is saved and made again, here and on another node: its address, hardware address, routes and TCP
# connections come back, and its peer sees a pause. Nobody gets another's address, nor sends from one, though he rules the namespace.
# time: 400
# takes: 40
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

# A server that answers each block with its checksum and the block, and a peer that asks as long as it is to: each block depends on the
# answer before. The peer says how many there were, the longest pause, and checks that the end is an orderly one.
cat >/shared/server.py <<'P'
import socket, zlib
server = socket.create_server(('', 7000))
print('ready', flush=True)
peer, _ = server.accept()
# (Not with MSG_WAITALL: being stopped makes that return with what is there.)
questions, total = peer.makefile('rb'), 0
while block := questions.read(65536):
    total = zlib.crc32(block, total)
    peer.sendall(total.to_bytes(4, 'big') + block)
P
cat >/shared/peer.py <<'P'
import os, socket, sys, time, zlib
address, name = sys.argv[1:]
peer = socket.create_connection((address, 7000), 10)
peer.settimeout(30)
answers = peer.makefile('rb')
total = n = pause = 0
block = bytes(range(256)) * 256
last = time.monotonic()
while not os.path.exists(name + '.stop'):
    peer.sendall(block)
    answer = answers.read(65540)
    total = zlib.crc32(block, total)
    assert answer == total.to_bytes(4, 'big') + block, n
    block = answer[:4] + block[:-4]
    n += 1
    now = time.monotonic()
    pause, last = max(pause, now - last), now
    with open(name + '.new', 'w') as file: file.write(str(n))
    os.rename(name + '.new', name)
    time.sleep(0.001)
peer.shutdown(socket.SHUT_WR)
assert answers.read(1) == b'', 'an orderly end'
print('blocks', n, 'longest pause', round(pause * 1000), 'ms')
P
blocks() { cat /home/bob/"$1" 2>&- || echo 0; }
beyond() { [ "$(blocks "$1")" -gt "$2" ]; }
goes_on() { eventually 15 beyond "$1" $(($(blocks "$1") + 20)); }
listens() { on "$1" grep -qs ready "/tmp/skiff-alice/instance/$2/output"; }
network_of() { # NODE INSTANCE: its addresses and routes
    ok at "$1" alice skiff instance exec "$2" -- sh -c 'ip -o link show eth0 | grep -o "mtu [0-9]*\|ether [^ ]*"; ip -o -4 addr show eth0 | grep -o "inet .*"; ip route'
}
# A server of alice's on NODE, and a peer of bob's on n2, or PEER.
stream() { # NETWORK NODE ADDRESS [PEER]
    ok at "$2" alice skiff instance start --checkpoint --net "$1" host "$1" python3 /shared/server.py
    eventually 10 listens "$2" "$1"
    network_of "$2" "$1"
    before=$out
    has "$before" "inet $3/"
    login bob
    on "${4:-n2}" "${login[@]}" skiff run --net "$1" -- python3 /shared/peer.py "$3" "/home/bob/$1" >"/home/bob/$1.said" 3>&- &
    peer=$!
    eventually 10 beyond "$1" 20
}
moved() { # INSTANCE FROM TO
    ok at "$2" alice skiff checkpoint save "$1"
    ok at "$3" alice skiff checkpoint restore "$1"
    network_of "$3" "$1"
    equal "$out" "$before" "network of $1, from $2 to $3"
    goes_on "$1"
}
over() { # INSTANCE NODE: the peer was happy, and the server has ended by itself
    touch "/home/bob/$1.stop"
    wait $peer
    echo "$1: $(cat "/home/bob/$1.said")"
    eventually 10 sh -c "! pgrep -f 'server[.]py'"
    eventually 10 has_ended "$1" "$2"
}
# Its supervisor notes the exit code after its processes have gone.
has_ended() { # INSTANCE NODE
    login alice
    [ "$(json "$(on "$2" "${login[@]}" skiff instance list --json)" "[i.get('exit_code') for i in d if i['name'] == '$1']")" = '[0]' ]
}

for node in $nodes; do on $node ip link property add dev e-$node altname uplink; done
head -c 32 /dev/urandom | base64 >$key && chmod 600 $key
daemons

# ---- Connections go on ---------------------------------------------------------------------------------------------------------
network mv 41 $'kind = "macvlan"\nparent = "uplink"'
stream mv n1 10.41.1.0
has "$before" 'ether 0a:53:0a:29:01:00'
ok at n1 alice skiff checkpoint save mv --leave-running
goes_on mv
moved mv n1 n1
# Nobody there could tell whose it is, so it stays and goes on.
head -c 32 /dev/urandom | base64 >/shared/other.key && chmod 600 /shared/other.key
: >/shared/no.key && chmod 600 /shared/no.key
for other in 'other another key' 'no key shorter than'; do
    on n2 mount --bind "/shared/${other%% *}.key" $key
    fails 125 at n1 alice skiff migrate mv n2
    on n2 umount $key
    has "$err" "${other#* }"
    goes_on mv
done
# Nor where the network's parent is missing, or somebody already has the address.
refused_there() { # WORDS
    fails 125 at n1 alice skiff migrate mv n2
    has "$err" "$1"
    goes_on mv
}
on n2 ip link property del dev e-n2 altname uplink
refused_there uplink
on n2 ip link property add dev e-n2 altname uplink
kept=/run/skiff/net/mv/10.41.1.0
on n2 sh -c "sed 's/,*\"until\":[^,}]*//; s/}/,\"until\":4000000000}/' /run/skiff/net/mv/10.41.2.0 >$kept"
refused_there 'it is kept for somebody else'
on n2 rm $kept
moved mv n1 n2
# Meanwhile nobody else is given it there, and there it is kept for her.
ok at n1 bob skiff run --net mv -- ip -o -4 addr show eth0
has "$out" 10.41.1.1/16
fits at n1 alice skiff net show mv --json
equal "$(json "$out" '[(l["address"], "until" in l) for l in d["leases"] if l["user"] == "alice"]')" "[('10.41.1.0', True)]"
# What a node has forgotten, or kept long enough, it gives to nobody who would have it twice.
for forget in 's/"until":[0-9]*/"until":1/' d; do
    on n1 sed -i "$forget" /run/skiff/net/mv/10.41.1.0
    [ "$forget" != d ] || on n1 rm /run/skiff/net/mv/10.41.1.0
    ok at n1 bob skiff run --net mv -- ip -o -4 addr show eth0
    has "$out" 10.41.1.1/16 "where an address is free after $forget"
done
# Nor can she have it twice.
fails 125 at n1 alice skiff checkpoint restore mv twice
has "$err" '10.41.1.0: somebody has it, on another host'
fails 125 at n2 alice skiff checkpoint restore mv twice
has "$err" '10.41.1.0: somebody has it, on this node'
moved mv n2 n1

# ---- Nobody sends as somebody else --------------------------------------------------------------------------------------------
# She rules the namespace; what leaves it passes another. On the wire between the nodes only what is hers is seen.
cp "$here/spoof.py" /shared
ruling() { # INSTANCE
    ok at n1 alice skiff instance list --json
    ruling=(nsenter --preserve-credentials -U -n -t "$(json "$out" "[i['pid'] for i in d if i['name'] == '$1'][0]")")
}
sent() { # CMD...: again, until $listener has the last frame. A busy wire may lose one.
    local i
    for ((i = 0; i < 100; i++)); do
        ok "$@"
        kill -0 $listener 2>&- || break
        sleep 0.1
    done
    wait $listener
}
ruling mv
equal "$(json "$out" "[i['address'] for i in d if i['name'] == 'mv']")" "['10.41.1.0']" 'address that is listed'
on n2 timeout 60 /usr/bin/python3 /shared/spoof.py listen e-n2 >seen 3>&- &
listener=$!
eventually 10 grep -q listening seen
ok at n1 alice "${ruling[@]}" sh -c 'grep CapEff /proc/self/status'
has "$out" ffffffff 'all power inside'
sent at n1 alice "${ruling[@]}" /usr/bin/python3 /shared/spoof.py send eth0 10.41.1.0 0a:53:0a:29:01:00 0a:54:0a:29:01:00 10.41.2.1 0a:53:0a:29:02:01
equal "$(tail -1 seen)" 'honest-arp honest-last' 'what came through'
goes_on mv
# Without a file of a checkpoint, too.
ok at n1 alice skiff migrate mv n2
network_of n2 mv
equal "$out" "$before" 'network of what has moved'
goes_on mv
ok at n2 alice skiff migrate --mode disk mv n1
goes_on mv
over mv n1

# ---- One rank of a job ---------------------------------------------------------------------------------------------------------
# Two containers, in each a rank of Open MPI's under an orted of its own; one goes to another node and back while the other waits. What
# mpirun would have ssh start is the second container's command.
mpicc -O2 -o /shared/exchange "$here/exchange.c"
mpi='OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_psec=native OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_MCA_mpi_yield_when_idle=1'
as alice sh -c 'cat >agent; chmod +x agent' <<'P'
#!/bin/sh
shift
echo "exec $*" >orted.new
mv orted.new orted
until [ -e over ]; do sleep 0.1; done
P
ok at n1 alice skiff instance start --checkpoint --net mv host second sh -c 'cd; until [ -e orted ]; do sleep 0.02; done; sh orted; touch over'
ok at n1 alice skiff instance list --json
there=$(json "$out" "[i['address'] for i in d if i['name'] == 'second'][0]")
ok at n1 alice skiff instance start --checkpoint --net mv host first sh -c "cd; export $mpi OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
    exec mpirun --quiet --leave-session-attached -mca plm_rsh_agent ./agent -H localhost,$there -n 2 /shared/exchange 1000000 20000 enough"
steps() { [ "$(on n1 grep -cx '[0-9]*' /tmp/skiff-alice/instance/first/output)" -ge "$1" ]; }
eventually 20 steps 20
# Meanwhile both nodes are swept, and another's containers come and go on the network.
meanwhile() { # NODE
    local end=$((SECONDS + 150 * slowness))
    until [ -e /shared/settled ] || [ $SECONDS -ge $end ]; do
        on "$1" skiff sweep
        at "$1" bob skiff run --net mv -- true
    done
}
rm -f /shared/settled
sweepers=()
for node in $nodes; do meanwhile $node >meanwhile.$node 2>&1 & sweepers+=($!); done
for round in 1 2 3 4 5; do
    for way in 'n1 n2' 'n2 n1'; do
        ok at "${way% *}" alice skiff migrate second "${way#* }"
        eventually 20 steps $(($(on n1 grep -cx '[0-9]*' /tmp/skiff-alice/instance/first/output) + 20))
    done
done
touch /shared/settled
for sweeper in "${sweepers[@]}"; do wait $sweeper || fail "beside the moves: $(tail -n 3 meanwhile.*)"; done
# Who has just gone is not taken for somebody on another node, for whom an address would be kept for a week.
lacks "$(cat meanwhile.*)" 'for ?'
# The result is that of ranks which have taken as many steps where nobody disturbed them.
as alice touch enough
eventually 30 on n1 grep -q result /tmp/skiff-alice/instance/first/output
said=$(on n1 cat /tmp/skiff-alice/instance/first/output)
ok as alice env $mpi mpirun --quiet --oversubscribe -n 2 /shared/exchange $(grep -cx '[0-9]*' <<<"$said") 0
has "$out" result
equal "$said" "$out" 'what the ranks came to'
for name in first second; do
    ok at n1 alice skiff instance logs --follow $name
    ok at n1 alice skiff instance list --json
    equal "$(json "$out" "[i['exit_code'] for i in d if i['name'] == '$name']")" '[0]' "end of $name"
done

# ---- Of each kind ------------------------------------------------------------------------------------------------------------
for node in $nodes; do on $node sysctl -qw net.ipv4.ip_forward=1; done
network vx 42 $'kind = "vxlan"\nparent = "uplink"\nid = 78'
stream vx n1 10.42.1.0
moved vx n1 n2
over vx n2
network br 43 'kind = "bridge"'
stream br n1 10.43.1.0 n1
moved br n1 n1
# What a bridge sends to everybody is for somebody.
ruling br
at n1 alice "${ruling[@]}" timeout 60 /usr/bin/python3 /shared/spoof.py listen eth0 >seen 3>&- &
listener=$!
eventually 10 grep -q listening seen
sent on n1 /usr/bin/python3 /shared/spoof.py flood sk-br 10.43.1.9 0a:53:0a:2b:01:00
equal "$(tail -1 seen)" 'honest-last honest-own' 'what arrived'
over br n1
network ro 44 'kind = "routed"'
stream ro n1 10.44.1.0
moved ro n1 n1
over ro n1
for net in br ro; do
    fails 125 at n2 alice skiff checkpoint restore $net
    has "$err" "this network's addresses stay where they are"
done

# ---- What must not be ----------------------------------------------------------------------------------------------------------
# Somebody else's, of another key or of none: refused, and nothing is made.
ok at n1 alice skiff instance start --checkpoint --net mv host lone sleep 1000
ok at n1 alice skiff checkpoint save lone --leave-running
refused() { # NODE USER WORDS
    fails 125 at "$1" "$2" skiff checkpoint restore lone copy
    has "$err" "$3"
    ok at "$1" "$2" skiff instance list --json
    equal "$(json "$out" '[i["name"] for i in d if i["name"] == "copy"]')" '[]' 'what is left of it'
}
mv $key $key.away
refused n2 alice "without the site's key nobody can tell whose"
head -c 32 /dev/urandom | base64 >$key && chmod 640 $key
refused n2 alice "must belong to root and be nobody else's to read"
chmod 600 $key
refused n2 alice 'another key'
mv $key.away $key
checkpoints=.local/share/skiff/checkpoint
mkdir -p /home/bob/$checkpoints
cp -a /home/alice/$checkpoints/{.chunks,lone} /home/bob/$checkpoints
chown -R bob: /home/bob/.local
refused n2 bob 'it was not yours'
refused n1 bob 'somebody has it, on this node'
refused n2 alice 'somebody has it, on another host'
ok at n1 alice skiff instance stop lone
refused n1 bob 'it is kept for somebody else'
ok at n2 alice skiff checkpoint restore lone copy
ok at n2 alice skiff instance rm --force copy
# A claim is good for one's own address only. The node that kept it has given it to bob, as after a boot or when its root frees it; a move, for which nobody need
# be asked, is believed only of what was in use a moment ago.
cp "$here/double.py" /shared
double() { # NODE WORDS...
    at "$1" alice /usr/bin/python3 /shared/double.py /usr/libexec/skiff/skiff-helper "${@:2}"
}
ok at n1 alice skiff instance start --checkpoint --net mv host given sleep 1000
ok at n1 alice skiff instance list --json
given=$(json "$out" "[i['address'] for i in d if i['name'] == 'given'][0]")
ok double n1 leave mv "$given" /shared/fresh
ok at n1 alice skiff checkpoint save given
ok double n1 leave mv "$given" /shared/old
ok on n1 skiff net release mv "$given"
login bob
on n1 "${login[@]}" skiff run --net mv -- sh -c 'ip -o -4 addr show eth0 >address; exec sleep 1000' 3>&- &
eventually 10 test -s /home/bob/address
has "$(cat /home/bob/address)" "$given/"
ok double n2 move mv /shared/old
has "$out" 'somebody has it, on another host'
# The time is proven, too.
ok double n2 move mv /shared/old "$(date +%s)"
has "$out" 'it was not yours, or another key was in use then'
on n1 pkill -KILL -u bob -x sleep
rm /home/bob/address
eventually 10 on n1 sh -c '! pgrep -u bob'
# Where there is no key they come back where they were; and what is not kept is gone when somebody else has it.
rm $key
network mv 41 $'kind = "macvlan"\nparent = "uplink"\nkept_hours = 0'
ok at n1 alice skiff instance start --checkpoint --net mv host fleeting sleep 1000
ok at n1 alice skiff checkpoint save fleeting
ok at n1 alice skiff checkpoint restore fleeting
ok at n1 alice skiff instance stop fleeting
ok at n1 alice cat /tmp/skiff-alice/instance/fleeting/address.json
login bob
on n1 "${login[@]}" skiff run --net mv -- sh -c 'ip -o -4 addr show eth0 >address; exec sleep 1000' 3>&- &
eventually 10 test -s /home/bob/address
has "$(cat /home/bob/address)" "$(tr -d '"' <<<"$out")/"
fails 125 at n1 alice skiff checkpoint restore fleeting
has "$err" 'somebody has it, on this node'
on n1 pkill -KILL -u bob -x sleep
wait

# ---- Nothing is left -----------------------------------------------------------------------------------------------------------
for node in $nodes; do
    eventually 30 on $node sh -c '! pgrep -u alice,bob'
    eventually 30 on $node sh -c '! ip -o link | grep -E " sv"'
done
