# A node with an image store mounts a snapshot's layers and unpacks nothing: every kind of file, several users, eviction, damage, kills.
# time: 300
# takes: 35
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
trap 'drop_node_stores; rm -f /etc/skiff/conf.d/layers.toml /etc/skiff/helper.conf; images_cleanup' EXIT
node_stores
cd /home/alice
depot=/home/alice/.local/share/skiff/depot
cache=/var/cache/skiff/$(id -u alice)
mounted() { on n1 sh -c 'ls /run/skiff/images 2>&- | wc -l'; }
drop() { on n1 sh -c "umount -l /run/skiff/images/*; rmdir /run/skiff/images/*; find $store -mindepth 1 -delete; rm -rf $cache/layers/*" 2>&- || true; }
unfinished() { on n1 sh -c "ls $store/tmp; ls $store/images | grep lock || true"; }
stored() { on n1 sh -c "ls $store/images 2>&- | grep -c erofs\$" || true; }

for node in n1 n2; do on $node sh -c 'rm -rf /var/cache/skiff/*/layers/*'; done
# What a program sees in a job is what it saw at home. (Only holes are not told: EROFS counts them as blocks.)
ok as alice skiff env create dev
inside alice dev "$(cat "$here/../slurm-snapshot/kinds")"
sed 's/holes = .*/holes = "-"/' "$here/../slurm-snapshot/look.py" >look.py
ok as alice skiff env exec dev -- env PYTHONHASHSEED=0 python3 look.py
want=$out
ok as alice env PYTHONHASHSEED=0 srun -QN2 -o look.%N --environment=dev python3 look.py
for node in n1 n2; do diff <(echo "$want") look.$node || fail "$node sees something else"; done
equal "$(stored) $(mounted)" '1 1'
on n1 sh -c "[ ! -e $cache/layers ] || [ -z \"\$(ls $cache/layers)\" ]" || fail 'something was unpacked'
# A job can change what is its own in there, and the layer stays as it is.
ok as alice srun -Qw n1 --environment=dev sh -c 'rm -r /usr/share/doc/own; echo x >/opt/t/plain; mv /opt/t/dir /opt/d; ls /usr/share/doc; cat /opt/t/plain'
equal "$out" x
ok as alice env PYTHONHASHSEED=0 srun -Qw n1 --environment=dev python3 look.py
diff <(echo "$want") <(echo "$out") || fail 'a job changed the layer'

# The next snapshot is one more layer; a later job has both.
inside alice dev 'kopf -c 3000000 /dev/urandom >/opt/noise; echo two >/opt/two; rm -r /opt/t/empty'
ok as alice srun -QN2 --environment=dev sh -c 'cat /opt/two; stat -c %s /opt/noise; [ ! -e /opt/t/empty ]; cat /usr/share/doc/own/o'
equal "$(sort <<<"$out" | uniq -c | xargs)" '2 3000000 2 o 2 two'
[ "$(mounted)" -ge 1 ]
# With `unpacked` there are directories.
as alice sh -c 'mkdir -p .config/skiff; printf "[slurm]\nlayers = \"unpacked\"\n" >.config/skiff/config.toml'
ok as alice srun -Qw n1 --environment=dev cat /opt/two
equal "$out" two
on n1 sh -c "[ -n \"\$(ls $cache/layers)\" ]" || fail 'nothing was unpacked'
rm -f .config/skiff/config.toml

# Bob sees nothing of alice's layers, and what he runs on is his own. (tests/helper-attacks-images tries to have others' mounted.)
id=$(on n1 sh -c "ls $store/images | sed -n 's/.erofs\$//p' | head -1")
fails 2 on n1 setpriv --reuid bob --regid bob --init-groups ls $store/images
ok as bob skiff env create dev
inside bob dev 'echo of-bob >/opt/two'
ok as bob srun -Qw n1 --environment=dev cat /opt/two
equal "$out" of-bob
on n1 sh -c "[ ! -e $store/users/$(id -u bob)/$id ]" || fail "bob may use alice's layer"

# Two users who have the same layers need them at the same moment, on a node that has none: each is written once, and both may use it.
digests() { json "$(cat "/home/$1/.local/share/skiff/depot/snapshots/$2.json")" "' '.join(l['digest'] for l in d['layers'])"; }
ok as alice skiff env export dev dev.skiff
mv dev.skiff /shared
chmod 644 /shared/dev.skiff
ok as bob skiff env import /shared/dev.skiff twin
same=
for user in alice bob; do
    ok as $user skiff env snapshot "$([ $user = alice ] && echo dev || echo twin)"
    same+="$(digests $user "$(tail -n 1 <<<"$out")") "
