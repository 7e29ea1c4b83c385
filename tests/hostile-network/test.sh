# mallory against networks of the site's: she holds locks, stops and floods; she takes and keeps addresses. bob's start waits for none of it.
# time: 90
. "$(dirname "$0")/../lib.sh"
dir=/etc/skiff/networks.d
stopped=
cleanup() {
    rm -rf $dir
    [ -z "$stopped" ] || kill -KILL $stopped 2>&- || true
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
gone() { [ "$(leases_of "$1")" = 0 ]; }

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
on n1 pkill -KILL -u mallory || true
eventually 10 gone mallory

# ---- Addresses: a quarter is the most that one may have ------------------------------------------------------------------------
for i in 1 2 3 4 5 6; do
    login mallory
    on n1 "${login[@]}" skiff run --net lab -- sh -c "echo >address.$i; exec sleep 60" 3>&- 2>"/home/mallory/said.$i" &
done
eventually 10 sh -c '[ "$(cat /home/mallory/address.? /home/mallory/said.? | grep -cE "^$|you have")" = 6 ]'
equal "$(leases_of mallory)" 4 'addresses of hers'
has "$(cat /home/mallory/said.?)" 'nobody may have more than 4'
bobs 'all taken that she may have'
on n1 pkill -KILL -u mallory
eventually 10 gone mallory

# All are kept for her, as they were when nothing bounded that; what goes beyond her share goes first.
ok at n1 mallory skiff run --net lab -- true
lease=$(on n1 sh -c 'cat /run/skiff/net/lab/10.20.0.16' | sed 's/,"until":[0-9]*//; s/"uid":[0-9]*/"uid":'"$(id -u mallory)"'/; s/"space":[0-9]*/"space":1000000/')
for i in $(seq 16 31); do
    on n1 sh -c "echo '${lease%\}},\"until\":$((4000000000 + i))}' >/run/skiff/net/lab/10.20.0.$i"
done
ok on n1 skiff sweep
has "$out" 'kept lease lab/10.20.0.17 for mallory'
bobs 'all kept for her'
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

# ---- Nothing is left --------------------------------------------------------------------------------------------------------------
eventually 20 on n1 sh -c 'skiff sweep >/dev/null; [ -z "$(find /run/skiff/net -type f)" ]'
equal "$(on n1 ip -o link | grep -cE 'sk-|sv|sx-' || true)" 0 'devices on n1'
