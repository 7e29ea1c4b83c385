# Networks that take no administrator: none, and a private one with a way out; with the helper and without.
. "$(dirname "$0")/../lib.sh"
# As udev makes it, where there is udev.
mode=$(stat -c %a /dev/net/tun)
cleanup() { chmod "$mode" /dev/net/tun; }
trap cleanup EXIT
chmod 666 /dev/net/tun
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null
server='
import socket, sys
s = socket.socket(); s.bind((sys.argv[1], 7100)); s.listen()
while True: c, _ = s.accept(); c.sendall(b"here"); c.close()'
client='
import socket, sys
try: print(socket.create_connection((sys.argv[1], 7100), 3).recv(9).decode())
except OSError as e: print("no")'
host=$(ip -o -4 addr show br0 | awk '{print $4}' | cut -d/ -f1)
for at in 127.0.0.1 "$host"; do start bob python3 -c "$server" "$at"; servers="${servers-} $started"; done
eventually 5 sh -c '[ "$(ss -Hltn sport = 7100 | wc -l)" = 2 ]'
for user in alice bob; do
    # Nothing but oneself.
    ok as $user skiff run --net none -- sh -c 'ip -o link | wc -l; ip -o -4 addr show lo'
    has "$out" '127.0.0.1/8' "$user"
    equal "${out%%$'\n'*}" 1 "$user"
    ok as $user skiff run --net none -- python3 -c "$client" "$host"
    equal "$out" no "$user: none"
    # Nor any device of the host's, by whatever it is looked for.
    ok as $user skiff run --net none -- sh -c 'ls /sys/class/net; cat /sys/class/net/lo/mtu; ls /sys/fs/cgroup >/dev/null; touch /sys/x 2>/dev/null && echo written; :'
    equal "$out" $'lo\n65536' "$user: devices of none"
    ok as $user skiff run --net private -- sh -c 'echo $(ls /sys/class/net)'
    equal "$out" 'lo tap0' "$user: devices of a private network"
    # The host is reached by its address; what listens on its loopback device is not, nor by the one that stands for the host.
    ok as $user skiff run --net private -- python3 -c "$client" "$host"
    equal "$out" here "$user: private"
    for at in 127.0.0.1 10.0.2.2; do
        ok as $user skiff run --net private -- python3 -c "$client" $at
        equal "$out" no "$user: $at from a private network"
    done
    ok as $user skiff run --net private -- cat /etc/resolv.conf
    equal "$out" 'nameserver 10.0.2.3' "$user"
    ok as $user skiff run --network=host -- python3 -c "$client" 127.0.0.1
    equal "$out" here "$user: host"
    # In one that stays, as root and as oneself.
    ok as $user skiff env create --net private dev
    start $user skiff env exec dev -- python3 -c "$server" 127.0.0.1
    server_pid=$started
    eventually 10 as $user skiff env exec dev -- python3 -c "$client" 127.0.0.1
    ok as $user skiff env exec dev -- sh -c 'ip -o -4 addr show tap0 | wc -l'
    equal "$out" 1
    [ $user = bob ] || { ok as $user skiff env exec --me dev -- python3 -c "$client" "$host" && equal "$out" here; }
    as $user skiff env stop dev
    wait "$server_pid" || true
    fails 3 as $user skiff run --net private -- sh -c 'exit 3'
    # Killed, it takes its way out along.
    start $user skiff run --net private -- sleep 100
    eventually 5 pgrep -u $user -x slirp4netns
    kill -KILL "$started"
    wait "$started" || true
    eventually 5 sh -c "! pgrep -u $user -x 'slirp4netns|sleep'"
done
fails 125 as bob skiff run --net lab -- true
has "$err" 'only the helper'
chmod 600 /dev/net/tun
fails 125 as alice skiff run --net private -- true
has "$err" /dev/net/tun
fails 125 as alice skiff run --net 'no/name' -- true
for pid in $servers; do kill "$pid"; wait "$pid" || true; done
