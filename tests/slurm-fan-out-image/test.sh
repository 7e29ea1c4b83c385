# bed: --nodes 4
# takes: 38
# A job's nodes ask the registry once for an image, or read its copy in the depot once, and pass it on; whatever is in the way of that, each of
# them does so itself.
. "$(dirname "$0")/../lib.sh"
# Where the nodes reach it too.
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
. "$(dirname "$0")/../fan-out/lib.sh"

# All bytes of blobs that the registry sent were sent once, or as often as is said. The end of each blob is asked for first, and once more.
sent_once() { # [TIMES]
    local all
    all=$(served tools/env)
    [ "$all" -gt $((size * ${1:-1})) ] && [ "$all" -lt $((size * ${1:-1} + 700000)) ] || fail "of $size bytes the registry has sent $all"
}

size=12000000
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
origins image "$(cat id)"
equal "$from" "['relay']"
[ "$read" -ge "$size" ] && [ "$read" -lt $((size * 3 / 2)) ] || fail "of $size bytes $read were read"
# Who has it asks nobody.
: >"$registry_log"
ok as alice srun -QN4 --container-image=$image sh -c "$run"
[ "$(served tools/env)" -lt 100000 ] || fail "the registry has sent $(served tools/env) bytes"
origins image "$(cat id)"
equal "$from" "['store']"
eventually 10 no_relays

# An environment over it.
ok as alice skiff pull --quiet $image
ok as alice skiff env create --base image:$image dev
forget
ok as alice srun -QN4 --environment=dev sh -c "$run"
equal "$(sort -u <<<"$out")" "$want"
sent_once
origins image "$(cat id)"
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
    ok as alice sbatch --parsable -N4 --container-image=$image -o batch --wrap "touch ~/up; until [ -e ~/go ]; do sleep 0.1; done; srun -N4 --container-image=$image sh -c '$run'"
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
printf 'XXXX' | dd of="$blob" bs=1 seek=10000000 conv=notrunc status=none
fails 125 as alice srun -QN4 --container-image=$image true
has "$err" digest
cat "$images_tmp/kept" >"$blob"
ok as alice srun -QN4 --container-image=$image sh -c "$run"
equal "$(sort -u <<<"$out")" "$want"

# ---- An image that no registry has, by its copy in the depot, and one in a file: these are read once by all nodes together.
skeleton "$images_tmp/tool"
mkdir "$images_tmp/tool/opt"
head -c 12000000 /dev/urandom >"$images_tmp/tool/opt/large"
registry_want=$want
want=$(sha256sum <"$images_tmp/tool/opt/large")
mksquashfs "$images_tmp/tool" tool.sqsh -quiet -no-progress -all-root
ok as alice skiff import tool.sqsh tool
all_of() { # FILE: one whose node begins 3 s after the others may read what these have read
    local length
    length=$(stat -c %s "$1")
    [ "$read" -ge "$length" ] && [ "$read" -le $((length * 2)) ] || fail "of $length bytes $read were read"
}
# The nodes of a bed are on one machine, and so is the file system that they share: without a word each of them reads the file.
forget
ok as alice srun -QN4 --container-image=tool sh -c "$run"
origins image "$(cat id)"
equal "$from" "['depot']"
set_fan_out relay
for wanted in tool ./tool.sqsh; do
    forget
    ok as alice srun -QN4 --container-image=$wanted sh -c "$run"
    equal "$(sort -u <<<"$out")" "$want"
    equal "$(wc -l <<<"$out")" 4
    origins image "$(cat id)"
    equal "$from" "['relay']" "$wanted"
    copy=$(ls $depot/images/*.erofs)
    case $wanted in tool) all_of $copy ;; *) all_of tool.sqsh ;; esac
    ok as alice srun -QN4 --container-image=$wanted sh -c "$run"
    origins image "$(cat id)"
    equal "$from $read" "['store'] 0" "$wanted"
done
eventually 10 no_relays

# A node that passes on other bytes than there are: what came is not kept, and the depot is read. n1 has the image, and sees another copy.
ok as alice skiff env create --base image:tool over
ok as alice srun -QN1 -w n1 --environment=over id
cp $copy damaged
for at in $(seq 0 10); do printf XXXX | dd of=damaged bs=1 seek=$((at * 1000000 + 500000)) conv=notrunc status=none; done
chown alice: damaged
for node in n2 n3 n4; do on $node find $store -mindepth 1 -delete || true; done
on n1 mount --bind /home/alice/damaged $copy
try as alice srun -QN4 --environment=over sh -c "$run"
# Its relay has it open for a while.
on n1 umount -l $copy
equal "$code $(sort -u <<<"$out")" "0 $want" "$err"
origins image "$(cat id)"
equal "$from" "['depot', 'store']"
rm damaged

# A killed one holds up nobody.
forget
as alice rm -f up go
ok as alice sbatch --parsable -N4 --container-image=tool -o batch --wrap "touch ~/up; until [ -e ~/go ]; do sleep 0.1; done; srun -N4 --container-image=tool sh -c '$run'"
eventually 30 test -e up
read -r node pid < <(relays)
on "$node" kill -KILL "$pid"
as alice touch go
eventually 60 sh -c '[ -z "$(squeue -h)" ]'
equal "$(grep -cxF "$want" batch)" 4
eventually 10 no_relays

# One that is damaged in the depot is refused on each node.
forget
cp $copy kept
printf XXXX | dd of=$copy bs=1 seek=6000000 conv=notrunc status=none
fails 125 as alice srun -QN4 --container-image=tool id
cat kept >$copy
rm kept
ok as alice srun -QN4 --container-image=tool sh -c "$run"
equal "$(sort -u <<<"$out")" "$want"
# By a site's word each node reads it itself.
forget
set_fan_out depot
ok as alice srun -QN4 --container-image=tool sh -c "$run"
origins image "$(cat id)"
equal "$from $read" "['depot'] 0"
rm /etc/skiff/conf.d/fan-out.toml
want=$registry_want

# By a site's word, or where nodes know nothing by which they know each other, each asks the registry.
forget
set_fan_out depot
ok as alice srun -QN4 --container-image=$image sh -c "$run"
sent_once 4
origins image "$(cat id)"
equal "$from $read" "['registry'] 0"
set_fan_out auto
forget
as alice rm -f $depot/relay.key
as alice mkdir $depot/relay.key
ok as alice srun -QN4 --container-image=$image sh -c "$run"
sent_once 4
as alice rmdir $depot/relay.key
