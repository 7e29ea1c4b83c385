# bed: --nodes 4
# takes: 45
# time: 300
# A job's nodes read the depot once and pass on what they have; whatever is in the way of that, each of them reads the depot.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
. "$(dirname "$0")/../fan-out/lib.sh"
cd /home/alice

ok as alice skiff env create dev
inside alice dev 'head -c 30000000 /dev/urandom >/opt/large; seq 300000 >/opt/text'
want=$(as alice skiff env exec dev -- sh -c 'cat /opt/large /opt/text | sha256sum')
run='cat /opt/large /opt/text | sha256sum; echo $SLURM_JOB_ID >id'
set_fan_out relay

for form in unpacked mounted; do
    [ $form = unpacked ] || node_stores
    # Once by all together; a node that begins 3 s after the others, as on a busy machine, may find that they have read its part.
    for try in 1 2 3; do
        forget
        ok as alice srun -QN4 --environment=dev sh -c "$run"
        equal "$(sort -u <<<"$out")" "$want"
        equal "$(wc -l <<<"$out")" 4
        origins snapshot "$(cat id)"
        equal "$from" "['relay']"
        size=$(du -bc $depot/packs/*.pack $depot/layers/* | tail -1 | cut -f1)
        [ "$read" -le $((size * 2)) ] && [ "$read" -gt $((size * 9 / 10)) ] || fail "of $size bytes $read were read"
        [ "$read" -gt $((size * 11 / 10)) ] || break
    done
    [ "$read" -le $((size * 11 / 10)) ] || echo "of $size bytes $read were read, in the last of three tries" >&3
done
# Who is there when nothing is missing sends nothing and reads nothing.
ok as alice srun -QN4 --environment=dev sh -c "$run"
origins snapshot "$(cat id)"
equal "$from $read" "['store'] 0"
eventually 10 no_relays

# A batch script's node begins before the others. While a job runs, who has asked for nothing yet can.
forget
as alice rm -f up go
ok as alice sbatch --parsable -N4 --environment=dev -o batch --wrap "sha256sum </dev/null; touch up; until [ -e go ]; do sleep 0.1; done; srun -N4 sh -c '$run'"
job=$out
eventually 30 test -e up
equal "$(relays | wc -l)" 1
as alice touch go
eventually 40 sh -c '[ -z "$(squeue -h)" ]'
equal "$(grep -cxF "$want" batch)" 4
origins snapshot "$job"
equal "$from" "['relay']"
[ "$read" -le $((size * 2)) ] || fail "of $size bytes $read were read"

# A step on some of the nodes: they ask each other, and the script's node last.
forget
ok as alice sbatch --parsable -N4 --environment=dev -o batch --wrap "srun -N2 -w n3,n4 sh -c '$run'"
job=$out
eventually 40 sh -c '[ -z "$(squeue -h)" ]'
equal "$(grep -cxF "$want" batch)" 2
ok as alice skiff env status --json "$job"
equal "$(json "$out" 'sorted(p["from"] for r in d["roots"] if r["node"] in ("n3", "n4") for p in r["parts"] if p["part"] == "snapshot")')" "['relay', 'relay']"

# Killed, stopped or deaf relays hold up nobody for long.
for how in KILL STOP; do
    forget
    as alice rm -f up go
    ok as alice sbatch --parsable -N4 --environment=dev -o batch --wrap "touch up; until [ -e go ]; do sleep 0.1; done; srun -N4 sh -c '$run'"
    job=$out
    eventually 30 test -e up
    read -r node pid < <(relays)
    on "$node" kill -$how "$pid"
    as alice touch go
    eventually 60 sh -c '[ -z "$(squeue -h)" ]'
    equal "$(grep -cxF "$want" batch)" 4
    eventually 10 no_relays
done

# A node that is slow is no reason to wait: n2, which sends n4 half of the files, has a link of 2 Mbit/s in that direction. n4 asks n1 for the
# rest: n2 sends less than half of its half, n1 much more than the two halves that n2 and n3 ask for, and nobody reads the depot instead.
sent_by() { on "$1" awk -v "link=e-$1:" '$1 == link { print $10 }' /proc/net/dev; }
fast() { on n2 tc qdisc del dev e-n2 root; }
trap 'fast 2>&- || true; rm -f /etc/skiff/conf.d/fan-out.toml; images_cleanup' EXIT
half=$((size / 2))
bypassed() {
    [ "$from" = "['relay']" ] && [ "${sent[1]}" -ge 300000 ] && [ "${sent[1]}" -lt $((half / 2)) ] &&
        [ "${sent[0]}" -gt $((half * 5 / 2)) ] && [ "$read" -lt $((size * 3 / 2)) ]
}
for try in 1 2 3; do
    forget
    on n2 tc qdisc add dev e-n2 root tbf rate 2mbit burst 256k latency 50ms
    before=("$(sent_by n1)" "$(sent_by n2)")
    ok as alice srun -QN4 --environment=dev sh -c "$run"
    sent=($(($(sent_by n1) - before[0])) $(($(sent_by n2) - before[1])))
    fast
    equal "$(sort -u <<<"$out")" "$want"
    origins snapshot "$(cat id)"
    # On a busy machine n2 may begin too late to be asked at all, or be left late.
    bypassed && break
done
bypassed || fail "of $size bytes n1 sent ${sent[0]}, the slow n2 ${sent[1]}, and $read were read"

# Others can have the ports before.
squat='
import socket, time
held = []
for port in range(61001, 65000):
    s = socket.socket(socket.AF_INET6)
    try:
        s.bind(("::", port))
        s.listen(1)
        held.append(s)
    except OSError:
        pass
print(len(held), flush=True)
time.sleep(100)'
forget
on n2 setpriv --reuid mallory --regid mallory --init-groups sh -c 'ulimit -n 8000; exec python3 -c "$1"' sh "$squat" >squatted &
squatter=$!
eventually 10 test -s squatted
[ "$(cat squatted)" -gt 3000 ]
since=$SECONDS
ok as alice srun -QN4 --environment=dev sh -c "$run"
[ $((SECONDS - since)) -lt $((30 * slowness)) ] || fail "a neighbour's ports: $((SECONDS - since)) s"
equal "$(sort -u <<<"$out")" "$want"
on n2 pkill -u mallory python3
wait $squatter || true

# What is damaged in the depot is told by each node as if it had read that itself, and nothing of it stays.
forget
pack=$(ls -S $depot/packs | head -1)
cp -a $depot/packs/$pack kept
printf 'XXXX' | dd of=$depot/packs/$pack bs=1 seek=20000000 conv=notrunc status=none
fails 125 as alice srun -QN4 --environment=dev true
has "$err" 'depot verify'
cat kept >$depot/packs/$pack
ok as alice srun -QN4 --environment=dev sh -c "$run"
equal "$(sort -u <<<"$out")" "$want"

# Without what nodes know each other by, or by a site's word, each reads the depot. So it is by itself where little is missing.
forget
ok as alice skiff env snapshot dev
as alice rm -f $depot/relay.key
as alice mkdir $depot/relay.key
ok as alice srun -QN4 --environment=dev sh -c "$run"
origins snapshot "$(cat id)"
equal "$from $read" "['depot'] 0"
as alice rmdir $depot/relay.key
for wish in depot auto; do
    forget
    set_fan_out $wish
    ok as alice srun -QN4 --environment=dev sh -c "$run"
    origins snapshot "$(cat id)"
    # The nodes of a bed are on one machine, and so is the file system that they share.
    equal "$wish $from" "$wish ['depot']"
done
inside alice dev 'echo little >/opt/little'
ok as alice srun -QN4 --environment=dev sh -c "cat /opt/little; $run"
origins snapshot "$(cat id)"
equal "$from" "['depot']"
