# `skiff migrate`: running instances go from one node to another, by ssh and by srun, from memory to memory and by the shared home, and
# come to the same result as one that nobody disturbed; whatever fails on the way, they go on where they were, and nothing is left.
# time: 300
# takes: 30
# alone
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
# Where the nodes reach it, too.
registry=10.77.0.1:5000
. "$here/../images/lib.sh"
needs_criu
cd /home/alice
daemons
own_disks
state() { # NODE INSTANCE
    ok at "$1" alice skiff instance list --json
    json "$out" "[i['state'] + ' ' + str(i.get('exit_code', '')) for i in d if i['name'] == '$2'][0]"
}
is() { [ "$(state "$1" "$2")" = "$3" ]; }
lines() { [ "$(on "$1" wc -l "/tmp/skiff-alice/instance/$2/output" | cut -d' ' -f1)" -ge "$3" ]; }

# So many steps with so long a pause after each, until a file says that it is to be quick.
cat >/shared/work.py <<'X2'
import hashlib, os, sys, threading, time, tty
steps, pause, quick = int(sys.argv[1]), float(sys.argv[2]), '/shared/quick.' + sys.argv[-1]
down, (master, slave) = os.pipe(), os.openpty()
tty.setraw(slave)
if os.fork() == 0:
    while block := os.read(down[0], 32):
        os.write(slave, hashlib.sha256(block).digest())
    os._exit(0)
memory = bytearray(b'\7' * (32 << 20))
kept, fast = open('/etc/changed', 'w+b'), open('/dev/shm/fast', 'w+b')
state = b'\0' * 32
for step in range(steps):
    os.write(down[1], state)
    state = b''
    while len(state) < 32: state += os.read(master, 32 - len(state))
    memory[step * 97 % len(memory)] ^= state[0]
    for file in kept, fast:
        file.seek(32 * (step % 100)); file.write(state); file.flush()
    print(step, flush=True)
    os.path.exists(quick) or time.sleep(pause)
kept.seek(0); fast.seek(0)
print('result', hashlib.sha256(state + bytes(memory) + kept.read() + fast.read()).hexdigest())
X2
work=(python3 /shared/work.py 1500)
ok as alice skiff run -- "${work[@]}" 0
result=$(tail -1 <<<"$out")

# The link is cut while memory is under way, and nobody is told: it goes on here when the connection counts as lost, which takes 25 s and is
# looked at in the end. (bob's, in nobody's way meanwhile.)
cut_lines() { [ "$(on n1 wc -l "/tmp/skiff-bob/instance/$1/output" | cut -d' ' -f1)" -ge "$2" ]; }
endless=(python3 /shared/work.py 1000000 0.01)
ok at n1 bob skiff instance start --checkpoint host cut "${endless[@]}"
eventually 10 cut_lines cut 5
on n1 tc qdisc replace dev e-n1 root tbf rate 100mbit burst 64k latency 50ms
# By a slow link what can be packed is, and by others nothing. How fast a link is, is measured: both its ends have the processor before
# all else that this host does, and are measured three times at most.
receiver() { on n1 sh -c 'chrt "$@" $(cat /run/sshd.pid)' - "$@"; }
receiver -f -p 10
for times in 1 2 3; do
    ok at n1 bob skiff migrate --json cut n2
    equal "$(json "$out" 'd["sent_bytes"] < d["memory_bytes"] / 2')" True "packed: $out"
    login bob
    ok timeout -k 2 25 on n2 chrt -f 10 "${login[@]}" skiff migrate --json cut n1
    [ "$(json "$out" 'd["sent_bytes"] == d["memory_bytes"]')" = False ] || break
