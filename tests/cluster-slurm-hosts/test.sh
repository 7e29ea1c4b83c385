# takes: 24
# A Slurm of one's own over the hosts of an allocation and over a list: nodes that come, go and die, and who ends with what.
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
cd /home/alice
cleanup() {
    part_all
    ip link set v-n2 up
}
trap cleanup EXIT
state=/home/alice/.local/share/skiff/cluster
nodes() { # -> "ctl:running:-@ctl n1:running:idle@n1 ..."
    ok as alice skiff cluster status lab --json
    json "$out" '" ".join("%s:%s:%s@%s" % (n["name"], n["state"], n["slurm"], n["host"]) for n in d["nodes"])'
}
of() { on "$1" pgrep -u alice -f "$2"; }
none_left() {
    nothing_left
    equal "$(ls -A $state 2>&-)" '' 'what is left of it'
}

# ---- In an allocation: the controller where one is, a worker on each host. All ends with the allocation.
ok as alice salloc -Q -N2 sh -euc '
    skiff cluster up lab --slurm
    skiff cluster exec lab -- sh -c "hostname; id -u; srun -N2 -l sh -c \"hostname; id -u; getent hosts n2 | cut -d\\\" \\\" -f1\""
    # Slurm says for a moment that a node completes what has ended.
    for _ in $(seq 50); do skiff cluster status lab --json >status; grep -q "\"comp\"" status || break; sleep 0.1; done
    skiff cluster exec lab -- cat /etc/slurm/slurm.conf >conf; cp .local/share/skiff/cluster/lab/munge/key key'
equal "$(sort <<<"$out")" $'0\n0: 0\n0: 10.77.0.12\n0: n1\n1: 0\n1: 10.77.0.12\n1: n2\nctl' "$err"
json "$(cat status)" '[(n["name"], n["host"], n["slurm"]) for n in d["nodes"]]' | grep -qxF "[('ctl', 'ctl', '-'), ('n1', 'n1', 'idle'), ('n2', 'n2', 'idle')]" || fail "$(cat status)"
none_left
# In a batch job, with MPI over its own srun, and cancelled: the controller is on the first host.
as alice cp "$here/../slurm-mpi/mpi.c" .
as alice mpicc -o mpi mpi.c
ok as alice sbatch --parsable -N2 -o out --wrap 'skiff cluster up lab --slurm --nodes 2 --cpus 2 && skiff cluster exec lab -- srun -n4 --mpi=pmix ./mpi; hostname; touch up; sleep 1000'
job=$out
eventually 40 test -e up
has "$(cat out)" 'rank 3 of 4, sum 6'
equal "$(tail -1 out)" n1
scancel "$job"
ended "$job" >/dev/null
none_left

# ---- Over a list of hosts, by ssh.
daemons
as alice sh -c 'printf "n1\nn2\n" >hosts'
ok as alice skiff cluster up lab --slurm --hostfile hosts --nodes 1
equal "$(nodes)" 'ctl:running:-@ctl n1:running:idle@n1'
run() { ok as alice skiff cluster exec lab -- "$@"; }
run srun -N1 hostname
equal "$out" n1 "$err"
ok as alice skiff cluster add lab --nodes 1
equal "$(nodes)" 'ctl:running:-@ctl n1:running:idle@n1 n2:running:idle@n2'
run srun -N2 -l hostname
equal "$(sort <<<"$out")" $'0: n1\n1: n2' "$err"
fails 125 as alice skiff cluster add lab --nodes 1
has "$err" '2 are the most'
ok as alice skiff cluster remove lab --node n1
run srun -N1 hostname
equal "$out" n2
ok as alice skiff cluster add lab --nodes 1
equal "$out" n1
# On a node that is on another host: input, output, exit code, signals.
try as alice sh -c 'seq 200000 | skiff cluster exec --node n2 lab -- sh -c "hostname; id -u; md5sum; echo no >&2; exit 7"'
equal "$code" 7 "$err"
equal "$out" "n2
0
$(seq 200000 | md5sum)"
equal "$err" no
fails 127 as alice skiff cluster exec --node n2 lab -- nosuch
rm -f up
start alice skiff cluster exec --node n1 lab -- sh -c 'trap "exit 9" TERM; touch up; while :; do sleep 0.05; done'
eventually 10 test -e up
kill -TERM $started
try wait $started
equal "$code" 9
start alice skiff cluster exec --node n1 lab -- sh -c 'rm up; exec sleep 1234'
eventually 10 test ! -e up
kill -9 $started
sleeps() { of n1 'sleep 1234'; }
eventually 10 eval '! sleeps'
# At a terminal: its size, its keys; and afterwards it is as it was.
PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 - <<'X' || fail 'at the terminal'
import os, terminal, time
t = terminal.shell("alice")
t.resize(33, 111)
t.line("stty -g")
before = t.expect(r"^([0-9a-f:]+)\r$")[1]
t.prompt()
t.line("skiff cluster enter --node n2 lab; echo code=$?")
t.line("hostname; test -t 2 && stty size")
t.expect(r"n2\r$")
t.expect(r"33 111\r$")
t.resize(40, 100)
t.line("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.05; done; echo lar''ger")
t.expect(r"larger\r$")
t.line("bash -c 'trap \"exit 5\" INT; echo be\"\"gun; while :; do sleep 0.05; done'; echo of=$?")
t.expect(r"begun\r$")
t.send("\x03")
t.expect(r"of=5\r$")
t.line("exit 6")
t.expect(r"code=6\r$")
t.prompt()
# Ctrl-C while one is made: it ends what there is of it.
state = "/home/alice/.local/share/skiff/cluster"
t.line("skiff cluster up three --slurm --hostfile hosts")
while not os.path.exists(f"{state}/three/slurm/slurm.conf"):
    time.sleep(0.001)
