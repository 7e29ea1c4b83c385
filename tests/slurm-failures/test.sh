# What can be missing or broken: the job says what and how to mend it, ends with 125, and never runs on the bare node.
# takes: 28
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
inside alice dev 'echo x >/etc/marker; head -c 3000000 /dev/urandom >/opt/data'
depot=/home/alice/.local/share/skiff/depot
cache=/var/cache/skiff
cd /home/alice

# On n1 the task, step and script must fail with these words; n2 is sound. Nothing is left.
refused() { # WORDS...
    local word
    rm -f ran out
    fails 125 as alice srun -n1 -w n1 --environment=dev touch ran
    for word; do has "$err" "$word"; done
    has "$err" 'hint: '
    ok as alice sbatch --parsable -w n1 -o out --environment=dev --wrap 'touch ran'
    [[ $(ended "$out") =~ ^FAILED\ (125|126|127|0):[09] ]] || fail "batch job: $(scontrol show job "$out")"
    for word; do has "$(cat out)" "$word" 'what the script says'; done
    test ! -e ran || fail 'it ran all the same'
}
mended() {
    ok as alice srun -N2 --environment=dev cat /etc/marker
    equal "$out" $'x\nx'
}
forget() { on n1 find "$cache/$(id -u alice)" -mindepth 1 -delete; }
mended

# ---- When submitting: nothing is submitted
for name in missing ../dev a/b '' .hidden; do
    try as alice srun -n1 --environment="$name" touch ran
    [ "$code" != 0 ] || fail "environment '$name' was taken"
done
for command in 'srun -n1 touch ran' 'sbatch --wrap=true' 'salloc touch ran'; do
    fails 125 as alice env SKIFF_ENVIRONMENT=missing $command
    has "$err" 'environment missing: '
    has "$err" 'hint: '
    has "$err" 'nothing was submitted'
done
fails 125 as alice env SKIFF_DEPOT=/proc/no srun -n1 --environment=dev touch ran
has "$err" /proc/no
fails 125 as alice env SKIFF_DEPOT=relative srun -n1 --environment=dev touch ran
has "$err" 'is not an absolute path'
mkdir small
mount -t tmpfs -o size=1m,mode=1777 none small
fails 125 as alice env SKIFF_DEPOT=/home/alice/small/depot srun -n1 --environment=dev touch ran
has "$err" 'No space left'
equal "$(find small -type f -size +100k)" '' 'half a layer is left'
umount small
test ! -e ran
# A descriptor that nobody of ours made.
for descriptor in garbage '{}' '{"environment":"dev","snapshot":"../../etc","depot":"/"}' \
    "{\"environment\":\"dev\",\"snapshot\":\"$(printf %064d 0)\",\"depot\":\"/nowhere\"}"; do
    try as alice env SLURM_SKIFF_JOB="$descriptor" SKIFF_JOB="$descriptor" SLURM_JOB_ID= srun -n1 -w n1 touch ran
    [ "$code" != 0 ] || test ! -e ran || as alice rm ran # a plain job outside of Skiff is fine too
done