done
equal "$(json "$out" 'd["sent_bytes"] == d["memory_bytes"]')" True "not packed: $out"
receiver -o -p 0
ok at n1 bob skiff instance start --checkpoint host later "${endless[@]}"
eventually 10 cut_lines later 5
# (In the first CRIU is just telling of the processes, in the second they are there, and most of their memory is under way.)
move_cut() { # INSTANCE: leaves its exit code and how many seconds it took
    local code=0 since=$SECONDS
    login bob
    timeout 60 on n1 "${login[@]}" skiff migrate --compress off $1 n2 2>/shared/$1.err || code=$?
    echo $code $((SECONDS - since)) >/shared/$1.ended
}
for name in cut later; do
    move_cut $name &
    case $name in
        cut) on n1 timeout 20 sh -c 'until ps -u bob -o stat=,comm= | grep -q "^t.*python3"; do :; done' ;;
        later) on n2 timeout 20 sh -c 'until ps -u bob -o comm= | grep -q "^python3"; do :; done' ;;
    esac
    port=$(on n1 ss -Htnp state established | sed -nE 's/^.*:([0-9]+) +[^ ]+ +users:.."skiff".*/\1/p' | sort -u | grep -vx "${port:-none}")
    on n1 ip rule add pref 9 ipproto tcp sport "$port" blackhole
done
on n1 tc qdisc del dev e-n1 root

# There by the network, back by the shared home, there again: who runs it is always one of the two.
ok at n1 alice skiff instance start --checkpoint host calc "${work[@]}" 0.1 calc
eventually 10 lines n1 calc 20
fits at n1 alice skiff migrate --dry-run --json calc n2
ok at n1 alice skiff migrate --dry-run calc n2
has "$out" 'start        ssh'
has "$out" 'python3'
equal "$(state n1 calc)" 'running ' 'after --dry-run'
fits at n1 alice skiff migrate --json calc n2
equal "$(json "$out" '(d["processes"], d["memory_bytes"] > 32 << 20, d["file_bytes"] < 1 << 20, [p["phase"] for p in d["phases"]])')" \
    "(3, True, True, ['connect', 'prepare', 'dump', 'files', 'make', 'memory', 'start'])"
equal "$(state n1 calc)$(state n2 calc)" 'moved running '
fails 125 at n1 alice skiff migrate calc n2
has "$err" 'now runs on another host'
ok at n2 alice skiff migrate --mode disk calc n1
has "$err" '3 processes of instance calc go on on n1'
equal "$(state n1 calc)$(state n2 calc)" 'running moved '
ok at n1 alice skiff migrate calc n2
touch /shared/quick.calc
eventually 30 is n2 calc 'exited 0'
right() { # NODE INSTANCE
    ok at "$1" alice skiff instance logs "$2"
    equal "$(tail -1 <<<"$out")" "$result" "result of $2"
    equal "$(head -n -1 <<<"$out" | diff - <(seq 0 1499) | head -3)" '' "steps of $2"
}
right n2 calc
equal "$(ls -A /home/alice/.local/share/skiff/checkpoint)" '' 'what is left in the home'

# In a job, with what the network of its own carries; it lives as long as the job does.
cp "$here/../checkpoint/talk.py" /shared
cat >/shared/job.sh <<'X2'
set -eu
skiff instance start --checkpoint --net none host talk python3 /shared/talk.py
until [ "$(skiff instance logs talk | wc -l)" -gt 10 ]; do sleep 0.02; done
there() { srun -Q --overlap -N1 -n1 -w n2 skiff instance "$@"; }
skiff migrate talk n2
n=$(there logs talk | wc -l)
until [ "$(there logs talk | wc -l)" -gt $((n + 10)) ]; do sleep 0.1; done
there logs talk | diff - <(seq 0 100000) | grep -c '^<' || true
there list
# From n1 all that can leave n2 does.
srun -Q --overlap -N1 -n1 -w n2 sh -c 'skiff instance start host plain sleep 1000; until [ -e drained ]; do sleep 0.1; done; skiff instance rm --force plain' &
until there list | grep -q plain; do sleep 0.1; done
skiff drain --dry-run n2 && exit 1
skiff drain --dry-run --json n2 >drain-json 2>drain-err && exit 1
skiff drain n2 2>stayed && exit 1
touch drained
wait
n=$(skiff instance logs talk | wc -l)
until [ "$(skiff instance logs talk | wc -l)" -gt $((n + 10)) ]; do sleep 0.1; done
skiff instance logs talk | diff - <(seq 0 100000) | grep -c '^<' || true
skiff instance list
X2
ok as alice sbatch --parsable -N2 -o out --wrap 'bash /shared/job.sh'
equal "$(ended "$out")" 'COMPLETED 0:0' "$(cat out)"
equal "$(grep -v ^skiff out | head -2)" $'talk\n0' "$(cat out)"
has "$(cat out)" 'running'
equal "$(grep -A2 '^talk.n1' out | head -3)" $'talk\tn1\ntalk\tn1\n0' "$(cat out stayed)"
has "$(cat stayed)" 'instance plain stays on n2: it was not started with --checkpoint'
fails 125 at n1 alice skiff drain --to n1 192.0.2.1
has "$err" 'skiff: 192.0.2.1: skiff could not be started there: ssh: '
equal "$(grep -c '^ssh' <<<"$err")" 0 'lines of ssh'
fails 125 at n1 alice skiff drain --to n1 n1
has "$err" 'the one to be drained'
fails 125 at n1 alice skiff drain n1
has "$err" 'name the hosts'
# What is dead and not yet buried is Slurm's.
eventually 20 on n2 sh -c '! pgrep -u alice -r R,S,D,T'