t.send("\x03")
t.prompt()
t.line("echo code=$?")
t.expect(r"code=130\r$")
t.prompt()
while os.listdir(state) != ["lab"]:
    time.sleep(0.05)
t.line("stty -g")
assert t.expect(r"^([0-9a-f:]+)\r$")[1] == before
X
# Nobody else can say anything to it: not without its key, which is alice's alone.
port=$(sed -n 's/^SlurmctldPort=//p' $state/lab/slurm/slurm.conf)
fails 1 as bob cat $state/lab/munge/key
as bob sh -c 'cat >slurm.conf' <$state/lab/slurm/slurm.conf
fails 1 as bob env SLURM_CONF=/home/bob/slurm.conf squeue
lacks "$(cat /proc/[0-9]*/cmdline | tr '\0' ' ')" "$(cat $state/lab/munge/key)"

# Another one on the same hosts.
ok as alice skiff cluster up two --slurm --hostfile hosts
ok as alice skiff cluster exec two -- srun -N2 -l hostname
equal "$(sort <<<"$out")" $'0: n1\n1: n2' "$err"
run squeue -h
equal "$out" ''
ok as alice skiff cluster down two

# Any part of a worker is killed while jobs run: theirs end, others go on, and it can be had anew.
silent 3
ok as alice skiff cluster down lab
ok as alice skiff cluster up lab --slurm --hostfile hosts
rm /etc/skiff/conf.d/silence.toml
for victim in 'skiff cluster agent' 'skiff-hub' 'slurmd -D' link; do
    as alice rm -f go went on-n1 on-n2
    start alice skiff cluster exec lab -- srun -N1 -w n1 sh -c 'touch on-n1; until [ -e go ]; do sleep 0.05; done; touch went'
    other=$started
    start alice skiff cluster exec lab -- srun -N1 -w n2 sh -c 'touch on-n2; sleep 100' 2>said
    job=$started
    eventually 10 test -e on-n1 -a -e on-n2
    case $victim in
    link) ip link set v-n2 down ;;
    *) on n2 kill -9 "$(of n2 "$victim" | tail -1)" ;;
    esac
    try wait "$job"
    has "$(cat said)" 'Node failure on n2' "$victim"
    slurm_says_down() { [[ $(nodes) == *'n2:lost:down'*'@n2' ]]; }
    eventually 60 slurm_says_down
    ip link set v-n2 up
    as alice touch go
    wait "$other" || fail "$victim: a job of another node has not gone on"
    ok as alice skiff cluster remove lab --node n2
    ok as alice skiff cluster add lab --nodes 1
    equal "$out" n2 "$victim"
    run srun -N2 -l hostname
done
# Somebody has taken the port of one that was lost: it can come back when that is free.
port=$(sed -n 's/^NodeName=n2 .* Port=\([0-9]*\) .*/\1/p' $state/lab/slurm/slurm.conf)
on n2 kill -9 "$(of n2 'skiff cluster agent' | tail -1)"
eventually 60 slurm_says_down
ok as alice skiff cluster remove lab --node n2
login alice
on n2 "${login[@]}" python3 -c 'import socket, sys, time; s = socket.create_server(("", int(sys.argv[1]))); time.sleep(100)' "$port" 3>&- &
taker=$!
eventually 10 on n2 sh -c "ss -Hltn sport = $port | grep -q ."
fails 125 as alice skiff cluster add lab --nodes 1
has "$err" "port $port of 10.77.0.12: Address "
equal "$(nodes)" 'ctl:running:-@ctl n1:running:idle@n1'
on n2 pkill -KILL -u alice -x python3
try wait $taker
ok as alice skiff cluster add lab --nodes 1
run srun -N2 -l hostname
equal "$(sort <<<"$out")" $'0: n1\n1: n2' "$err"
ok as alice skiff cluster down lab
none_left
# Its supervisor is killed, its controller ends.
for victim in skiff-cluster slurmctld; do
    ok as alice skiff cluster up lab --slurm --hostfile hosts
    kill -9 "$(pgrep -u alice -f "^$victim" | head -1)"
    nothing_left
    fails 125 as alice skiff cluster exec lab -- true
    has "$err" 'is no longer running'
    ok as alice skiff sweep
done
none_left

