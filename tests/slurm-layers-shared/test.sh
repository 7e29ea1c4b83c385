# bed: --nodes 4
# takes: 30
# time: 300
# Nodes that share one image store: each layer is written once, whoever is killed, and all mount that file in place. What one node wants room
# for takes nothing from jobs on others.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
. "$(dirname "$0")/../fan-out/lib.sh"
shared=/shared/store
share() { on "$1" sh -c "install -d -m 755 /var/lib/skiff; mkdir -p $store; mount --bind $shared $store"; }
cleanup() {
    for node in $nodes; do on $node umount -l $store || true; done
    rm -rf $shared /etc/skiff/conf.d/layers.toml /etc/skiff/conf.d/fan-out.toml
    images_cleanup
}
trap cleanup EXIT
install -d -m 755 -o daemon -g daemon $shared
for node in $nodes; do share "$node"; done
set_fan_out depot
cd /home/alice
run='cat /opt/large /opt/many/* | sha256sum; echo $SLURM_JOB_ID >id'
content() { as "$1" skiff env exec "$2" -- sh -c 'cat /opt/large /opt/many/* | sha256sum'; }
layers() { find $shared/images -name '*.erofs' | wc -l; }
unfinished() { find $shared/tmp -mindepth 1 2>&-; }
unpacked() { for node in $nodes; do on $node find $node_cache/layers -mindepth 1 -maxdepth 1 2>&-; done || true; }

ok as alice skiff env create dev
inside alice dev 'mkdir /opt/many; head -c 60000000 /dev/urandom >/opt/large; for i in $(seq 500); do head -c 3000 /dev/urandom >/opt/many/$i; done'
want=$(content alice dev)
begun=${EPOCHREALTIME/./}
ok as alice srun -QN4 --environment=dev sh -c "$run"
echo "60 MB to 4 nodes that share a store: $(((${EPOCHREALTIME/./} - begun) / 1000)) ms" >&3
equal "$(sort <<<"$out" | uniq -c | xargs)" "4 $(xargs <<<"$want")"
equal "$(layers) $(unfinished)$(unpacked)" '1 '
ok as alice srun -QN4 --environment=dev sh -c "$run"
origins snapshot "$(cat id)"
equal "$from" "['store']"

# Whoever writes is killed: another node does, or unpacks; nothing half-made stays, and the next job has it from the store.
killed=0
for i in 1 2 3 4 5 6; do
    [ $killed -lt 2 ] || break
    forget
    start alice sh -c "srun -QN4 --environment=dev sh -c '$run' >killed 2>&1"
    for look in $(seq 200); do
        [ -z "$(unfinished)" ] || break
        kill -0 $started 2>&- || break
        sleep 0.02
    done
    # Of one node: it may be the one that writes, or one that waits for it. (Each may just have ended.)
    node=n$((i % 4 + 1))
    for pid in $(on $node pgrep -u daemon -f store-writer || true); do ! on $node kill -9 $pid 2>&- || killed=$((killed + 1)); done
    wait $started || fail "a job whose writers were killed: $(cat killed)"
    idle
    equal "$(unfinished)" '' "after a kill, round $i"
    ok as alice srun -QN4 --environment=dev sh -c "$run"
    equal "$(sort <<<"$out" | uniq -c | xargs)" "4 $(xargs <<<"$want")" "after a kill, round $i"
done
[ $killed -gt 0 ] || fail 'no writer was found at work'

# Two users who have the same layer, on two nodes at the same moment: once, and both may use it.
ok as alice skiff env export dev dev.skiff
mv dev.skiff /shared
chmod 644 /shared/dev.skiff
ok as bob skiff env import /shared/dev.skiff twin
for user in alice bob; do ok as $user skiff env snapshot "$([ $user = alice ] && echo dev || echo twin)"; done
forget
start alice srun -Qw n1 --environment=dev sh -c "$run"
first=$started
ok as bob srun -Qw n2 --environment=twin sh -c "$run"
equal "$out" "$want"
wait $first
equal "$(find $shared/users -type f -printf '%f\n' | sort | uniq -c | sed 's/^ *//' | cut -d' ' -f1 | sort -u)" 2 'who may use the layers'

# On n2 something comes for which there is too little room: a job on n1 has its layer to its end.
printf '[slurm]\ncache_bytes = 70000000\n' >/etc/skiff/conf.d/layers.toml
rm -f begun go
ok as alice sbatch --parsable -w n1 --environment=dev -o long --wrap "touch begun; until [ -e go ]; do sleep 0.1; done; $run"
long=$out
eventually 30 test -e begun
before=$(find $shared/images -name '*.erofs' | sort)
ok as alice skiff env create other
inside alice other 'head -c 50000000 /dev/urandom >/opt/large'
ok as alice srun -Qw n2 --environment=other stat -c %s /opt/large
equal "$out" 50000000
rm -f /shared/dev.skiff
touch go
equal "$(ended "$long")" 'COMPLETED 0:0'
equal "$(cat long)" "$want"
[ -n "$(comm -13 <(echo "$before") <(find $shared/images -name '*.erofs' | sort))" ] || fail 'nothing was brought'
ok as alice srun -QN4 --environment=dev sh -c "$run"
equal "$(sort <<<"$out" | uniq -c | xargs)" "4 $(xargs <<<"$want")"
idle