# By the agents of the hosts, which know a user by munge alone. What is not a credential, or one used twice, starts nothing.
trap 'end_agents; images_cleanup' EXIT
agents n2
mv .ssh ssh
ok at n1 bob skiff instance start --checkpoint host mine sleep 1000
# Each user has so many places there.
on n2 mkdir -p /run/skiff/agent
on n2 bash -c 'for n in {0..15}; do exec {place}>"/run/skiff/agent/$0.$n"; flock $place; done; echo $$; exec sleep 1000' "$(id -u bob)" >held 3>&- &
places=$!
eventually 10 grep -q . held
fails 125 at n1 bob skiff migrate mine n2
has "$err" '16 instances of yours are on their way'
on n2 kill "$(cat held)"
wait $places || true
ok at n1 bob skiff migrate mine n2
equal "$(on n2 ps -o user= -C skiff-instance,sleep | sort -u)" bob 'whose they are'
ok at n2 bob skiff instance rm --force mine
fails 125 as alice skiff agent
has "$err" 'only root'
talk_to() { on n2 timeout 10 bash -c "exec 3<>/dev/tcp/127.0.0.1/7790; cat >&3; cat <&3"; }
has "$(talk_to <<<'MUNGE:AwQDAAD:')" 'munge does not accept' 'junk'
has "$(seq 5000 | xargs | talk_to)" 'it is not whole' 'too much'
used=$(as alice munge -n -u 0)
talk_to <<<"$used" >/dev/null
has "$(talk_to <<<"$used")" 'munge does not accept' 'one used twice'
has "$(munge -n -u 0 | talk_to)" 'root gets no receiver'
end_agents
mv ssh .ssh

