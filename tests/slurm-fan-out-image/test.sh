# bed: --nodes 4
# takes: 30
# A job's nodes ask the registry once for an image, and pass it on; whatever is in the way of that, each of them asks the registry.
. "$(dirname "$0")/../lib.sh"
# Where the nodes reach it too.
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
trap 'rm -f /etc/skiff/conf.d/fan-out.toml; images_cleanup' EXIT
nodes=$SKIFF_TESTBED_NODES
depot=/home/alice/.local/share/skiff/depot
set_fan_out() { mkdir -p /etc/skiff/conf.d; printf '[slurm]\nfan_out = "%s"\n' "$1" >/etc/skiff/conf.d/fan-out.toml; }
forget() {
    local node
    for node in $nodes; do
        on $node sh -c "umount -l /run/skiff/images/* 2>&-; rmdir /run/skiff/images/* 2>&-; find $store -mindepth 1 -delete 2>&-" || true
    done
    : >"$registry_log"
}
# Where the image came from on each node, and how many bytes all nodes have read of the registry for all of them.
origins() { # JOB
    eventually 10 sh -c "[ \$(ls $depot/jobs/$1@*.start | wc -l) = 4 ]"
    ok as alice skiff env status --json "$1"
    described skiff env status --json
    from=$(json "$out" 'sorted({p["from"] for r in d["roots"] for p in r["parts"] if p["part"] == "image"})')
    read=$(json "$out" 'sum(p.get("read", 0) for r in d["roots"] for p in r["parts"])')
}
# All bytes of blobs that the registry sent were sent once, or as often as is said. The end of each blob is asked for first, and once more.
sent_once() { # [TIMES]
    local all
    all=$(served tools/env)
    [ "$all" -gt $((size * ${1:-1})) ] && [ "$all" -lt $((size * ${1:-1} + 700000)) ] || fail "of $size bytes the registry has sent $all"
}
relays() { for node in $nodes; do on $node pgrep -u alice -f '^skiff: relay' | sed "s/^/$node /" || true; done; }
no_relays() { [ -z "$(relays)" ]; }

size=24000000
skeleton "$images_tmp/root"
mkdir "$images_tmp/data" "$images_tmp/data/opt"
head -c $size /dev/urandom >"$images_tmp/data/opt/large"
start_registry
make_store
node_stores
push tools/env:1 "$images_tmp/root" "$images_tmp/data"
mkdir -p "$images_tmp/other/opt"
head -c 9000000 /dev/urandom >"$images_tmp/other/opt/large"
other=$pushed
push tools/other:1 "$images_tmp/root" "$images_tmp/other"
pushed=$other
size=$(curl -sSf -H 'Accept: application/vnd.oci.image.manifest.v1+json' "http://$registry/v2/tools/env/manifests/$pushed" |
    python3 -c 'import json, sys; print(sum(layer["size"] for layer in json.load(sys.stdin)["layers"]))')
want=$(sha256sum <"$images_tmp/data/opt/large")
cd /home/alice
image=$registry/tools/env:1
run='sha256sum </opt/large; echo $SLURM_JOB_ID >~/id'

: >"$registry_log"
ok as alice srun -QN4 --container-image=$image sh -c "$run"
equal "$(sort -u <<<"$out")" "$want"
equal "$(wc -l <<<"$out")" 4
sent_once
# By whoever submitted the job, which image the name means; by all nodes together, the image.
equal "$(asked GET /manifests/)" 2 'manifests that were asked for'
origins "$(cat id)"
equal "$from" "['relay']"
[ "$read" -ge "$size" ] && [ "$read" -lt $((size * 3 / 2)) ] || fail "of $size bytes $read were read"
# Who has it asks nobody.
: >"$registry_log"
ok as alice srun -QN4 --container-image=$image sh -c "$run"
[ "$(served tools/env)" -lt 100000 ] || fail "the registry has sent $(served tools/env) bytes"
origins "$(cat id)"
equal "$from" "['store']"
eventually 10 no_relays

# An environment over it.
ok as alice skiff pull --quiet $image
ok as alice skiff env create --base image:$image dev
forget
ok as alice srun -QN4 --environment=dev sh -c "$run"
equal "$(sort -u <<<"$out")" "$want"
sent_once
origins "$(cat id)"
equal "$from" "['relay']"

# Two images in one job: nobody asks a registry for what only the other one has.
forget
ok as alice sbatch --parsable -N4 -o batch --wrap "srun -QN2 -w n1,n2 --container-image=$image sh -c '$run' & srun -QN2 -w n3,n4 --container-image=$registry/tools/other:1 sha256sum /opt/large & wait"
eventually 60 sh -c '[ -z "$(squeue -h)" ]'
equal "$(grep -cF "${want%% *}" batch)" 2
equal "$(grep -cF "$(sha256sum <"$images_tmp/other/opt/large" | cut -d' ' -f1)" batch)" 2
sent_once
equal "$(grep -c 'blobs/.*HTTP/1.1" 404' "$registry_log" || true)" 0 'blobs that a registry was asked for in vain'

# Killed or stopped relays hold up nobody for long: then the others ask the registry.
for how in KILL STOP; do
    forget
    as alice rm -f up go
    ok as alice sbatch --parsable -N4 --container-image=$image -o batch --wrap "touch ~/up; until [ -e ~/go ]; do sleep 1; done; srun -N4 --container-image=$image sh -c '$run'"
    job=$out
    eventually 30 test -e up
    read -r node pid < <(relays)
    on "$node" kill -$how "$pid"
    as alice touch go
    eventually 60 sh -c '[ -z "$(squeue -h)" ]'
    equal "$(grep -cxF "$want" batch)" 4 "relay: $how"
    eventually 10 no_relays
done

# What a registry damages is told as if each node had asked it, and nothing of it stays.
forget
blob=$(ls -S "$images_tmp"/registry/docker/registry/v2/blobs/sha256/*/*/data | head -1)
cp "$blob" "$images_tmp/kept"
printf 'XXXX' | dd of="$blob" bs=1 seek=20000000 conv=notrunc status=none
fails 125 as alice srun -QN4 --container-image=$image true
has "$err" digest
cat "$images_tmp/kept" >"$blob"
ok as alice srun -QN4 --container-image=$image sh -c "$run"
equal "$(sort -u <<<"$out")" "$want"

# By a site's word, or where nodes know nothing by which they know each other, each asks the registry.
forget
set_fan_out depot
ok as alice srun -QN4 --container-image=$image sh -c "$run"
sent_once 4
origins "$(cat id)"
equal "$from $read" "['registry'] 0"
set_fan_out auto
forget
as alice rm -f $depot/relay.key
as alice mkdir $depot/relay.key
ok as alice srun -QN4 --container-image=$image sh -c "$run"
sent_once 4
as alice rmdir $depot/relay.key