done
read -r -a same <<<"$same"
equal "${#same[@]}" $(($(printf '%s\n' "${same[@]}" | sort -u | wc -l) * 2)) "alice's and bob's layers together"
drop
start alice srun -Qw n1 --environment=dev sh -c 'cat /opt/two >raced'
first=$started
start bob srun -Qw n1 --environment=twin sh -c 'cat /opt/two >raced'
wait $first
wait $started
equal "$(cat raced /home/bob/raced)" $'two\ntwo'
equal "$(stored)" $((${#same[@]} / 2))
equal "$(unfinished)" ''
for user in alice bob; do
    for layer in "${same[@]}"; do on n1 test -e "$store/users/$(id -u $user)/$layer" || fail "$user may not use $layer"; done
done

# A layer that is damaged in the depot never gets its name, and the job says what is wrong with it.
drop
pack=$(ls -S $depot/packs | head -1)
cp -a $depot/packs/$pack kept
printf 'X' | dd of=$depot/packs/$pack bs=1 seek=30000 conv=notrunc status=none
fails 125 as alice srun -Qw n1 --environment=dev true
has "$err" 'depot verify'
equal "$(on n1 sh -c "ls $store/tmp | wc -l")" 0
cat kept >$depot/packs/$pack
ok as alice srun -Qw n1 --environment=dev cat /opt/two
equal "$out" two

# Whoever is killed while a layer is made leaves nothing in its way.
inside alice dev 'kopf -c 150000000 /dev/urandom >/opt/large'
ok as alice skiff env snapshot dev
for i in 1 2 3 4; do
    drop
    start alice srun -Qw n1 --environment=dev true
    # Until it is being made. A node that is faster than we look has done it, and is killed a moment later.
    for look in $(seq 200); do
        ! on n1 sh -c "[ -n \"\$(ls $store/tmp 2>&-)\" ]" || break
        kill -0 $started 2>&- || break
        sleep 0.02
    done
    sleep 0.0$i
    pids=$(on n1 pgrep -u daemon,alice -f 'store-writer|skiff' || true)
    [ -z "$pids" ] || on n1 kill -9 $pids 2>&- || true
    wait $started || true
    idle
done
ok as alice srun -Qw n1 --environment=dev stat -c %s /opt/large
equal "$out" 150000000
equal "$(on n1 sh -c "ls $store/tmp | wc -l")" 0

# The depot's file changes while it is read: what has come of it gets no name, and the next job has what is whole.
pack=$(ls -S $depot/packs | head -1)
cp -a $depot/packs/$pack kept
drop
start alice sh -c 'srun -Qw n1 --environment=dev stat -c %s /opt/large >changed.out 2>changed.err'
for look in $(seq 200); do
    ! on n1 sh -c "[ -n \"\$(ls $store/tmp 2>&-)\" ]" || break
    kill -0 $started 2>&- || break
    sleep 0.02
done
truncate -s 1000000 $depot/packs/$pack
code=0
wait $started || code=$?
# It may have been read to its end already.
[ $code = 125 ] || equal "$(cat changed.out)" 150000000
[ $code = 0 ] || has "$(cat changed.err)" 'depot verify'
cat kept >$depot/packs/$pack
ok as alice srun -Qw n1 --environment=dev stat -c %s /opt/large
equal "$out" 150000000
equal "$(on n1 sh -c "ls $store/tmp | wc -l")" 0

# The depot goes away while it is read: what is open is read to its end, or the job says what is missing. Nothing half-made gets a name.
for moment in 0 0.05 0.2; do
    drop
    rm -f gone.*
    start alice sh -c 'srun -Qw n1 --environment=dev stat -c %s /opt/large >gone.out 2>gone.err'
    for look in $(seq 200); do
        ! on n1 sh -c "[ -n \"\$(ls $store/tmp 2>&-)\" ]" || break
        kill -0 $started 2>&- || break
        sleep 0.02
    done
    sleep $moment
    mv $depot $depot.away
    code=0
    wait $started || code=$?
    [ ! -e $depot ] || rm -r $depot
    mv $depot.away $depot
    case $code in
    0) equal "$(cat gone.out)" 150000000 ;;
    125) has "$(cat gone.err)" 'hint: '; has "$(cat gone.err)" depot ;;
    *) fail "exit code $code: $(cat gone.err)" ;;
    esac
    equal "$(unfinished)" ''
    ok as alice srun -Qw n1 --environment=dev stat -c %s /opt/large
    equal "$out" 150000000
