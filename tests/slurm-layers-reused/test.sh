# takes: 30
# What a node has of a new layer in others it takes from these: after a copy of an environment, a small change to a large file, a merge of
# layers. The depot has it once, too. Damage is noticed, and nobody uses others' layers so.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
trap 'drop_node_stores; rm -f /etc/skiff/conf.d/fan-out.toml; images_cleanup' EXIT
node_stores
cd /home/alice
depot=/home/alice/.local/share/skiff/depot
lists=/var/cache/skiff/$(id -u alice)/lists
run='cat /opt/large /opt/many/* | sha256sum; echo $SLURM_JOB_ID >id'
stored() { as alice du -bs $depot/packs | cut -f1; }
content() { as "$1" skiff env exec "$2" -- sh -c 'cat /opt/large /opt/many/* | sha256sum'; }
# What of its snapshot a job has had to bring to its nodes, and how much of that was in other layers there.
brought() { # USER JOB
    ok as "$1" skiff env status --json "$2"
    described skiff env status --json
    bytes=$(json "$out" 'sum(p["bytes"] for r in d["roots"] for p in r["parts"] if p["part"] == "snapshot")')
    reused=$(json "$out" 'sum(p.get("reused", 0) for r in d["roots"] for p in r["parts"])')
    echo "job $2: $bytes bytes were brought, $reused of them from here; $(json "$out" '[(p["part"], p["from"], p["ms"]) for r in d["roots"] for p in r["parts"]]')"
}
runs() { # USER ENVIRONMENT [OPTION...]: on n1, or elsewhere
    ok as "$1" srun -Q "${@:3}" --environment="$2" sh -c "$run"
    equal "$(sort -u <<<"$out")" "$(content "$1" "$2")"
    brought "$1" "$(cat "/home/$1/id")"
}
# The table has a column for it.
told() { # JOB
    ok as alice skiff env status "$1"
    column=$(head -1 <<<"$out")
    column=${column%%REUSED*}
    part=$(grep ' snapshot ' <<<"$out" | head -1)
    [ "${part:${#column}:1}" != - ] || fail "nothing reused is told:$(said)"
    [ "$(awk '{ print length }' <<<"$out" | sort -n | tail -1)" -le 80 ] || fail "wider than 80 columns:$(said)"
}
nearly_all() { [ "$reused" -gt $((bytes * 9 / 10)) ] || fail "of $bytes bytes $reused were taken from other layers"; }

ok as alice skiff env create dev
inside alice dev 'mkdir /opt/many; head -c 12000000 /dev/urandom >/opt/large
    for i in $(seq 400); do head -c 5000 /dev/urandom >/opt/many/$i; done
    ln /opt/many/1 /opt/one; ln -s many /opt/link; mkfifo /opt/fifo; truncate -s 1M /opt/sparse; echo end >>/opt/sparse'
runs alice dev -w n1
equal "$reused" 0
[ "$bytes" -gt 14000000 ]
equal "$(on n1 ls $lists | wc -l)" 1
# Nothing is to be brought.
runs alice dev -w n1
equal "$bytes $reused" '0 0'

# A copy whose files are the same, under other names in part.
before=$(stored)
ok as alice skiff env clone dev copy
inside alice copy 'mv /opt/many /opt/others; mkdir /opt/many; cp -a /opt/others/[1-3]* /opt/many; echo more >/opt/more'
runs alice copy -w n1
nearly_all
told "$(cat /home/alice/id)"
[ $(($(stored) - before)) -lt 1500000 ] || fail "a copy took $(($(stored) - before)) bytes of the depot"

# A byte in a large file: the layer has all of the file.
before=$(stored)
inside alice dev 'printf XXXXXXXX | dd of=/opt/large bs=1 seek=5000000 conv=notrunc status=none'
runs alice dev -w n1
nearly_all
[ $(($(stored) - before)) -lt 300000 ] || fail "a changed byte took $(($(stored) - before)) bytes of the depot"

# Another layer, and one that takes the place of both.
inside alice dev 'head -c 2000000 /dev/urandom >/opt/new'
runs alice dev -w n1
before=$(stored)
inside alice dev 'printf YYYYYYYY | dd of=/opt/large bs=1 seek=7000000 conv=notrunc status=none; printf YYYYYYYY | dd of=/opt/new bs=1 seek=70000 conv=notrunc status=none'
runs alice dev -w n1
nearly_all
[ $(($(stored) - before)) -lt 500000 ] || fail "merged layers took $(($(stored) - before)) bytes of the depot"

# What is here need not even be in the depot any more.
inside alice dev 'printf ZZZZZZZZ | dd of=/opt/large bs=1 seek=9000000 conv=notrunc status=none'
ok as alice sbatch --parsable -H -w n1 --environment=dev -o held --wrap "$run"
job=$out
largest=$(ls -S $depot/packs | head -1)
as alice mv $depot/packs/$largest largest
as alice scontrol release "$job"
equal "$(ended "$job")" 'COMPLETED 0:0' "$(cat held)"
equal "$(cat held)" "$(content alice dev)"
as alice mv largest $depot/packs/$largest

# A node that has much of it, and one that has nothing, with a relay.
mkdir -p /etc/skiff/conf.d
printf '[slurm]\nfan_out = "relay"\n' >/etc/skiff/conf.d/fan-out.toml
inside alice dev 'printf AAAAAAAA | dd of=/opt/large bs=1 seek=3000000 conv=notrunc status=none'
runs alice dev -N2
[ "$reused" -gt 10000000 ] && [ "$reused" -lt "$bytes" ]
rm /etc/skiff/conf.d/fan-out.toml

# Layers that are damaged here: what they have in a chunk's place is read of the depot. A damaged list is none.
for file in $(on n1 sh -c "ls $store/images/*.erofs"); do
    on n1 sh -c "chattr -i $file; for at in 1 2 3 4 5 6 7 8; do printf XXXXXXXX | dd of=$file bs=1 seek=\$((at * 1000000)) conv=notrunc; done" 2>&- || true
done
inside alice dev 'printf BBBBBBBB | dd of=/opt/large bs=1 seek=2000000 conv=notrunc status=none'
runs alice dev -w n1
[ "$reused" -lt $((bytes - 60000)) ] || fail "of $bytes bytes $reused were taken from damaged layers"
on n1 sh -c "for list in $lists/*; do echo damaged >\$list; done"
inside alice dev 'printf CCCCCCCC | dd of=/opt/large bs=1 seek=1000000 conv=notrunc status=none'
runs alice dev -w n1
equal "$reused" 0

# Bob has what alice has, but not from her: he may not use her layer, whatever he says of which chunks it has.
ok as alice skiff env export dev dev.skiff
mv dev.skiff /shared
chmod 644 /shared/dev.skiff
cd /home/bob
ok as bob skiff env import /shared/dev.skiff twin
inside bob twin 'echo of-bob >/opt/of-bob'
bobs=/var/cache/skiff/$(id -u bob)
on n1 sh -c "install -d -o bob -g bob -m 700 $bobs $bobs/lists; cp $lists/* $bobs/lists; chown -R bob: $bobs"
runs bob twin -w n1
equal "$reused" 0
[ "$bytes" -gt 12000000 ]