# ---- On the node
# No plug-in in its plugstack.conf, or not the file.
on n1 mount --bind /dev/null /etc/slurm/plugstack.conf.d/skiff.conf
refused "plug-in" 
on n1 umount /etc/slurm/plugstack.conf.d/skiff.conf
on n1 mount --bind /dev/null /usr/lib/skiff/skiff_spank.so
refused "plug-in"
on n1 umount /usr/lib/skiff/skiff_spank.so
# No helper, or one without its rights.
on n1 mount --bind /dev/null /usr/libexec/skiff/skiff-helper
refused skiff-helper
on n1 umount /usr/libexec/skiff/skiff-helper
on n1 sh -c 'cp /usr/libexec/skiff/skiff-helper /run/h; chmod 755 /run/h; mount --bind /run/h /usr/libexec/skiff/skiff-helper'
forget
refused 'does not run as root'
on n1 umount /usr/libexec/skiff/skiff-helper
# The site's configuration is not the site's.
on n1 sh -c 'cp /etc/skiff/config.toml /run/c; chown alice /run/c; mount --bind /run/c /etc/skiff/config.toml'
refused 'config.toml: belongs to uid'
on n1 umount /etc/skiff/config.toml
# The depot is not there on that node.
forget
mkdir -p /run/empty
on n1 sh -c "mkdir /run/empty; mount --bind /run/empty $depot"
refused "$depot"
on n1 umount $depot
# The depot's file system hangs: the limit that the site has set ends it, as long as that is. (FUSE's daemon does not answer.)
forget
on n1 sh -c "install -d -o alice -m 700 /run/upper && mkdir /run/work && fuse-overlayfs -o lowerdir=$depot,upperdir=/run/upper,workdir=/run/work,allow_other $depot 2>/dev/null"
daemon=$(on n1 pgrep -x fuse-overlayfs)
mkdir -p /etc/skiff/conf.d
printf '[slurm]\nfetch_seconds = 2\n' >/etc/skiff/conf.d/fetch.toml
on n1 kill -STOP "$daemon"
begin=$SECONDS
refused "environment dev: not fetched from $depot to node n1 within 2 s"
[ $((SECONDS - begin)) -lt 20 ] || fail "it took $((SECONDS - begin)) s"
[ $((SECONDS - begin)) -ge 4 ] || fail "it took $((SECONDS - begin)) s only"
on n1 kill -CONT "$daemon"
ok as alice srun -n1 -w n1 --environment=dev cat /etc/marker
on n1 sh -c "umount $depot; rm -r /run/upper /run/work"
rm /etc/skiff/conf.d/fetch.toml
# The cache is not to be written, or full. (The epilog of the job before may not find it so.)
idle
on n1 sh -c "mount --bind $cache $cache; mount -o remount,ro,bind $cache"
refused $cache 'Read-only'
on n1 umount $cache
on n1 mount -t tmpfs -o size=1m,mode=755 none $cache
refused 'No space left' ': it needs up to '
equal "$(on n1 find $cache -size +100k)" '' 'half a layer is left'
on n1 umount $cache
# /run is full: the job's own directory cannot be made.
on n1 sh -c 'mkdir -p /run/skiff/jobs; mount -t tmpfs -o size=4k,nr_inodes=1 none /run/skiff/jobs'
refused /run/skiff/jobs
on n1 umount /run/skiff/jobs
mended
# Somebody else has put something where root makes room for the job's user.
idle
on n1 sh -c "rmdir $cache/jobs; ln -s /etc $cache/jobs"
refused "$cache/jobs: not a directory"
on n1 rm $cache/jobs
mended
# No user can fill /run, which is memory that the whole node needs: of what is made there nothing is his to write.
rm -f job
start alice srun -Q -n1 -w n1 --environment=dev sh -c 'echo $SLURM_JOB_ID >job; exec sleep 30'
eventually 10 test -s job
on n1 test -S "/run/skiff/jobs/$(cat job)/user/step.0/control.sock"
equal "$(on n1 setpriv --reuid alice --regid alice --init-groups sh -c 'find /run/skiff -writable ! -type l 2>&- || true')" '' 'what alice can write to'
[ "$(on n1 stat -Lc %d "/run/skiff/jobs/$(cat job)/user")" != "$(on n1 stat -c %d /run)" ] || fail 'her part is in /run'
scancel "$(cat job)"
wait "$started" || true

# An epilog that fails or is killed leaves all of its job. The next one on this node, whoever's it is, removes that, and nothing else; and a job
# that is requeued meanwhile finds nothing of its earlier run.
ok as bob skiff env create dev
rm -f go go.again up allocated again.out kept
start alice salloc -Q -n1 -w n1 --environment=dev sh -c 'srun -n1 sh -c "echo kept >/opt/kept; echo \$SLURM_JOB_ID >allocated"
    while [ ! -e go ]; do sleep 0.1; done; srun -n1 cp /opt/kept kept'
allocation=$started
eventually 10 test -s allocated
ok as alice sbatch --parsable -w n1 --requeue --environment=dev -o again.out --open-mode=append --wrap \
    'cat /opt/again || echo fresh; echo earlier >/opt/again; touch up; [ -e go.again ] || sleep 1000'
