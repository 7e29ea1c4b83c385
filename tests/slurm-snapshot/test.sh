# A job gets the environment as it was when it was submitted: every kind of file, once through the depot, once per node.
# takes: 27
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
depot=/home/alice/.local/share/skiff/depot
cache=/var/cache/skiff/$(id -u alice)
size() { du -s --apparent-size -B1 "$depot" | cut -f1; }
# (ls pads numbers to the width of the longest.)
layers() { on "$1" sh -c "ls -i $cache/layers | sed 's/^ *//'"; }
cd /home/alice

# All that a file system knows.
inside alice dev "$(cat "$here/kinds")"
install -m 644 -o alice "$here/look.py" .
ok as alice skiff env exec dev -- env PYTHONHASHSEED=0 python3 look.py
want=$out
has "$want" 'not\xffutf8'
has "$want" "/usr/bin/tac' missing"
ok as alice env PYTHONHASHSEED=0 srun -n1 -w n1 --environment=dev python3 look.py
diff <(echo "$want") <(echo "$out") || fail 'the node sees something else'

# What is queued is not changed by what comes after.
ok as alice sbatch --parsable -H --environment=dev -o before --wrap 'cat /etc/issue; ls /usr/bin/tac'
held=$out
inside alice dev 'echo later >/etc/issue; echo "new" >/usr/bin/tac'
ok as alice srun -n1 --environment=dev cat /etc/issue /usr/bin/tac
equal "$out" $'later\nnew'
scontrol release "$held"
equal "$(ended "$held")" 'FAILED 2:0'
equal "$(cat before)" $'changed\nls: cannot access \'/usr/bin/tac\': No such file or directory'

# Only changes are sent, and fetched, the second time; nothing if there are none.
inside alice dev 'head -c 50000000 /dev/urandom >/opt/big 2>&1 || /usr/bin/kopf -c 50000000 /dev/urandom >/opt/big'
ok as alice srun -N2 --environment=dev test -s /opt/big
before=$(size) there=$(layers n1)
ok as alice srun -N2 --environment=dev true
equal "$(layers n1)" "$there"
[ $(($(size) - before)) -lt 20000 ] || fail "sent again: $(($(size) - before)) bytes"
inside alice dev 'echo small >/opt/small; rm /opt/t/plain'
fits as alice skiff env snapshot --json dev
equal "$(json "$out" 'd["how"]')" incremental
[ "$(json "$out" 'd["bytes"]')" -lt 100000 ] || fail "sent: $out"
ok as alice srun -N2 --environment=dev sh -c 'cat /opt/small; test ! -e /opt/t/plain; stat -c %h /opt/t/hard1'
equal "$(sort <<<"$out" | xargs)" '2 2 small small'
[ $(($(size) - before)) -lt 200000 ] || fail "sent: $(($(size) - before)) bytes"
equal "$(comm -23 <(echo "$there" | sort) <(layers n1 | sort))" '' 'layers that were there already'
# Of another user's cache nothing is to be seen, and the layers are safe from the job.
fails 2 on n1 setpriv --reuid bob --regid bob --init-groups ls $cache/layers
ok as alice srun -N2 --environment=dev sh -c 'echo broken >/opt/small'
ok as alice srun -N2 --environment=dev cat /opt/small
equal "$out" $'small\nsmall'

# Several at once, of one environment while it changes and of another one.
ok as alice skiff env create other
for i in 1 2 3 4 5 6; do
    start alice sh -c "skiff env exec dev -- sh -c 'echo $i >/opt/at-once.$i'; exec sbatch -Q -o once.$i --environment=dev --wrap 'cat /opt/at-once.$i /opt/small'"
    pids+=($started)
done
start alice sbatch -Q -o once.7 --environment=other --wrap 'ls /opt/small 2>/dev/null || echo 7; echo small'
wait "${pids[@]}" $started
eventually 20 sh -c '[ -z "$(squeue -h)" ]'
for i in 1 2 3 4 5 6 7; do equal "$(cat once.$i)" "$i"$'\n'small; done

# Paths that no system call takes are named, and nothing is submitted.
inside alice dev 'python3 -c "import os
os.chdir(\"/opt\")
for _ in range(21): os.mkdir(\"d\" * 200); os.chdir(\"d\" * 200)"'
fails 125 as alice srun -n1 --environment=dev touch ran
has "$err" 'hint: a path has at most 4,095 bytes'
has "$err" 'nothing was submitted'
[ ! -e ran ]
inside alice dev 'rm -r /opt/ddd*'

# A large file is a matter of seconds, once.
inside alice dev 'dd if=/dev/urandom of=/opt/large bs=1M count=200 status=none'
begin=$EPOCHREALTIME
ok as alice srun -N2 --environment=dev stat -c %s /opt/large
echo "200 MB: first job $((${EPOCHREALTIME/./} - ${begin/./})) us" >&3
[ $((${EPOCHREALTIME/./} - ${begin/./})) -lt 15000000 ] || fail 'too slow'
begin=$EPOCHREALTIME
ok as alice srun -N2 --environment=dev stat -c %s /opt/large
echo "200 MB: second job $((${EPOCHREALTIME/./} - ${begin/./})) us" >&3
[ $((${EPOCHREALTIME/./} - ${begin/./})) -lt 2000000 ] || fail 'the second is too slow'
# It ends by itself some time after its last session.
as alice skiff env stop dev || true
idle
