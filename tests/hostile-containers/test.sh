# bed: --nodes 2 --slurm-conf KillWait=2
# takes: 45
# What root's calls of the OCI runtime, as Slurm makes them to clean up, find of a user's who wants to hold them up: they end, and the node stays.
. "$(dirname "$0")/../lib.sh"
. "$here/../oci-runtime/lib.sh"
make_bundle
cd /home/alice
root=/tmp/skiff-oci.$(id -u alice)
held=
end_all() {
    [ -z "$held" ] || kill -KILL $held 2>&- || true
    rm -rf "$root" /etc/slurm/oci.conf /etc/from-root
    for node in n1 n2; do on $node sh -c 'rm -rf /tmp/skiff-oci.*'; done
}
trap end_all EXIT
roots() { timeout 40 skiff-oci --root="$root" "$@"; }
record() { # PYTHON: alice changes the record of her container, called `r`
    as alice /usr/bin/python3 -c "
import json, sys
r = json.load(open('$root/box/state.json'))
$1
json.dump(r, open('$root/box/state.json', 'w'))"
}
create() { as alice skiff-oci --root="$root" create -b $bundle box </dev/null >/dev/null 2>&1 && as alice skiff-oci --root="$root" start box; }

# ---- The control group in the record is one of named pipes, or of files without end; or it is all that there is.
script 'exec sleep 1000'
as alice sh -c 'mkdir pipes files files/below && cd pipes && mkfifo cgroup.kill cgroup.events cgroup.procs cgroup.freeze &&
    cd ../files && truncate -s 1500M cgroup.procs && echo populated 1 >cgroup.events && ln -s .. below/again'
for group in /home/alice/pipes /home/alice/files / /sys/fs/cgroup /sys/fs/cgroup/../../../home/alice/pipes /proc; do
    create
    record "r['cgroup'] = '$group'; r['cgroups_above'] = ['/home/alice/pipes'] * 100"
    ok roots state box
    equal "$(json "$out" 'd["status"]')" running "$group"
    fails 125 roots pause box
    has "$err" "control group $group" "$group"
    ok roots kill -a box KILL
    ok roots delete --force box
    test ! -e "$root/box" || fail "$group: the container is left"
done
test -d files/below && test -p pipes/cgroup.kill || fail 'what is no control group was removed'

# ---- The log is a link of hers, or a pipe that nobody reads. As root it would be made in /etc.
create
as alice ln -s /etc/from-root link
as alice mkfifo log-pipe
for log in link log-pipe; do
    ok roots --log=/home/alice/$log kill -a box CONT
    has "$err" "log /home/alice/$log: "
    fails 125 roots --log=/home/alice/$log kill box NONSENSE
    has "$err" 'NONSENSE: no such signal'
done
test ! -e /etc/from-root || fail 'root made a file in /etc'
fails 125 roots --log=/home/alice/log kill box NONSENSE
has "$(cat log)" 'NONSENSE'
equal "$(stat -c %U log)" alice 'the owner of a log'

# ---- She holds the container's lock, and stops what waits for it: that is a process of hers. The call ends all the same.
start alice flock "$root/box" sh -c 'echo held; exec sleep 100' >lock
held=$started
eventually 5 grep -q held lock
timeout 40 skiff-oci --root="$root" delete --force box >said 2>&1 3>&- & call=$!
eventually 5 pgrep -u alice -f 'skiff-oci.* delete'
as alice pkill -STOP -u alice -f 'skiff-oci.* delete'
code=0
wait $call || code=$?
equal "$code" 125 "a stopped call: $(cat said)"
has "$(cat said)" 'not done within'
if pgrep -u alice -f 'skiff-oci.* delete'; then fail 'the stopped call is left'; fi
kill -KILL "$held"
held=
pkill -KILL -u alice -x sleep
ok roots delete --force box

# ---- The same with Slurm: her job is cancelled, and her node goes on.
sed -n '/^RunTime.*=/p' /usr/share/doc/skiff/oci-runtime.md >/etc/slurm/oci.conf
script 'echo begun; sleep 1000'
ok as alice sbatch --parsable -w n1 --wrap "srun --container $bundle sh -c 'echo begun; exec sleep 1000'" -o out
job=$out
eventually 30 grep -q begun out
on n1 setpriv --reuid alice --regid alice --init-groups /usr/bin/python3 -c "
import glob, json
[file] = glob.glob('/tmp/skiff-oci.*/*/state.json')
r = json.load(open(file))
r['cgroup'] = '/home/alice/pipes'
json.dump(r, open(file, 'w'))"
ok as alice scancel "$job"
idle
equal "$(sinfo -h -n n1 -o %t)" idle 'the node'
if on n1 pgrep -u alice sleep; then fail 'a process is left'; fi