again=$out
start bob srun -Q -n1 -w n1 --environment=dev sh -c 'echo $SLURM_JOB_ID >job; exec sleep 1000'
eventually 10 test -s /home/bob/job -a -e up
job=$(cat /home/bob/job)
on n1 mount --bind /bin/false /usr/bin/skiff
scontrol requeuehold "$again"
scancel "$job"
wait "$started" || true
eventually 10 sh -c "squeue -h -j $again -o %t | grep -q PD && ! squeue -h -o %t | grep -q CG"
on n1 umount /usr/bin/skiff
on n1 pgrep -u bob >/dev/null || fail 'there is nothing left of it to be removed'
touch go.again
# Slurm would wait for two minutes, forgets what it is told too early, and takes a node out of use for an epilog that fails. A job that it begins
# within the second in which it has ended its earlier run it ends as well ("already killed").
sleep 2
begun_again() {
    scontrol release "$again" || true
    scontrol update nodename=n1 state=resume 2>&- || true
    scontrol update job="$again" starttime=now || true
    scontrol show job "$again" | grep -q JobState=COMPLETED
}
eventually 30 begun_again
equal "$(grep -xE 'fresh|earlier' again.out)" $'fresh\nfresh'
eventually 10 on n1 sh -c "! pgrep -u bob; [ \"\$(echo /run/skiff/jobs/*)\" = /run/skiff/jobs/$(cat allocated) ]"
touch go
wait $allocation
equal "$(cat kept)" kept
idle

# The snapshot is damaged, or gone.
pack=$(find $depot/packs -type f -size +1M)
list=$(ls -S $depot/layers/*.chunks | head -n 1)
forget
printf XXXXXXXX | dd of="$pack" bs=1 seek=1000000 conv=notrunc status=none
refused "$(basename "$list" .chunks)"
# The test before may have left layers of bob's.
equal "$(on n1 find $cache -size +100k ! -path "$cache/$(id -u bob)/*")" '' 'half a layer is left'
# What the hint says helps; and what is seen to be cut off, or gone, is written again by itself.
for damage in "rm $pack" "truncate -s 500000 $pack" "rm $list" "truncate -s 100 $list"; do
    forget
    $damage
    mended
done
# A queued one whose snapshot is removed.
ok as alice sbatch --parsable -H -w n1 --environment=dev -o out --wrap 'touch ran'
queued=$out
mv $depot $depot.away
scontrol release "$queued"
equal "$(ended "$queued")" 'FAILED 125:0'
has "$(cat out)" "$depot"
test ! -e ran
mv $depot.away $depot

# A batch job begins anew as often as the configuration says, a step fails at once.
idle
printf '[slurm]\nrequeue = 1\n' >/etc/skiff/conf.d/requeue.toml
forget
ok as alice sbatch --parsable -H --requeue -w n1 -o anew --open-mode=append --environment=dev --wrap 'cat /etc/marker'
queued=$out
mv $depot $depot.away
scontrol release "$queued"
eventually 20 sh -c "scontrol show job $queued | grep -q Restarts=1 && squeue -h -j $queued -o %t | grep -q PD"
# Slurm says so before the step's last words are in the file.
eventually 10 grep -qF "job $queued goes back into the queue (1 of 1 times)" anew
mv $depot.away $depot
sleep 2
completed() {
    scontrol update job="$queued" starttime=now || true
    scontrol show job "$queued" | grep -q JobState=COMPLETED
}
eventually 60 completed
equal "$(tail -n 1 anew)" x
rm /etc/skiff/conf.d/requeue.toml
mended

# The job's own room is used up: an error of its own, nothing more.
printf '\n[run]\nmemory = "1M"\n' >>/etc/skiff/config.toml
fails 1 as alice srun -n1 -w n1 --environment=dev sh -c 'dd if=/dev/zero of=/opt/zeros bs=1M count=3 2>&1; rm /opt/zeros; echo on >/opt/on && exit 1'
has "$out" 'No space left'
mended
idle