done

# What a writer that was killed has left goes when the next layer is made, whoever makes it, and by root's sweep.
left=$(printf '%064d' 1)
leave() { on n1 sh -c "cd $store && for name in tmp/$left tmp/for.1.$left tmp/$left.json images/$left.lock; do install -m 600 -o daemon -g daemon /etc/passwd \$name; done"; }
leave
inside alice dev 'echo three >/opt/three'
ok as alice srun -Qw n1 --environment=dev cat /opt/three
equal "$(unfinished)" ''
leave
ok on n1 skiff sweep
has "$out" "tmp/$left"
equal "$(unfinished)" ''

# A layer that the kernel does not take after all is unpacked, and the job says why.
on n1 sh -c "umount -l /run/skiff/images/*; rmdir /run/skiff/images/*; rm -rf $cache/layers/*; cd $store/images; for file in *.erofs; do size=\$(stat -c %s \$file); rm \$file; head -c \$size /dev/urandom >\$file; chown daemon \$file; chmod 400 \$file; done"
ok as alice srun -w n1 --environment=dev stat -c %s /opt/large
equal "$out" 150000000
has "$err" 'node n1: the snapshot is unpacked, as its layers cannot be mounted'
lacks "$err" EROFS

# What was used longest ago goes when there is too much; a job that runs on it has it to its end.
mkdir -p /etc/skiff/conf.d
printf '[slurm]\ncache_bytes = 170000000\n' >/etc/skiff/conf.d/layers.toml
drop
ok as alice sbatch --parsable -w n1 -o long.out --environment=dev --wrap 'touch begun; while [ ! -e go ]; do sleep 0.1; done; md5sum /opt/large | cut -c1-32'
long=$out
eventually 20 test -e begun
ok as alice skiff env exec dev -- md5sum /opt/large
sum=${out%% *}
before=$(on n1 sh -c "ls $store/images | grep erofs\$")
ok as alice skiff env create other
inside alice other 'head -c 100000000 /dev/urandom >/opt/large'
ok as alice srun -Qw n1 --environment=other stat -c %s /opt/large
equal "$out" 100000000
after=$(on n1 sh -c "ls $store/images | grep erofs\$")
[ -n "$(comm -23 <(echo "$before") <(echo "$after"))" ] || fail "nothing was evicted: $before, $after"
touch go
equal "$(ended "$long")" 'COMPLETED 0:0'
equal "$(cat long.out)" "$sum"
ok as alice srun -Qw n1 --environment=dev md5sum /opt/large
equal "${out%% *}" "$sum"

# However little layers may take, those of one snapshot are there together.
printf '[slurm]\ncache_bytes = 1000\n' >/etc/skiff/conf.d/layers.toml
drop
for i in 1 2; do
    ok as alice srun -Qw n1 --environment=dev stat -c %s /opt/large
    equal "$out" 150000000
    equal "$err" ''
done
on n1 sh -c "[ ! -e $cache/layers ] || [ -z \"\$(ls $cache/layers)\" ]" || fail 'something was unpacked'

# The disk is full before all of a layer is written: the ends of these files lie beside it for a moment. It is unpacked; nothing of it stays.
ok as alice skiff env create many
inside alice many 'mkdir /opt/m; python3 -c "import os; [open(f\"/opt/m/{i}\", \"wb\").write(os.urandom(3000)) for i in range(2000)]"'
rm /etc/skiff/conf.d/layers.toml
on n1 mount -t tmpfs -o size=9m,mode=755,uid="$(id -u daemon)",gid="$(id -g daemon)" none $store
ok as alice srun -w n1 --environment=many sh -c 'cat /opt/m/* | wc -c'
equal "$out" 6000000
has "$err" 'cannot be mounted'
has "$err" 'No space left'
equal "$(unfinished)$(stored)" 0
on n1 umount -l $store

# Where the store has no room for it a layer is unpacked.
drop
echo 'store_user_quota = 10M' >/etc/skiff/helper.conf
ok as alice srun -Qw n1 --environment=dev stat -c %s /opt/large
equal "$out" 150000000
has "$err" 'store quota exceeded'
for name in dev other many; do as alice skiff env stop $name || true; done
for name in dev twin; do as bob skiff env stop $name || true; done
idle