# What cannot go stays, and it is said why.
ok at n1 alice skiff instance start --checkpoint --net none host stays python3 /shared/talk.py
eventually 10 lines n1 stays 5
refused() { # WORDS CMD...
    local words=$1
    shift
    fails 125 at n1 "$@"
    has "$err" "$words"
    equal "$(state n1 stays)" 'running ' "after: $*"
}
foreseen() { # the same, and `--dry-run` says so, too
    refused "$@"
    fails 1 at n1 "${@:2}" --dry-run
    has "$out" "in the way   "
    has "$out" "$1"
    equal "$(state n1 stays)" 'running ' "after: $* --dry-run"
}
refused 'no such instance' bob skiff migrate stays n2
foreseen 'could not be started there: ssh:' alice skiff migrate stays 192.0.2.1
refused 'that is this host' alice skiff migrate stays n1
refused 'not a valid host name' alice skiff migrate stays -- -oProxyCommand=x
refused 'no such instance' alice skiff migrate nothing n2
foreseen 'cannot be read here' alice env XDG_DATA_HOME=/tmp/alices skiff migrate --mode disk stays n2
ok at n2 alice skiff instance start host stays sleep 1000
foreseen 'instance stays is already running' alice skiff migrate stays n2
fails 1 at n1 alice skiff drain --dry-run --to n2 n1
has "$err" 'instance stays stays on n1: n2: instance stays is already running'
ok at n2 alice skiff instance rm --force stays
ok at n1 alice skiff instance start host plain sleep 1000
refused 'start --checkpoint' alice skiff migrate plain n2
ok at n1 alice skiff instance rm --force plain
on n2 mount --bind /srv /usr/libexec/skiff/criu
foreseen 'CRIU is not installed' alice skiff migrate stays n2
on n2 umount /usr/libexec/skiff/criu
# One too old: what is asked of it here is which one it is.
mkdir /shared/old
touch /shared/old/criu
cat >/shared/old/ld.so <<'X2'
#!/usr/bin/python3
import socket, sys
with socket.socket(fileno=int(sys.argv[-1])) as peer:
    peer.recv(65536)
    peer.send(bytes([8, 10, 16, 1, 82, 4, 8, 3, 16, 17]))  # answer to `version`: well, 3.17
    peer.recv(1)
X2
chmod 755 /shared/old/ld.so
for node in n1 n2; do
    on $node mount --bind /shared/old /usr/libexec/skiff/criu
    foreseen 'CRIU 3.17: too old' alice skiff migrate stays n2
    on $node umount /usr/libexec/skiff/criu
done
echo 'MemAvailable: 1024 kB' >/shared/meminfo
on n2 mount --bind /shared/meminfo /proc/meminfo
foreseen 'no room' alice skiff migrate stays n2
fails 1 at n1 alice skiff migrate --dry-run --json stays n2
described skiff migrate --dry-run --json stays n2
has "$(json "$out" '(d["obstacles"], d["refusal"]["why"], d["refusal"]["hint"])')" "([], 'n2: no room: it needs "
on n2 umount /proc/meminfo
sed 's/^flags.*: fpu/flags : /' /proc/cpuinfo >/shared/cpuinfo
on n2 mount --bind /shared/cpuinfo /proc/cpuinfo
foreseen 'lacks what the programs have seen: fpu' alice skiff migrate stays n2
on n2 umount /proc/cpuinfo
ok at n1 alice skiff instance start --checkpoint host short true
eventually 10 is n1 short 'exited 0'
refused 'has ended (exit code 0)' alice skiff migrate short n2
# Room for the pages, and not for the files, which are known only when it stands still.
ok at n1 alice skiff instance exec stays -- dd if=/dev/urandom of=/tmp/large bs=1M count=120 status=none
echo "MemAvailable: $((110 << 10)) kB" >/shared/meminfo
on n2 mount --bind /shared/meminfo /proc/meminfo
refused 'No space left on device' alice skiff migrate stays n2
on n2 umount /proc/meminfo
ok at n1 alice skiff instance exec stays -- rm /tmp/large
ok at n2 alice skiff instance list --json
lacks "$out" stays 'what is left there'
# An image that is not there and cannot be had; and once it can.
start_registry
node_stores
skeleton "$images_tmp/root"
push tools/small:1 "$images_tmp/root"
ok at n1 alice skiff instance start --checkpoint $registry/tools/small:1 small sleep 1000
stop_registry
foreseen "$registry" alice skiff migrate small n2
equal "$(state n1 small)" 'running '
start_registry
ok at n1 alice skiff migrate --dry-run small n2
ok at n2 alice skiff store du --json
equal "$(json "$out" 'd["images"]')" 0 'images on n2 after --dry-run'
ok at n1 alice skiff migrate small n2
equal "$(state n2 small)" 'running '
ok at n2 alice skiff instance rm --force small
stop_registry
# Two at once: one of them moves it.
login alice
timeout 20 on n1 "${login[@]}" skiff migrate stays n2 2>one & a=$!
timeout 20 on n1 "${login[@]}" skiff migrate stays n2 2>two & b=$!
codes=0
for job in $a $b; do wait $job || codes+=$?; done
equal "$codes" 0125 "$(cat one two)"
has "$(cat one two)" 'it is being moved already'
equal "$(state n2 stays)" 'running '
ok at n2 alice skiff instance rm --force stays

