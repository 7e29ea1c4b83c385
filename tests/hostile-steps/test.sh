# bed: --nodes 3 --slurm-conf KillWait=2
# takes: 60
# A step begins with a process of its user's that Slurm waits for: what its user does to that process fills no log of root's, and a job that is
# cancelled meanwhile leaves its node.
. "$(dirname "$0")/../lib.sh"
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
proxy=10.77.0.1:5001
skeleton "$images_tmp/root"
mkdir "$images_tmp/data"
head -c 40000000 /dev/urandom >"$images_tmp/data/large"
mkdir "$images_tmp/less"
head -c 700000 /dev/urandom >"$images_tmp/less/some"
touch "$images_tmp/root/only-in-the-image"
start_registry
start_proxy
make_store
node_stores
push tools/large:1 "$images_tmp/root" "$images_tmp/data"
push tools/some:1 "$images_tmp/root" "$images_tmp/less"
cd /home/alice
# (Not a pattern that fits the command that looks for it.)
begin=' slurm step-[b]egin'
begins() { eventually 30 on "$1" pgrep -u alice -f "$begin"; }
# (sbatch and srun ask for what is small themselves.) Of the large one the first bytes come, again and again, and never all.
faults '{"path": "/tools/some/blobs/", "do": "slow", "after": 150000, "times": 1000}' '{"path": "/tools/large/blobs/", "do": "stall", "after": 30000, "times": 1000}'
where='[ -e /only-in-the-image ] && echo ran inside || echo ran bare'

# ---- She writes a thousand lines, that would steer a terminal, by the process's own descriptor: the log gets a few of them, and plain.
log=$SKIFF_TESTBED_DIR/logs/slurmd.n1.log
before=$(wc -l <"$log")
new() { tail -n +$((before + 1)) "$log"; }
start alice srun -Q -w n1 --container-image=$proxy/tools/some:1 cat /bin/busybox >/dev/null 2>said
begins n1
on n1 setpriv --reuid alice --regid alice --init-groups sh -c "
pid=\$(pgrep -o -u alice -f '$begin') && kill -STOP \$pid
cat /proc/\$pid/oom_score_adj
for i in \$(seq 1000); do printf 'noise \\033]0;title\\007 %s\\n' \$i; done >/proc/\$pid/fd/2
kill -CONT \$pid" >score
wait $started || fail "the step: $(cat said)"
# Slurm's daemon of the step is never chosen where memory is short; what it starts as the user is.
equal "$(cat score)" 0 'its oom_score_adj'
has_end() { new | grep -q 'bytes in all'; }
eventually 10 has_end
lines=$(new | grep -c noise)
[ "$lines" -gt 0 ] && [ "$lines" -le 20 ] || fail "lines of hers in the log: $lines"
if new | grep -q $'\e'; then fail 'an escape sequence is in the log'; fi
idle

# ---- Cancelled while the image comes slowly: on n1 as it is, on n2 with the process stopped. Nothing of the jobs runs.
jobs=()
for node in n1 n2; do
    ok as alice sbatch --parsable -w $node --container-image=$proxy/tools/large:1 -o out.$node --wrap "$where"
    jobs+=("$out")
done
begins n1
begins n2
on n2 setpriv --reuid alice --regid alice --init-groups pkill -STOP -u alice -f "$begin"
since=$SECONDS
ok as alice scancel "${jobs[@]}"
idle
echo "the nodes were free $((SECONDS - since)) s after the jobs were cancelled"
for node in n1 n2; do
    # (With `*` it has not answered lately, which the controller looks at again from time to time.)
    [[ $(sinfo -h -n $node -o %t) =~ ^idle ]] || fail "$node: $(sinfo -h -n $node -o %t)"
    if on $node pgrep -f "$begin|store-[fw]"; then fail "$node: a process is left"; fi
    test ! -e out.$node || lacks "$(cat out.$node)" ran "the script on $node"
done
bytes=$(sent /tools/large/blobs/)
[ "$bytes" -lt 30000000 ] || fail "of the image that never came $bytes bytes have"

# ---- Cancelled when the image is there, at whatever moment: what has begun has begun in the image.
faults
for delay in none 0 0.1 0.2; do
    ok as alice sbatch --parsable -w n3 --container-image=$proxy/tools/some:1 -o out.$delay --wrap "$where"
    job=$out
    [ $delay = none ] || { sleep $delay && ok as alice scancel "$job"; }
    ended "$job" >/dev/null
    test ! -e out.$delay || lacks "$(cat out.$delay)" bare "the script that was cancelled after $delay s"
done
equal "$(cat out.none)" 'ran inside'
idle
