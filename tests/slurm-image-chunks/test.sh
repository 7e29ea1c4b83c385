# takes: 30
# What a node has of a new image in other images it takes from these: after a file was added, only that is sent. Damage is noticed, relays send only
# what is missing, and nobody uses others' images so.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
trap 'drop_node_stores; rm -f /etc/skiff/conf.d/fan-out.toml; images_cleanup' EXIT
make_store
node_stores
cd /home/alice
depot=/home/alice/.local/share/skiff/depot
run='cat /opt/large /opt/many/* | sha256sum; echo $SLURM_JOB_ID >id'
set_fan_out() { mkdir -p /etc/skiff/conf.d; printf '[slurm]\nfan_out = "%s"\n' "$1" >/etc/skiff/conf.d/fan-out.toml; }
# What a job has had to bring of its image, how much of that was in other images there, and what relays have read.
brought() { # USER JOB
    ok as "$1" skiff env status --json "$2"
    described skiff env status --json
    parts='[p for r in d["roots"] for p in r["parts"] if p["part"] == "image"]'
    bytes=$(json "$out" "sum(p['bytes'] for p in $parts)")
    reused=$(json "$out" "sum(p.get('reused', 0) for p in $parts)")
    from=$(json "$out" "sorted({p['from'] for p in $parts})")
    echo "job $2: $bytes bytes were brought, $reused of them from here, from $from"
}
runs() { # USER IMAGE [OPTION...]
    ok as "$1" skiff run "$2" sh -c 'cat /opt/large /opt/many/* | sha256sum'
    local want=$out
    ok as "$1" srun -Q "${@:3}" --container-image="$2" sh -c "$run"
    equal "$(sort -u <<<"$out")" "$want"
    brought "$1" "$(cat "/home/$1/id")"
}
missing() { # BYTES: no more of it came from elsewhere
    [ $((bytes - reused)) -lt "$1" ] || fail "of $bytes bytes $reused were taken from other images"
}
changed() { # IMAGE SCRIPT
    ok as alice skiff env exec dev -- sh -c "$2"
    ok as alice skiff commit --quiet dev "$1"
}

skeleton "$images_tmp/root"
mkdir "$images_tmp/root/opt" "$images_tmp/root/opt/many"
head -c 20000000 /dev/urandom >"$images_tmp/root/opt/large"
for i in $(seq 400); do head -c $((i * 37)) /dev/urandom >"$images_tmp/root/opt/many/$i"; done
tar -C "$images_tmp/root" -cf root.tar .
ok as alice skiff import --quiet root.tar root
ok as alice skiff env create --base image:root dev
set_fan_out depot
changed dev:1 'true'
runs alice dev:1 -N2
equal "$reused" 0
[ "$bytes" -gt 40000000 ]
# A file more, by the same sources on two nodes: of both 44 MB the file, and what says where files lie.
changed dev:2 'head -c 300000 /dev/urandom >/opt/added'
runs alice dev:2 -N2
missing 4000000
equal "$from" "['depot']"
# Nothing is to be brought.
runs alice dev:2 -N2
equal "$bytes $reused" '0 0'
# Through relays: what is missing is read once for both.
set_fan_out relay
changed dev:3 'head -c 300000 /dev/urandom >/opt/more; rm /opt/many/17; printf XXXXXXXX | dd of=/opt/large bs=1 seek=7000000 conv=notrunc status=none'
runs alice dev:3 -N2
missing 5000000
equal "$from" "['relay']"
read=$(json "$out" 'sum(p.get("read", 0) for r in d["roots"] for p in r["parts"])')
[ "$read" -lt 3500000 ] || fail "relays have read $read bytes"

# An image here that is damaged: its chunks are read elsewhere.
set_fan_out depot
changed dev:4 'echo four >/opt/four'
for node in n1 n2; do
    for file in $(on $node sh -c "ls $store/images/*.erofs"); do
        on $node sh -c "printf XXXXXXXX | dd of=$file bs=1 seek=9000000 conv=notrunc status=none; chmod 400 $file"
    done
done
runs alice dev:4 -N2
[ "$reused" -gt 10000000 ]
# A list that is damaged: all is read.
changed dev:5 'echo five >/opt/five'
ok as alice srun -Q -w n1 --container-image=dev:5 id
list=$(ls -t $depot/images/*.chunks | head -1)
printf XXXXXXXX | dd of="$list" bs=1 seek=500 conv=notrunc status=none
runs alice dev:5 -w n2
equal "$reused" 0
# A copy that is damaged where it is read is refused, and removed.
changed dev:6 'head -c 3000000 /dev/urandom >/opt/six'
ok as alice srun -Q -w n1 --container-image=dev:6 id
copy=$(ls -t $depot/images/*.erofs | head -1)
as alice python3 -c "
import os
with open('$copy', 'r+b') as file:
    size = os.path.getsize('$copy')
    for at in range(0, size, 100000):
        file.seek(at); file.write(b'XXXXXXXX')"
fails 125 as alice srun -Q -w n2 --container-image=dev:6 id
has "$err" 'damaged'

# Others' images are not looked into.
ok as alice skiff export dev:1 /tmp/skiff-one.erofs
chmod 644 /tmp/skiff-one.erofs
trap 'rm -f /tmp/skiff-one.erofs; drop_node_stores; rm -f /etc/skiff/conf.d/fan-out.toml; images_cleanup' EXIT
ok as bob skiff import --quiet /tmp/skiff-one.erofs one
# As if bob knew what they consist of.
cache=/var/cache/skiff
[ -n "$(on n1 find $cache/$(id -u alice) -path "*/lists/*")" ]
on n1 sh -c "rm -rf $cache/$(id -u bob); cp -a $cache/$(id -u alice) $cache/$(id -u bob); chown -R bob: $cache/$(id -u bob)"
runs bob one -w n1
equal "$reused" 0
# With the last name of an image its copy and its list go.
count() { ls $depot/images | wc -l; }
before=$(count)
ok as alice skiff rmi dev:3
equal "$(count)" $((before - 2))