# Whichever side is killed at whatever moment: exactly one runs it, and in the end it is right.
ok at n1 alice skiff instance start --checkpoint host tough "${work[@]}" 0.25 tough
eventually 10 lines n1 tough 5
here_are() { on "$1" pgrep -u alice -xc python3 || true; }
none_on() { [ "$(here_are "$1")" = 0 ]; }
moving() { timeout -k 1 100 on n1 "${login[@]}" skiff migrate tough n2 2>err >out & job=$!; }
# What shows that the other side is started, that the processes are stopped, that they are being made there, that they are given away.
phases=('n2 pgrep -u alice -f migrate-receive' 'n1 ps -u alice -o stat=,comm= | grep -q ^t.*python3'
    'n2 pgrep -u alice -f "skiff-instance tough"' 'n1 test -e /tmp/skiff-alice/instance/tough/leaving')
killed_in() { # SIDE PHASE: begins a move, and kills a side of it when the phase shows; on a busy host that may be missed at first
    local times
    for times in 1 2 3 4 5; do
        moving
        if on ${2%% *} timeout 10 sh -c "until ${2#* } >/dev/null; do :; done"; then
            on $1 pkill -9 -u alice -f 'skiff migrate' || true
            wait $job 2>&- || true
            return
        fi
        wait $job 2>&- || true
        [ "$(state n1 tough)" = 'running ' ] || ok at n2 alice skiff migrate tough n1
    done
    fail "phase: $2"
}
for side in n1 n2; do
    for phase in "${phases[@]}"; do
        killed_in $side "$phase"
        # Given away, and nobody has heard whether it was taken: the next one finds out.
        ! on n1 test -e /tmp/skiff-alice/instance/tough/leaving || ok at n1 alice skiff migrate tough n2
        # It was too late: back again.
        [ "$(state n1 tough)" = 'running ' ] || ok at n2 alice skiff migrate tough n1
        eventually 10 none_on n2
        before=$(on n1 wc -l /tmp/skiff-alice/instance/tough/output)
        eventually 30 lines n1 tough $((${before% *} + 1))
    done
done
# What a receiver that was killed has left is seen, and goes.
ok at n2 alice skiff sweep
ok at n2 alice skiff instance list --json
lacks "$out" '"lost"'
equal "$(on n2 pgrep -u alice -la || true)" '' 'processes on n2'
# In the very moment in which it is given away: it stands still here until it is known what has become of it.
for times in 1 2 3 4 5; do
    killed_in n1 "${phases[3]}"
    # It may have been taken, or not, before the kill.
    ! on n1 test -e /tmp/skiff-alice/instance/tough/leaving || break
    [ "$(state n1 tough)" = 'running ' ] || ok at n2 alice skiff migrate tough n1
done
ok at n1 alice skiff migrate tough n2
equal "$(state n2 tough)" 'running '
equal "$(here_are n1)" 0 'on n1'
touch /shared/quick.tough
eventually 30 is n2 tough 'exited 0'
right n2 tough

# Those whose connections were cut.
for name in cut later; do
    eventually 40 test -s /shared/$name.ended
    read -r code took </shared/$name.ended
    equal "$code" 125 "$name: $(cat /shared/$name.err)"
    [ "$took" -lt 45 ] || fail "the lost connection was noticed after $took s"
    on n1 ip rule del pref 9
    before=$(on n1 wc -l /tmp/skiff-bob/instance/$name/output)
    eventually 30 cut_lines $name $((${before% *} + 1))
done
eventually 30 on n2 sh -c '! pgrep -u bob'
ok at n2 bob skiff instance list --json
equal "$(json "$out" '[(i["name"], i["state"]) for i in d]')" "[('cut', 'moved')]" 'what is left on n2'
for name in cut later; do ok at n1 bob skiff instance rm --force $name; done