# ---- On a network of the site's: an address for each, also for the controller, whose agent is one more on its host.
join_all
ok as alice skiff cluster up lab --slurm --hostfile hosts --net far --timeout 5
equal "$(nodes)" 'ctl:running:-@ctl n1:running:idle@n1 n2:running:idle@n2'
ok as alice skiff cluster status lab --json
equal "$(json "$out" '[n["address"].rsplit(".", 1)[0] for n in d["nodes"]]')" "['10.20.3', '10.20.1', '10.20.2']"
run srun -N2 -l sh -c 'hostname; getent hosts ctl | cut -d" " -f1'
equal "$(sort <<<"$out")" $'0: 10.20.3.0\n0: n1\n1: 10.20.3.0\n1: n2' "$err"
run srun -n2 -N2 --mpi=pmix ./mpi
has "$out" 'rank 1 of 2, sum 1'
try as alice sh -c 'echo in | skiff cluster exec --node n2 lab -- sh -c "hostname; cat; ip -o -4 addr show eth0 | grep -c 10.20.2.0/16; exit 7"'
equal "$code:$out" $'7:n2\nin\n1' "$err"
# The host does not reach the controller there, nor is it in the host's network.
fails 1 as alice env SLURM_CONF=$state/lab/slurm/slurm.conf timeout 3 scontrol ping
# One that is lost comes back to where it was.
on n2 kill -9 "$(of n2 'cluster agent' | tail -1)"
eventually 30 slurm_says_down
ok as alice skiff cluster remove lab --node n2
ok as alice skiff cluster add lab --nodes 1
run srun -N2 -l hostname
equal "$(sort <<<"$out")" $'0: n1\n1: n2' "$err"
# Its address is given to others meanwhile: it says so, the others go on, and it comes back when that is free again.
ok as alice skiff cluster status lab --json
address=$(json "$out" '[n["address"] for n in d["nodes"] if n["name"] == "n2"][0]')
on n2 kill -9 "$(of n2 'cluster agent' | tail -1)"
login bob
# The kernel lets go of it a moment after its last process.
on n2 "${login[@]}" sh -c 'until [ -e taken ]; do
    skiff run --net far -- sh -c "ip -o -4 addr show eth0 | grep -q \" $0/\" && touch taken && exec sleep 1234"; done' "$address" 3>&- &
taker=$!
eventually 15 test -e /home/bob/taken
eventually 30 slurm_says_down
ok as alice skiff cluster remove lab --node n2
fails 125 as alice skiff cluster add lab --nodes 1
has "$err" 'node n2: host n2 gives its address to others now'
has "$err" 'hint: '
equal "$(nodes)" 'ctl:running:-@ctl n1:running:idle@n1'
run srun -N1 hostname
equal "$out" n1
on n2 pkill -KILL -u bob -x sleep
try wait $taker
ok as alice skiff cluster add lab --nodes 1
run srun -N2 -l hostname
equal "$(sort <<<"$out")" $'0: n1\n1: n2' "$err"
# With its controller's agent it ends.
ok as alice skiff cluster status lab --json
parent() { ps -o ppid= "$1" | xargs; }
kill -9 "$(parent "$(parent "$(json "$out" 'd["nodes"][0]["pid"]')")")"
none_up() { ! as alice skiff cluster exec lab -- true 2>&-; }
eventually 10 none_up
nothing_left
ok as alice skiff cluster down lab
# In an allocation; and all on this machine.
ok as alice salloc -Q -N2 sh -euc 'skiff cluster up lab --slurm --net far; skiff cluster exec lab -- srun -N2 -l hostname; skiff cluster exec --node n1 lab -- hostname -i'
equal "$(sort <<<"$out")" $'0: n1\n10.20.1.0\n1: n2' "$err"
none_left
for net in far host; do
    ok as alice skiff cluster up lab --slurm --nodes 2 --net $net
    run srun -N2 -l hostname
    equal "$(sort <<<"$out")" $'0: n1\n1: n2' "$net: $err"
    fails 125 as alice skiff cluster add lab --nodes 1
    has "$err" '2 are the most'
    ok as alice skiff cluster down lab
done
for net in none private; do
    fails 125 as alice skiff cluster up lab --slurm --nodes 2 --net $net
    has "$err" "--net $net: "
done
fails 125 as alice skiff cluster up lab --slurm --hostfile hosts --net nowhere
has "$err" 'network nowhere: there is none of that name'
none_left
eventually 30 sh -c 'skiff sweep >/dev/null; [ -z "$(find /run/skiff/net -type f)" ]'

# Whoever makes one goes before it is made.
for mark in slurm/slurm.conf control.sock; do
    start alice skiff cluster up lab --slurm --hostfile hosts
    eventually 10 test -e $state/lab/$mark
    kill -9 $started
    eventually 10 eval "! pgrep -u alice -f ^skiff-cluster"
    none_left
done
# What cannot be.
as alice sh -c 'printf "n1\nnosuch\n" >unknown'
fails 125 as alice skiff cluster up lab --slurm --hostfile unknown
has "$err" 'host nosuch: '
fails 125 as alice skiff cluster up lab --slurm --hostfile hosts --nodes 3
has "$err" '--nodes 3: there are 2 hosts'
fails 125 as alice skiff cluster up lab --slurm
has "$err" '--nodes: how many on this host?'
none_left
